//! Parts that go by cuFile's stream calls, in streams of the engine's own.
//!
//! Failure: other bytes, counts or errors than synchronous calls give; a claim of a path that nobody has
//! seen; too much in the library at once; a stream that is left behind.
//! Mechanism: such a call says only that something was put into a stream. What came of it is told late,
//! cannot be continued there, and is in the library's hands until then.
//! Method: the simulator reads the numbers late, writes their last later, and names whatever is gone by
//! then. Faults are those of operations (`@read`), of the calls that put them into streams, and of the
//! synchronous ones. The conformance suites and the property test run with these engines as well.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use tokio_cufile::{
    AsyncCuFile, CuFileCalls, CuFileStats, DataPath, DeviceBuffer, Done, Error, ErrorKind,
    PathClass, VendorCode,
};
use tokio_cufile_tests::bench::{self, block_on};
use tokio_cufile_tests::cufile::{self, by_streams, enter_each};
use tokio_cufile_tests::life::{poll_once, until};
use tokio_cufile_tests::{Bed, Sim, World, pattern};

const PAGE: usize = 4096;
const LEN: usize = 16 * PAGE;

fn home() -> tempfile::TempDir {
    tempfile::tempdir_in(bench::disk()).unwrap()
}

fn content() -> Vec<u8> {
    pattern::bytes(31, LEN)
}

/// Runs `test` with an engine whose parts are as large as the file.
fn with_streams(test: impl FnOnce(&Bed, &AsyncCuFile)) {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), by_streams);
    let file = bed.file("file", &content());
    test(&bed, &file);
    drop(file);
    bed.end();
}

/// Calls that put something into a stream, and those that do it at once.
fn calls(bed: &Bed) -> (u64, u64) {
    let sum = |one, other| bed.calls(one) + bed.calls(other);
    let streamed = sum("cuFileReadAsync", "cuFileWriteAsync");
    (streamed, sum("cuFileRead", "cuFileWrite"))
}

fn read(bed: &Bed, file: &AsyncCuFile) -> Result<Done<DeviceBuffer>, Error> {
    let read = file.read_at(bed.buffer(&[0xee; LEN]), 0);
    block_on(read).map_err(|failed| failed.into_parts().0)
}

fn assert_reads(bed: &Bed, file: &AsyncCuFile) {
    let done = read(bed, file).unwrap();
    assert_eq!((done.bytes, done.receipt.paths.total()), (LEN, LEN as u64));
    pattern::assert_same(&bed.content(done.buf), &content());
}

#[test]
fn parts_of_device_memory_go_by_streams_and_those_of_host_memory_do_not() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| {
        by_streams(builder).task_size(3 * PAGE)
    });
    let file = bed.file("file", &content());
    let done = read(&bed, &file).unwrap();
    assert_eq!(calls(&bed), (6, 0));
    let unverified = done.receipt.paths.get(DataPath::CufileUnverified);
    assert_eq!((unverified, done.receipt.retries), (LEN as u64, 0));
    assert!(done.receipt.io_time > std::time::Duration::ZERO);
    let done = block_on(file.write_all_at(done.buf, LEN as u64)).unwrap();
    assert_eq!((calls(&bed), done.bytes), ((12, 0), LEN));
    pattern::assert_same(&fs::read(file.path()).unwrap()[LEN..], &content());
    drop(done);
    let done = block_on(file.read_exact_at(vec![0; LEN], 0)).unwrap();
    pattern::assert_same(&done.buf, &content());
    assert_eq!(calls(&bed), (12, 6));
    let streams = bed.cufile.report().streams;
    assert!((1..=4).contains(&streams), "{streams}");
    assert_eq!(bed.calls("cuFileStreamRegister"), streams);
    drop(file);
    bed.end();
}

#[test]
fn memory_within_a_buffer_is_told_as_the_library_takes_it() {
    with_streams(|bed, file| {
        for is_registered in [false, true] {
            let mut buffer = bed.buffer(&[0xee; LEN]);
            if is_registered {
                block_on(buffer.register(&bed.engine)).unwrap();
            }
            let (at, len) = (PAGE + 3, 5 * PAGE);
            let part = buffer.part(at..at + len).unwrap();
            drop(block_on(file.read_exact_at(part, at as u64)).unwrap());
            let found = bed.content(buffer);
            pattern::assert_same(&found[at..at + len], &content()[at..at + len]);
            let around = found[..at].iter().chain(&found[at + len..]);
            assert!(around.into_iter().all(|&byte| byte == 0xee));
        }
        assert_eq!(calls(bed), (2, 0));
    });
}

