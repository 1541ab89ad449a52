//! The same behaviour on every file system, and errors of the file system and its device.
//!
//! Failure: bytes that differ, an error of the wrong kind, a count of bytes that is not true.
//! Mechanism: block sizes, alignments and what is refused differ; devices fail in the middle.
//! Method: file systems made for the test; a disk that fails where it is told to; and system calls
//! that fail by injection, in a child.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, Stdio};

use tempfile::TempDir;
use tokio_cufile::{
    AsyncCuFile, CacheMode, DataPath, ErrorKind, HostBuffer, Operation, PathClass, VendorCode,
};
use tokio_cufile_tests::bench::{self, Bench, Subject, block_on, setups};
use tokio_cufile_tests::child::{self, Child};
use tokio_cufile_tests::memory::{Memory, read, split, write};
use tokio_cufile_tests::mount::{self, Mount};
use tokio_cufile_tests::{each_in, need, pattern};

/// Reads and writes with all kinds of edges, and everything else once.
fn suite(parent: &Path) {
    each_in(parent, async |bench| {
        let mut expected = pattern::bytes(1, 150_001);
        let file = bench.file(&expected).await.unwrap();
        file.sync_all().await.unwrap();
        file.drop_cache().await.unwrap();
        for memory in [
            Memory::Buffer,
            Memory::Part(1),
            Memory::Part(512),
            Memory::Vec,
        ] {
            for (offset, len) in [
                (0, 150_001),
                (0, 65_536),
                (511, 4_097),
                (4_096, 512),
                (149_999, 9),
            ] {
                let news = pattern::bytes(offset as u64, len);
                let outcome = write(&bench.engine, &file, memory, &news, offset as u64).await;
                outcome.assert_wrote(len);
                expected.resize(expected.len().max(offset + len), 0);
                expected[offset..offset + len].copy_from_slice(&news);
                let outcome = read(&bench.engine, &file, memory, 200_000, offset as u64).await;
                bench.assert_read_paths(outcome.paths());
                outcome.assert_read(&expected[offset..]);
            }
            pattern::assert_same(&fs::read(file.path()).unwrap(), &expected);
        }
        let direct = file
            .read_at(vec![0; 9], 1)
            .require(PathClass::DirectIo)
            .await;
        assert_eq!(direct.is_ok(), bench.goes_direct());
        file.set_len(70_001).await.unwrap();
        file.sync_all().await.unwrap();
        let outcome = read(&bench.engine, &file, Memory::Buffer, 150_000, 0).await;
        outcome.assert_read(&expected[..70_001]);
        file.close().await.unwrap();
    });
}

#[test]
fn ext4_and_xfs_with_small_and_large_sectors() {
    for kind in ["ext4", "xfs"] {
        for sector in [512, 4_096] {
            let Some(mount) = Mount::on_loop(kind, 320 << 20, sector) else {
                return;
            };
            assert!(bench::takes_direct(mount.path()));
            suite(mount.path());
        }
    }
}

#[test]
fn overlayfs() {
    let Some(mount) = Mount::overlay() else {
        return;
    };
    suite(mount.path());
}

#[test]
fn overlayfs_copies_a_file_up_when_it_is_written() {
    let Some(mount) = Mount::overlay() else {
        return;
    };
    let lower = mount.path().parent().unwrap().join("lower/file");
    each_in(mount.path(), async |bench| {
        // A change of the lower layer below a mount is undefined, but a new file is seen.
        let name = format!("file-{}", bench.setup.name);
        let (lower, path) = (lower.with_file_name(&name), mount.path().join(&name));
        let content = pattern::bytes(1, 50_000);
        fs::write(&lower, &content).unwrap();
        let file = bench.open(&path).await.unwrap();
        write(&bench.engine, &file, Memory::Buffer, &[7; 10_000], 5)
            .await
            .assert_wrote(10_000);
        let mut expected = content.clone();
        expected[5..10_005].fill(7);
        read(&bench.engine, &file, Memory::Buffer, 50_000, 0)
            .await
            .assert_read(&expected);
        pattern::assert_same(&fs::read(&lower).unwrap(), &content);
    });
}

