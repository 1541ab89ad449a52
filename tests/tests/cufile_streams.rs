//! Operations in a user's CUDA stream.
//!
//! Failure: a kernel that runs before its bytes are there, or after they are gone; memory, numbers or a
//! file that a stream still uses and nobody keeps; a task's thread that waits for a stream.
//! Mechanism: the library reads its numbers when the operation's turn has come, and writes their last
//! afterwards; a full stream holds up whoever submits; nothing takes an operation back.
//! Method: a stream that is held up by a fill which does not begin; fills before and behind show the
//! order. The simulator reads late, writes later, and names whatever is gone by then.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use tokio_cufile::{
    CompatMode, DataPath, DeviceBuffer, ErrorKind, OpenOptions, PathClass, VendorCode,
};
use tokio_cufile_tests::bench::{self, block_on};
use tokio_cufile_tests::cufile::enqueue;
use tokio_cufile_tests::held::{Held, LEN, content};
use tokio_cufile_tests::life::{poll_once, threads_named, until};
use tokio_cufile_tests::{Bed, Sim, pattern};

const PAGE: usize = 4096;

fn home() -> tempfile::TempDir {
    tempfile::tempdir_in(bench::disk()).unwrap()
}

#[test]
fn an_operation_comes_after_what_was_there_and_before_what_follows() {
    let home = home();
    let Some(held) = Held::shared(&home) else {
        return;
    };
    let user = held.bed.device.user();
    let buffer = held.bed.buffer(&[0xee; LEN]);
    let address = buffer.address();
    user.fill(address, 0x11, LEN, held.stream);
    let mut in_stream = block_on(held.read(buffer)).unwrap();
    user.fill(address, 0x22, 100, held.stream);
    assert!(poll_once(&mut in_stream).is_pending());
    assert_eq!(held.bed.device.peek(address, LEN), [0xee; LEN]);
    held.release();
    let done = block_on(in_stream).unwrap();
    let paths = done.receipt.paths;
    assert_eq!(paths.get(DataPath::CufileUnverified), LEN as u64);
    user.synchronize(held.stream);
    let found = held.bed.content(done.buf);
    assert_eq!(found[..100], [0x22; 100]);
    pattern::assert_same(&found[100..], &content()[100..]);

    // What a kernel makes is written.
    let source = held.bed.buffer(&[0; LEN]);
    user.fill(source.address(), 0x33, LEN, held.stream);
    let write = enqueue(held.file.write_all_at(source, PAGE as u64), held.stream);
    let done = block_on(async { write.await?.await }).unwrap();
    assert_eq!(done.bytes, LEN);
    drop(done);
    assert_eq!(fs::read(held.file.path()).unwrap()[PAGE..], [0x33; LEN]);
    held.end();
}

#[test]
fn many_wait_in_a_stream_and_run_in_order() {
    let home = home();
    let Some(held) = Held::shared(&home) else {
        return;
    };
    let registered = block_on(held.bed.register(held.stream)).unwrap();
    let mut buffer = held.bed.buffer(&[0xee; LEN]);
    let mut in_stream = Vec::new();
    for index in 0..4 {
        let part = buffer.part(index * PAGE..(index + 1) * PAGE).unwrap();
        let read = held.file.read_exact_at(part, (index * PAGE) as u64);
        in_stream.push(block_on(enqueue(read, held.stream)).unwrap());
    }
    // Each writes what was read before it.
    held.release();
    for one in in_stream {
        block_on(one).unwrap();
    }
    pattern::assert_same(&held.bed.content(buffer), &content());
    block_on(registered.deregister()).unwrap();
    held.end();
}

#[test]
fn the_default_stream_is_a_stream() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| builder);
    let file = bed.file("file", &content());
    let read = enqueue(file.read_exact_at(bed.buffer(&[0; LEN]), 0), 0);
    let done = block_on(async { read.await?.await }).unwrap();
    pattern::assert_same(&bed.content(done.buf), &content());
    drop(file);
    bed.end();
}

#[test]
fn dropped_before_it_is_polled_or_issued_it_is_never_in_the_stream() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| builder.num_threads(1));
    let file = bed.file("file", &content());
    let stream = bed.device.user().stream();
    let make = || enqueue(file.read_at(bed.buffer(&[0; LEN]), 0), stream);
    drop(make());
    // The only worker is taken.
    bed.cufile.fault("cuFileRead:never,nth=1");
    let blocking = file.read_at(vec![0; LEN], 0).start();
    // Made before, as it needs a worker.
    until(|| bed.fired() == 1);
    let buffer = DeviceBuffer::new(&bed.engine, bed.device.ordinal, LEN).start();
    bed.cufile.clear();
    block_on(blocking).unwrap();
    let buffer = block_on(buffer).unwrap();
    bed.cufile.fault("cuFileRead:never,nth=1");
    let blocking = file.read_at(vec![0; LEN], 0).start();
    until(|| bed.fired() == 2);
    let mut queued = enqueue(file.read_at(buffer, 0), stream);
    assert!(poll_once(&mut queued).is_pending());
    drop(queued);
    bed.cufile.clear();
    block_on(blocking).unwrap();
    until(|| bed.engine.stats().operations_live == 0);
    assert_eq!(bed.calls("cuFileReadAsync"), 0);
    bed.device.user().destroy(stream);
    drop(file);
    bed.end();
}

