//! Parts in the engine's own streams that nobody knows the end of.
//!
//! Failure: memory, numbers, a file or a stream that is let go while the library may yet use it; somebody
//! who waits for ever; work of others that is put behind what is stuck.
//! Mechanism: nothing takes an operation out of a stream, and what comes behind it waits.
//! Method: what is given up on is let go in the end, and must find all that it needs; the simulator names
//! what it does not find. A process for each, since what was given up on stays.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use tokio_cufile::{AsyncCuFile, EngineBuilder, ErrorKind};
use tokio_cufile_tests::bench::block_on;
use tokio_cufile_tests::cufile::{by_streams, enter_each};
use tokio_cufile_tests::life::{poll_once, until};
use tokio_cufile_tests::{Bed, World, pattern};

const PAGE: usize = 4096;
const LEN: usize = 4 * PAGE;
/// Short, for what never answers: tests wait this long.
const LIMIT: Duration = Duration::from_millis(20);

fn content() -> Vec<u8> {
    pattern::bytes(33, LEN)
}

fn impatient(builder: EngineBuilder) -> EngineBuilder {
    by_streams(builder).quiet_limit(LIMIT)
}

fn assert_reads(bed: &Bed, file: &AsyncCuFile) {
    let done = block_on(file.read_exact_at(bed.buffer(&[0; LEN]), 0)).unwrap();
    pattern::assert_same(&bed.content(done.buf), &content());
}

/// What was in flight may be for ever: nothing of it is let go, nor is the library closed.
fn assert_kept(bed: &Bed, file: AsyncCuFile) {
    assert_ends(bed, file);
    let report = bed.cufile.report();
    assert_eq!((report.opens, report.files), (1, 1), "{report:?}");
}

/// With one operation in quarantine.
fn assert_ends(bed: &Bed, file: AsyncCuFile) {
    drop(file);
    assert_eq!(bed.engine.stats().operations_quarantined, 1);
    assert_eq!(block_on(bed.engine.shutdown()).quarantined, 1);
}

fn assert_no_harm(bed: &Bed) {
    bed.cufile.assert_no_harm();
    bed.device.assert_no_harm();
}

#[test]
fn a_stream_that_is_stuck_keeps_all_that_it_may_use_and_gets_nothing_more() {
    let worlds = ["deadline", "cancel", "shutdown"].map(|how| World::new().with("HOW", how));
    let Some(here) = enter_each(&worlds) else {
        return;
    };
    #[expect(clippy::disallowed_methods, reason = "the parent says which it is")]
    let how = std::env::var("HOW").unwrap();
    let bed = Bed::new(&here, impatient);
    let file = bed.file("file", &content());
    bed.cufile.fault("@read:never,nth=1");
    let buffer = bed.buffer(&[0xee; LEN]);
    let address = buffer.address();
    let mut read = file.read_exact_at(buffer, 0);
    if how == "deadline" {
        // It is issued before that.
        read = read.deadline(Instant::now() + 10 * LIMIT);
    }
    let read = read.start();
    until(|| bed.fired() == 1);
    let frees = bed.device.calls("cuMemFree_v2");
    match how.as_str() {
        "cancel" => read.cancel_handle().cancel(),
        "shutdown" => assert_eq!(block_on(bed.engine.shutdown()).quarantined, 1),
        _ => {}
    }
    let failed = block_on(read).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::Quarantined, "{failed}");
    assert!(failed.into_parts().1.is_none());
    let mut others = 0;
    if how != "shutdown" {
        // More than there are streams: none of them is put behind it.
        for _ in 0..12 {
            assert_reads(&bed, &file);
            others += 1;
        }
        assert_eq!(bed.calls("cuFileRead"), 0);
    }
    assert_kept(&bed, file);
    until(|| bed.device.calls("cuMemFree_v2") == frees + others);
    assert_eq!(bed.device.peek(address, LEN), [0xee; LEN]);
    // It runs in the end, and finds all that it needs.
    bed.cufile.clear();
    until(|| bed.device.peek(address, LEN) == content());
    until(|| bed.engine.stats().stray_completions == 1);
    assert_eq!(bed.device.calls("cuMemFree_v2"), frees + others);
    assert_no_harm(&bed);
}

#[test]
fn an_operation_that_was_given_up_is_not_gone_on_with() {
    // In the stream, and in the call, which refuses it in the end.
    let scripts = [
        "@write:never,nth=1;@write:short=4096,nth=1",
        "cuFileWriteAsync:never,nth=1;cuFileWriteAsync:fail=5038,nth=1",
    ];
    let worlds = scripts.map(|script| World::new().with("SCRIPT", script));
    let Some(here) = enter_each(&worlds) else {
        return;
    };
    #[expect(clippy::disallowed_methods, reason = "the parent says which it is")]
    let script = std::env::var("SCRIPT").unwrap();
    let bed = Bed::new(&here, impatient);
    let file = bed.file("file", &vec![0; LEN]);
    bed.cufile.fault(&script);
    let write = file.write_all_at(bed.buffer(&content()), 0);
    let write = write.start();
    until(|| bed.fired() == 2);
    write.cancel_handle().cancel();
    let failed = block_on(write).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::Quarantined, "{failed}");
    bed.cufile.clear();
    until(|| bed.engine.stats().stray_completions == 1);
    assert_eq!(bed.calls("cuFileWrite"), 0);
    let found = std::fs::read(file.path()).unwrap();
    let written = if script.starts_with('@') { PAGE } else { 0 };
    pattern::assert_same(&found[..written], &content()[..written]);
    assert!(found[written..].iter().all(|&byte| byte == 0));
    assert_ends(&bed, file);
    // The stream has passed it.
    until(|| bed.cufile.report().files == 0);
    assert_no_harm(&bed);
}

