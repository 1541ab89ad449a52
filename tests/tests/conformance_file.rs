//! Opening, length, durability and closing, on every engine.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::fs;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tokio_cufile::{AsyncCuFile, CacheMode, ErrorKind, HostBuffer, OpenOptions, Operation};
use tokio_cufile_tests::bench::Bench;
use tokio_cufile_tests::mount::Mount;
use tokio_cufile_tests::{each, each_in, pattern};

fn custom_flags(flags: OFlags) -> i32 {
    i32::try_from(flags.bits()).unwrap()
}

/// Descriptors that this process has open inside `directory`.
fn open_in(directory: &Path) -> Vec<PathBuf> {
    let directory = fs::canonicalize(directory).unwrap();
    let descriptors = fs::read_dir("/proc/self/fd").unwrap();
    let targets = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets
        .filter(|target| target.starts_with(&directory))
        .collect()
}

async fn kind_of(options: &OpenOptions, bench: &Bench, path: &Path) -> ErrorKind {
    let error = options.open(&bench.engine, path).await.unwrap_err();
    assert_eq!(error.operation(), Some(Operation::Open), "{error}");
    assert_eq!(error.path(), Some(path), "{error}");
    error.kind()
}

#[test]
fn open_reads_and_create_cuts_or_makes() {
    each(async |bench| {
        let path = bench.fresh_path();
        let file = AsyncCuFile::create(&bench.engine, &path).await.unwrap();
        assert_eq!((file.path(), file.len().await.unwrap()), (&*path, 0));
        let _ = file.write_all_at(b"content".to_vec(), 0).await.unwrap();
        file.close().await.unwrap();

        let file = AsyncCuFile::open(&bench.engine, &path).await.unwrap();
        assert_eq!(file.len().await.unwrap(), 7);
        assert_eq!(
            file.read_exact_at(vec![0; 7], 0).await.unwrap().buf,
            b"content"
        );

        let again = AsyncCuFile::create(&bench.engine, &path).await.unwrap();
        assert_eq!(file.len().await.unwrap(), 0, "both see that it was cut");
        drop(again);
    });
}

#[test]
fn options_mean_what_those_of_std_mean() {
    each(async |bench| {
        let none = OpenOptions::new();
        let path = bench.path("new");
        for senseless in [
            none.clone(),
            none.clone().create(true),
            none.clone().read(true).create(true),
            none.clone().read(true).create_new(true),
            none.clone().read(true).truncate(true),
        ] {
            assert_eq!(
                kind_of(&senseless, bench, &path).await,
                ErrorKind::InvalidInput
            );
            assert!(!path.exists());
        }
        let write = none.write(true);
        assert_eq!(kind_of(&write, bench, &path).await, ErrorKind::NotFound);
        let new = write.clone().create_new(true);
        let file = new.open(&bench.engine, &path).await.unwrap();
        let _ = file.write_all_at(b"content".to_vec(), 0).await.unwrap();
        assert_eq!(kind_of(&new, bench, &path).await, ErrorKind::AlreadyExists);
        let kept = write
            .clone()
            .create(true)
            .open(&bench.engine, &path)
            .await
            .unwrap();
        assert_eq!(kept.len().await.unwrap(), 7);
        let cut = write
            .truncate(true)
            .open(&bench.engine, &path)
            .await
            .unwrap();
        assert_eq!(cut.len().await.unwrap(), 0);
    });
}

#[test]
fn the_mode_is_that_of_a_created_file_before_the_umask() {
    each(async |bench| {
        for mode in [0o600, 0o640, 0o400] {
            let path = bench.fresh_path();
            let options = OpenOptions::new().write(true).create_new(true).mode(mode);
            let file = options.open(&bench.engine, &path).await.unwrap();
            // No usual umask takes these bits from the owner.
            let found = fs::metadata(&path).unwrap().permissions().mode() & 0o700;
            assert_eq!(found, mode & 0o700);
            let _ = file.write_all_at(vec![1; 5_000], 0).await.unwrap();
        }
    });
}

