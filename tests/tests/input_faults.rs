//! What people pass by mistake, and what happens to files meanwhile: each a typed error or the
//! right bytes, never a hang, a leak or a panic.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio_cufile::{AsyncCuFile, Error, ErrorKind, HostBuffer, OpenOptions, Operation, VendorCode};
use tokio_cufile_tests::bench::{self, Bench, block_on, each_in};
use tokio_cufile_tests::child::{self, Child};
use tokio_cufile_tests::memory::{Memory, read, split};
use tokio_cufile_tests::{each, need, pattern};

/// Opens for reading, for writing, and to create or cut: all are to fail in the same way.
async fn refusals(bench: &Bench, path: &Path) -> Vec<Error> {
    let write = OpenOptions::new().write(true);
    let mut errors = Vec::new();
    for options in [
        OpenOptions::new().read(true),
        write.clone(),
        write.clone().read(true),
        write.create(true).truncate(true),
    ] {
        let error = options.open(&bench.engine, path).await.unwrap_err();
        assert_eq!(error.operation(), Some(Operation::Open), "{error}");
        assert_eq!(error.path(), Some(path), "{error}");
        assert!(
            error.to_string().contains(&path.display().to_string()),
            "{error}"
        );
        errors.push(error);
    }
    errors
}

#[test]
fn a_file_or_folder_that_is_not_there_is_not_found() {
    each(async |bench| {
        symlink(bench.path("nowhere"), bench.path("dangling")).unwrap();
        fs::write(bench.path("file"), "").unwrap();
        for path in ["missing", "no/folder/here", "dangling", "file/below"] {
            let path = bench.path(path);
            let error = AsyncCuFile::open(&bench.engine, &path).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            assert_eq!(error.path(), Some(&*path));
            assert!(matches!(error.vendor_code(), Some(VendorCode::Errno(_))));
        }
        let error = AsyncCuFile::open(&bench.engine, "").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        let error = AsyncCuFile::create(&bench.engine, bench.path("no/folder"))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    });
}

#[test]
fn what_is_no_regular_file_is_refused_by_name_and_never_waited_for() {
    each(async |bench| {
        let fifo = bench.path("fifo");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let socket = bench.path("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let link = bench.path("link");
        symlink(&fifo, &link).unwrap();
        for (path, what) in [
            (fifo.parent().unwrap(), "directory"),
            (&fifo, "FIFO"),
            (&link, "FIFO"),
            (&socket, "socket"),
            (Path::new("/dev/zero"), "character device"),
        ] {
            for error in refusals(bench, path).await {
                assert_eq!(error.kind(), ErrorKind::NotRegularFile, "{error}");
                assert!(error.reason().contains(what), "{error}");
            }
        }
        drop(listener);
    });
}

#[test]
fn a_block_device_is_refused_and_not_cut() {
    each_in(&bench::disk(), async |bench| {
        // Whatever the machine has: the one under the root file system, or any other.
        let devices = fs::read_dir("/dev")
            .unwrap()
            .filter_map(|entry| Some(entry.ok()?.path()));
        let is_block = |path: &PathBuf| {
            fs::metadata(path).is_ok_and(|it| {
                FileType::from_raw_mode(it.permissions().mode()) == FileType::BlockDevice
            })
        };
        let Some(device) = devices
            .filter(is_block)
            .find(|path| File::open(path).is_ok())
        else {
            return;
        };
        let error = AsyncCuFile::open(&bench.engine, device).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotRegularFile, "{error}");
        assert!(error.reason().contains("block device"), "{error}");
    });
}