#[test]
fn where_all_streams_are_stuck_the_rest_goes_by_synchronous_calls() {
    let Some(here) = World::new().enter() else {
        return;
    };
    let bed = Bed::new(&here, impatient);
    let file = bed.file("file", &content());
    bed.cufile.fault("@read:never");
    for stuck in 1..=4 {
        let read = file.read_exact_at(bed.buffer(&[0; LEN]), 0).start();
        until(|| bed.fired() == stuck);
        read.cancel_handle().cancel();
        let failed = block_on(read).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::Quarantined, "{failed}");
        assert_eq!(bed.engine.stats().operations_quarantined, stuck);
    }
    // It takes a moment until they are known to be.
    until(|| {
        let read = file.read_exact_at(bed.buffer(&[0; LEN]), 0);
        block_on(read.deadline(Instant::now() + LIMIT)).is_ok()
    });
    assert_reads(&bed, &file);
    assert!(bed.calls("cuFileRead") >= 2);
    drop(file);
    let report = block_on(bed.engine.shutdown());
    assert!(report.quarantined >= 4, "{report:?}");
    bed.cufile.clear();
    until(|| bed.engine.stats().stray_completions == report.quarantined);
    assert_no_harm(&bed);
}

#[test]
fn a_context_that_is_lost_ends_what_is_in_streams_as_unknown() {
    let Some(here) = World::new().enter() else {
        return;
    };
    let bed = Bed::new(&here, by_streams);
    let file = bed.file("file", &content());
    bed.cufile.fault("@read:never,nth=1");
    let buffer = bed.buffer(&[0; LEN]);
    let other = bed.buffer(&[0; LEN]);
    let read = file.read_at(buffer, 0).start();
    until(|| bed.fired() == 1);
    bed.device.fault("cuCtxSynchronize:lose=700");
    assert_eq!(bed.device.user().synchronize_all(), 700);
    let failed = block_on(read).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::Quarantined, "{failed}");
    assert!(failed.into_parts().1.is_none());
    // From now on nothing is issued to it.
    let failed = block_on(file.read_at(other, 0)).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::DeviceFailed, "{failed}");
    assert_eq!(
        (bed.calls("cuFileReadAsync"), bed.calls("cuFileRead")),
        (1, 0)
    );
    drop(failed);
    bed.device.spoil();
    assert_kept(&bed, file);
    bed.cufile.clear();
    assert_no_harm(&bed);
}

#[test]
fn a_result_that_cannot_be_is_a_quarantine() {
    let Some(here) = World::new().enter() else {
        return;
    };
    let bed = Bed::new(&here, by_streams);
    let file = bed.file("file", &content());
    bed.cufile.fault("@read:long=1");
    let failed = block_on(file.read_at(bed.buffer(&[0; LEN]), 0)).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::Quarantined, "{failed}");
    bed.cufile.clear();
    assert_reads(&bed, &file);
    assert_kept(&bed, file);
    assert_no_harm(&bed);
}

#[test]
fn without_an_event_behind_it_nobody_waits_for_ever() {
    let Some(here) = World::new().enter() else {
        return;
    };
    let bed = Bed::new(&here, by_streams);
    let file = bed.file("file", &content());
    let buffer = bed.buffer(&[0; LEN]);
    bed.device.fault("cuEventRecord:fail=999");
    let failed = block_on(file.read_at(buffer, 0)).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::Quarantined, "{failed}");
    assert!(failed.into_parts().1.is_none());
    bed.device.clear();
    assert_kept(&bed, file);
    assert_no_harm(&bed);
}

#[test]
fn full_streams_hold_up_workers_and_no_task() {
    let Some(here) = World::new()
        .with("TOKIO_CUFILE_SIM_CUFILE_BACKLOG", "1")
        .enter()
    else {
        return;
    };
    let bed = Bed::new(&here, |builder| impatient(builder).num_threads(8));
    let file = bed.file("file", &content());
    bed.cufile.fault("@read:never");
    let begin = || file.read_exact_at(bed.buffer(&[0; LEN]), 0);
    // One in each stream, and one in front of each but one.
    let mut reads: Vec<_> = (0..7).map(|_| begin().start()).collect();
    until(|| bed.cufile.report().blocked_submissions == 3);
    assert!(reads.iter_mut().all(|read| poll_once(read).is_pending()));
    // This one is given up while its thread is in the call.
    let given_up = begin().start();
    until(|| bed.cufile.report().blocked_submissions == 4);
    given_up.cancel_handle().cancel();
    let failed = block_on(given_up).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::Quarantined, "{failed}");
    assert!(reads.iter_mut().all(|read| poll_once(read).is_pending()));
    bed.cufile.clear();
    for read in reads {
        let done = block_on(read).unwrap();
        pattern::assert_same(&bed.content(done.buf), &content());
    }
    until(|| bed.engine.stats().stray_completions == 1);
    assert_ends(&bed, file);
    // The stream has passed it.
    until(|| bed.cufile.report().files == 0);
    assert_no_harm(&bed);
}