#[test]
fn a_future_that_was_never_polled_has_opened_nothing() {
    each(async |bench| {
        let path = bench.fresh_path();
        drop(AsyncCuFile::create(&bench.engine, &path));
        drop(
            OpenOptions::new()
                .write(true)
                .create(true)
                .open(&bench.engine, &path),
        );
        let _ = bench.engine.shutdown().await;
        assert!(!path.exists());
    });
}

#[test]
fn a_file_adopted_from_std_is_the_same_file_renamed_or_deleted() {
    each(async |bench| {
        let content = pattern::bytes(1, 70_000);
        let (path, moved) = (bench.fresh_path(), bench.fresh_path());
        fs::write(&path, &content).unwrap();
        let std_file = fs::File::open(&path).unwrap();
        fs::rename(&path, &moved).unwrap();
        fs::write(&path, b"a stranger").unwrap();
        let file = AsyncCuFile::from_std(&bench.engine, std_file)
            .await
            .unwrap();
        let done = file.read_exact_at(vec![0; 70_000], 0).await.unwrap();
        pattern::assert_same(&done.buf, &content);
        bench.assert_read_paths(done.receipt.paths);

        let std_file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&moved)
            .unwrap();
        fs::remove_file(&moved).unwrap();
        let adopted = AsyncCuFile::from_std(&bench.engine, std_file).await;
        if bench.opens_again() {
            // The library opens it by its path, and there is none.
            let error = adopted.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let meaning = "no other descriptor could be had";
            assert!(error.to_string().contains(meaning), "{error}");
            return;
        }
        let file = adopted.unwrap();
        let _ = file.write_all_at(vec![9; 10_000], 60_000).await.unwrap();
        let done = file.read_at(vec![0; 80_000], 0).await.unwrap();
        pattern::assert_same(&done.buf[..60_000], &content[..60_000]);
        assert_eq!(&done.buf[60_000..70_000], vec![9; 10_000]);
        assert_eq!(done.bytes, 70_000);
    });
}

#[test]
fn a_file_that_cannot_be_used_by_offset_is_not_adopted() {
    each(async |bench| {
        let path = bench.fresh_path();
        let append = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .unwrap();
        let error = AsyncCuFile::from_std(&bench.engine, append)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        let flags = custom_flags(OFlags::PATH);
        let only_path = fs::OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(&path)
            .unwrap();
        let error = AsyncCuFile::from_std(&bench.engine, only_path)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        let directory = fs::File::open(path.parent().unwrap()).unwrap();
        let error = AsyncCuFile::from_std(&bench.engine, directory)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotRegularFile, "{error}");
    });
}

#[test]
fn a_file_that_std_opened_for_direct_io_serves_unaligned_bytes_too() {
    each(async |bench| {
        if !bench.takes_direct {
            return;
        }
        let content = pattern::bytes(2, 30_000);
        let path = bench.fresh_path();
        fs::write(&path, &content).unwrap();
        let flags = custom_flags(OFlags::DIRECT);
        let std_file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(&path);
        let file = AsyncCuFile::from_std(&bench.engine, std_file.unwrap())
            .await
            .unwrap();
        let _ = file.write_all_at(vec![7; 5_001], 4_097).await.unwrap();
        let done = file.read_exact_at(vec![0; 29_999], 1).await.unwrap();
        let mut expected = content;
        expected[4_097..9_098].fill(7);
        pattern::assert_same(&done.buf, &expected[1..]);
    });
}

#[test]
fn the_length_is_that_of_the_file_now() {
    each(async |bench| {
        let file = bench.file(b"content").await.unwrap();
        assert_eq!(file.len().await.unwrap(), 7);
        fs::write(file.path(), vec![0; 100_001]).unwrap();
        assert_eq!(file.len().await.unwrap(), 100_001);
    });
}

#[test]
fn set_len_cuts_and_extends_with_zeros() {
    each(async |bench| {
        let content = pattern::bytes(3, 20_000);
        let file = bench.file(&content).await.unwrap();
        file.set_len(9_999).await.unwrap();
        file.set_len(15_000).await.unwrap();
        assert_eq!(file.len().await.unwrap(), 15_000);
        let mut expected = content[..9_999].to_vec();
        expected.resize(15_000, 0);
        let done = file.read_at(vec![0xee; 20_000], 0).await.unwrap();
        assert_eq!(done.bytes, 15_000);
        pattern::assert_same(&done.buf[..15_000], &expected);
        file.set_len(0).await.unwrap();
        assert_eq!(file.len().await.unwrap(), 0);
        for len in [u64::MAX, 1 << 63] {
            let error = file.set_len(len).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        }
        assert_eq!(file.len().await.unwrap(), 0);
    });
}