#[test]
fn what_a_stream_leaves_undone_is_done_by_synchronous_calls() {
    with_streams(|bed, file| {
        for (fault, retries) in [
            ("short=5000", 1),
            ("short=4096", 1),
            ("return=0", 0),
            ("fail=4", 1),
            ("fail=11", 1),
        ] {
            let before = calls(bed);
            bed.cufile.fault(&format!("@*:{fault}"));
            let done = read(bed, file).unwrap();
            assert_eq!(
                (done.bytes, done.receipt.retries),
                (LEN, retries),
                "{fault}"
            );
            assert_eq!(done.receipt.paths.total(), LEN as u64);
            pattern::assert_same(&bed.content(done.buf), &content());
            fs::write(file.path(), vec![0; LEN]).unwrap();
            let done = block_on(file.write_all_at(bed.buffer(&content()), 0)).unwrap();
            assert_eq!(done.bytes, LEN, "{fault}");
            pattern::assert_same(&fs::read(file.path()).unwrap(), &content());
            let now = calls(bed);
            assert_eq!((now.0 - before.0, now.1 - before.1), (2, 2), "{fault}");
            bed.cufile.clear();
        }
        // Those may fail too, with the bytes before.
        bed.cufile.fault("@read:short=5000;cuFileRead:fail=5");
        let failed = block_on(file.read_at(bed.buffer(&[0; LEN]), 0)).unwrap_err();
        let error = failed.error();
        assert_eq!((error.kind(), error.offset()), (ErrorKind::Io, Some(5000)));
        assert_eq!(failed.bytes_done(), 5000);
        bed.cufile.clear();
        bed.cufile.fault("@read:fail=11;cuFileRead:fail=11");
        assert_eq!(read(bed, file).unwrap_err().kind(), ErrorKind::Io);
        bed.cufile.clear();
        bed.cufile.fault("@write:return=0;cuFileWrite:return=0");
        let failed = block_on(file.write_at(bed.buffer(&content()), 0)).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::WriteZero);
    });
}

#[test]
fn reads_are_short_at_the_end_of_the_file_and_nowhere_else() {
    with_streams(|bed, file| {
        for fault in ["", "@read:short=100"] {
            bed.cufile.fault(fault);
            for (offset, bytes) in [
                (LEN - 1000, 1000),
                (LEN, 0),
                (1 << 40, 0),
                (LEN / 2, LEN / 2),
            ] {
                let read = file.read_at(bed.buffer(&[0; LEN]), offset as u64);
                let done = block_on(read).unwrap();
                assert_eq!(done.bytes, bytes, "at {offset}, {fault}");
                let found = bed.content(done.buf);
                pattern::assert_same(&found[..bytes], &content()[offset.min(LEN)..][..bytes]);
            }
            let read = file.read_exact_at(bed.buffer(&[0; LEN]), 1);
            let failed = block_on(read).unwrap_err();
            assert_eq!(failed.error().kind(), ErrorKind::UnexpectedEof);
            bed.cufile.clear();
        }
    });
}

/// What an error is to its caller.
fn told(error: &Error) -> (ErrorKind, Option<VendorCode>, Option<u64>) {
    (error.kind(), error.vendor_code(), error.offset())
}

#[test]
fn errors_are_those_of_synchronous_calls() {
    let Some(sim) = Sim::need() else { return };
    let faults = [
        "fail=5022",
        "fail=5025",
        "fail=5008",
        "fail=5043",
        "fail=5",
        "fail=28",
        "return=-5027",
        "return=-5012",
        "return=-5011",
        "return=-7777",
        "return=-5",
        "return=-1",
    ];
    let run = |calls: CuFileCalls, of: [&str; 2]| {
        let home = home();
        let mut config = bench::simulated_cufile();
        config.calls = calls;
        let bed = Bed::on(sim, home.path(), |builder| builder.cufile(config));
        let file = bed.file("file", &content());
        let errors = faults.map(|fault| {
            for subject in of {
                bed.cufile.fault(&format!("{subject}:{fault}"));
            }
            let of_read = read(&bed, &file).unwrap_err();
            let failed = block_on(file.write_at(bed.buffer(&[0; PAGE]), PAGE as u64)).unwrap_err();
            bed.cufile.clear();
            (told(&of_read), told(failed.error()))
        });
        drop(file);
        bed.end();
        errors
    };
    let expected = run(CuFileCalls::Sync, ["cuFileRead", "cuFileWrite"]);
    let found = run(CuFileCalls::Stream, ["@read", "@write"]);
    for ((fault, expected), found) in faults.iter().zip(&expected).zip(&found) {
        assert_eq!(found, expected, "{fault}");
    }
}

