//! What cuFile's calls return, and what becomes of it.
//!
//! Failure: bytes that are taken for others, an error of the wrong kind, an endless repetition, memory
//! that is given back while somebody may write it.
//! Mechanism: results have five forms, mean different things in each, and some mean that nobody
//! knows.
//! Method: the simulator returns what it is told to. What nobody may know the end of is leaked, counted
//! and reported, and the simulator would name its use after a release.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::time::{Duration, Instant};

use tokio_cufile::{AsyncCuFile, DeviceBuffer, ErrorKind, VendorCode};
use tokio_cufile_tests::bench::{self, block_on};
use tokio_cufile_tests::life::{IN_FLIGHT_BY, poll_once, until};
use tokio_cufile_tests::{Bed, Sim, World, pattern};

const LEN: usize = 20_000;
/// Short, for what never answers: tests wait this long.
const LIMIT: Duration = Duration::from_millis(20);

fn home() -> tempfile::TempDir {
    tempfile::tempdir_in(bench::disk()).unwrap()
}

fn content() -> Vec<u8> {
    pattern::bytes(11, LEN)
}

/// Runs `test` with host and with device memory.
fn each_memory(test: impl Fn(&Bed, &AsyncCuFile, bool)) {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    for on_device in [false, true] {
        let bed = Bed::on(sim, home.path(), |builder| builder);
        let file = bed.file("file", &content());
        test(&bed, &file, on_device);
        drop(file);
        bed.end();
    }
}

/// A read of all, and what came of it: bytes, or an error; and the memory.
fn read(bed: &Bed, file: &AsyncCuFile, on_device: bool) -> (Result<usize, ErrorKind>, Vec<u8>) {
    if on_device {
        let buffer = bed.buffer(&[0; LEN]);
        match block_on(file.read_at(buffer, 0)) {
            Ok(done) => (Ok(done.bytes), bed.content(done.buf)),
            Err(failed) => {
                let kind = failed.error().kind();
                (Err(kind), bed.content(failed.into_parts().1.unwrap()))
            }
        }
    } else {
        match block_on(file.read_at(vec![0; LEN], 0)) {
            Ok(done) => (Ok(done.bytes), done.buf),
            Err(failed) => (Err(failed.error().kind()), failed.into_parts().1.unwrap()),
        }
    }
}

#[test]
fn short_results_are_continued() {
    each_memory(|bed, file, on_device| {
        bed.cufile
            .fault("cuFileRead:short=5000;cuFileWrite:short=4096");
        let (bytes, buf) = read(bed, file, on_device);
        assert_eq!((bytes, bed.calls("cuFileRead")), (Ok(LEN), 4));
        pattern::assert_same(&buf, &content());
        let done = match on_device {
            true => {
                block_on(file.write_all_at(bed.buffer(&content()), 4096)).map(|done| done.bytes)
            }
            false => {
                let done = block_on(file.write_all_at(content(), 4096));
                return assert_eq!(done.unwrap().bytes, LEN);
            }
        };
        assert_eq!((done.unwrap(), bed.calls("cuFileWrite")), (LEN, 4));
        pattern::assert_same(&fs::read(file.path()).unwrap()[4096..], &content());
    });
}

#[test]
fn nothing_is_the_end_of_a_file_that_is_read_and_an_error_where_one_is_written() {
    each_memory(|bed, file, on_device| {
        bed.cufile.fault("cuFileRead:return=0,nth=1");
        assert_eq!(read(bed, file, on_device).0, Ok(0));
        bed.cufile.clear();
        bed.cufile
            .fault("cuFileRead:short=8192,nth=1;cuFileRead:return=0,nth=2");
        let (bytes, buf) = read(bed, file, on_device);
        assert_eq!(bytes, Ok(8192));
        pattern::assert_same(&buf[..8192], &content()[..8192]);
        bed.cufile.fault("cuFileWrite:return=0");
        let failed = block_on(file.write_all_at(content(), 0)).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::WriteZero, "{failed}");
    });
}

#[test]
fn reads_at_and_behind_the_end_are_short() {
    each_memory(|bed, file, on_device| {
        for (offset, bytes) in [
            (LEN - 1, 1),
            (LEN, 0),
            (LEN + 1, 0),
            (LEN - 4096, 4096),
            (1 << 40, 0),
        ] {
            let found = match on_device {
                true => {
                    let buffer = bed.buffer(&[0; 8192]);
                    let done = block_on(file.read_at(buffer, offset as u64)).unwrap();
                    let bytes = done.bytes;
                    bed.content(done.buf)[..bytes].to_vec()
                }
                false => {
                    let done = block_on(file.read_at(vec![0; 8192], offset as u64)).unwrap();
                    done.buf[..done.bytes].to_vec()
                }
            };
            assert_eq!(found.len(), bytes, "at {offset}");
            pattern::assert_same(&found, &content()[offset.min(LEN)..][..bytes]);
        }
        let failed = block_on(file.read_exact_at(vec![0; 2], LEN as u64 - 1)).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::UnexpectedEof);
    });
}

