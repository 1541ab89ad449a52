//! Failure: a read or write goes on with a descriptor that was closed, and that may be another
//! file by then; or the close, which may block, runs on the task's thread.
//! Mechanism: the descriptor is owned by the file alone; whoever drops last closes.
//! Method: the file system holds reads and writes while the file is closed or dropped, counts
//! the descriptors and knows which thread closes them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use futures::executor::block_on;
use tokio_cufile::{AsyncCuFile, Engine};
use tokio_cufile_tests::SlowFs;
use tokio_cufile_tests::life::{open, open_again, poll_once, until_idle};
use tokio_cufile_tests::slow_fs::{Kind, pattern};

const LEN: usize = 64 << 10;

/// Two descriptors of the file are open: the direct one and the other.
fn assert_open(fs: &SlowFs) {
    assert_eq!(fs.count(Kind::Open), 2);
    assert_eq!(fs.count(Kind::Flush), 0);
}

/// Every descriptor is closed, each by a thread of the engine.
fn assert_closed_by_the_engine(fs: &SlowFs) {
    fs.wait_until_closed();
    for seen in fs.seen(Kind::Flush) {
        assert!(seen.thread.starts_with("cufile-"), "by {:?}", seen.thread);
    }
}

#[test]
fn a_read_in_flight_keeps_a_closed_file_open() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder().num_threads(4));
    fs.hold(Kind::Read);
    let read = file.read_at(vec![0; LEN], 0).start();
    let held = fs.next_held();
    block_on(file.close()).unwrap();
    assert_open(&fs);
    held.release();
    assert!(block_on(read).unwrap().buf == pattern(0, LEN));
    assert_closed_by_the_engine(&fs);
    until_idle(&engine);
}

#[test]
fn close_waits_for_writes_in_flight() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (_engine, file) = open(&fs, Engine::builder().num_threads(4));
    fs.hold(Kind::Write);
    let writes = [0, 4096].map(|offset| file.write_at(vec![1; 4096], offset).start());
    let mut held = fs.next_held_of(2);
    let mut close = file.close();
    assert!(poll_once(&mut close).is_pending());
    held.remove(0).release();
    assert!(poll_once(&mut close).is_pending());
    assert_open(&fs);
    held.remove(0).release();
    block_on(close).unwrap();
    for write in writes {
        assert_eq!(block_on(write).unwrap().bytes, 4096);
    }
    assert!(fs.content()[..8192] == [1; 8192]);
    assert_closed_by_the_engine(&fs);
}

#[test]
fn reads_and_writes_of_a_dropped_file_end_well() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder().num_threads(4));
    fs.hold(Kind::Read);
    fs.hold(Kind::Write);
    let write = file.write_at(vec![1; 4096], 0).start();
    let read = file.read_at(vec![0; 4096], 8192).start();
    let held = fs.next_held_of(2);
    let unstarted = file.read_at(vec![0; 4096], 4096);
    drop(file);
    fs.pass(Kind::Read);
    assert!(block_on(unstarted).unwrap().buf == pattern(4096, 4096));
    assert_open(&fs);
    drop(held);
    assert_eq!(block_on(write).unwrap().bytes, 4096);
    assert!(block_on(read).unwrap().buf == pattern(8192, 4096));
    assert!(fs.content()[..4096] == [1; 4096]);
    assert_closed_by_the_engine(&fs);
    until_idle(&engine);
}

#[test]
fn the_last_future_of_a_dropped_file_does_not_close_it_on_the_task() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let engine = Engine::builder().num_threads(2).build_blocking().unwrap();
    let ends: [fn(AsyncCuFile); 5] = [
        // Never started.
        |file| drop(file.read_at(vec![0; 1], 0)),
        |file| {
            let lazy = file.sync_data();
            drop(file);
            drop(lazy);
        },
        |file| {
            let read = file.read_at(vec![0; 1], 0);
            drop(file);
            assert_eq!(block_on(read).unwrap().bytes, 1);
        },
        |file| {
            let read = file.read_at(vec![0; 1], 0).start();
            drop(file);
            drop(read);
        },
        |file| drop(file.close()),
    ];
    for end in ends {
        end(open_again(&fs, &engine));
        assert_closed_by_the_engine(&fs);
    }
}

#[test]
fn a_close_that_a_shutdown_refuses_does_not_close_on_the_task() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder().num_threads(2));
    let _report = block_on(engine.shutdown());
    assert!(block_on(file.close()).is_err());
    assert_closed_by_the_engine(&fs);
}