#[test]
fn what_is_not_put_into_a_stream_goes_by_a_synchronous_call() {
    with_streams(|bed, file| {
        bed.cufile.fault("cuFileReadAsync:fail=5038");
        assert_reads(bed, file);
        assert_eq!((calls(bed), bed.fired()), ((1, 1), 1));
        // The error is that of the call.
        bed.cufile.fault("cuFileRead:fail=5043");
        let error = read(bed, file).unwrap_err();
        assert_eq!(error.vendor_code(), Some(VendorCode::CuFile(5043)));
        bed.cufile.clear();
        // It may be in the stream all the same, and is not done twice.
        let before = calls(bed);
        bed.cufile.fault("cuFileReadAsync:act-fail=5030");
        assert_reads(bed, file);
        assert_eq!(calls(bed), (before.0 + 1, before.1));
        bed.cufile.clear();
        // Nor does it need an event that is not to be had.
        bed.device.fault("cuEventCreate:fail=2,times=1");
        assert_reads(bed, file);
        assert_eq!(calls(bed), (before.0 + 1, before.1 + 1));
        bed.device.clear();
    });
}

#[test]
fn without_a_stream_to_be_had_parts_go_by_synchronous_calls() {
    with_streams(|bed, file| {
        // The device's thread has its streams by then.
        let buffer = bed.buffer(&[0; LEN]);
        bed.device.fault("cuStreamCreate:fail=2");
        let done = block_on(file.read_exact_at(buffer, 0)).unwrap();
        pattern::assert_same(&peek(bed, &done.buf), &content());
        assert_eq!(calls(bed), (0, 1));
        bed.device.clear();
        assert_reads(bed, file);
        assert_eq!(calls(bed), (1, 1));
    });
}

#[test]
fn no_more_is_in_streams_than_the_library_takes() {
    fill_streams("");
}

/// Those that are not held up at the moment may not take everything: full, they hold up for longer.
#[test]
fn streams_share_what_may_be_in_them_also_while_some_are_slow_to_take_it() {
    fill_streams(";cuFileReadAsync:slow=200000,times=3");
}

/// Reads more parts at once than go into streams, with these faults on the way into them.
fn fill_streams(faults: &str) {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| {
        by_streams(builder).num_threads(160).task_size(PAGE)
    });
    let content = pattern::bytes(32, 160 * PAGE);
    let file = bed.file("file", &content);
    bed.cufile.fault(&format!("@read:never{faults}"));
    let mut read = file
        .read_exact_at(bed.buffer(&vec![0; 160 * PAGE]), 0)
        .start();
    until(|| calls(&bed) == (128, 32));
    assert!(poll_once(&mut read).is_pending());
    assert_eq!(bed.cufile.report().blocked_submissions, 0);
    bed.cufile.clear();
    let done = block_on(read).unwrap();
    pattern::assert_same(&bed.content(done.buf), &content);
    // There is room again.
    let done = block_on(file.read_exact_at(bed.buffer(&[0; PAGE]), 0)).unwrap();
    assert_eq!(calls(&bed), (129, 32));
    drop((done, file));
    bed.end();
}

#[test]
fn what_was_dropped_is_kept_until_the_stream_has_passed_and_is_not_gone_on_with() {
    with_streams(|bed, file| {
        bed.cufile.fault("@read:never,nth=1;@read:short=5000,nth=1");
        let buffer = bed.buffer(&[0xee; LEN]);
        let address = buffer.address();
        let frees = bed.device.calls("cuMemFree_v2");
        let read = file.read_at(buffer, 0).start();
        until(|| bed.fired() == 2);
        drop(read);
        assert_eq!(bed.engine.stats().operations_live, 1);
        assert_eq!(bed.device.calls("cuMemFree_v2"), frees);
        assert_eq!(bed.device.peek(address, LEN), [0xee; LEN]);
        bed.cufile.clear();
        until(|| bed.device.calls("cuMemFree_v2") == frees + 1);
        assert_eq!(calls(bed), (1, 0));
    });
}

#[test]
fn a_shutdown_waits_for_what_is_in_streams() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), by_streams);
    let file = bed.file("file", &content());
    bed.cufile.fault("@*:never");
    let reads: Vec<_> = (0..6)
        .map(|_| file.read_exact_at(bed.buffer(&[0; LEN]), 0).start())
        .collect();
    until(|| bed.calls("cuFileReadAsync") == 6);
    let mut shutdown = Box::pin(bed.engine.shutdown());
    assert!(poll_once(&mut shutdown).is_pending());
    bed.cufile.clear();
    let report = block_on(shutdown);
    assert_eq!((report.drained, report.quarantined), (6, 0));
    for read in reads {
        pattern::assert_same(&peek(&bed, &block_on(read).unwrap().buf), &content());
    }
    drop(file);
    bed.end();
}

