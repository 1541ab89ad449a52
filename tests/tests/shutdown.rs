//! Failure: a shutdown that hangs, frees what is in flight, counts wrongly, or admits more.
//! Mechanism: it waits for what nobody stops, or forgets what it stopped.
//! Method: the file system holds reads for as long as the test wants; stuck ones are released
//! after the report only.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use futures::executor::block_on;
use tokio_cufile::{Engine, ErrorKind, HostBuffer};
use tokio_cufile_tests::SlowFs;
use tokio_cufile_tests::life::{engine_threads, open, poll_once, until, until_idle};
use tokio_cufile_tests::slow_fs::{Kind, pattern};

const LEN: usize = 64 << 10;
/// Short, for what never answers: tests wait this long.
const LIMIT: Duration = Duration::from_millis(20);

#[test]
fn it_withdraws_what_is_queued_and_waits_for_what_is_issued() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder().num_threads(1));
    fs.hold(Kind::Read);
    let running = file.read_at(vec![0; LEN], 0).start();
    let held = fs.next_held();
    let queued = [(); 3].map(|()| file.read_at(vec![0; LEN], 0).start());
    let sync = file.sync_data().start();
    let mut shutdown = Box::pin(engine.shutdown());
    assert!(poll_once(&mut shutdown).is_pending());
    for read in queued {
        let (error, buf) = block_on(read).unwrap_err().into_parts();
        assert_eq!(error.kind(), ErrorKind::ShuttingDown);
        assert!(buf.unwrap() == vec![0; LEN]);
    }
    assert_eq!(block_on(sync).unwrap_err().kind(), ErrorKind::ShuttingDown);
    let late = block_on(file.read_at(vec![0; 1], 0)).unwrap_err();
    assert_eq!(late.error().kind(), ErrorKind::ShuttingDown);
    assert!(poll_once(&mut shutdown).is_pending());
    held.release();
    let report = block_on(shutdown);
    assert!(block_on(running).unwrap().buf == pattern(0, LEN));
    // What came late was never in.
    let counts = (report.drained, report.withdrawn, report.quarantined);
    assert_eq!(counts, (1, 4, 0));
    assert_eq!(fs.count(Kind::Read), 1);
    until_idle(&engine);
}

#[test]
fn a_split_read_ends_after_the_part_in_flight() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder().num_threads(1).task_size(4096));
    fs.hold(Kind::Read);
    let read = file.read_at(vec![0; LEN], 0).start();
    let held = fs.next_held();
    let mut shutdown = Box::pin(engine.shutdown());
    assert!(poll_once(&mut shutdown).is_pending());
    until(|| engine.stats().operations_queued == 0);
    held.release();
    let error = block_on(read).unwrap_err();
    assert_eq!(error.error().kind(), ErrorKind::ShuttingDown);
    assert_eq!(error.bytes_done(), 4096);
    let report = block_on(shutdown);
    assert_eq!((report.drained, report.withdrawn), (1, 0));
}

#[test]
fn what_never_answers_is_quarantined_and_counted() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    // And one for urgent operations.
    let builder = Engine::builder().num_threads(7).quiet_limit(LIMIT);
    let (engine, file) = open(&fs, builder);
    let mut buffer = HostBuffer::new(&engine, 3 * 4096).unwrap();
    fs.hold(Kind::Read);
    let parts = [0, 1, 2].map(|at| buffer.part(at * 4096..(at + 1) * 4096).unwrap());
    let reads = parts.map(|part| file.read_at(part, 0).start());
    let mut held = fs.next_held_of(3);
    held.pop().unwrap().release();
    until(|| engine.stats().operations_live == 2);
    let report = block_on(engine.shutdown());
    assert_eq!((report.drained, report.quarantined), (0, 2));
    let outcomes = reads.map(block_on);
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    for error in outcomes.into_iter().filter_map(Result::err) {
        let (error, part) = error.into_parts();
        assert_eq!(error.kind(), ErrorKind::Quarantined);
        assert!(part.is_none());
    }
    let stats = engine.stats();
    assert_eq!(stats.operations_quarantined, 2);
    assert_eq!((stats.parts.quarantined, stats.parts.free), (2, 6));
    // Late, but too late: what was quarantined stays so. Only the file is needed no longer than
    // the calls on it last.
    drop(file);
    assert_eq!(fs.count(Kind::Flush), 0);
    drop(held);
    until(|| engine.stats().paths.total() == 3 * 4096);
    fs.wait_until_closed();
    assert_eq!(buffer.parts_out(), 2);
    until(|| engine.stats().stray_completions == 2);
    let late = engine.stats();
    assert_eq!(late.operations_quarantined, 2);
    assert_eq!(
        (late.parts, late.bytes, late.slots),
        (stats.parts, stats.bytes, stats.slots)
    );
    drop(engine);
    until(|| engine_threads() == 0);
}

