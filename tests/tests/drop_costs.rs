//! Failure: dropping a future allocates, or waits for the I/O, on a thread that must do neither.
//! Mechanism: withdrawing, detaching or disposing does its work on the spot.
//! Method: an allocator that counts what the calling thread does; every worker is stuck while the
//! futures are dropped. The control allocates, and is counted.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "an allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use futures::executor::block_on;
use tokio_cufile::{AsyncCuFile, Engine};
use tokio_cufile_tests::SlowFs;
use tokio_cufile_tests::life::{open, poll_once, until_idle};
use tokio_cufile_tests::slow_fs::Kind;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as promised to this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as promised to this function.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as promised to this function.
        unsafe { System.realloc(block, layout, len) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often this thread allocates when it drops the value.
fn allocations_of_drop<T>(value: T) -> u64 {
    let before = ALLOCATIONS.get();
    drop(value);
    ALLOCATIONS.get() - before
}

#[test]
fn control_a_drop_that_allocates_is_counted() {
    struct Allocates;
    impl Drop for Allocates {
        fn drop(&mut self) {
            drop(std::hint::black_box(Box::new(1)));
        }
    }
    assert_eq!(allocations_of_drop(Allocates), 1);
    assert_eq!(allocations_of_drop(vec![1]), 0);
}

#[test]
fn reads_and_writes_in_every_state_are_dropped_without_allocating() {
    let Some(fs) = SlowFs::mount(1 << 20) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder().num_threads(3).task_size(4096));
    let finished = file.read_at(vec![0; 10], 0).start();
    until_idle(&engine);
    let (finished_source, finished_write) = file.write_at(vec![0; 10], 0).staged();
    until_idle(&engine);
    fs.hold(Kind::Read);
    fs.hold(Kind::Write);
    // Three parts are in flight, and the rest of the last is queued.
    let issued = file.read_at(vec![0; 4096], 0).start();
    let mut polled = file.write_at(vec![0; 4096], 0);
    assert!(poll_once(&mut polled).is_pending());
    let split = file.read_at(vec![0; 1 << 20], 0).start();
    let held = fs.next_held_of(3);
    let queued = file.read_at(vec![0; 4096], 0).start();
    let queued_write = file.write_at(vec![0; 1 << 20], 0).start();
    let (mut queued_source, queued_staged) = file.write_at(vec![0; 1 << 20], 0).staged();
    assert!(poll_once(&mut queued_source).is_pending());
    let cancelled = file.read_at(vec![0; 4096], 0).start();
    cancelled.cancel_handle().cancel();
    let lazy = file.read_at(vec![0; 4096], 0);
    let sync = file.sync_data().start();
    let lazy_sync = file.sync_data();
    let counts = [
        allocations_of_drop(finished),
        allocations_of_drop(finished_write),
        allocations_of_drop(finished_source),
        allocations_of_drop(queued_staged),
        allocations_of_drop(queued_source),
        allocations_of_drop(queued),
        allocations_of_drop(queued_write),
        allocations_of_drop(cancelled),
        allocations_of_drop(lazy),
        allocations_of_drop(sync),
        allocations_of_drop(lazy_sync),
        allocations_of_drop(split),
        allocations_of_drop(polled),
        allocations_of_drop(issued),
        allocations_of_drop(file),
    ];
    assert_eq!(counts, [0; 15]);
    // No worker has moved: nothing above waited for one.
    assert_eq!(engine.stats().parts.in_flight, 3);
    drop(held);
    until_idle(&engine);
}

#[test]
fn a_failed_write_and_its_file_and_engine_are_dropped_without_allocating() {
    let Some(fs) = SlowFs::mount(1 << 20) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder().num_threads(2));
    fs.fail_next(Kind::Write, fuser::Errno::EIO);
    let failed = file.write_at(vec![0; 4096], 0).start();
    until_idle(&engine);
    assert_eq!(allocations_of_drop(failed), 0);
    let reopened: AsyncCuFile = block_on(AsyncCuFile::open(&engine, fs.path())).unwrap();
    let lazy = reopened.read_at(vec![0; 10], 0);
    assert_eq!(allocations_of_drop(reopened), 0);
    assert_eq!(allocations_of_drop(lazy), 0);
    assert_eq!(allocations_of_drop((file, engine)), 0);
    fs.wait_until_closed();
}
