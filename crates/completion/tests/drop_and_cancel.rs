//! Failure looked for: memory freed under hardware, or kept for ever, when the future is dropped or
//! the operation is cancelled at each point of its life (I3, I11, I12, I24).

#![cfg(not(any(completion_loom, completion_shuttle)))]

mod support;

use std::sync::Arc;

use support::{Job, Want, World, ledger, limit, limits, scenarios};
use tokio_cufile_completion::{Ending, Limits, Next, Rejection, StopReason, WhenQuiet};

type Sound = World<WhenQuiet>;

fn world() -> Sound {
    World::new(limits())
}

/// One part at a time.
fn narrow() -> Sound {
    World::new(Limits {
        parts: limit(1, 0),
        ..limits()
    })
}

#[test]
fn dropped_before_submit_the_payload_goes_to_the_disposer() {
    let world = world();
    let mut job = world.prepare(Want::read(&[8]));
    job.drop_future();
    job.memory.assert_held();
    assert_eq!(world.dispose().operations, 1);
    job.memory.assert_released();
    assert_eq!(world.waiting(), 0);
    world.assert_all_free(0);
}

#[test]
fn dropped_while_queued_it_is_withdrawn_at_once() {
    let world = narrow();
    let mut blocker = world.submit(Want::read(&[8]));
    let mut job = world.submit(Want::read(&[8]));
    job.drop_future();
    assert_eq!(world.check().queued, 0);
    job.memory.assert_held();
    world.dispose();
    job.memory.assert_released();
    world.run();
    assert_eq!(blocker.outcome().ending, Ending::Done);
    world.assert_all_free(0);
}

#[test]
fn dropped_while_granted_and_not_started_it_is_withdrawn_at_once() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]));
    let part = world.take_part().expect("granted");
    job.drop_future();
    world.dispose();
    job.memory.assert_released();
    assert!(part.start().is_none(), "its memory is gone");
    world.assert_all_free(0);
}

#[test]
fn dropped_while_issued_it_is_kept_until_it_is_quiet() {
    scenarios::memory_outlives_its_future::<WhenQuiet>();
}

#[test]
fn dropped_between_stages_the_next_stage_is_skipped_and_the_slot_stays() {
    let world = World::<WhenQuiet>::new(Limits {
        slots: limit(1, 0),
        small_slots: limit(0, 0),
        ..limits()
    });
    let mut job = world.submit(Want::read(&[8]).through_slot(2));
    let started = world.start();
    job.drop_future();
    assert_eq!(started.advance(), Next::Skip);
    assert_eq!(world.check().slots.issued, 1, "stage 1 held the slot (I17)");
    let mut next = world.submit(Want::read(&[8]).through_slot(1));
    assert_eq!(world.waiting(), 0);
    started.finish_with(0, None);
    world.dispose();
    job.memory.assert_released();
    world.run();
    assert_eq!(next.outcome().ending, Ending::Done);
    world.assert_all_free(0);
}

#[test]
fn awaited_between_stages_the_next_stage_proceeds() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]).through_slot(2));
    let started = world.start();
    assert_eq!(started.advance(), Next::Proceed);
    started.finish();
    assert_eq!(job.outcome().ending, Ending::Done);
}

#[test]
fn dropped_when_settled_the_payload_goes_to_the_disposer() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]));
    world.run();
    job.drop_future();
    job.memory.assert_held();
    assert_eq!(world.dispose().operations, 1);
    job.memory.assert_released();
    world.assert_all_free(0);
}

#[test]
fn dropped_after_its_outcome_was_taken_nothing_is_left_to_dispose_of() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]));
    world.run();
    drop(job.outcome());
    job.drop_future();
    assert_eq!(world.dispose().operations, 0);
    job.memory.assert_released();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the leak is what is tested")]
