//! Failure: a cancel or a deadline that frees what is in flight, loses the buffer, issues more, or
//! is not heard; an urgent operation stuck behind bulk ones.
//! Mechanism: a stop races with the issue, or is taken for the end of the I/O.
//! Method: one held read decides what is issued; the file system counts and orders the requests.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use futures::executor::block_on;
use tokio_cufile::{
    CacheMode, Engine, EngineBuilder, ErrorKind, HostBuffer, HostPart, OpError, OpenOptions,
    PathClass, Priority, Transfer,
};
use tokio_cufile_tests::SlowFs;
use tokio_cufile_tests::life::{IN_FLIGHT_BY, open, poll_once, until, until_idle};
use tokio_cufile_tests::slow_fs::{Kind, pattern};

const LEN: usize = 64 << 10;
const BLOCK: usize = 4096;
/// For deadlines that are to pass soon.
const SOON: Duration = Duration::from_millis(5);

fn one_thread() -> EngineBuilder {
    Engine::builder().num_threads(1).task_size(BLOCK)
}

fn long_ago() -> Instant {
    Instant::now().checked_sub(Duration::from_secs(1)).unwrap()
}

fn assert_stopped(outcome: OpError<Vec<u8>>, kind: ErrorKind, bytes: usize) {
    assert_eq!(outcome.error().kind(), kind);
    assert_eq!(outcome.bytes_done(), bytes);
    let buf = outcome.into_parts().1.expect("the buffer comes back");
    assert!(buf[..bytes] == pattern(0, bytes));
    assert!(buf[bytes..] == vec![0; buf.len() - bytes]);
}

#[test]
fn cancelled_before_the_start_it_issues_nothing() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, one_thread());
    let read = file.read_at(vec![0; BLOCK], 0);
    read.cancel_handle().cancel();
    assert_stopped(block_on(read).unwrap_err(), ErrorKind::Cancelled, 0);
    let sync = file.sync_data();
    sync.cancel_handle().cancel();
    assert_eq!(block_on(sync).unwrap_err().kind(), ErrorKind::Cancelled);
    until_idle(&engine);
    assert_eq!((fs.count(Kind::Read), fs.count(Kind::Sync)), (0, 0));
}

#[test]
fn cancelled_in_the_queue_it_resolves_while_the_worker_is_stuck() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, one_thread());
    fs.hold(Kind::Read);
    let running = file.read_at(vec![0; BLOCK], 0).start();
    let held = fs.next_held();
    let queued = file.read_at(vec![0; BLOCK], 0).start();
    queued.cancel_handle().cancel();
    assert_stopped(block_on(queued).unwrap_err(), ErrorKind::Cancelled, 0);
    held.release();
    assert!(block_on(running).unwrap().buf == pattern(0, BLOCK));
    until_idle(&engine);
    assert_eq!(fs.count(Kind::Read), 1);
}

#[test]
fn cancelled_in_flight_it_waits_for_the_part_and_issues_no_other() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, one_thread());
    fs.hold(Kind::Read);
    let mut read = file.read_at(vec![0; LEN], 0).start();
    let held = fs.next_held();
    read.cancel_handle().cancel();
    assert!(poll_once(&mut read).is_pending());
    held.release();
    assert_stopped(block_on(read).unwrap_err(), ErrorKind::Cancelled, BLOCK);
    until_idle(&engine);
    assert_eq!(fs.count(Kind::Read), 1);
}

#[test]
fn cancelled_when_everything_was_issued_it_gives_the_real_outcome() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (_engine, file) = open(&fs, one_thread());
    fs.hold(Kind::Read);
    let read = file.read_at(vec![0; BLOCK], 0).start();
    let held = fs.next_held();
    let cancel = read.cancel_handle();
    cancel.cancel();
    held.release();
    assert!(block_on(read).unwrap().buf == pattern(0, BLOCK));
    // And when it is long over.
    cancel.clone().cancel();
}