#[test]
fn tmpfs_and_ramfs() {
    let (Some(tmpfs), Some(ramfs)) = (Mount::tmpfs(64 << 20), Mount::ramfs()) else {
        return;
    };
    suite(tmpfs.path());
    suite(ramfs.path());
}

/// Writes more than there is room for and checks what is said against what is there.
async fn fill(bench: &Bench, len: usize) {
    let file = AsyncCuFile::create(&bench.engine, bench.fresh_path())
        .await
        .unwrap();
    let content = pattern::bytes(1, len);
    let mut buffer = HostBuffer::new(&bench.engine, len).unwrap();
    buffer.as_mut_slice().unwrap().copy_from_slice(&content);
    let (outcome, buffer) = split(file.write_all_at(buffer, 0).await);
    let error = outcome.error.expect("there is not so much room");
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    assert_eq!(error.operation(), Some(Operation::Write));
    assert_eq!(error.path(), Some(file.path()));
    assert_eq!(error.vendor_code(), Some(VendorCode::Errno(28)));
    // The first failure by offset; later parts may have found the last room.
    assert_eq!(error.offset(), Some(outcome.bytes as u64));
    assert!(outcome.bytes < len);
    pattern::assert_same(buffer.as_slice().unwrap(), &content);
    pattern::assert_same(
        &fs::read(file.path()).unwrap()[..outcome.bytes],
        &content[..outcome.bytes],
    );
    // The engine and the file are as good as before.
    file.set_len(0).await.unwrap();
    write(&bench.engine, &file, Memory::Part(1), &content[..9_999], 1)
        .await
        .assert_wrote(9_999);
    file.close().await.unwrap();
    fs::remove_file(bench.path("file-0")).unwrap();
}

#[test]
fn a_full_file_system_is_storage_full_and_the_bytes_before_it_are_there() {
    let Some(tmpfs) = Mount::tmpfs(8 << 20) else {
        return;
    };
    each_in(tmpfs.path(), async |bench| fill(bench, 12 << 20).await);
    let Some(ext4) = Mount::on_loop("ext4", 16 << 20, 512) else {
        return;
    };
    each_in(ext4.path(), async |bench| fill(bench, 20 << 20).await);
}

#[test]
fn a_file_above_the_file_systems_largest_is_storage_full() {
    let Some(ext4) = Mount::on_loop("ext4", 16 << 20, 512) else {
        return;
    };
    each_in(ext4.path(), async |bench| {
        let file = bench.file(&[]).await.unwrap();
        for offset in [1 << 50, (1 << 50) + 1] {
            let (outcome, _) = split(file.write_at(vec![1; 5_000], offset).await);
            let error = outcome.error.unwrap();
            assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
            assert_eq!((error.offset(), outcome.bytes), (Some(offset), 0));
        }
        assert_eq!(file.len().await.unwrap(), 0);
    });
}

/// A disk of 4 MiB shown as one file, whose bytes from 1 MiB on can be neither read nor written.
struct BrokenDisk {
    file: PathBuf,
    server: Process,
    _home: TempDir,
}

const SOUND: usize = 1 << 20;
const DISK: u64 = 4 << 20;

impl BrokenDisk {
    fn new() -> Option<Self> {
        let tools = need::fuse() && need::mount() && need::tool("fusermount3");
        if !(tools && need::tool("nbdkit") && need::tool("nbdfuse")) {
            return None;
        }
        let home = tempfile::tempdir().unwrap();
        let (file, data) = (home.path().join("disk"), home.path().join("data"));
        fs::write(&file, "").unwrap();
        fs::write(&data, pattern::bytes(1, SOUND)).unwrap();
        let guard = format!("[ $(($3 + $4)) -le {SOUND} ] || {{ echo EIO broken >&2; exit 1; }}");
        let dd = "dd status=none conv=notrunc bs=64k count=$3";
        let data = data.display();
        let server = Command::new("nbdfuse")
            .arg(&file)
            .args(["--command", "nbdkit", "-s", "--exit-with-parent", "eval"])
            .arg(format!("get_size=echo {DISK}"))
            .arg("can_write=exit 0")
            .arg("can_flush=exit 0")
            .arg("flush=exit 0")
            .arg(format!("pread={guard}; {dd} if={data} skip=$4 iflag=skip_bytes,count_bytes"))
            .arg(format!("pwrite={guard}; {dd} of={data} seek=$4 oflag=seek_bytes iflag=count_bytes,fullblock"))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let disk = Self {
            file,
            server,
            _home: home,
        };
        while fs::metadata(&disk.file).is_ok_and(|found| found.len() != DISK) {
            std::thread::yield_now();
        }
        Some(disk)
    }
}

