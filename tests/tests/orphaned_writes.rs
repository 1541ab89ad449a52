//! Failure: a write whose future was dropped fails, and the program believes that its data is
//! durable.
//! Mechanism: the outcome dies with the future; a sync does not wait for the write; a failed sync
//! is repeated and the kernel says yes the second time.
//! Method: the file system fails, holds or cuts the writes and syncs, and counts the syncs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use fuser::Errno;
use futures::executor::block_on;
use tokio_cufile::{AsyncCuFile, Engine, EngineBuilder, Error, ErrorKind, VendorCode};
use tokio_cufile_tests::SlowFs;
use tokio_cufile_tests::life::{open, open_again, poll_once, until_idle};
use tokio_cufile_tests::slow_fs::Kind;

const LEN: usize = 64 << 10;
const BLOCK: usize = 4096;

fn engine(threads: usize) -> EngineBuilder {
    Engine::builder().num_threads(threads).task_size(BLOCK)
}

/// A write at `offset` that is dropped in flight and then fails.
fn lose_a_write(fs: &SlowFs, engine: &Engine, file: &AsyncCuFile, offset: u64) {
    fs.hold(Kind::Write);
    let write = file.write_at(vec![1; BLOCK], offset).start();
    let held = fs.next_held();
    drop(write);
    held.fail(Errno::EIO);
    fs.pass(Kind::Write);
    until_idle(engine);
}

fn assert_lost(result: Result<(), Error>, fs: &SlowFs, offset: u64) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OrphanedWrite, "{error}");
    assert_eq!(error.path(), Some(fs.path().as_path()));
    assert_eq!(error.offset(), Some(offset));
}

#[test]
fn its_failure_is_given_by_every_later_sync_and_by_close() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, engine(2));
    block_on(file.sync_data()).unwrap();
    lose_a_write(&fs, &engine, &file, 8192);
    let first = block_on(file.sync_data()).unwrap_err();
    assert_eq!(first.operation(), Some(tokio_cufile::Operation::Sync));
    let source = std::error::Error::source(&first).expect("what the file system gave");
    let source = source.downcast_ref::<Error>().unwrap();
    assert_eq!(source.vendor_code(), Some(VendorCode::Errno(5)));
    assert_lost(Err(first), &fs, 8192);
    assert_lost(block_on(file.sync_all()), &fs, 8192);
    lose_a_write(&fs, &engine, &file, 4096);
    assert_lost(block_on(file.sync_data()), &fs, 4096);
    assert_lost(block_on(file.close()), &fs, 4096);
    assert_eq!(fs.count(Kind::Sync), 1, "only the one before the loss");
    fs.wait_until_closed();
    let report = block_on(engine.shutdown());
    assert_eq!(report.lost_writes.len(), 0, "the file said so already");
}

#[test]
fn a_write_that_is_awaited_after_it_failed_is_not_orphaned() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (_engine, file) = open(&fs, engine(2));
    fs.fail_next(Kind::Write, Errno::EIO);
    let error = block_on(file.write_at(vec![1; BLOCK], 0)).unwrap_err();
    assert_eq!(error.error().kind(), ErrorKind::Io);
    assert_eq!(error.into_parts().1.unwrap(), vec![1; BLOCK]);
    block_on(file.sync_all()).unwrap();
    block_on(file.close()).unwrap();
}

#[test]
fn a_failure_that_was_there_before_the_drop_is_seen_by_the_next_sync() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, engine(2));
    let other = open_again(&fs, &engine);
    // The engine's disposer is stuck in a close, so that whatever it is to tell comes late.
    fs.hold(Kind::Flush);
    drop(other);
    let closing = fs.next_held();
    fs.fail_next(Kind::Write, Errno::EIO);
    let write = file.write_at(vec![1; BLOCK], 4096).start();
    until_idle(&engine);
    drop(write);
    assert_lost(block_on(file.sync_data()), &fs, 4096);
    fs.pass(Kind::Flush);
    closing.release();
}

