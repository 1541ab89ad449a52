//! Failure looked for: an operation that waits for somebody else's event and holds permits meanwhile,
//! runs before it, is never let in, or cannot be stopped; and a worker permit that is lost, or given
//! back twice, when a part goes on without a worker (I9).

#![cfg(not(any(completion_loom, completion_shuttle)))]

mod support;

use support::{Want, World, ledger, limit, limits};
use tokio_cufile_completion::{Class, Ending, Limits, StopReason, WhenQuiet};

fn world() -> World<WhenQuiet> {
    World::new(limits())
}

#[test]
fn a_gated_operation_holds_no_permit_and_stands_in_nobodys_way() {
    let world = world();
    let mut gated = world.submit(Want::read(&[1000]).through_slot(2).gated());
    let census = world.check();
    assert_eq!((census.bytes.free, census.slots.free), (1000, 2));
    assert_eq!((census.queued, census.live), (1, 1));
    let mut other = world.submit(Want::read(&[1000]));
    world.run();
    assert_eq!(other.outcome().ending, Ending::Done);
    gated.assert_pending();
    assert_eq!(world.waiting(), 0);

    gated.handle().gate().open();
    world.run();
    assert_eq!(gated.outcome().ending, Ending::Done);
    world.assert_all_free(0);
}

#[test]
fn a_gate_opens_once() {
    let world = world();
    let mut gated = world.submit(Want::read(&[10, 10]).gated());
    let gate = gated.handle().gate();
    assert!(!gate.is_moot());
    gate.open();
    gate.open();
    world.run();
    assert!(gate.is_moot());
    gate.open();
    let outcome = gated.outcome();
    assert_eq!((outcome.ending, outcome.bytes), (Ending::Done, 20));
    world.assert_all_free(0);
}

#[test]
fn an_operation_stopped_before_its_gate_ends_at_once_with_its_memory() {
    let world = world();
    let mut cancelled = world.submit(Want::read(&[10]).gated());
    let gate = cancelled.handle().gate();
    cancelled.cancel();
    let outcome = cancelled.outcome();
    assert_eq!(outcome.ending, Ending::Stopped(StopReason::Cancelled));
    assert!(outcome.payload.is_some() && gate.is_moot());

    let mut late = world.submit(Want::read(&[10]).gated().deadline(50));
    world.advance_to(50);
    assert_eq!(late.outcome().ending, Ending::Stopped(StopReason::Deadline));
    gate.open();
    assert_eq!(world.waiting(), 0, "an ended operation was let in");
    world.assert_all_free(0);
}

#[test]
fn a_future_dropped_before_its_gate_gives_its_memory_to_the_disposer() {
    let world = world();
    let mut dropped = world.submit(Want::read(&[10]).gated());
    let gate = dropped.handle().gate();
    dropped.drop_future();
    world.dispose();
    dropped.memory.assert_released();
    gate.open();
    assert!(!dropped.memory.was_started());
    world.assert_all_free(0);
}

#[test]
fn a_sync_waits_for_a_write_that_waits_for_its_gate() {
    let (world, ledger) = (world(), ledger());
    let write = world.submit(Want::write(&ledger, 0, &[10]).gated());
    let mut sync = world.submit(Want::sync(&ledger));
    world.run();
    sync.assert_pending();
    write.handle().gate().open();
    world.run();
    assert_eq!(sync.outcome().ending, Ending::Done);
    drop(write);
    world.dispose();
    world.assert_all_free(0);
}

#[test]
fn an_operation_whose_event_fails_ends_with_that_and_nothing_of_it_is_issued() {
    let (world, ledger) = (world(), ledger());
    let mut write = world.submit(Want::write(&ledger, 0, &[10]).gated());
    let mut sync = world.submit(Want::sync(&ledger));
    let gate = write.handle().gate();
    gate.fail("lost");
    assert!(gate.is_moot());
    let outcome = write.outcome();
    let fault = "lost";
    assert_eq!(outcome.ending, Ending::Failed { offset: 0, fault });
    assert!(outcome.payload.is_some() && !write.memory.was_started());
    world.run();
    assert_eq!(sync.outcome().ending, Ending::Done);
    gate.open();
    gate.fail("twice");
    assert_eq!(world.waiting(), 0, "an ended operation was let in");
    world.assert_all_free(0);
}

#[test]
fn an_operation_that_was_let_in_is_not_failed_by_its_gate() {
    let world = world();
    let mut read = world.submit(Want::read(&[10]).gated());
    let gate = read.handle().gate();
    gate.open();
    gate.fail("late");
    world.run();
    assert_eq!(read.outcome().ending, Ending::Done);
    world.assert_all_free(0);
}

#[test]
fn shutdown_withdraws_what_waits_for_a_gate() {
    let world = world();
    let mut gated = world.submit(Want::read(&[10]).gated());
    world.core.stop_all();
    assert_eq!(
        gated.outcome().ending,
        Ending::Stopped(StopReason::Shutdown)
    );
    assert!(world.poll_drained().is_ready());
    world.assert_all_free(0);
}

fn one_worker() -> World<WhenQuiet> {
    World::new(Limits {
        workers: limit(1, 0),
        ..limits()
    })
}

#[test]
fn a_part_that_goes_on_without_its_worker_lets_the_next_one_have_it() {
    let world = one_worker();
    let mut jobs = [(); 3].map(|()| world.submit(Want::read(&[10]).by_worker()));
    let first = world.start();
    assert_eq!(world.waiting(), 0, "there is one worker");
    first.free_worker();
    first.free_worker();
    let second = world.start();
    assert_eq!(world.waiting(), 0, "the worker was given back once");
    first.finish();
    assert_eq!(world.waiting(), 0, "its worker went before it");
    second.finish();
    world.run();
    for job in &mut jobs {
        assert_eq!(job.outcome().ending, Ending::Done);
    }
    let workers = world.check().workers;
    assert_eq!((workers.free, workers.capacity), (1, 1));
    world.assert_all_free(0);
}

#[test]
fn an_urgent_part_gives_its_worker_back_to_the_reserve() {
    let world = World::<WhenQuiet>::new(Limits {
        workers: limit(2, 1),
        ..limits()
    });
    let urgent = || Want::read(&[10]).by_worker().class(Class::Urgent);
    for _ in 0..3 {
        let job = world.submit(urgent());
        let part = world.start();
        part.free_worker();
        let bulk = world.submit(Want::read(&[10]).by_worker());
        let other = world.submit(Want::read(&[10]).by_worker());
        assert_eq!(world.waiting(), 1, "one of two is kept for urgent parts");
        world.run();
        part.finish();
        drop((job, bulk, other));
        world.dispose();
    }
    world.assert_all_free(0);
}

#[test]
fn a_lost_part_without_its_worker_costs_no_worker() {
    let world = one_worker();
    let mut job = world.submit(Want::read(&[10]).by_worker());
    let part = world.start();
    part.free_worker();
    drop(part);
    assert_eq!(job.outcome().ending, Ending::Quarantined);
    let census = world.check();
    assert_eq!((census.workers.free, census.parts.quarantined), (1, 1));
}