#[test]
fn after_completion_a_cancel_changes_nothing() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, one_thread());
    let read = file.read_at(vec![0; LEN], 0).start();
    until_idle(&engine);
    read.cancel_handle().cancel();
    assert!(block_on(read).unwrap().buf == pattern(0, LEN));
}

#[test]
fn a_deadline_in_the_past_issues_nothing() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, one_thread());
    let read = file.read_at(vec![0; BLOCK], 0).deadline(long_ago());
    assert_stopped(block_on(read).unwrap_err(), ErrorKind::DeadlineExceeded, 0);
    let write = file.write_at(vec![1; BLOCK], 0).deadline(long_ago());
    let error = block_on(write).unwrap_err();
    assert_eq!(error.error().kind(), ErrorKind::DeadlineExceeded);
    let sync = block_on(file.sync_all().deadline(long_ago()));
    assert_eq!(sync.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
    until_idle(&engine);
    for kind in [Kind::Read, Kind::Write, Kind::Sync] {
        assert_eq!(fs.count(kind), 0);
    }
    // The write that never began is no loss.
    block_on(file.sync_all()).unwrap();
}

#[test]
fn a_deadline_passes_in_the_queue_and_in_flight() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, one_thread());
    fs.hold(Kind::Read);
    let at = Instant::now() + IN_FLIGHT_BY;
    let mut running = file.read_at(vec![0; LEN], 0).deadline(at).start();
    let held = fs.next_held();
    let queued = file.read_at(vec![0; BLOCK], 0).deadline(at);
    // Resolved by the engine's clock: here is no timer and nothing else ends.
    assert_stopped(
        block_on(queued).unwrap_err(),
        ErrorKind::DeadlineExceeded,
        0,
    );
    until(|| engine.stats().operations_queued == 0);
    assert!(poll_once(&mut running).is_pending());
    held.release();
    assert_stopped(
        block_on(running).unwrap_err(),
        ErrorKind::DeadlineExceeded,
        BLOCK,
    );
    assert_eq!(fs.count(Kind::Read), 1);
}

#[test]
fn a_deadline_that_is_met_changes_nothing() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, one_thread());
    let at = Instant::now() + Duration::from_secs(3600);
    let done = block_on(file.read_at(vec![0; LEN], 0).deadline(at)).unwrap();
    assert!(done.buf == pattern(0, LEN));
    block_on(file.sync_data().deadline(at)).unwrap();
    until_idle(&engine);
}

fn assert_quarantined(stop: impl FnOnce(&SlowFs, Transfer<HostPart>) -> Transfer<HostPart>) {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, one_thread().quiet_limit(SOON));
    let mut buffer = HostBuffer::new(&engine, BLOCK).unwrap();
    fs.hold(Kind::Read);
    let part = buffer.part(0..BLOCK).unwrap();
    let read = stop(&fs, file.read_at(part, 0));
    let (error, part) = block_on(read).unwrap_err().into_parts();
    assert_eq!(error.kind(), ErrorKind::Quarantined);
    assert!(part.is_none());
    assert_eq!(buffer.parts_out(), 1);
    assert_eq!(engine.stats().operations_quarantined, 1);
    // Nothing is left of the one part that may be in flight: who comes now is told, and does not wait.
    let late = block_on(file.read_at(vec![0; BLOCK], 0)).unwrap_err();
    assert_eq!(late.error().kind(), ErrorKind::NoCapacity);
    fs.pass(Kind::Read);
    fs.next_held().release();
    until(|| engine.stats().paths.total() > 0);
    assert_eq!(buffer.parts_out(), 1, "never reused");
}

#[test]
fn cancelled_and_never_heard_of_again_it_is_quarantined() {
    assert_quarantined(|fs, read| {
        let read = read.start();
        fs.wait_until(|log| log.iter().any(|seen| seen.kind == Kind::Read));
        read.cancel_handle().cancel();
        read
    });
}