#[test]
fn a_path_that_names_nothing_possible_is_an_error_with_the_kernels_code() {
    each(async |bench| {
        symlink(bench.path("loop-b"), bench.path("loop-a")).unwrap();
        symlink(bench.path("loop-a"), bench.path("loop-b")).unwrap();
        let long_name = bench.path("n".repeat(256));
        let long_path = PathBuf::from("/tmp/".repeat(2_000));
        for (path, errno) in [
            (bench.path("loop-a"), rustix::io::Errno::LOOP),
            (long_name, rustix::io::Errno::NAMETOOLONG),
            (long_path, rustix::io::Errno::NAMETOOLONG),
        ] {
            for error in refusals(bench, &path).await {
                assert_eq!(
                    error.vendor_code(),
                    Some(VendorCode::Errno(errno.raw_os_error()))
                );
            }
        }
        for error in refusals(bench, Path::new("a\0b")).await {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        }
        let odd = std::ffi::OsStr::from_bytes(b"not \xff UTF-8\n");
        let path = bench.path(odd);
        let file = AsyncCuFile::create(&bench.engine, &path).await.unwrap();
        assert_eq!(file.path(), path);
        let _ = file.write_all_at(vec![1; 10], 0).await.unwrap();
    });
}

#[test]
fn a_file_that_the_user_may_not_open_is_permission_denied() {
    let Some(directory) = child::directory() else {
        if need::root() && need::tool("setpriv") {
            let home = tempfile::tempdir().unwrap();
            fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
            for (name, mode) in [("none", 0o000), ("read-only", 0o444)] {
                fs::write(home.path().join(name), "content").unwrap();
                let mode = fs::Permissions::from_mode(mode);
                fs::set_permissions(home.path().join(name), mode).unwrap();
            }
            Child::as_nobody(home.path()).run();
        }
        return;
    };
    assert!(!rustix::process::geteuid().is_root());
    each_in(&directory, async |bench| {
        let denied = |error: Error| {
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
            assert!(error.path().is_some());
        };
        for error in refusals(bench, &directory.join("none")).await {
            denied(error);
        }
        let read_only = directory.join("read-only");
        denied(
            AsyncCuFile::create(&bench.engine, &read_only)
                .await
                .unwrap_err(),
        );
        let file = AsyncCuFile::open(&bench.engine, &read_only).await.unwrap();
        assert_eq!(
            file.read_exact_at(vec![0; 7], 0).await.unwrap().buf,
            b"content"
        );
        // Nobody but root makes files there.
        let made = AsyncCuFile::create(&bench.engine, "/new").await;
        denied(made.unwrap_err());
    });
}

#[test]
fn a_file_made_without_permission_for_its_owner_can_be_written_by_who_made_it() {
    let Some(directory) = child::directory() else {
        if need::root() && need::tool("setpriv") {
            Child::as_nobody(tempfile::tempdir().unwrap().path()).run();
        }
        return;
    };
    each_in(&directory, async |bench| {
        let path = bench.fresh_path();
        let options = OpenOptions::new().write(true).create_new(true).mode(0o400);
        let opened = options.open(&bench.engine, &path).await;
        let file = match opened {
            Ok(file) => file,
            // Only where direct I/O is insisted on: it needs a second descriptor.
            Err(error) => {
                assert_eq!(
                    bench.setup.cache,
                    tokio_cufile::CacheMode::Direct,
                    "{error}"
                );
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                return;
            }
        };
        let content = pattern::bytes(1, 10_000);
        let done = file.write_all_at(content.clone(), 0).await.unwrap();
        assert_eq!(done.receipt.paths.get(bench.setup.subject.cached), 10_000);
        let route = file.route();
        assert!(
            route.reason.contains("second time") || !bench.goes_direct(),
            "{route}"
        );
        pattern::assert_same(&fs::read(&path).unwrap(), &content);
    });
}

/// Takes descriptors until there are none, and gives `spare` of them back.
fn exhaust(spare: usize) -> Vec<File> {
    let mut taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    taken.truncate(taken.len() - spare);
    taken
}