fn a_forgotten_future_leaks_its_result_and_nothing_else() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]).through_slot(1));
    std::mem::forget(job.handle.take());
    world.run();
    world.assert_all_free(0);
    job.memory.assert_held();
}

/// Submits the operation with parts that hold something.
fn submit_holding(job: &Job<WhenQuiet>) -> Arc<()> {
    let held = Arc::new(());
    let share = Arc::clone(&held);
    let mut spec = job.want.spec(&job.memory);
    spec.parts = Box::new(
        spec.parts
            .inspect(move |_| assert!(Arc::strong_count(&share) > 1)),
    );
    job.handle().submit(spec);
    held
}

#[test]
fn a_forgotten_operation_that_has_ended_keeps_none_of_the_parts_that_were_not_issued() {
    let (world, ledger) = (world(), ledger());
    let assert_kept_by_none = |held: &Arc<()>| assert_eq!(Arc::strong_count(held), 1);

    let cancelled_before = world.prepare(Want::read(&[8]));
    cancelled_before.cancel();
    assert_kept_by_none(&submit_holding(&cancelled_before));

    let empty = world.prepare(Want::read(&[]));
    assert_kept_by_none(&submit_holding(&empty));

    let at_its_gate = world.prepare(Want::read(&[8]).gated());
    let held = submit_holding(&at_its_gate);
    assert_eq!(Arc::strong_count(&held), 2);
    at_its_gate.cancel();
    assert_kept_by_none(&held);

    let event_failed = world.prepare(Want::read(&[8]).gated());
    let held = submit_holding(&event_failed);
    event_failed.handle().gate().fail("lost");
    assert_kept_by_none(&held);

    let write = world.submit(Want::write(&ledger, 0, &[1000]));
    let behind_it = world.prepare(Want::sync(&ledger));
    let held = submit_holding(&behind_it);
    behind_it.cancel();
    assert_kept_by_none(&held);

    let queued = world.prepare(Want::read(&[1000, 1000]));
    let held = submit_holding(&queued);
    queued.cancel();
    assert_kept_by_none(&held);

    world.run();
    world.core.close_admission();
    let refused = world.prepare(Want::read(&[8]));
    assert_kept_by_none(&submit_holding(&refused));
    drop(write);
}

#[test]
fn an_unsubmitted_payload_can_be_taken_back() {
    let world = world();
    let mut job = world.prepare(Want::read(&[8]));
    let handle = job.handle.as_mut().expect("there");
    assert!(handle.take_back().is_some());
    assert!(
        job.handle
            .as_mut()
            .is_some_and(|handle| handle.take_back().is_none())
    );
    job.memory.assert_released();
    job.drop_future();
    assert_eq!(world.dispose().operations, 0);
}

#[test]
fn a_submitted_payload_cannot_be_taken_back() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]));
    assert!(
        job.handle
            .as_mut()
            .is_some_and(|handle| handle.take_back().is_none())
    );
    world.run();
    assert_eq!(job.outcome().ending, Ending::Done);
}

#[test]
#[should_panic(expected = "submitted once")]
fn a_second_submit_is_a_bug_that_is_caught() {
    let world = world();
    let job = world.submit(Want::read(&[8]));
    job.submit();
}

#[test]
fn cancelled_before_submit_nothing_is_issued() {
    let world = world();
    let mut job = world.prepare(Want::read(&[8]));
    job.cancel();
    job.submit();
    assert_eq!(world.waiting(), 0);
    let outcome = job.outcome();
    assert_eq!(outcome.ending, Ending::Stopped(StopReason::Cancelled));
    assert!(outcome.payload.is_some());
    world.assert_all_free(0);
}

#[test]
fn cancelled_while_queued_it_settles_at_once_with_its_payload() {
    let world = narrow();
    let mut blocker = world.submit(Want::read(&[8]));
    let mut job = world.submit(Want::read(&[8]));
    job.cancel();
    let outcome = job.outcome();
    assert_eq!(outcome.ending, Ending::Stopped(StopReason::Cancelled));
    assert!(outcome.payload.is_some());
    world.run();
    assert_eq!(blocker.outcome().ending, Ending::Done);
    world.assert_all_free(0);
}

