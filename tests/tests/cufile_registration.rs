//! Files that cuFile does not take, and the life of those that it does.
//!
//! Failure: a file that cannot be opened for want of a udev entry; bytes of another file, whose
//! descriptor has the number that a handle goes by.
//! Mechanism: registration fails per file, for reasons that have nothing to do with the file; a handle
//! is the descriptor's number, and outlives it.
//! Method: refusals by path; files that are dropped and closed with operations in flight while others
//! are opened at the same numbers. The simulator names every request for a number that is another
//! file's, and every descriptor that was closed before its handle.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use tokio_cufile::{AsyncCuFile, CompatMode, ErrorKind, OpenOptions};
use tokio_cufile_tests::bench::{self, block_on};
use tokio_cufile_tests::cufile;
use tokio_cufile_tests::life::until;
use tokio_cufile_tests::{Bed, Sim, World, pattern};

const BLOCK: usize = 4096;

fn home() -> tempfile::TempDir {
    tempfile::tempdir_in(bench::disk()).unwrap()
}

#[test]
fn a_refused_file_is_an_error_where_cufile_was_insisted_on() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| builder);
    bed.cufile.fault(
        "refused-5027/cuFileHandleRegister:fail=5027;refused-5030/cuFileHandleRegister:fail=5030;\
         refused-5007/cuFileHandleRegister:fail=5007;refused-7777/cuFileHandleRegister:fail=7777",
    );
    for (code, reason) in [
        (5027, "udev database"),
        (5030, "INTERNAL_ERROR"),
        (5007, "PLATFORM_NOT_SUPPORTED"),
        (7777, "unknown cuFile code"),
    ] {
        let name = format!("refused-{code}");
        let path = bed.path(&name);
        fs::write(&path, b"content").unwrap();
        let error = block_on(AsyncCuFile::create(&bed.engine, &path)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(&code.to_string()), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"content", "it is not cut");
        // What was created to be refused stays, empty.
        let new = bed.path(&format!("{name}-new"));
        block_on(AsyncCuFile::create(&bed.engine, &new)).unwrap_err();
        assert_eq!(fs::read(&new).unwrap(), b"");
    }
    // The rest is served.
    let file = bed.file("taken", b"content");
    assert_eq!(file.route().resolved, "cufile");
    drop(file);
    bed.end();
}

#[test]
fn a_refused_file_goes_by_compat_where_it_may() {
    let Some(here) = World::new().by("nvidia-fs").enter() else {
        return;
    };
    let bed = Bed::new(&here, |builder| {
        let builder = builder.compat_mode(CompatMode::Auto);
        builder.cufile(cufile::with_nvidia_fs(&here))
    });
    bed.cufile.fault("refused/cuFileHandleRegister:fail=5027");
    let content = pattern::bytes(4, 1 << 20);
    let file = bed.file("refused", &content);
    let route = file.route().clone();
    assert!(
        route.reason.contains("HANDLE_NOT_REGISTERED (5027)"),
        "{route}"
    );
    let buffer = bed.buffer(&vec![0; content.len()]);
    let done = block_on(file.read_exact_at(buffer, 0)).unwrap();
    assert_eq!(*done.receipt.route, route);
    pattern::assert_same(&bed.content(done.buf), &content);
    assert_eq!(bed.calls("cuFileRead"), 0);
    drop(file);
    bed.end();
}

#[test]
fn a_file_that_only_appends_or_is_none_gives_the_same_error_as_elsewhere() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| builder);
    let error = block_on(AsyncCuFile::open(&bed.engine, home.path())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotRegularFile);
    let error = block_on(AsyncCuFile::open(&bed.engine, "/dev/null")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotRegularFile);
    let path = bed.path("log");
    let appended = fs::File::options().append(true).create(true).open(path);
    let error = block_on(AsyncCuFile::from_std(&bed.engine, appended.unwrap())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(bed.calls("cuFileHandleRegister"), 0);
    bed.end();
}

#[test]
fn a_file_of_the_standard_library_is_taken_over() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| builder);
    let content = pattern::bytes(9, 3 * BLOCK + 7);
    fs::write(bed.path("file"), &content).unwrap();
    let std = fs::File::open(bed.path("file")).unwrap();
    let file = block_on(AsyncCuFile::from_std(&bed.engine, std)).unwrap();
    assert_eq!(file.route().resolved, "cufile");
    let buffer = bed.buffer(&vec![0; content.len()]);
    let done = block_on(file.read_exact_at(buffer, 0)).unwrap();
    pattern::assert_same(&bed.content(done.buf), &content);
    block_on(file.close()).unwrap();
    assert_eq!(bed.cufile.report().files, 0);
    bed.end();
}

#[test]
fn an_open_that_is_dropped_leaves_nothing_registered() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| builder);
    fs::write(bed.path("file"), b"content").unwrap();
    bed.cufile.fault("cuFileHandleRegister:never,nth=1");
    let open = AsyncCuFile::open(&bed.engine, bed.path("file")).start();
    until(|| bed.fired() == 1);
    drop(open);
    bed.cufile.clear();
    until(|| bed.engine.stats().operations_live == 0);
    until(|| bed.cufile.report().files == 0);
    bed.end();
}

