//! Failure looked for: something issued after its deadline, memory freed because time has passed,
//! or an operation that waits for ever for hardware that never answers (I3, I20).

#![cfg(not(any(completion_loom, completion_shuttle)))]

mod support;

use support::hardware::{Started, outcome};
use support::{Job, Want, World, ledger, limit, limits, scenarios};
use tokio_cufile_completion::{Ending, Limits, Loss, Next, Rejection, StopReason, WhenQuiet};

fn world() -> World<WhenQuiet> {
    World::new(limits())
}

#[test]
fn a_deadline_that_is_past_at_submit_issues_nothing() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]).deadline(1));
    assert_eq!(world.waiting(), 0);
    let outcome = job.outcome();
    assert_eq!(outcome.ending, Ending::Stopped(StopReason::Deadline));
    assert_eq!(outcome.parts, 0);
    world.assert_all_free(0);
}

#[test]
fn a_deadline_withdraws_what_is_queued() {
    let world = World::<WhenQuiet>::new(Limits {
        parts: limit(1, 0),
        ..limits()
    });
    let mut blocker = world.submit(Want::read(&[8]));
    let mut job = world.submit(Want::read(&[8]).deadline(10));
    assert_eq!(world.outside.seen().alarm, Some(10));
    world.advance_to(9);
    job.assert_pending();
    world.advance_to(10);
    let outcome = job.outcome();
    assert_eq!(outcome.ending, Ending::Stopped(StopReason::Deadline));
    assert!(outcome.payload.is_some());
    world.run();
    assert_eq!(blocker.outcome().ending, Ending::Done);
}

#[test]
fn a_deadline_lets_go_of_what_was_granted_and_not_started() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]).deadline(10));
    world.advance_to(10);
    assert_eq!(job.outcome().ending, Ending::Stopped(StopReason::Deadline));
    assert!(world.try_start().is_none());
    world.assert_all_free(0);
}

#[test]
fn an_operation_that_has_ended_leaves_no_alarm_behind() {
    let world = world();
    let mut early = world.submit(Want::read(&[8]).deadline(10));
    world.run();
    assert_eq!(early.outcome().ending, Ending::Done);
    let late = world.submit(Want::read(&[8]).deadline(20));
    assert_eq!(world.outside.seen().alarm, Some(20), "the next one");
    world.run();
    drop(late);
}

#[test]
fn a_deadline_waits_for_what_was_issued() {
    scenarios::memory_outlives_a_deadline::<WhenQuiet>();
}

#[test]
fn a_deadline_after_the_end_changes_nothing() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]).deadline(10));
    world.run();
    world.advance_to(10);
    assert_eq!(world.outside.seen().alarm, None, "no timer is left");
    assert_eq!(job.outcome().ending, Ending::Done);
}

#[test]
fn alarms_are_asked_for_when_something_earlier_is_due() {
    let world = world();
    let late = world.submit(Want::read(&[8]).deadline(50));
    let early = world.submit(Want::read(&[8]).deadline(20));
    assert_eq!(world.outside.seen().alarm, Some(20));
    world.advance_to(20);
    assert_eq!(world.outside.seen().alarm, Some(50));
    drop((late, early));
}

#[test]
fn silence_after_a_cancel_ends_in_quarantine() {
    let world = world();
    let mut job = world.submit(Want::read(&[300, 200]).through_slot(1));
    let parts = world.start_all();
    assert_eq!(parts.len(), 2);
    job.cancel();
    world.pass_quiet_limit();
    let outcome = job.outcome();
    assert_eq!(outcome.ending, Ending::Quarantined);
    assert!(outcome.payload.is_none());
    assert_eq!(outcome.bytes, 0, "nobody knows what was moved");
    let census = world.check();
    assert_eq!(census.bytes.quarantined, 500);
    assert_eq!(census.parts.quarantined, 2);
    assert_eq!(census.slots.quarantined, 2);
    assert_eq!(census.quarantined_operations, 1);
    job.memory.assert_held();

    // Late completions are counted, and free nothing (I5).
    for part in parts {
        part.finish();
    }
    assert_eq!(world.check().stray_completions, 2);
    assert_eq!(world.check().parts.quarantined, 2);
    job.memory.assert_held();
}

#[test]
fn who_reports_is_not_silent_and_hears_whether_anybody_waits() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]));
    let started = world.start();
    job.cancel();
    for _ in 0..3 {
        world.advance_to(world.now() + 99);
        assert_eq!(started.ticket.report(), Next::Proceed);
    }
    world.advance_to(world.now() + 99);
    job.assert_pending();
    started.finish();
    assert_eq!(job.outcome().ending, Ending::Done);

    let mut silent = world.submit(Want::read(&[8]));
    let started = world.start();
    silent.cancel();
    assert_eq!(started.ticket.report(), Next::Proceed);
    world.pass_quiet_limit();
    assert_eq!(silent.outcome().ending, Ending::Quarantined);
    assert_eq!(started.ticket.report(), Next::Skip);
    started.finish();

    let mut dropped = world.submit(Want::read(&[8]));
    let started = world.start();
    dropped.drop_future();
    assert_eq!(started.ticket.report(), Next::Skip);
    started.finish();
}

#[test]
fn silence_after_a_deadline_ends_in_quarantine() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]).deadline(10));
    let (key, task) = world.start().into_key();
    world.advance_to(10);
    job.assert_pending();
    world.advance_to(109);
    job.assert_pending();
    world.advance_to(110);
    assert_eq!(job.outcome().ending, Ending::Quarantined);
    task.hit();
    world.core.finish(key, outcome(8, None));
    assert_eq!(world.check().stray_completions, 1);
    world.assert_all_free(1);
}