#[test]
fn every_form_of_an_error_is_understood() {
    use ErrorKind::{DeviceFailed, Io, OutOfMemory, PermissionDenied, StorageFull, Unsupported};
    let table = [
        // In errno.
        ("fail=5022", Io, Some(VendorCode::CuFile(5022))),
        (
            "fail=5025",
            PermissionDenied,
            Some(VendorCode::CuFile(5025)),
        ),
        ("fail=5008", Unsupported, Some(VendorCode::CuFile(5008))),
        ("fail=5043", OutOfMemory, Some(VendorCode::CuFile(5043))),
        ("fail=5", Io, Some(VendorCode::Errno(5))),
        ("fail=28", StorageFull, Some(VendorCode::Errno(28))),
        ("act-fail=5030", Io, Some(VendorCode::CuFile(5030))),
        // As the documentation has it.
        ("return=-5027", Io, Some(VendorCode::CuFile(5027))),
        ("return=-5012", DeviceFailed, Some(VendorCode::CuFile(5012))),
        ("return=-5011", DeviceFailed, Some(VendorCode::CuFile(5011))),
        ("return=-7777", Io, Some(VendorCode::CuFile(7777))),
        ("return=-5", Io, Some(VendorCode::Errno(5))),
        ("return=-1", Io, None),
    ];
    each_memory(|bed, file, on_device| {
        for (fault, kind, code) in table {
            bed.cufile
                .fault(&format!("cuFileRead:{fault};cuFileWrite:{fault}"));
            assert_eq!(read(bed, file, on_device).0, Err(kind), "{fault}");
            let source = pattern::bytes(1, 8192);
            let failed = block_on(file.write_at(source.clone(), 4096)).unwrap_err();
            let error = failed.error();
            assert_eq!((error.kind(), error.vendor_code()), (kind, code), "{error}");
            assert_eq!(error.offset(), Some(4096), "{error}");
            let backend = error.backend().map(|backend| backend.to_string());
            assert_eq!(backend.as_deref(), Some("cufile"), "{error}");
            assert_eq!(failed.into_parts().1, Some(source));
            bed.cufile.clear();
        }
        assert_eq!(read(bed, file, on_device).0, Ok(LEN));
    });
}

#[test]
fn the_bytes_before_an_error_count() {
    each_memory(|bed, file, _| {
        bed.cufile
            .fault("cuFileRead:short=6000,nth=1;cuFileRead:fail=5,nth=2");
        let failed = block_on(file.read_at(vec![0; LEN], 0)).unwrap_err();
        assert_eq!(failed.error().offset(), Some(6000), "{failed}");
        let (_, buf) = (failed.bytes_done(), failed.into_parts().1.unwrap());
        pattern::assert_same(&buf[..6000], &content()[..6000]);
    });
}

#[test]
fn an_interrupted_call_is_repeated_but_not_for_ever() {
    each_memory(|bed, file, on_device| {
        for errno in [4, 11] {
            bed.cufile
                .fault(&format!("cuFileRead:fail={errno},times=3"));
            let before = bed.calls("cuFileRead");
            let (bytes, buf) = read(bed, file, on_device);
            assert_eq!(bytes, Ok(LEN));
            assert_eq!(bed.calls("cuFileRead") - before, 4);
            pattern::assert_same(&buf, &content());
            bed.cufile.clear();
        }
        bed.cufile.fault("cuFileRead:fail=11");
        let before = bed.calls("cuFileRead");
        assert_eq!(read(bed, file, on_device).0, Err(ErrorKind::Io));
        let calls = bed.calls("cuFileRead") - before;
        assert!((100..10_000).contains(&calls), "{calls} calls");
    });
}

#[test]
fn an_operation_that_was_dropped_is_not_repeated() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| builder);
    let file = bed.file("file", &content());
    // Interrupted, after its future has gone.
    bed.cufile
        .fault("cuFileRead:never,nth=1;cuFileRead:fail=4,nth=1");
    let read = file.read_at(bed.buffer(&[0; LEN]), 0).start();
    until(|| bed.fired() == 2);
    drop(read);
    bed.cufile.clear();
    until(|| bed.engine.stats().operations_live == 0);
    assert_eq!(bed.calls("cuFileRead"), 1);
    drop(file);
    bed.end();
}

