//! Failure looked for: a future whose drop allocates, in any state (I11). Method: an allocator that
//! counts, per thread.

#![cfg(not(any(completion_loom, completion_shuttle)))]
#![allow(unsafe_code, reason = "a global allocator is an unsafe trait")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::task::Context;

use support::wakers::Counter;
use support::{Job, Want, World, ledger, limit, limits};
use tokio_cufile_completion::{Limits, WhenQuiet};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes on to the system allocator unchanged; the counter is a plain cell, whose
// access neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn assert_drop_allocates_nothing(job: &mut Job<WhenQuiet>, state: &str) {
    let handle = job.handle.take();
    let before = ALLOCATIONS.get();
    drop(handle);
    let allocations = ALLOCATIONS.get() - before;
    assert_eq!(allocations, 0, "dropped {state}");
}

fn narrow() -> World<WhenQuiet> {
    World::new(Limits {
        parts: limit(1, 0),
        ..limits()
    })
}

#[test]
fn the_counter_counts() {
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(ALLOCATIONS.get() - before, 1);
}

#[test]
fn before_submit_when_queued_when_granted_and_when_issued() {
    let world = narrow();
    let mut reserved = world.prepare(Want::read(&[8]));
    assert_drop_allocates_nothing(&mut reserved, "before submit");

    let mut issued = world.submit(Want::read(&[8, 8]).deadline(10));
    let started = world.start();
    let mut queued = world.submit(Want::write(&ledger(), 0, &[8]).deadline(10));
    assert_drop_allocates_nothing(&mut queued, "when queued");
    assert_drop_allocates_nothing(&mut issued, "when issued");
    started.finish();

    let mut granted = world.submit(Want::read(&[8]));
    assert_drop_allocates_nothing(&mut granted, "when granted");
    world.dispose();
}

#[test]
fn when_settled_even_as_a_lost_write() {
    let world = narrow();
    let ledger = ledger();
    for _ in 0..3 {
        let mut failed = world.submit(Want::write(&ledger, 0, &[8]));
        world.start().fail(0, "EIO");
        assert_drop_allocates_nothing(&mut failed, "when failed");
    }
    let mut waiting = {
        let _in_flight = world.submit(Want::write(&ledger, 0, &[8]));
        world.submit(Want::sync(&ledger))
    };
    assert_drop_allocates_nothing(&mut waiting, "at a barrier");
    drop(ledger.abandon());
    world.run();
    world.dispose();
}

#[test]
fn as_the_last_operation_of_a_shutdown_that_is_awaited() {
    let world = narrow();
    let blocker = world.submit(Want::read(&[8]));
    let mut queued = world.submit(Want::read(&[8]));
    let (_counter, waker) = Counter::new();
    world.core.close_admission();
    world.start().finish();
    let _pending = world.core.poll_drained(&mut Context::from_waker(&waker));
    assert_drop_allocates_nothing(&mut queued, "as the last of a shutdown");
    drop(blocker);
    world.dispose();
}