impl Drop for BrokenDisk {
    fn drop(&mut self) {
        if let Err(reason) = mount::output("fusermount3", [Path::new("-uz"), &self.file]) {
            eprintln!("{reason}");
        }
        // It has nothing left to serve, and now and then waits for its own child for ever.
        drop(self.server.kill());
        drop(self.server.wait());
    }
}

#[test]
fn a_disk_that_fails_is_an_io_error_at_its_offset_and_the_bytes_before_it_are_right() {
    let Some(disk) = BrokenDisk::new() else {
        return;
    };
    let content = pattern::bytes(1, SOUND);
    for setup in setups() {
        eprintln!("{}", setup.name);
        let engine = setup.builder.clone().build_blocking().unwrap();
        block_on(async {
            let options = tokio_cufile::OpenOptions::new().read(true).write(true);
            let file = options.open(&engine, &disk.file).await.unwrap();
            let outcome = read(&engine, &file, Memory::Buffer, SOUND, 0).await;
            outcome.assert_read(&content);
            for (memory, len) in [
                (Memory::Buffer, SOUND + (64 << 10)),
                (Memory::Part(1), SOUND + 9),
            ] {
                let outcome = read(&engine, &file, memory, len, 0).await;
                assert_io_error(&outcome, &file, (Operation::Read, 0));
                pattern::assert_same(&outcome.content, &content[..outcome.bytes]);
            }
            let offset = SOUND - 65_536;
            let news = &content[offset..];
            let outcome = write(&engine, &file, Memory::Buffer, news, offset as u64).await;
            outcome.assert_wrote(65_536);
            if file.route().resolved.ends_with("direct") {
                let news = [news, news].concat();
                let outcome = write(&engine, &file, Memory::Buffer, &news, offset as u64).await;
                assert_io_error(&outcome, &file, (Operation::Write, offset as u64));
            }
            let outcome = read(&engine, &file, Memory::Buffer, SOUND, 0).await;
            outcome.assert_read(&content);
            bench::assert_all_home(&engine).await;
        });
    }
}

fn assert_io_error(
    outcome: &tokio_cufile_tests::memory::Outcome,
    file: &AsyncCuFile,
    (operation, start): (Operation, u64),
) {
    let error = outcome.error.as_ref().expect("the disk is broken");
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert_eq!(error.operation(), Some(operation));
    assert_eq!(error.vendor_code(), Some(VendorCode::Errno(5)));
    assert_eq!(error.path(), Some(file.path()));
    assert!(outcome.bytes <= SOUND);
    assert_eq!(error.offset(), Some(start + outcome.bytes as u64));
    assert!(!outcome.receipt.as_ref().unwrap().route.resolved.is_empty());
}