#[test]
fn a_file_dropped_without_a_sync_leaves_its_loss_to_the_shutdown() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, engine(2));
    lose_a_write(&fs, &engine, &file, 4096);
    drop(file);
    fs.wait_until_closed();
    // And a loss that comes when the file is gone already.
    let late = open_again(&fs, &engine);
    fs.hold(Kind::Write);
    let write = late.write_at(vec![1; BLOCK], 12288).start();
    let held = fs.next_held();
    drop((write, late));
    held.fail(Errno::ENOSPC);
    let mut report = block_on(engine.shutdown());
    assert_eq!(report.lost_writes.len(), 2);
    // In the order in which the files went, and nobody waits for that.
    report.lost_writes.sort_by_key(Error::offset);
    assert_lost(Err(report.lost_writes.remove(0)), &fs, 4096);
    assert_lost(Err(report.lost_writes.remove(0)), &fs, 12288);
}

#[test]
fn a_write_dropped_with_parts_unissued_is_torn() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, engine(1));
    fs.hold(Kind::Write);
    let write = file.write_at(vec![1; 4 * BLOCK], 4096).start();
    let held = fs.next_held();
    drop(write);
    held.release();
    until_idle(&engine);
    assert_lost(block_on(file.sync_data()), &fs, 8192);
    assert_eq!(fs.count(Kind::Write), 1);
}

#[test]
fn a_write_dropped_before_anything_was_issued_leaves_no_trace() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, engine(1));
    fs.hold(Kind::Read);
    let read = file.read_at(vec![0; 10], 0).start();
    let held = fs.next_held();
    drop(file.write_at(vec![1; BLOCK], 0));
    drop(file.write_at(vec![1; BLOCK], 0).start());
    held.release();
    assert_eq!(block_on(read).unwrap().bytes, 10);
    block_on(file.sync_data()).unwrap();
    until_idle(&engine);
    assert_eq!(fs.count(Kind::Write), 0);
}

#[test]
fn a_sync_waits_for_a_dropped_write_in_flight() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, engine(4));
    fs.hold(Kind::Write);
    let write = file.write_at(vec![1; BLOCK], 0).start();
    let held = fs.next_held();
    drop(write);
    let mut sync = file.sync_data();
    assert!(poll_once(&mut sync).is_pending());
    let mut close = file.close();
    assert!(poll_once(&mut close).is_pending());
    assert_eq!(engine.stats().operations_queued, 2);
    // What came later and waits for no write is not held up.
    let read = open_again(&fs, &engine).read_at(vec![0; 10], 0);
    assert_eq!(block_on(read).unwrap().bytes, 10);
    assert_eq!(fs.count(Kind::Sync), 0);
    held.release();
    block_on(sync).unwrap();
    block_on(close).unwrap();
    assert_eq!(fs.count(Kind::Sync), 1);
    assert!(fs.content()[..BLOCK] == [1; BLOCK]);
}

#[test]
fn a_failed_sync_is_never_repeated() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (_engine, file) = open(&fs, engine(2));
    fs.fail_next(Kind::Sync, Errno::EIO);
    for result in [
        block_on(file.sync_data()),
        block_on(file.sync_all()),
        block_on(file.sync_data()),
    ] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_eq!(error.vendor_code(), Some(VendorCode::Errno(5)));
    }
    assert_eq!(fs.count(Kind::Sync), 1);
}

#[test]
fn short_writes_are_continued_also_when_nobody_waits() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder().num_threads(2));
    fs.hold(Kind::Write);
    let write = file.write_at(vec![1; 4 * BLOCK], 0).start();
    let held = fs.next_held();
    drop(write);
    fs.pass(Kind::Write);
    held.cut_short(BLOCK);
    until_idle(&engine);
    block_on(file.sync_data()).unwrap();
    assert!(fs.content()[..4 * BLOCK] == [1; 4 * BLOCK]);
}