/// What is left of an operation whose end nobody knows.
fn assert_leaked(bed: &Bed, file: AsyncCuFile, address: Option<u64>) {
    let stats = bed.engine.stats();
    assert_eq!(stats.operations_quarantined, 1);
    let registered = bed.cufile.report().files;
    let path = file.path().to_owned();
    drop(file);
    let report = block_on(bed.engine.shutdown());
    assert_eq!(report.quarantined, 1);
    // The library may still use handle and descriptor: neither is let go.
    assert_eq!(bed.cufile.report().files, registered);
    assert_eq!(bed.cufile.report().opens, 1);
    let open = fs::read_dir("/proc/self/fd").unwrap();
    let names = open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    assert!(names.into_iter().any(|name| name == path), "it is closed");
    if let Some(address) = address {
        // It would panic for memory that was freed.
        let _ = bed.device.peek(address, LEN);
        assert!(bed.device.stats().live_allocations >= 1);
    }
    bed.cufile.assert_no_harm();
    bed.device.assert_no_harm();
}

#[test]
fn more_bytes_than_were_asked_for_are_a_quarantine() {
    let Some(here) = World::new().enter() else {
        return;
    };
    let bed = Bed::new(&here, |builder| builder);
    let file = bed.file("file", &content());
    bed.cufile.fault("cuFileRead:long=1");
    let buffer = bed.buffer(&[0; LEN]);
    let address = buffer.address();
    let failed = block_on(file.read_at(buffer, 0)).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::Quarantined, "{failed}");
    assert!(failed.into_parts().1.is_none());
    // Everybody else goes on.
    bed.cufile.clear();
    assert_eq!(read(&bed, &file, true), (Ok(LEN), content()));
    assert_leaked(&bed, file, Some(address));
}

#[test]
fn a_context_that_is_lost_in_a_call_takes_the_memory_with_it() {
    let Some(here) = World::new().enter() else {
        return;
    };
    let bed = Bed::new(&here, |builder| builder);
    let file = bed.file("file", &content());
    bed.cufile.fault("cuFileRead:never,nth=1");
    let buffer = bed.buffer(&[0; LEN]);
    let read = file.read_at(buffer, 0).start();
    until(|| bed.fired() == 1);
    bed.device.fault("cuCtxSynchronize:lose=700");
    assert_eq!(bed.device.user().synchronize_all(), 700);
    bed.cufile.clear();
    let failed = block_on(read).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::Quarantined, "{failed}");
    assert!(failed.into_parts().1.is_none());
    // The device is known to be lost; host memory is served as ever.
    let again = DeviceBuffer::new(&bed.engine, bed.device.ordinal, LEN);
    let error = block_on(again).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeviceFailed, "{error}");
    bed.device.spoil();
    assert_leaked(&bed, file, None);
}

#[derive(Clone, Copy, Debug)]
enum Stop {
    Cancel,
    Deadline,
    Shutdown,
}

fn give_up(stop: Stop, bed: &Bed, file: &AsyncCuFile) -> u64 {
    bed.cufile.fault("stuck/cuFileRead:never");
    let buffer = bed.buffer(&[0xee; LEN]);
    let address = buffer.address();
    let read = file.read_at(buffer, 0);
    let read = match stop {
        Stop::Deadline => read.deadline(Instant::now() + IN_FLIGHT_BY),
        _ => read,
    };
    let mut read = read.start();
    until(|| bed.fired() == 1);
    assert!(poll_once(&mut read).is_pending());
    // Other work goes on meanwhile.
    let other = bed.file("other", &content());
    for _ in 0..10 {
        let done = block_on(other.read_exact_at(bed.buffer(&[0; LEN]), 0)).unwrap();
        pattern::assert_same(&bed.content(done.buf), &content());
    }
    drop(other);
    until(|| bed.cufile.report().files == 1);
    match stop {
        Stop::Cancel => read.cancel_handle().cancel(),
        Stop::Deadline => {}
        Stop::Shutdown => {
            let report = block_on(bed.engine.shutdown());
            assert_eq!((report.quarantined, report.drained), (1, 0));
        }
    }
    let failed = block_on(read).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::Quarantined, "{stop:?}");
    assert!(failed.into_parts().1.is_none(), "{stop:?}");
    address
}

#[test]
fn a_call_that_never_returns_is_given_up_with_its_memory_and_file() {
    let stops = [Stop::Cancel, Stop::Deadline, Stop::Shutdown];
    let worlds = ["0", "1", "2"].map(|index| World::new().with("STOP", index));
    let Some(here) = tokio_cufile_tests::cufile::enter_each(&worlds) else {
        return;
    };
    #[expect(clippy::disallowed_methods, reason = "the parent says which it is")]
    let index: usize = std::env::var("STOP").unwrap().parse().unwrap();
    let bed = Bed::new(&here, |builder| builder.quiet_limit(LIMIT).num_threads(3));
    let file = bed.file("stuck", &content());
    let address = give_up(stops[index], &bed, &file);
    assert_leaked(&bed, file, Some(address));
    assert_eq!(bed.device.peek(address, LEN), [0xee; LEN]);
    // It returns in the end, and finds all that it needs.
    bed.cufile.clear();
    until(|| bed.device.peek(address, LEN) == content());
    until(|| bed.engine.stats().stray_completions == 1);
    bed.cufile.assert_no_harm();
    bed.device.assert_no_harm();
}
