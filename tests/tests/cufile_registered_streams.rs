//! Users' streams that cuFile is told of, and those that it is not.
//!
//! Failure: a second operation in a stream that libcufile was not told of, which corrupts the memory of the
//! process; a stream that is deregistered in use, or never; somebody who waits for ever.
//! Mechanism: an operation in a stream ends when the stream comes to it, whoever has lost interest by then.
//! Method: a stream that is held up by a fill which does not begin; the simulator counts what is registered,
//! and names what ends in use.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ptr;
use std::time::{Duration, Instant};

use tokio_cufile::{
    CompatMode, DeviceBuffer, Engine, Enqueued, Error, ErrorKind, OpenOptions, Operation,
    VendorCode,
};
use tokio_cufile_tests::bench::{self, block_on};
use tokio_cufile_tests::cufile::{enqueue, enter_each, register};
use tokio_cufile_tests::held::{Held, LEN, content};
use tokio_cufile_tests::life::{IN_FLIGHT_BY, poll_once, until};
use tokio_cufile_tests::{Bed, World, pattern};

/// Short, for what never answers: tests wait this long.
const LIMIT: Duration = Duration::from_millis(20);

fn home() -> tempfile::TempDir {
    tempfile::tempdir_in(bench::disk()).unwrap()
}

fn put(held: &Held) -> Enqueued<DeviceBuffer> {
    block_on(held.read(held.bed.buffer(&[0xee; LEN]))).unwrap()
}

fn assert_reads(held: &Held, in_stream: Enqueued<DeviceBuffer>) {
    let done = block_on(in_stream).unwrap();
    pattern::assert_same(&held.bed.content(done.buf), &content());
}

/// An operation for the stream is refused, with its buffer.
fn assert_refused(held: &Held, kind: ErrorKind, reason: &str) {
    let submitted = held.bed.calls("cuFileReadAsync");
    let failed = block_on(held.read(held.bed.buffer(&[0x77; LEN]))).unwrap_err();
    assert_eq!(failed.error().kind(), kind, "{failed}");
    assert!(failed.to_string().contains(reason), "{failed}");
    let buffer = failed.into_parts().1.unwrap();
    assert_eq!(held.bed.content(buffer), [0x77; LEN]);
    assert_eq!(held.bed.calls("cuFileReadAsync"), submitted);
}

fn told(error: &Error) -> (ErrorKind, Option<Operation>) {
    (error.kind(), error.operation())
}

fn registered(held: &Held) -> u64 {
    held.bed.cufile.report().streams
}

#[test]
fn a_stream_that_is_not_registered_takes_one_operation_at_a_time() {
    let home = home();
    let Some(held) = Held::shared(&home) else {
        return;
    };
    let first = put(&held);
    assert_refused(&held, ErrorKind::Busy, "RegisteredStream");
    // Nor is it registered by now.
    let error = block_on(held.bed.register(held.stream)).unwrap_err();
    assert_eq!(
        told(&error),
        (ErrorKind::Busy, Some(Operation::Stream)),
        "{error}"
    );
    assert_eq!(held.bed.calls("cuFileStreamRegister"), 0);
    held.release();
    assert_reads(&held, first);
    let second = put(&held);
    assert_reads(&held, second);
    held.end();
}