#[test]
fn without_descriptors_opening_fails_as_such_leaks_none_and_works_later() {
    let Some(directory) = child::directory() else {
        Child::new::<&str>(&[], &bench::disk()).run();
        return;
    };
    let limit = Rlimit {
        current: Some(64),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    each_in(&directory, async |bench| {
        let content = pattern::bytes(1, 50_000);
        let file = bench.file(&content).await.unwrap();
        // One is missing for the first descriptor, or for the direct one beside it.
        let needed = if bench.goes_direct() { 2 } else { 1 };
        let before = exhaust(0).len();
        for spare in 0..needed {
            let taken = exhaust(spare);
            for _ in 0..10 {
                let error = AsyncCuFile::open(&bench.engine, file.path())
                    .await
                    .unwrap_err();
                assert_eq!(error.kind(), ErrorKind::TooManyOpenFiles, "{error}");
                assert!(error.is_retryable());
                let error = bench.open(file.path()).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::TooManyOpenFiles, "{error}");
            }
            // What is open goes on.
            let outcome = read(&bench.engine, &file, Memory::Part(1), 50_000, 0).await;
            outcome.assert_read(&content);
            drop(taken);
            assert!(exhaust(0).len() >= before, "nothing was leaked");
        }
        drop(
            AsyncCuFile::open(&bench.engine, file.path())
                .await
                .unwrap()
                .close()
                .await,
        );
        assert!(exhaust(0).len() >= before, "nothing was leaked");
    });
}