/// Runs this test again under strace with an injection into one system call on one file; gives the
/// file in the child.
fn injected(rules: &[&str], work: impl AsyncFn(&Bench, &Path)) {
    let Some(directory) = child::directory() else {
        if need::tool("strace") {
            let home = tempfile::tempdir_in(bench::disk()).unwrap();
            let file = home.path().join("target");
            fs::write(&file, pattern::bytes(1, LEN)).unwrap();
            let log = home.path().join("log");
            let mut prefix: Vec<String> = ["strace", "-f", "-o"].map(String::from).to_vec();
            prefix.push(log.display().to_string());
            prefix.extend(["-P".to_owned(), file.display().to_string()]);
            for rule in rules {
                prefix.extend(["-e".to_owned(), format!("inject={rule}")]);
            }
            Child::new(&prefix, home.path()).run();
            let log = fs::read_to_string(log).unwrap();
            assert!(log.contains("INJECTED"), "nothing was injected: {log}");
        }
        return;
    };
    // One thread, so that "the first call" is one call: strace counts for each thread.
    // strace does not reach what the kernel does for a ring.
    for mut setup in setups().into_iter().filter(|setup| is_pool(setup.subject)) {
        eprintln!("{}", setup.name);
        setup.builder = setup.builder.num_threads(1);
        // What is in the page cache would be taken from there by another call.
        if setup.cache == CacheMode::Auto && bench::takes_direct(&directory) {
            setup.cache = CacheMode::Direct;
            setup.builder = setup.builder.cache(CacheMode::Direct);
        }
        block_on(async {
            let bench = Bench::new(&setup, &directory);
            let target = directory.join("target");
            // Only by what is under test may strace see the file.
            fs::write(&target, pattern::bytes(1, LEN)).unwrap();
            work(&bench, &target).await;
            bench::assert_all_home(&bench.engine).await;
        });
    }
}

const LEN: usize = 100_000;

fn is_pool(subject: Subject) -> bool {
    subject.direct == DataPath::PoolDirect
}

#[test]
fn interrupted_and_refused_calls_are_repeated_and_counted() {
    let rules = [
        "pread64:error=EINTR:when=1..3",
        "pwrite64:error=EAGAIN:when=1..3",
    ];
    injected(&rules, async |bench, path| {
        let file = bench.open(path).await.unwrap();
        let outcome = read(&bench.engine, &file, Memory::Part(1), LEN, 0).await;
        outcome.assert_read(&pattern::bytes(1, LEN));
        if is_pool(bench.setup.subject) {
            assert_eq!(outcome.receipt.unwrap().retries, 3);
        }
        let outcome = write(&bench.engine, &file, Memory::Vec, &[7; 50_000], 3).await;
        outcome.assert_wrote(50_000);
        if is_pool(bench.setup.subject) {
            assert_eq!(outcome.receipt.unwrap().retries, 3);
        }
        let mut expected = pattern::bytes(1, LEN);
        expected[3..50_003].fill(7);
        read(&bench.engine, &file, Memory::Buffer, LEN, 0)
            .await
            .assert_read(&expected);
    });
}

#[test]
fn a_call_that_is_interrupted_for_ever_is_an_error_in_the_end() {
    injected(&["pread64:error=EINTR"], async |bench, path| {
        let file = bench.open(path).await.unwrap();
        let outcome = read(&bench.engine, &file, Memory::Buffer, 4_096, 0).await;
        assert_eq!(
            outcome.error.unwrap().vendor_code(),
            Some(VendorCode::Errno(4))
        );
        assert_eq!(outcome.bytes, 0);
    });
}

#[test]
fn an_aligned_direct_read_that_is_refused_is_repeated_buffered_and_noted() {
    injected(&["pread64:error=EINVAL:when=1"], async |bench, path| {
        let file = bench.open(path).await.unwrap();
        let outcome = read(&bench.engine, &file, Memory::Buffer, LEN, 0).await;
        if !bench.goes_direct() {
            assert_eq!(outcome.error.unwrap().kind(), ErrorKind::InvalidInput);
            return;
        }
        let (paths, receipt) = (outcome.paths(), outcome.receipt.clone().unwrap());
        outcome.assert_read(&pattern::bytes(1, LEN));
        assert!(paths.get(DataPath::Buffered) > 0, "{receipt:?}");
        assert!(
            receipt.notes.iter().any(|note| note.contains("EINVAL")),
            "{receipt:?}"
        );
        assert!(receipt.retries > 0);
        // It is remembered, and no later receipt or promise says direct.
        let outcome = read(&bench.engine, &file, Memory::Part(1), 9_999, 0).await;
        assert_eq!(outcome.paths().get(DataPath::Buffered), 9_999);
        let class = PathClass::DirectIo;
        let failed = file
            .read_at(vec![0; 512], 0)
            .require(class)
            .await
            .unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::PathRefused, "{failed}");
        let class = PathClass::Exactly(DataPath::Buffered);
        let done = file.read_at(vec![0; 512], 0).require(class).await.unwrap();
        assert_eq!(done.receipt.paths.get(DataPath::Buffered), 512);
    });
}

