//! Streams that nobody knows the end of.
//!
//! Failure: memory, numbers or a file that are let go while a stream may yet use them; somebody who waits
//! for ever.
//! Mechanism: nothing takes an operation out of a stream that is stuck, full or lost.
//! Method: what is given up on is let go in the end, and must find all that it needs; the simulator names
//! what it does not find. A process for each, since what was given up on stays.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use tokio_cufile::{DeviceBuffer, ErrorKind};
use tokio_cufile_tests::bench::block_on;
use tokio_cufile_tests::cufile::{enqueue, enter_each};
use tokio_cufile_tests::held::{Held, LEN, content};
use tokio_cufile_tests::life::{IN_FLIGHT_BY, poll_once, until};
use tokio_cufile_tests::{Bed, World, pattern};

const PAGE: usize = 4096;
/// Short, for what never answers: tests wait this long.
const LIMIT: Duration = Duration::from_millis(20);

fn give_up(held: &Held, buffer: DeviceBuffer, by_deadline: bool) {
    let read = held.file.read_exact_at(buffer, 0);
    let failed = if by_deadline {
        let read = enqueue(read.deadline(Instant::now() + IN_FLIGHT_BY), held.stream);
        block_on(async { read.await?.await }).unwrap_err()
    } else {
        let in_stream = block_on(enqueue(read, held.stream)).unwrap();
        let report = block_on(held.bed.engine.shutdown());
        assert_eq!(report.quarantined, 1);
        block_on(in_stream).unwrap_err()
    };
    assert_eq!(failed.error().kind(), ErrorKind::Quarantined, "{failed}");
    assert!(failed.into_parts().1.is_none());
}

#[test]
fn a_stream_that_is_stuck_keeps_all_that_it_may_use() {
    let worlds = ["deadline", "shutdown"].map(|how| World::new().with("HOW", how));
    let Some(here) = enter_each(&worlds) else {
        return;
    };
    #[expect(clippy::disallowed_methods, reason = "the parent says which it is")]
    let by_deadline = std::env::var("HOW").unwrap() == "deadline";
    let held = Held::new(Bed::new(&here, |builder| builder.quiet_limit(LIMIT)));
    let buffer = held.bed.buffer(&[0xee; LEN]);
    let address = buffer.address();
    let frees = held.bed.device.calls("cuMemFree_v2");
    give_up(&held, buffer, by_deadline);
    let stats = held.bed.engine.stats();
    assert_eq!(stats.operations_quarantined, 1);
    if by_deadline {
        // Everybody else goes on.
        let read = held.file.read_exact_at(held.bed.buffer(&[0; LEN]), 0);
        let done = block_on(read).unwrap();
        pattern::assert_same(&held.bed.content(done.buf), &content());
        assert_eq!(block_on(held.bed.engine.shutdown()).quarantined, 1);
    }
    let frees_of_others = u64::from(by_deadline);
    until(|| held.bed.device.calls("cuMemFree_v2") == frees + frees_of_others);
    assert_eq!(held.bed.cufile.report().files, 1);
    // It runs in the end, and finds all that it needs.
    held.release();
    until(|| held.bed.device.peek(address, LEN) == content());
    until(|| held.bed.engine.stats().stray_completions == 1);
    assert_eq!(
        held.bed.device.calls("cuMemFree_v2"),
        frees + frees_of_others
    );
    held.bed.cufile.assert_no_harm();
    held.bed.device.assert_no_harm();
}

#[test]
fn a_context_that_is_lost_ends_what_is_in_the_stream_as_unknown() {
    let Some(here) = World::new().enter() else {
        return;
    };
    let held = Held::new(Bed::new(&here, |builder| builder));
    let in_stream = block_on(held.read(held.bed.buffer(&[0; LEN]))).unwrap();
    held.bed.device.fault("cuCtxSynchronize:lose=700");
    assert_eq!(held.bed.device.user().synchronize_all(), 700);
    let failed = block_on(in_stream).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::Quarantined, "{failed}");
    assert!(failed.into_parts().1.is_none());
    held.bed.device.spoil();
    assert_eq!(block_on(held.bed.engine.shutdown()).quarantined, 1);
    held.bed.cufile.assert_no_harm();
    held.bed.device.assert_no_harm();
}