#[test]
fn a_process_without_standard_streams_does_not_print_into_the_users_file() {
    let Some(directory) = child::directory() else {
        if need::tool("strace") {
            // std would open /dev/null instead; told that nothing is closed, it does not.
            let shell = ["sh", "-c", r#"exec "$0" "$@" <&-"#];
            let trace = [
                "strace",
                "-o",
                "/dev/null",
                "-e",
                "inject=poll:retval=0:when=1",
            ];
            let prefix: Vec<_> = shell.into_iter().chain(trace).collect();
            Child::new(&prefix, &bench::disk()).run();
        }
        return;
    };
    assert!(!Path::new("/proc/self/fd/0").exists(), "it is closed");
    let is_stdin = |file: &AsyncCuFile| {
        fs::read_link("/proc/self/fd/0").is_ok_and(|found| found == file.path())
    };
    each_in(&directory, async |bench| {
        let content = pattern::bytes(1, 50_000);
        let file = bench.file(&content).await.unwrap();
        assert!(!is_stdin(&file));
        let outcome = read(&bench.engine, &file, Memory::Buffer, 50_000, 0).await;
        outcome.assert_read(&content);
        let std_file = File::open(file.path()).unwrap();
        let adopted = AsyncCuFile::from_std(&bench.engine, std_file)
            .await
            .unwrap();
        assert!(!is_stdin(&file), "the number was given back");
        let outcome = read(&bench.engine, &adopted, Memory::Buffer, 50_000, 0).await;
        outcome.assert_read(&content);
    });
}

#[test]
fn a_file_cut_and_grown_while_it_is_read_gives_its_bytes_or_an_earlier_end() {
    each(async |bench| {
        const LEN: usize = 256 << 10;
        let content = pattern::bytes(1, LEN);
        let file = bench.file(&content).await.unwrap();
        let others = fs::OpenOptions::new()
            .write(true)
            .open(file.path())
            .unwrap();
        let mut buffer = HostBuffer::new(&bench.engine, LEN).unwrap();
        for round in 0..40 {
            buffer.as_mut_slice().unwrap().fill(0xee);
            let transfer = file.read_at(buffer, 0).start();
            // Grows again in time for some parts, with zeros where the content was.
            let cut = (round * 6_007) % LEN;
            others.set_len(cut as u64).unwrap();
            others.set_len(LEN as u64).unwrap();
            let done = transfer.await.unwrap();
            assert!(done.bytes >= cut.min(LEN));
            buffer = done.buf;
            let found = &buffer.as_slice().unwrap()[..done.bytes];
            for (at, (&byte, &was)) in found.iter().zip(&content).enumerate() {
                assert!(
                    byte == was || (at >= cut && byte == 0),
                    "byte {at} is {byte}, cut at {cut}"
                );
            }
            others.write_all_at(&content, 0).unwrap();
        }
    });
}

#[test]
fn a_file_that_was_cut_after_it_was_opened_ends_where_it_ends_now() {
    each(async |bench| {
        let content = pattern::bytes(1, 100_000);
        let file = bench.file(&content).await.unwrap();
        for len in [70_001, 4_097, 4_096, 1, 0] {
            let others = fs::OpenOptions::new()
                .write(true)
                .open(file.path())
                .unwrap();
            others.set_len(len as u64).unwrap();
            let outcome = read(&bench.engine, &file, Memory::Part(1), 100_000, 0).await;
            outcome.assert_read(&content[..len]);
            let failed = file.read_exact_at(vec![0; 100_000], 0).await;
            let (outcome, _) = split(failed);
            assert_eq!(outcome.error.unwrap().kind(), ErrorKind::UnexpectedEof);
            assert_eq!(outcome.bytes, len);
        }
    });
}

#[test]
fn offsets_above_4_gib_reach_their_bytes() {
    each(async |bench| {
        const FAR: u64 = (5 << 30) + 12_345;
        let content = pattern::bytes(1, 100_000);
        let file = bench.file(&[]).await.unwrap();
        let _ = file.write_all_at(content.clone(), FAR).await.unwrap();
        assert_eq!(file.len().await.unwrap(), FAR + 100_000);
        let outcome = read(&bench.engine, &file, Memory::Part(3), 120_000, FAR - 10_000).await;
        let mut expected = vec![0; 10_000];
        expected.extend_from_slice(&content);
        outcome.assert_read(&expected);
        let outcome = read(&bench.engine, &file, Memory::Buffer, 4_096, 4 << 30).await;
        outcome.assert_read(&[0; 4_096]);
        let mut back = vec![0; 100_000];
        File::open(file.path())
            .unwrap()
            .read_exact_at(&mut back, FAR)
            .unwrap();
        pattern::assert_same(&back, &content);
    });
}

#[test]
fn a_request_above_2_gib_is_one_request() {
    // More than one system call can move, and not a multiple of anything.
    const LEN: usize = (1 << 31) + 8_191;
    let directory = tempfile::tempdir_in(bench::disk()).unwrap();
    let path = directory.path().join("sparse");
    let std_file = File::create(&path).unwrap();
    std_file.set_len(LEN as u64 + 5_000).unwrap();
    let marks = [
        0,
        4_095,
        (1 << 30) + 1,
        (1 << 31) - 4_097,
        (1 << 31) - 1,
        LEN - 1,
    ];
    for (mark, at) in (1..).zip(marks) {
        std_file.write_all_at(&[mark], at as u64).unwrap();
    }
    for subject in bench::subjects() {
        // One part as large as may be; the slots are not.
        let builder = tokio_cufile::Engine::builder()
            .io(subject.io)
            .budget(5 << 30);
        let engine = builder
            .task_size(4 << 30)
            .num_threads(2)
            .build_blocking()
            .unwrap();
        block_on(async {
            let file = AsyncCuFile::open(&engine, &path).await.unwrap();
            let buffer = HostBuffer::new(&engine, LEN).unwrap();
            let done = file.read_exact_at(buffer, 0).await.unwrap();
            assert_eq!(done.receipt.paths.total(), LEN as u64);
            let bytes = done.buf.as_slice().unwrap();
            for (mark, at) in (1..).zip(marks) {
                assert_eq!(bytes[at], mark, "at {at}");
            }
            let zeros: usize = bytes.iter().map(|&byte| usize::from(byte == 0)).sum();
            assert_eq!(zeros, LEN - marks.len());
        });
    }
}

#[test]
fn a_file_of_the_kernel_that_has_no_length_is_read_all_the_same() {
    each_in(&bench::disk(), async |bench| {
        let path = Path::new("/proc/self/cmdline");
        let Ok(file) = AsyncCuFile::open(&bench.engine, path).await else {
            assert_eq!(bench.setup.cache, tokio_cufile::CacheMode::Direct);
            return;
        };
        let expected = fs::read(path).unwrap();
        let outcome = read(&bench.engine, &file, Memory::Buffer, 1_000, 0).await;
        let shown = expected.len().min(1_000);
        outcome.assert_read(&expected[..shown]);
    });
}