#[test]
fn past_its_deadline_and_never_heard_of_again_it_is_quarantined() {
    assert_quarantined(|fs, read| {
        let read = read.deadline(Instant::now() + IN_FLIGHT_BY).start();
        fs.wait_until(|log| log.iter().any(|seen| seen.kind == Kind::Read));
        read
    });
}

#[test]
fn priority_urgent_overtakes_bulk_and_classes_keep_their_order() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, one_thread());
    fs.hold(Kind::Read);
    let running = file.read_at(vec![0; 512], 0).start();
    let first = fs.next_held();
    let order = [
        (Priority::Bulk, 5),
        (Priority::Bulk, 6),
        (Priority::Normal, 3),
        (Priority::Urgent, 1),
        (Priority::Normal, 4),
        (Priority::Urgent, 2),
    ];
    let reads = order.map(|(class, place)| {
        let read = file.read_at(vec![0; BLOCK], place * BLOCK as u64);
        read.priority(class).start()
    });
    assert_eq!(engine.stats().operations_queued, 6);
    fs.pass(Kind::Read);
    first.release();
    assert_eq!(block_on(running).unwrap().bytes, 512);
    for read in reads {
        assert_eq!(block_on(read).unwrap().bytes, BLOCK);
    }
    let places: Vec<_> = fs
        .seen(Kind::Read)
        .iter()
        .map(|seen| seen.offset / BLOCK as u64)
        .collect();
    assert_eq!(places, [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn urgent_has_a_thread_when_bulk_has_taken_what_it_may() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder().num_threads(3).task_size(BLOCK));
    fs.hold(Kind::Read);
    let bulk = file
        .read_at(vec![0; LEN], 0)
        .priority(Priority::Bulk)
        .start();
    let held = fs.next_held_of(3);
    assert_eq!(engine.stats().operations_queued, 1);
    let urgent = file
        .read_at(vec![0; BLOCK], 0)
        .priority(Priority::Urgent)
        .start();
    fs.next_held().release();
    assert_eq!(block_on(urgent).unwrap().bytes, BLOCK);
    fs.pass(Kind::Read);
    drop(held);
    assert_eq!(block_on(bulk).unwrap().bytes, LEN);
}

#[test]
fn lazy_until_polled_and_eager_when_started() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, one_thread());
    let lazy = file.read_at(vec![0; BLOCK], 0);
    let eager = file.read_at(vec![0; BLOCK], BLOCK as u64).start();
    let (lazy_sync, eager_sync) = (file.sync_data(), file.sync_all().start());
    fs.wait_until(|log| log.iter().any(|seen| seen.kind == Kind::Sync));
    until_idle(&engine);
    assert_eq!(fs.count(Kind::Read), 1);
    assert_eq!(fs.seen(Kind::Read)[0].offset, BLOCK as u64);
    assert!(block_on(lazy).unwrap().buf == pattern(0, BLOCK));
    assert!(block_on(eager).unwrap().buf == pattern(BLOCK, BLOCK));
    block_on(lazy_sync).unwrap();
    block_on(eager_sync).unwrap();
    assert_eq!((fs.count(Kind::Read), fs.count(Kind::Sync)), (2, 2));
}

#[test]
fn a_path_that_is_known_to_be_missing_is_refused_before_anything_is_issued() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, one_thread());
    let read = file.read_at(vec![0; BLOCK], 0).require(PathClass::Gds);
    assert_stopped(block_on(read).unwrap_err(), ErrorKind::PathRefused, 0);
    let cached = OpenOptions::new().read(true).cache(CacheMode::Cached);
    let cached = block_on(cached.open(&engine, fs.path())).unwrap();
    let read = cached
        .read_at(vec![0; BLOCK], 0)
        .require(PathClass::DirectIo);
    assert_stopped(block_on(read).unwrap_err(), ErrorKind::PathRefused, 0);
    assert_eq!(fs.count(Kind::Read), 0);
    let read = file.read_at(vec![0; BLOCK], 0).require(PathClass::DirectIo);
    assert!(block_on(read).unwrap().buf == pattern(0, BLOCK));
}