#[test]
fn a_stuck_read_that_is_dropped_during_the_shutdown_does_not_hold_it_up() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let builder = Engine::builder().num_threads(1).quiet_limit(LIMIT);
    let (engine, file) = open(&fs, builder);
    fs.hold(Kind::Read);
    let read = file.read_at(vec![0; LEN], 0).start();
    let _held = fs.next_held();
    let mut shutdown = Box::pin(engine.shutdown());
    assert!(poll_once(&mut shutdown).is_pending());
    // As the shutdown does, which may be later.
    read.cancel_handle().cancel();
    drop(read);
    assert_eq!(block_on(shutdown).quarantined, 1);
}

#[test]
fn a_stuck_read_that_was_cancelled_and_dropped_before_does_not_hold_it_up() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let builder = Engine::builder().num_threads(1).quiet_limit(LIMIT);
    let (engine, file) = open(&fs, builder);
    fs.hold(Kind::Read);
    let read = file.read_at(vec![0; LEN], 0).start();
    let _held = fs.next_held();
    read.cancel_handle().cancel();
    drop(read);
    assert_eq!(block_on(engine.shutdown()).quarantined, 1);
}

#[test]
fn a_stuck_read_that_was_dropped_before_does_not_hold_it_up() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let builder = Engine::builder().num_threads(1).quiet_limit(LIMIT);
    let (engine, file) = open(&fs, builder);
    fs.hold(Kind::Read);
    let read = file.read_at(vec![0; LEN], 0).start();
    let _held = fs.next_held();
    drop(read);
    assert_eq!(block_on(engine.shutdown()).quarantined, 1);
}

#[test]
fn dropped_half_way_it_goes_on_and_a_second_one_reports() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder().num_threads(1));
    drop(engine.shutdown());
    assert_eq!(block_on(file.len()).unwrap(), LEN as u64, "never polled");
    fs.hold(Kind::Read);
    let read = file.read_at(vec![0; LEN], 0).start();
    let held = fs.next_held();
    let mut first = Box::pin(engine.shutdown());
    assert!(poll_once(&mut first).is_pending());
    drop(first);
    assert_eq!(
        block_on(file.len()).unwrap_err().kind(),
        ErrorKind::ShuttingDown
    );
    held.release();
    let second = block_on(engine.shutdown());
    let third = block_on(engine.clone().shutdown());
    assert_eq!(block_on(read).unwrap().bytes, LEN);
    for report in [second, third] {
        let counts = (report.drained, report.withdrawn, report.quarantined);
        assert_eq!(counts, (1, 0, 0));
    }
}

#[test]
fn with_nothing_to_do_it_ends_at_once() {
    let engine = Engine::builder().num_threads(1).build_blocking().unwrap();
    let report = block_on(engine.shutdown());
    assert_eq!(
        (report.drained, report.withdrawn, report.quarantined),
        (0, 0, 0)
    );
    let open = tokio_cufile::AsyncCuFile::open(&engine, "/dev/null");
    assert_eq!(block_on(open).unwrap_err().kind(), ErrorKind::ShuttingDown);
}