#[test]
fn dropped_in_the_stream_its_memory_stays_until_the_stream_has_passed() {
    let home = home();
    let Some(held) = Held::shared(&home) else {
        return;
    };
    let registered = block_on(held.bed.register(held.stream)).unwrap();
    let buffer = held.bed.buffer(&[0xee; LEN]);
    let address = buffer.address();
    let frees = held.bed.device.calls("cuMemFree_v2");
    drop(block_on(held.read(buffer)).unwrap());
    let buffer = held.bed.buffer(&[0x44; LEN]);
    let write = held.file.write_all_at(buffer, LEN as u64);
    drop(block_on(enqueue(write, held.stream)).unwrap());
    assert_eq!(held.bed.engine.stats().operations_live, 2);
    assert_eq!(held.bed.device.calls("cuMemFree_v2"), frees);
    assert_eq!(held.bed.device.peek(address, LEN), [0xee; LEN]);
    held.release();
    block_on(held.file.sync_data()).unwrap();
    until(|| held.bed.device.calls("cuMemFree_v2") == frees + 2);
    assert_eq!(fs::read(held.file.path()).unwrap()[LEN..], [0x44; LEN]);
    block_on(registered.deregister()).unwrap();
    held.end();
}

#[test]
fn a_file_that_is_dropped_stays_open_until_the_stream_has_passed() {
    let home = home();
    let Some(mut held) = Held::shared(&home) else {
        return;
    };
    let in_stream = block_on(held.read(held.bed.buffer(&[0; LEN]))).unwrap();
    let other = held.bed.file("other", &[9; LEN]);
    drop(std::mem::replace(&mut held.file, other));
    let more: Vec<_> = (0..8)
        .map(|index| held.bed.file(&format!("more-{index}"), &[index; LEN]))
        .collect();
    held.release();
    let done = block_on(in_stream).unwrap();
    pattern::assert_same(&held.bed.content(done.buf), &content());
    drop(more);
    held.end();
}

#[test]
fn what_comes_of_it_is_told_by_its_end() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| builder);
    let file = bed.file("file", &content());
    let stream = bed.device.user().stream();
    let code = |code| Some(VendorCode::CuFile(code));
    for (fault, kind, vendor) in [
        ("fail=5", ErrorKind::Io, Some(VendorCode::Errno(5))),
        ("fail=5030", ErrorKind::Io, code(5030)),
        ("fail=5012", ErrorKind::DeviceFailed, code(5012)),
        ("return=-1", ErrorKind::Io, None),
        (
            "return=-28",
            ErrorKind::StorageFull,
            Some(VendorCode::Errno(28)),
        ),
        // Nothing can be continued behind what follows in the stream.
        ("short=4096", ErrorKind::Io, None),
    ] {
        bed.cufile.fault(&format!("@*:{fault}"));
        let buffer = bed.buffer(&[0; LEN]);
        let read = enqueue(file.read_at(buffer, 0), stream);
        let failed = block_on(async { read.await?.await }).unwrap_err();
        let error = failed.error();
        assert_eq!(
            (error.kind(), error.vendor_code()),
            (kind, vendor),
            "{error}"
        );
        let buffer = failed.into_parts().1.unwrap();
        let write = enqueue(file.write_at(buffer, 0), stream);
        let failed = block_on(async { write.await?.await }).unwrap_err();
        assert_eq!(failed.error().kind(), kind, "{fault}: {failed}");
        bed.cufile.clear();
    }
    fs::write(file.path(), content()).unwrap();
    // At the end of the file it is no error.
    for (offset, bytes) in [(LEN - 1000, 1000), (LEN, 0), (1 << 30, 0)] {
        let buffer = bed.buffer(&[0; LEN]);
        let read = enqueue(file.read_at(buffer, offset as u64), stream);
        let done = block_on(async { read.await?.await }).unwrap();
        assert_eq!(done.bytes, bytes);
    }
    bed.device.user().destroy(stream);
    drop(file);
    bed.end();
}

#[test]
fn a_call_that_fails_is_an_error_and_the_stream_goes_on() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| builder);
    let file = bed.file("file", &content());
    let stream = bed.device.user().stream();
    bed.cufile.fault("cuFileReadAsync:fail=5022,nth=1");
    let read = enqueue(file.read_at(bed.buffer(&[0; LEN]), 0), stream);
    let failed = block_on(async { read.await?.await }).unwrap_err();
    let error = failed.error();
    assert_eq!(
        error.vendor_code(),
        Some(VendorCode::CuFile(5022)),
        "{error}"
    );
    let buffer = failed.into_parts().1.unwrap();
    // It may be in the stream all the same.
    bed.cufile.clear();
    bed.cufile.fault("cuFileReadAsync:act-fail=5030,nth=1");
    let read = enqueue(file.read_at(buffer, 0), stream);
    let done = block_on(async { read.await?.await }).unwrap();
    pattern::assert_same(&bed.content(done.buf), &content());
    bed.device.user().destroy(stream);
    drop(file);
    bed.end();
}