#[test]
fn set_len_waits_for_the_writes_before_it() {
    each(async |bench| {
        let file = bench.file(&[]).await.unwrap();
        for _ in 0..10 {
            let write = file.write_all_at(vec![1; 200_000], 0).start();
            file.set_len(0).await.unwrap();
            assert_eq!(file.len().await.unwrap(), 0, "a write came after the cut");
            drop(write.await.unwrap());
        }
    });
}

#[test]
fn sync_works_on_every_handle_also_one_for_reading() {
    each(async |bench| {
        let file = bench.file(b"content").await.unwrap();
        file.sync_data().await.unwrap();
        file.sync_all().await.unwrap();
        let reader = AsyncCuFile::open(&bench.engine, file.path()).await.unwrap();
        reader.sync_data().await.unwrap();
        reader.sync_all().await.unwrap();
        reader.drop_cache().await.unwrap();
    });
}

#[test]
fn closing_waits_for_writes_and_leaves_no_descriptor() {
    each(async |bench| {
        let path = bench.fresh_path();
        let file = AsyncCuFile::create(&bench.engine, &path).await.unwrap();
        // The library has one of its own.
        let descriptors = 1 + usize::from(bench.goes_direct());
        let descriptors = descriptors + usize::from(bench.opens_again());
        assert_eq!(open_in(path.parent().unwrap()).len(), descriptors);
        let write = file.write_all_at(vec![1; 300_000], 1).start();
        file.close().await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 300_001);
        let done = write.await.unwrap();
        assert_eq!(done.bytes, 300_000);
        // The thread that moved the last part may hold the file a moment longer.
        let mut looks = (0..1_000_000).map(|_| open_in(path.parent().unwrap()));
        assert!(looks.any(|open| open.is_empty()), "a descriptor is left");
    });
}

#[test]
fn a_file_closed_with_reads_in_flight_lets_them_finish() {
    each(async |bench| {
        let content = pattern::bytes(4, 300_000);
        let file = bench.file(&content).await.unwrap();
        let reads: Vec<_> = (0..8)
            .map(|_| {
                let buffer = HostBuffer::new(&bench.engine, 300_000).unwrap();
                file.read_exact_at(buffer, 0).start()
            })
            .collect();
        file.close().await.unwrap();
        for read in reads {
            let done = read.await.unwrap();
            pattern::assert_same(done.buf.as_slice().unwrap(), &content);
        }
    });
}

#[test]
fn a_dropped_file_and_a_dropped_open_leave_no_descriptor() {
    each(async |bench| {
        let content = pattern::bytes(5, 100_000);
        let path = bench.fresh_path();
        fs::write(&path, &content).unwrap();
        let file = bench.open(&path).await.unwrap();
        let read = file.read_exact_at(vec![0; 100_000], 0).start();
        drop(file);
        pattern::assert_same(&read.await.unwrap().buf, &content);
        drop(AsyncCuFile::open(&bench.engine, &path).start());
        let _ = bench.engine.shutdown().await;
        assert!(open_in(path.parent().unwrap()).is_empty());
    });
}

#[test]
fn a_file_refused_for_its_route_is_not_cut() {
    let Some(ramfs) = Mount::ramfs() else { return };
    each_in(ramfs.path(), async |bench| {
        assert!(!bench.takes_direct);
        let path = bench.fresh_path();
        fs::write(&path, b"content").unwrap();
        let direct = OpenOptions::new().write(true).cache(CacheMode::Direct);
        let cut = direct.clone().truncate(true);
        assert_eq!(kind_of(&cut, bench, &path).await, ErrorKind::Unsupported);
        assert_eq!(fs::read(&path).unwrap(), b"content");
        assert_eq!(kind_of(&direct, bench, &path).await, ErrorKind::Unsupported);
        assert!(open_in(path.parent().unwrap()).is_empty());
    });
}