#[test]
fn an_aligned_direct_write_that_is_refused_is_repeated_buffered_and_noted() {
    injected(&["pwrite64:error=EINVAL:when=1"], async |bench, path| {
        if !bench.goes_direct() {
            let file = bench.open(path).await.unwrap();
            let outcome = write(&bench.engine, &file, Memory::Buffer, &[7; 512], 0).await;
            assert_eq!(outcome.error.unwrap().kind(), ErrorKind::InvalidInput);
            return;
        }
        for memory in [Memory::Buffer, Memory::Part(1)] {
            let file = bench.open(path).await.unwrap();
            let outcome = write(&bench.engine, &file, memory, &[7; 65_536], 0).await;
            let paths = outcome.paths();
            outcome.assert_wrote(65_536);
            if memory == Memory::Buffer {
                assert!(paths.get(DataPath::Buffered) > 0, "{paths:?}");
                assert!(outcome.receipt.unwrap().notes[0].contains("EINVAL"));
            }
            assert_eq!(&fs::read(path).unwrap()[..65_536], vec![7; 65_536]);
        }
    });
}

#[test]
fn a_refused_direct_call_violates_a_path_that_was_required() {
    let rules = [
        "pread64:error=EINVAL:when=1",
        "pwrite64:error=EINVAL:when=1",
    ];
    injected(&rules, async |bench, path| {
        let file = bench.open(path).await.unwrap();
        if !bench.goes_direct() {
            // So that there was something to inject.
            assert!(
                read(&bench.engine, &file, Memory::Vec, 9, 0)
                    .await
                    .error
                    .is_some()
            );
            return;
        }
        let class = PathClass::DirectIo;
        let (outcome, _) = split(file.read_at(vec![0; 4_096], 0).require(class).await);
        let error = outcome.error.unwrap();
        assert_eq!(error.kind(), ErrorKind::PathViolated, "{error}");
        assert_eq!((error.path(), error.offset()), (Some(path), Some(0)));
        assert_eq!(outcome.bytes, 0);
        let (outcome, _) = split(file.write_at(vec![0; 4_096], 0).require(class).await);
        assert_eq!(outcome.error.unwrap().kind(), ErrorKind::PathViolated);
        pattern::assert_same(&fs::read(path).unwrap(), &pattern::bytes(1, LEN));
    });
}

#[test]
fn a_sync_that_failed_stays_failed() {
    injected(&["fdatasync:error=EIO:when=1"], async |bench, path| {
        let file = bench.open(path).await.unwrap();
        write(&bench.engine, &file, Memory::Vec, &[7; 100], 3)
            .await
            .assert_wrote(100);
        for _ in 0..2 {
            let error = file.sync_data().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
            assert_eq!(error.operation(), Some(Operation::Sync));
            assert_eq!(error.path(), Some(path));
        }
        assert!(
            file.sync_all().await.is_err(),
            "the kernel may call the lost pages clean"
        );
        let anew = bench.open(path).await.unwrap();
        anew.sync_all().await.unwrap();
    });
}

#[test]
fn a_write_that_takes_no_byte_is_an_error_and_not_a_loop() {
    injected(&["pwrite64:retval=0"], async |bench, path| {
        let file = bench.open(path).await.unwrap();
        let (outcome, buf) = split(file.write_all_at(vec![7; 5_000], 0).await);
        assert_eq!(outcome.error.unwrap().kind(), ErrorKind::WriteZero);
        assert_eq!((outcome.bytes, buf.len()), (0, 5_000));
        assert!(file.path().exists());
        let content = fs::File::open(path).unwrap();
        let mut byte = [0];
        content.read_at(&mut byte, 0).unwrap();
    });
}