/// Reads that have begun in the library, and do not end.
#[test]
fn a_dropped_file_keeps_handle_and_number_until_the_last_operation_has_ended() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| builder.num_threads(8));
    let content = pattern::bytes(1, 4 * BLOCK);
    let file = bed.file("first", &content);
    bed.cufile.fault("first/cuFileRead:never,times=4");
    let reads: Vec<_> = (0..4_u64)
        .map(|index| {
            let buffer = bed.buffer(&[0; BLOCK]);
            file.read_exact_at(buffer, index * BLOCK as u64).start()
        })
        .collect();
    until(|| bed.fired() == 4);
    drop(file);
    // Whatever number is free is taken, by cuFile's files and by others.
    let others: Vec<_> = (0..8)
        .map(|index| bed.file(&format!("other-{index}"), &vec![index; 4 * BLOCK]))
        .collect();
    let held = fs::File::open(bed.path("other-0")).unwrap();
    bed.cufile.clear();
    for (index, read) in reads.into_iter().enumerate() {
        let done = block_on(read).unwrap();
        let expected = &content[index * BLOCK..][..BLOCK];
        pattern::assert_same(&bed.content(done.buf), expected);
    }
    until(|| bed.cufile.report().files == 8);
    drop((others, held));
    bed.end();
}

#[test]
fn a_number_that_is_used_again_at_once_is_never_the_other_file() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| builder.num_threads(4));
    fs::write(bed.path("a"), vec![b'a'; BLOCK]).unwrap();
    fs::write(bed.path("b"), vec![b'b'; BLOCK]).unwrap();
    for round in 0..60 {
        let (name, byte) = [("a", b'a'), ("b", b'b')][round % 2];
        let file = bed.open(name).unwrap();
        let read = file.read_exact_at(bed.buffer(&[0; BLOCK]), 0).start();
        match round % 3 {
            0 => drop(file),
            1 => block_on(file.close()).unwrap(),
            _ => {
                // The operation goes first.
                drop(read);
                block_on(file.close()).unwrap();
                continue;
            }
        }
        let done = block_on(read).unwrap();
        assert_eq!(bed.content(done.buf), [byte; BLOCK], "round {round}");
    }
    bed.end();
}

#[test]
fn many_handles_of_one_file_are_one_registration_each() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| builder);
    let content = pattern::bytes(2, BLOCK);
    let first = bed.file("file", &content);
    let more: Vec<_> = (0..9).map(|_| bed.open("file").unwrap()).collect();
    assert_eq!(bed.cufile.report().files, 10);
    for file in more.iter().chain([&first]) {
        let done = block_on(file.read_exact_at(bed.buffer(&[0; BLOCK]), 0)).unwrap();
        pattern::assert_same(&bed.content(done.buf), &content);
    }
    drop(more);
    until(|| bed.cufile.report().files == 1);
    drop(first);
    bed.end();
}

#[test]
fn files_that_are_open_at_the_shutdown_are_deregistered_by_it() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| builder);
    let file = bed.file("file", &[1; BLOCK]);
    let buffer = bed.buffer(&[0; BLOCK]);
    block_on(buffer.register(&bed.engine)).unwrap();
    let stats = bed.cufile.report();
    assert_eq!((stats.opens, stats.files, stats.buffers), (1, 1, 1));
    block_on(bed.engine.shutdown());
    let stats = bed.cufile.report();
    assert_eq!((stats.opens, stats.files, stats.buffers), (0, 0, 0));
    assert!(!buffer.is_registered());
    let read = block_on(file.read_at(vec![0; BLOCK], 0)).unwrap_err();
    assert_eq!(read.error().kind(), ErrorKind::ShuttingDown);
    drop((file, buffer));
    bed.end();
}

#[test]
fn options_of_one_file_override_the_engines() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| {
        builder.compat_mode(CompatMode::On)
    });
    fs::write(bed.path("file"), [3; BLOCK]).unwrap();
    let open = |compat_mode| {
        let options = OpenOptions::new().read(true).compat_mode(compat_mode);
        block_on(options.open(&bed.engine, bed.path("file"))).unwrap()
    };
    let (on, auto) = (open(CompatMode::On), open(CompatMode::Auto));
    assert_eq!(bed.cufile.report().opens, 0);
    let off = open(CompatMode::Off);
    assert_eq!(bed.cufile.report().files, 1);
    for (file, calls) in [(&on, 0), (&auto, 0), (&off, 1)] {
        let done = block_on(file.read_exact_at(bed.buffer(&[0; BLOCK]), 0)).unwrap();
        assert_eq!(bed.content(done.buf), [3; BLOCK]);
        assert_eq!(bed.calls("cuFileRead"), calls, "{}", file.route());
    }
    drop((on, auto, off));
    bed.end();
}