#[test]
fn a_stream_is_registered_once_at_a_time() {
    let home = home();
    let Some(held) = Held::shared(&home) else {
        return;
    };
    for round in 1..=2 {
        let stream = block_on(held.bed.register(held.stream)).unwrap();
        assert_eq!(stream.stream(), ptr::without_provenance_mut(held.stream));
        assert_eq!(stream.device(), held.bed.device.ordinal);
        let error = block_on(held.bed.register(held.stream)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert_eq!(held.bed.calls("cuFileStreamRegister"), round);
        block_on(stream.deregister()).unwrap();
        assert_eq!(held.bed.calls("cuFileStreamDeregister"), round);
    }
    held.release();
    held.end();
}

#[test]
fn what_cannot_be_registered_is_refused_with_the_reason() {
    let home = home();
    let Some(held) = Held::shared(&home) else {
        return;
    };
    held.bed
        .cufile
        .fault("cuFileStreamRegister:fail=5030,nth=1");
    let error = block_on(held.bed.register(held.stream)).unwrap_err();
    assert_eq!(error.vendor_code(), Some(VendorCode::CuFile(5030)));
    assert_eq!(
        (error.operation(), error.device()),
        (Some(Operation::Stream), Some(held.bed.device.ordinal))
    );
    let error = block_on(held.bed.register(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let error = block_on(register(&held.bed.engine, 99, held.stream)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeviceNotFound, "{error}");
    assert_eq!(registered(&held), 0);
    // It takes one operation, as before.
    let first = put(&held);
    assert_refused(&held, ErrorKind::Busy, "RegisteredStream");
    held.release();
    assert_reads(&held, first);
    held.end();
}

#[test]
fn a_library_that_cannot_register_says_so() {
    let lacking = ["cuFileStreamRegister", "cuFileReadAsync"];
    let worlds = lacking.map(|name| World::new().lacking(name));
    let Some(here) = enter_each(&worlds) else {
        return;
    };
    let bed = Bed::new(&here, |builder| builder);
    let stream = bed.device.user().stream();
    let error = block_on(bed.register(stream)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let text = error.to_string();
    assert!(lacking.iter().any(|name| text.contains(name)), "{text}");
    bed.device.user().destroy(stream);
    bed.end();
}

#[test]
fn a_request_that_is_dropped_leaves_nothing_registered() {
    let home = home();
    let Some(held) = Held::shared(&home) else {
        return;
    };
    held.bed.cufile.fault("cuFileStreamRegister:never,nth=1");
    let request = held.bed.register(held.stream).start();
    until(|| held.bed.fired() == 1);
    drop(request);
    // Nothing is put there meanwhile.
    assert_refused(&held, ErrorKind::Busy, "being registered");
    held.bed.cufile.clear();
    until(|| held.bed.calls("cuFileStreamDeregister") == 1);
    until(|| held.bed.engine.stats().operations_live == 0);
    held.release();
    held.end();
}

#[test]
fn dropped_it_is_deregistered_when_its_operations_have_ended() {
    let home = home();
    let Some(held) = Held::shared(&home) else {
        return;
    };
    let stream = block_on(held.bed.register(held.stream)).unwrap();
    let in_stream = [put(&held), put(&held)];
    drop(stream);
    assert_refused(&held, ErrorKind::Busy, "deregistered");
    let error = block_on(held.bed.register(held.stream)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let [first, second] = in_stream;
    drop(first);
    assert_eq!(registered(&held), 1);
    assert_eq!(held.bed.calls("cuFileStreamDeregister"), 0);
    held.release();
    assert_reads(&held, second);
    until(|| held.bed.calls("cuFileStreamDeregister") == 1);
    held.end();
}

#[test]
fn deregister_waits_for_the_operations() {
    let home = home();
    let Some(held) = Held::shared(&home) else {
        return;
    };
    let stream = block_on(held.bed.register(held.stream)).unwrap();
    let in_stream = [put(&held), put(&held), put(&held)];
    let mut deregistered = Box::pin(stream.deregister());
    assert!(poll_once(&mut deregistered).is_pending());
    assert_refused(&held, ErrorKind::Busy, "deregistered");
    assert_eq!(held.bed.calls("cuFileStreamDeregister"), 0);
    held.release();
    block_on(deregistered).unwrap();
    assert_eq!(
        (registered(&held), held.bed.calls("cuFileStreamDeregister")),
        (0, 1)
    );
    for one in in_stream {
        assert_reads(&held, one);
    }
    held.end();
}

#[test]
fn a_refusal_to_deregister_is_told() {
    let Some(here) = World::new().enter() else {
        return;
    };
    let bed = Bed::new(&here, |builder| builder);
    let stream = bed.device.user().stream();
    let registered = block_on(bed.register(stream)).unwrap();
    bed.cufile.fault("cuFileStreamDeregister:fail=5030,nth=1");
    let error = block_on(registered.deregister()).unwrap_err();
    assert_eq!(
        (error.vendor_code(), error.operation()),
        (Some(VendorCode::CuFile(5030)), Some(Operation::Stream))
    );
    assert_eq!(block_on(bed.engine.shutdown()).quarantined, 0);
    bed.cufile.assert_no_harm();
}

#[test]
fn a_shutdown_deregisters_what_is_still_registered() {
    let home = home();
    let Some(held) = Held::shared(&home) else {
        return;
    };
    let stream = block_on(held.bed.register(held.stream)).unwrap();
    let other_stream = held.bed.device.user().stream();
    let other = block_on(held.bed.register(other_stream)).unwrap();
    let in_stream = [put(&held), put(&held)];
    let mut shutdown = Box::pin(held.bed.engine.shutdown());
    assert!(poll_once(&mut shutdown).is_pending());
    assert_eq!(held.bed.calls("cuFileStreamDeregister"), 0);
    held.release();
    let report = block_on(shutdown);
    assert_eq!((report.drained, report.quarantined), (2, 0));
    let report = held.bed.cufile.report();
    assert_eq!((report.streams, report.opens), (0, 0));
    drop(in_stream);
    block_on(stream.deregister()).unwrap();
    drop(other);
    assert_eq!(held.bed.calls("cuFileStreamDeregister"), 2);
    held.bed.device.user().destroy(other_stream);
    held.end();
}

#[test]
fn a_stream_that_outlives_a_dropped_engine_is_deregistered_afterwards() {
    let Some(here) = World::new().enter() else {
        return;
    };
    let Bed {
        engine,
        cufile,
        device,
        ..
    } = Bed::new(&here, |builder| builder);
    let streams = [device.user().stream(), device.user().stream()];
    let [first, second] =
        streams.map(|stream| block_on(register(&engine, device.ordinal, stream)).unwrap());
    drop(engine);
    assert_eq!(cufile.report().streams, 2);
    block_on(first.deregister()).unwrap();
    assert_eq!(cufile.report().streams, 1);
    drop(second);
    until(|| cufile.report().streams == 0);
    cufile.assert_no_harm();
}

#[test]
fn a_stream_is_for_the_operations_of_the_engine_that_registered_it() {
    let home = home();
    let Some(held) = Held::shared(&home) else {
        return;
    };
    let stream = block_on(held.bed.register(held.stream)).unwrap();
    let other = Engine::builder().compat_mode(CompatMode::Off);
    let other = other.cufile(bench::simulated_cufile());
    let other = other.build_blocking().unwrap();
    let options = OpenOptions::new().read(true);
    let file = block_on(options.open(&other, held.file.path())).unwrap();
    let ordinal = held.bed.device.ordinal;
    let buffer = block_on(DeviceBuffer::new(&other, ordinal, LEN)).unwrap();
    let read = enqueue(file.read_at(buffer, 0), held.stream);
    let failed = block_on(read).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::WrongEngine, "{failed}");
    block_on(stream.deregister()).unwrap();
    // Now it is anybody's.
    let buffer = failed.into_parts().1.unwrap();
    let in_stream = block_on(enqueue(file.read_at(buffer, 0), held.stream)).unwrap();
    assert_refused(&held, ErrorKind::Busy, "RegisteredStream");
    held.release();
    assert_eq!(block_on(in_stream).unwrap().bytes, LEN);
    drop(file);
    assert_eq!(block_on(other.shutdown()).quarantined, 0);
    drop(other);
    held.end();
}

#[test]
fn an_operation_that_was_given_up_keeps_the_stream_registered() {
    let Some(here) = World::new().enter() else {
        return;
    };
    let held = Held::new(Bed::new(&here, |builder| builder.quiet_limit(LIMIT)));
    let stream = block_on(held.bed.register(held.stream)).unwrap();
    let read = held.file.read_exact_at(held.bed.buffer(&[0; LEN]), 0);
    let read = enqueue(read.deadline(Instant::now() + IN_FLIGHT_BY), held.stream);
    let in_stream = block_on(read).unwrap();
    // Whoever waits already is told.
    let error = block_on(stream.deregister()).unwrap_err();
    let kind = (ErrorKind::Quarantined, Some(Operation::Stream));
    assert_eq!(told(&error), kind, "{error}");
    let failed = block_on(in_stream).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::Quarantined, "{failed}");
    assert_eq!(block_on(held.bed.engine.shutdown()).quarantined, 1);
    assert_eq!(registered(&held), 1);
    assert_eq!(held.bed.calls("cuFileStreamDeregister"), 0);
    // It runs in the end, and finds all that it needs.
    held.release();
    until(|| held.bed.calls("cuFileStreamDeregister") == 1);
    until(|| held.bed.engine.stats().stray_completions == 1);
    held.bed.cufile.assert_no_harm();
    held.bed.device.assert_no_harm();
}

#[test]
fn a_shutdown_ends_the_wait_for_an_operation_whose_call_never_returns() {
    let Some(here) = World::new()
        .with("TOKIO_CUFILE_SIM_CUFILE_BACKLOG", "1")
        .enter()
    else {
        return;
    };
    let held = Held::new(Bed::new(&here, |builder| builder.quiet_limit(LIMIT)));
    let stream = block_on(held.bed.register(held.stream)).unwrap();
    let other_stream = held.bed.device.user().stream();
    let other = block_on(held.bed.register(other_stream)).unwrap();
    let mut first = put(&held);
    let mut blocked = held.read(held.bed.buffer(&[0; LEN]));
    assert!(poll_once(&mut blocked).is_pending());
    until(|| held.bed.cufile.report().blocked_submissions == 1);
    assert!(poll_once(&mut first).is_pending());
    let mut deregistered = Box::pin(stream.deregister());
    assert!(poll_once(&mut deregistered).is_pending());
    assert_eq!(block_on(held.bed.engine.shutdown()).quarantined, 2);
    let error = block_on(deregistered).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Quarantined, "{error}");
    // In this one nothing is stuck.
    block_on(other.deregister()).unwrap();
    assert_eq!(registered(&held), 1);
    held.release();
    until(|| held.bed.calls("cuFileStreamDeregister") == 2);
    held.bed.cufile.assert_no_harm();
}

#[test]
fn a_context_that_is_lost_keeps_what_was_in_use() {
    let Some(here) = World::new().enter() else {
        return;
    };
    let held = Held::new(Bed::new(&here, |builder| builder));
    let stream = block_on(held.bed.register(held.stream)).unwrap();
    let in_stream = put(&held);
    held.bed.device.fault("cuCtxSynchronize:lose=700");
    assert_eq!(held.bed.device.user().synchronize_all(), 700);
    let failed = block_on(in_stream).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::Quarantined, "{failed}");
    let error = block_on(stream.deregister()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Quarantined, "{error}");
    held.bed.device.spoil();
    assert_eq!(block_on(held.bed.engine.shutdown()).quarantined, 1);
    assert_eq!(held.bed.calls("cuFileStreamDeregister"), 0);
    held.bed.cufile.assert_no_harm();
}