#[test]
fn a_sign_of_life_puts_the_quiet_limit_off() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]).through_slot(3));
    let started = world.start();
    job.cancel();
    world.advance_to(90);
    let _ = started.advance();
    world.advance_to(101);
    job.assert_pending();
    assert_eq!(world.outside.seen().alarm, Some(190));
    world.advance_to(189);
    job.assert_pending();
    started.finish();
    assert_eq!(job.outcome().ending, Ending::Done);
    world.assert_all_free(0);
}

#[test]
fn asking_twice_does_not_put_the_quiet_limit_off() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]));
    let (_key, _task) = world.start().into_key();
    job.cancel();
    world.advance_to(60);
    job.cancel();
    world.core.stop_all();
    world.advance_to(101);
    assert_eq!(job.outcome().ending, Ending::Quarantined);
}

#[test]
fn silence_without_a_stop_is_never_quarantined() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]));
    let started = world.start();
    world.advance_to(1_000_000);
    started.finish();
    assert_eq!(job.outcome().ending, Ending::Done);
}

#[test]
fn a_dropped_operation_may_take_its_time() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]).deadline(10));
    let started = world.start();
    world.advance_to(10);
    job.drop_future();
    world.advance_to(1_000_000);
    started.finish();
    world.dispose();
    job.memory.assert_released();
    world.assert_all_free(0);
}

#[test]
fn shutdown_gives_a_dropped_operation_the_quiet_limit() {
    let world = world();
    let mut cancelled = world.submit(Want::read(&[8]));
    let mut dropped = world.submit(Want::read(&[8]));
    let keys: Vec<_> = world
        .start_all()
        .into_iter()
        .map(|part| part.into_key().0)
        .collect();
    cancelled.cancel();
    cancelled.drop_future();
    dropped.drop_future();
    world.core.stop_all();
    world.pass_quiet_limit();
    world.dispose();
    assert!(world.poll_drained().is_ready(), "shutdown never ends");
    assert_eq!(world.check().quarantined_operations, 2);
    cancelled.memory.assert_held();
    dropped.memory.assert_held();
    assert_eq!(keys.len(), 2);
}

#[test]
fn a_future_dropped_during_shutdown_does_not_hold_it_up() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]));
    let (_key, _task) = world.start().into_key();
    world.core.stop_all();
    job.drop_future();
    world.pass_quiet_limit();
    world.dispose();
    assert!(world.poll_drained().is_ready(), "shutdown never ends");
}

#[test]
fn quarantine_leaves_the_doubt_at_the_first_unproved_byte() {
    let world = world();
    let ledger = ledger();
    let mut job = world.submit(Want::write(&ledger, 1000, &[10, 10, 10]));
    let mut parts = world.start_all();
    parts.remove(0).finish();
    parts.remove(1).finish();
    job.drop_future();
    drop(parts);
    world.dispose();
    let doubt = ledger.doubt().expect("recorded");
    assert_eq!(doubt.first, Loss::Quarantined);
    assert_eq!(doubt.offset, 1010);
}

#[test]
fn what_quarantine_has_left_too_small_is_refused() {
    let world = world();
    let mut lost = world.submit(Want::read(&[600]));
    drop(world.start());
    assert_eq!(lost.outcome().ending, Ending::Quarantined);
    let mut large = world.submit(Want::read(&[500]));
    let outcome = large.outcome();
    assert_eq!(outcome.ending, Ending::Rejected(Rejection::NoCapacity));
    assert!(outcome.payload.is_some());
    let mut small = world.submit(Want::read(&[400]));
    world.run();
    assert_eq!(small.outcome().ending, Ending::Done);
    world.assert_all_free(1);
}

/// An operation whose second part can never be granted, since another lost half the budget.
fn refused_halfway() -> (World<WhenQuiet>, Job<WhenQuiet>, Started<WhenQuiet>) {
    let world = world();
    let mut lost = world.submit(Want::read(&[500]));
    let mut wide = world.submit(Want::read(&[100, 600]));
    let doomed = world.start();
    let rest = world.start();
    drop(doomed);
    assert_eq!(lost.outcome().ending, Ending::Quarantined);
    wide.assert_pending();
    (world, wide, rest)
}

#[test]
fn refused_halfway_it_settles_when_the_rest_is_quiet() {
    let (_world, mut wide, rest) = refused_halfway();
    rest.finish();
    let outcome = wide.outcome();
    assert_eq!(outcome.ending, Ending::Rejected(Rejection::NoCapacity));
    assert_eq!((outcome.parts, outcome.bytes), (1, 100));
}

#[test]
fn refused_halfway_its_silence_counts() {
    let (world, mut wide, rest) = refused_halfway();
    world.pass_quiet_limit();
    assert_eq!(wide.outcome().ending, Ending::Quarantined);
    drop(rest);
}

#[test]
fn a_failure_before_the_refused_part_is_what_is_reported() {
    let (_world, mut wide, rest) = refused_halfway();
    rest.fail(40, "EIO");
    let outcome = wide.outcome();
    assert_eq!(
        outcome.ending,
        Ending::Failed {
            offset: 40,
            fault: "EIO"
        }
    );
}

#[test]
fn with_every_part_quarantined_everything_is_refused() {
    let world = World::<WhenQuiet>::new(Limits {
        parts: limit(1, 0),
        ..limits()
    });
    let mut waiting = {
        let _lost = world.submit(Want::read(&[8]));
        let waiting = world.submit(Want::read(&[8]));
        drop(world.start());
        waiting
    };
    let ending = waiting.outcome().ending;
    assert_eq!(ending, Ending::Rejected(Rejection::NoCapacity));
}