fn peek(bed: &Bed, buffer: &DeviceBuffer) -> Vec<u8> {
    bed.device.peek(buffer.address(), buffer.len())
}

#[test]
fn an_engine_that_is_dropped_leaves_no_stream_behind() {
    let worlds = ["posix", "nvidia-fs"].map(|path| World::new().by(path));
    let Some(here) = enter_each(&worlds) else {
        return;
    };
    let mut config = cufile::with_nvidia_fs(&here);
    config.calls = CuFileCalls::Stream;
    let bed = Bed::new(&here, |builder| builder.cufile(config));
    let file = bed.file("file", &content());
    bed.cufile.fault("@read:never");
    let reads: Vec<_> = (0..3)
        .map(|_| file.read_exact_at(bed.buffer(&[0; LEN]), 0).start())
        .collect();
    until(|| bed.calls("cuFileReadAsync") == 3);
    assert_eq!(bed.cufile.report().streams, 3);
    let Bed {
        engine,
        cufile,
        device,
        ..
    } = bed;
    drop((engine, file, reads));
    cufile.clear();
    device.assert_all_gone();
    let report = cufile.report();
    // The library itself stays open.
    assert_eq!((report.live(), report.opens), (0, 1), "{report:?}");
    cufile.assert_no_harm();
}

#[test]
fn streams_are_registered_where_they_can_be_and_deregistered_before_they_end() {
    let world = |path| move |fault| World::new().by(path).with("FAULT", fault);
    let faults = ["", "cuFileStreamRegister:fail=5030"];
    let worlds = [faults.map(world("posix")), faults.map(world("nvidia-fs"))];
    let Some(here) = enter_each(worlds.as_flattened()) else {
        return;
    };
    #[expect(clippy::disallowed_methods, reason = "the parent says which it is")]
    let fault = std::env::var("FAULT").unwrap();
    let mut config = cufile::with_nvidia_fs(&here);
    config.calls = CuFileCalls::Stream;
    let bed = Bed::new(&here, |builder| builder.cufile(config));
    let file = bed.file("file", &content());
    bed.cufile.fault(&fault);
    assert_reads(&bed, &file);
    assert_eq!(calls(&bed), (1, 0));
    let registered = bed.cufile.report().streams;
    assert_eq!(registered, u64::from(fault.is_empty()));
    assert_eq!(block_on(bed.engine.shutdown()).quarantined, 0);
    assert_eq!(bed.calls("cuFileStreamDeregister"), registered);
    drop(file);
    bed.end();
}

#[test]
fn what_has_to_prove_its_path_goes_by_synchronous_calls() {
    let Some(here) = World::new().by("nvidia-fs").enter() else {
        return;
    };
    let mut config = cufile::with_nvidia_fs(&here);
    (config.calls, config.stats) = (CuFileCalls::Stream, CuFileStats::On);
    let bed = Bed::new(&here, |builder| builder.cufile(config));
    let file = bed.file("file", &content());
    for class in [PathClass::Gds, PathClass::Exactly(DataPath::NvidiaFs)] {
        let read = file.read_exact_at(bed.buffer(&[0; LEN]), 0).require(class);
        let done = block_on(read).unwrap();
        assert_eq!(done.receipt.paths.get(DataPath::NvidiaFs), LEN as u64);
        let done = block_on(file.write_all_at(done.buf, 0).require(class)).unwrap();
        assert_eq!(done.receipt.paths.get(DataPath::NvidiaFs), LEN as u64);
    }
    assert_eq!(calls(&bed), (0, 4));
    // The library's counts would speak for it, but not of this part alone.
    let done = read(&bed, &file).unwrap();
    let unverified = done.receipt.paths.get(DataPath::CufileUnverified);
    assert_eq!((unverified, calls(&bed)), (LEN as u64, (1, 4)));
    drop((done, file));
    bed.end();
}

#[test]
fn a_library_without_such_calls_is_used_by_the_others_and_says_so() {
    let worlds = ["cuFileReadAsync", "cuFileWriteAsync"]
        .map(|name| World::new().lacking(name).with("NAME", name));
    let Some(here) = enter_each(&worlds) else {
        return;
    };
    #[expect(clippy::disallowed_methods, reason = "the parent says which it is")]
    let name = std::env::var("NAME").unwrap();
    let bed = Bed::new(&here, by_streams);
    let file = bed.file("file", &content());
    assert_reads(&bed, &file);
    let done = block_on(file.write_all_at(bed.buffer(&content()), 0)).unwrap();
    assert_eq!((done.bytes, calls(&bed)), (LEN, (0, 2)));
    let info = block_on(bed.engine.cufile()).unwrap();
    let reason = info.not_streamed.unwrap();
    assert!(reason.contains(&name), "{reason}");
    drop((done, file));
    bed.end();
}