#[test]
fn what_cannot_go_into_a_stream_is_refused_with_its_buffer() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| builder);
    let file = bed.file("file", &content());
    let options = OpenOptions::new().read(true).compat_mode(CompatMode::On);
    let compat = block_on(options.open(&bed.engine, file.path())).unwrap();
    let stream = bed.device.user().stream();
    let device = || bed.buffer(&[7; LEN]);
    let gds = PathClass::Gds;
    let (unsupported, invalid) = (ErrorKind::Unsupported, ErrorKind::InvalidInput);
    for (transfer, stream, kind, reason) in [
        (
            compat.read_at(device(), 0),
            stream,
            unsupported,
            "compat_mode",
        ),
        (file.write_at(device(), 1), stream, invalid, "whole pages"),
        (file.read_at(device(), 0), 2, invalid, "per-thread"),
        (
            file.read_at(device(), 0).require(gds),
            stream,
            ErrorKind::PathRefused,
            "no path can be told",
        ),
        (file.read_at(device(), u64::MAX), stream, invalid, ""),
    ] {
        let failed = block_on(enqueue(transfer, stream)).unwrap_err();
        assert_eq!(failed.error().kind(), kind, "{failed}");
        let text = failed.to_string();
        assert!(text.contains(reason), "{text}");
        assert_eq!(bed.content(failed.into_parts().1.unwrap()), [7; LEN]);
    }
    let failed = block_on(enqueue(file.read_at(vec![7; LEN], 0), stream)).unwrap_err();
    assert_eq!(failed.error().kind(), unsupported, "{failed}");
    assert_eq!(failed.into_parts().1.unwrap(), [7; LEN]);
    let odd = bed.buffer(&[7; 100]);
    let failed = block_on(enqueue(file.write_at(odd, 0), stream)).unwrap_err();
    assert_eq!(failed.error().kind(), invalid, "{failed}");
    drop(failed);
    assert_eq!(
        (bed.calls("cuFileReadAsync"), bed.calls("cuFileWriteAsync")),
        (0, 0)
    );
    // Nothing is nothing to do.
    let empty = enqueue(file.read_at(bed.buffer(&[]), 0), stream);
    let done = block_on(async { empty.await?.await }).unwrap();
    assert_eq!(done.bytes, 0);
    pattern::assert_same(&fs::read(file.path()).unwrap(), &content());
    bed.device.user().destroy(stream);
    drop((file, compat, done));
    bed.end();
}

#[test]
fn an_event_holds_it_before_the_stream() {
    let home = home();
    let Some(held) = Held::shared(&home) else {
        return;
    };
    let user = held.bed.device.user();
    let other = user.stream();
    let event = user.record(&held.bed.engine, held.stream);
    let buffer = held.bed.buffer(&[0; LEN]);
    let read = held.file.read_exact_at(buffer, 0).after(event);
    let mut read = enqueue(read, other);
    assert!(poll_once(&mut read).is_pending());
    assert_eq!(held.bed.calls("cuFileReadAsync"), 0);
    held.release();
    let done = block_on(async { read.await?.await }).unwrap();
    pattern::assert_same(&held.bed.content(done.buf), &content());
    user.destroy(other);
    held.end();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "forgetting is what is tested")]
fn forgotten_in_a_stream_an_operation_keeps_its_memory_and_nothing_of_its_engine() {
    let home = home();
    let Some(held) = Held::shared(&home) else {
        return;
    };
    let in_stream = block_on(held.read(held.bed.buffer(&[0xee; LEN]))).unwrap();
    std::mem::forget(in_stream);
    // The stream takes one.
    let mut refused = held.read(held.bed.buffer(&[0xee; LEN]));
    assert!(block_on(&mut refused).is_err());
    std::mem::forget(refused);
    held.release();
    let report = block_on(held.bed.engine.shutdown());
    assert_eq!(report.quarantined, 0);
    let Held {
        bed, file, stream, ..
    } = held;
    let Bed { device, engine, .. } = bed;
    drop((file, engine));
    // libcufile's are called otherwise: as its workers.
    for name in [
        "cufile-disposer",
        "cufile-alarm",
        "cufile-ring",
        "cufile-io-0",
    ] {
        until(|| threads_named(name) == 0);
    }
    device.user().destroy(stream);
    let stats = device.stats();
    // Its own, and the test's.
    assert_eq!(stats.live_allocations, 2);
    device.assert_no_harm();
}