#[test]
fn a_result_that_cannot_be_is_a_quarantine() {
    // More than was asked for; and the number that stood there before, as if nobody had written any.
    let unwritten = format!("return={}", isize::MIN);
    let worlds = ["long=1", &unwritten].map(|fault| World::new().with("FAULT", fault));
    let Some(here) = enter_each(&worlds) else {
        return;
    };
    let bed = Bed::new(&here, |builder| builder);
    let file = bed.file("file", &content());
    let stream = bed.device.user().stream();
    #[expect(clippy::disallowed_methods, reason = "the parent says which it is")]
    let fault = std::env::var("FAULT").unwrap();
    bed.cufile.fault(&format!("@read:{fault}"));
    let read = enqueue(file.read_at(bed.buffer(&[0; LEN]), 0), stream);
    let failed = block_on(async { read.await?.await }).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::Quarantined, "{failed}");
    assert_eq!(block_on(bed.engine.shutdown()).quarantined, 1);
    bed.cufile.assert_no_harm();
    bed.device.assert_no_harm();
}

#[test]
fn without_an_event_behind_it_nobody_waits_for_ever() {
    let Some(here) = World::new().enter() else {
        return;
    };
    let bed = Bed::new(&here, |builder| builder);
    let file = bed.file("file", &content());
    let stream = bed.device.user().stream();
    let buffer = bed.buffer(&[0; LEN]);
    bed.device.fault("cuEventRecord:fail=999");
    let failed = block_on(enqueue(file.read_at(buffer, 0), stream)).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::Quarantined, "{failed}");
    assert!(failed.into_parts().1.is_none());
    bed.device.user().synchronize(stream);
    assert_eq!(block_on(bed.engine.shutdown()).quarantined, 1);
    bed.cufile.assert_no_harm();
    bed.device.assert_no_harm();
}

#[test]
fn a_full_stream_holds_up_a_worker_and_no_task() {
    let Some(here) = World::new()
        .with("TOKIO_CUFILE_SIM_CUFILE_BACKLOG", "2")
        .enter()
    else {
        return;
    };
    let held = Held::new(Bed::new(&here, |builder| {
        builder.quiet_limit(LIMIT).num_threads(5)
    }));
    let registered = block_on(held.bed.register(held.stream)).unwrap();
    let mut buffer = held.bed.buffer(&[0xee; LEN]);
    let address = buffer.address();
    let mut make = |index: usize| {
        let part = buffer.part(index * PAGE..(index + 1) * PAGE).unwrap();
        held.file.read_exact_at(part, (index * PAGE) as u64)
    };
    let first = block_on(enqueue(make(0), held.stream)).unwrap();
    let second = block_on(enqueue(make(1), held.stream)).unwrap();
    let mut waiting = enqueue(make(2), held.stream);
    let late = make(3).deadline(Instant::now() + IN_FLIGHT_BY);
    assert!(poll_once(&mut waiting).is_pending());
    until(|| held.bed.cufile.report().blocked_submissions == 1);
    // This one is given up while its thread waits for its turn.
    let failed = block_on(enqueue(late, held.stream)).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::Quarantined, "{failed}");
    assert!(poll_once(&mut waiting).is_pending());
    let done = block_on(held.file.read_exact_at(vec![0; LEN], 0)).unwrap();
    pattern::assert_same(&done.buf, &content());
    held.release();
    for one in [first, second, block_on(waiting).unwrap()] {
        block_on(one).unwrap();
    }
    until(|| held.bed.engine.stats().stray_completions == 1);
    // And never came into the stream.
    pattern::assert_same(
        &held.bed.device.peek(address, 3 * PAGE),
        &content()[..3 * PAGE],
    );
    let fourth = address + 3 * PAGE as u64;
    assert_eq!(held.bed.device.peek(fourth, PAGE), [0xee; PAGE]);
    block_on(registered.deregister()).unwrap();
    assert_eq!(block_on(held.bed.engine.shutdown()).quarantined, 1);
    held.bed.cufile.assert_no_harm();
    held.bed.device.assert_no_harm();
}