#[test]
fn cancelled_before_the_start_the_cancel_is_exact() {
    scenarios::a_cancel_before_the_start_is_exact::<WhenQuiet>();
}

#[test]
fn cancelled_when_everything_was_issued_the_cancel_changes_nothing() {
    scenarios::memory_outlives_a_cancel::<WhenQuiet>();
}

#[test]
fn cancelled_halfway_it_settles_when_the_issued_part_is_quiet() {
    let world = narrow();
    let mut job = world.submit(Want::read(&[8, 8]));
    let started = world.start();
    job.cancel();
    job.assert_pending();
    started.finish();
    let outcome = job.outcome();
    assert_eq!(outcome.ending, Ending::Stopped(StopReason::Cancelled));
    assert_eq!((outcome.parts, outcome.bytes), (1, 8));
    world.assert_all_free(0);
}

#[test]
fn cancelled_with_one_part_started_the_other_granted_part_is_let_go() {
    let world = world();
    let mut job = world.submit(Want::read(&[8, 8]));
    let started = world.start();
    job.cancel();
    job.assert_pending();
    started.finish();
    let outcome = job.outcome();
    assert_eq!(outcome.ending, Ending::Stopped(StopReason::Cancelled));
    assert_eq!(outcome.bytes, 8);
    assert_eq!(
        world.check().parts.reserved,
        1,
        "the backend still holds it"
    );
    assert!(world.try_start().is_none());
    world.assert_all_free(0);
}

#[test]
fn cancelled_when_settled_the_outcome_stands() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]));
    world.run();
    job.cancel();
    assert_eq!(job.outcome().ending, Ending::Done);
}

#[test]
fn cancelled_after_its_future_was_dropped_it_still_ends_once() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]));
    let canceller = job.handle().canceller();
    let started = world.start();
    job.drop_future();
    canceller.cancel();
    started.finish();
    canceller.cancel();
    assert_eq!(world.dispose().operations, 1);
    job.memory.assert_released();
    world.assert_all_free(0);
}

#[test]
fn a_canceller_that_outlives_the_operation_keeps_no_payload() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]));
    let canceller = job.handle().canceller();
    world.run();
    job.drop_future();
    world.dispose();
    job.memory.assert_released();
    canceller.clone().cancel();
}

#[test]
fn a_full_queue_refuses_and_hands_the_payload_back() {
    let world = World::<WhenQuiet>::new(Limits {
        parts: limit(1, 0),
        queued_max: 1,
        ..limits()
    });
    let mut issued = world.submit(Want::read(&[8]));
    let mut queued = world.submit(Want::read(&[8]));
    let mut refused = world.submit(Want::write(&ledger(), 0, &[8]));
    let outcome = refused.outcome();
    assert_eq!(outcome.ending, Ending::Rejected(Rejection::QueueFull));
    assert!(outcome.payload.is_some());
    world.run();
    assert_eq!(issued.outcome().ending, Ending::Done);
    assert_eq!(queued.outcome().ending, Ending::Done);
    world.assert_all_free(0);
}

#[test]
fn dropping_what_stands_in_front_lets_the_disposer_grant_the_next() {
    let world = world();
    let mut wide = world.submit(Want::read(&[600, 600]));
    let mut small = world.submit(Want::read(&[8]));
    let started = world.start();
    assert_eq!(world.waiting(), 0, "the second wide part gathers bytes");
    wide.drop_future();
    assert!(world.outside.seen().disposals_asked > 0);
    world.dispose();
    world.run();
    assert_eq!(small.outcome().ending, Ending::Done);
    started.finish();
    world.dispose();
    wide.memory.assert_released();
    world.assert_all_free(0);
}
