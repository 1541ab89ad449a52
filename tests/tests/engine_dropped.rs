//! Failure: the engine, its files and every future are dropped with I/O in flight, and the memory
//! is freed under it; or threads and descriptors stay behind.
//! Mechanism: the last owner tears down without waiting, or waits for ever.
//! Method: as many operations as wanted are held in flight; afterwards the threads and the
//! descriptors are counted until there are none.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use futures::executor::block_on;
use tokio_cufile::{AsyncCuFile, Engine, HostBuffer};
use tokio_cufile_tests::SlowFs;
use tokio_cufile_tests::life::{engine_threads, open, poll_once, until};
use tokio_cufile_tests::slow_fs::{Kind, pattern};

const BLOCK: usize = 4096;
/// The tests count the threads of the process.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn reads_in_flight_end_in_the_background_and_nothing_stays() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for reads in [1, 2, 16, 64] {
        let Some(fs) = SlowFs::mount(64 * BLOCK) else {
            return;
        };
        // An eighth more is kept for urgent operations.
        let (engine, file) = open(&fs, Engine::builder().num_threads(80));
        let mut buffer = HostBuffer::new(&engine, reads * BLOCK).unwrap();
        fs.hold(Kind::Read);
        let mut futures = Vec::new();
        for at in (0..reads).map(|index| index * BLOCK) {
            let part = buffer.part(at..at + BLOCK).unwrap();
            futures.push(file.read_at(part, at as u64).start());
        }
        let held = fs.next_held_of(reads);
        drop((futures, file, engine));
        assert_eq!(buffer.parts_out(), reads);
        let canaries = [(); 64].map(|()| vec![0xA5_u8; BLOCK]);
        drop(held);
        block_on(buffer.idle());
        assert!(buffer.as_slice().unwrap() == pattern(0, reads * BLOCK));
        assert!(canaries.iter().flatten().all(|&byte| byte == 0xA5));
        fs.wait_until_closed();
        until(|| engine_threads() == 0);
    }
}

#[test]
fn futures_outlive_the_handles() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(fs) = SlowFs::mount(4 * BLOCK) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder().num_threads(1));
    fs.hold(Kind::Read);
    let running = file.read_at(vec![0; BLOCK], 0).start();
    let held = fs.next_held();
    let queued = file.read_at(vec![0; BLOCK], BLOCK as u64).start();
    let lazy = file.read_at(vec![0; BLOCK], 2 * BLOCK as u64);
    let lazy_write = file.write_at(vec![1; BLOCK], 3 * BLOCK as u64);
    drop((engine, file));
    fs.pass(Kind::Read);
    held.release();
    assert!(block_on(running).unwrap().buf == pattern(0, BLOCK));
    assert!(block_on(queued).unwrap().buf == pattern(BLOCK, BLOCK));
    assert!(block_on(lazy).unwrap().buf == pattern(2 * BLOCK, BLOCK));
    assert_eq!(block_on(lazy_write).unwrap().bytes, BLOCK);
    fs.wait_until_closed();
    until(|| engine_threads() == 0);
}

#[test]
fn what_is_queued_when_all_is_dropped_is_never_issued() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(fs) = SlowFs::mount(4 * BLOCK) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder().num_threads(1));
    fs.hold(Kind::Read);
    let running = file.read_at(vec![0; BLOCK], 0).start();
    let held = fs.next_held();
    let queued = [(); 100].map(|()| file.read_at(vec![0; BLOCK], 0).start());
    drop((engine, file, running, queued));
    held.release();
    fs.wait_until_closed();
    until(|| engine_threads() == 0);
    assert_eq!(fs.count(Kind::Read), 1);
}

#[test]
fn an_engine_that_is_dropped_at_once_leaves_no_thread() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut building = Box::pin(Engine::builder().num_threads(3).build());
    assert!(poll_once(&mut building).is_pending());
    drop(building);
    for _ in 0..20 {
        drop(Engine::builder().num_threads(3).build_blocking().unwrap());
    }
    drop(block_on(Engine::builder().num_threads(3).build()).unwrap());
    until(|| engine_threads() == 0);
}

/// How many descriptors of this process are of the file.
fn descriptors(path: &Path) -> usize {
    let all = fs::read_dir("/proc/self/fd").unwrap();
    let links = all.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    links.filter(|link| link == path).count()
}

#[test]
fn after_a_shutdown_a_file_that_is_dropped_with_the_engine_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, [7; 100]).unwrap();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Often, since the disposer is just on its way from the report to its end.
    for _ in 0..300 {
        let engine = Engine::builder().num_threads(1).build_blocking().unwrap();
        let file = block_on(AsyncCuFile::open(&engine, &path)).unwrap();
        let _report = block_on(engine.shutdown());
        drop(file);
        drop(engine);
    }
    until(|| descriptors(&path) == 0);
}
