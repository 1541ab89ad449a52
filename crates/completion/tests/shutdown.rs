//! Failure looked for: a shutdown that issues, forgets, double counts or never ends (I20).

#![cfg(not(any(completion_loom, completion_shuttle)))]

mod support;

use std::sync::Arc;
use std::task::{Context, Poll};

use support::wakers::Counter;
use support::{Want, World, ledger, limit, limits};
use tokio_cufile_completion::{Drained, Ending, Limits, Rejection, StopReason, WhenQuiet};

fn world() -> World<WhenQuiet> {
    World::new(limits())
}

fn drained(world: &World<WhenQuiet>) -> Drained {
    match world.poll_drained() {
        Poll::Ready(drained) => drained,
        Poll::Pending => panic!("not drained: {:?}", world.check()),
    }
}

#[test]
fn nothing_is_admitted_after_admission_was_closed() {
    let world = world();
    world.core.close_admission();
    let mut job = world.submit(Want::read(&[8]));
    let outcome = job.outcome();
    assert_eq!(outcome.ending, Ending::Rejected(Rejection::ShuttingDown));
    assert!(outcome.payload.is_some());
    assert_eq!(drained(&world), Drained::default(), "it was never live");
    assert_eq!(world.outside.seen().drained, 1, "told once");
}

#[test]
fn closing_admission_lets_what_is_live_go_on() {
    let world = World::<WhenQuiet>::new(Limits {
        parts: limit(1, 0),
        ..limits()
    });
    let mut first = world.submit(Want::read(&[8]));
    let mut second = world.submit(Want::read(&[8]));
    world.core.close_admission();
    assert!(world.poll_drained().is_pending());
    assert!(!world.core.is_finished());
    world.run();
    assert_eq!(first.outcome().ending, Ending::Done);
    assert_eq!(second.outcome().ending, Ending::Done);
    assert_eq!(drained(&world).drained, 2);
    assert!(world.core.is_finished());
}

#[test]
fn what_ended_before_admission_was_closed_was_not_drained() {
    let world = world();
    let mut done = world.submit(Want::read(&[8]));
    let mut withdrawn = world.submit(Want::read(&[8]));
    withdrawn.drop_future();
    world.run();
    assert_eq!(done.outcome().ending, Ending::Done);
    world.core.close_admission();
    assert_eq!(drained(&world), Drained::default());
}

#[test]
fn what_waits_for_disposal_is_not_finished() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]));
    world.run();
    job.drop_future();
    world.core.close_admission();
    assert!(!world.core.is_finished());
    world.dispose();
    assert!(world.core.is_finished());
    job.memory.assert_released();
}

#[test]
fn stop_all_withdraws_what_is_queued_and_drains_what_is_issued() {
    let world = World::<WhenQuiet>::new(Limits {
        parts: limit(2, 0),
        ..limits()
    });
    let mut issued = world.submit(Want::read(&[8]));
    let mut half = world.submit(Want::read(&[8, 8]));
    let parts = world.start_all();
    let mut queued: Vec<_> = (0..5).map(|_| world.submit(Want::read(&[8]))).collect();
    world.core.stop_all();
    assert_eq!(world.waiting(), 0, "shutdown issued something");
    for job in &mut queued {
        let ending = job.outcome().ending;
        assert_eq!(ending, Ending::Stopped(StopReason::Shutdown));
    }
    assert!(world.poll_drained().is_pending());
    for part in parts {
        part.finish();
    }
    assert_eq!(issued.outcome().ending, Ending::Done);
    assert_eq!(half.outcome().ending, Ending::Stopped(StopReason::Shutdown));
    let expected = Drained {
        drained: 2,
        withdrawn: 5,
        quarantined: 0,
    };
    assert_eq!(drained(&world), expected);
    world.assert_all_free(0);
}

#[test]
fn stop_all_never_issues_what_stood_behind_a_large_part() {
    let world = world();
    let blocker = world.submit(Want::read(&[600]));
    let started = world.start();
    let mut large = world.submit(Want::read(&[600]));
    let mut small = world.submit(Want::read(&[8]));
    world.core.stop_all();
    assert_eq!(world.waiting(), 0, "shutdown issued something");
    for job in [&mut large, &mut small] {
        let ending = job.outcome().ending;
        assert_eq!(ending, Ending::Stopped(StopReason::Shutdown));
    }
    started.finish();
    assert!(world.poll_drained().is_ready());
    drop(blocker);
}

#[test]
fn stop_all_withdraws_a_sync_that_waits_for_a_write() {
    let world = world();
    let ledger = ledger();
    let mut write = world.submit(Want::write(&ledger, 0, &[8]));
    let started = world.start();
    let mut sync = world.submit(Want::sync(&ledger));
    world.core.stop_all();
    assert_eq!(sync.outcome().ending, Ending::Stopped(StopReason::Shutdown));
    started.finish();
    assert_eq!(write.outcome().ending, Ending::Done);
    assert_eq!((drained(&world).withdrawn, drained(&world).drained), (1, 1));
}

#[test]
fn stop_all_with_silent_hardware_quarantines_and_reports_it() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]));
    let (_key, _task) = world.start().into_key();
    world.core.stop_all();
    world.pass_quiet_limit();
    assert_eq!(job.outcome().ending, Ending::Quarantined);
    let expected = Drained {
        drained: 0,
        withdrawn: 0,
        quarantined: 1,
    };
    assert_eq!(drained(&world), expected);
}

#[test]
fn every_waiter_for_the_drain_is_woken() {
    let world = world();
    let job = world.submit(Want::read(&[8]));
    let waiters: Vec<_> = (0..3).map(|_| Counter::new()).collect();
    world.core.close_admission();
    for (_, waker) in waiters.iter().chain(&waiters) {
        let polled = world.core.poll_drained(&mut Context::from_waker(waker));
        assert!(polled.is_pending());
    }
    world.run();
    for (counter, _) in &waiters {
        assert_eq!(counter.wakes(), 1, "woken once, though it polled twice");
    }
    drop(job);
}

#[test]
fn a_drain_that_ends_with_a_dropped_future_is_told_by_the_disposer() {
    let world = World::<WhenQuiet>::new(Limits {
        parts: limit(1, 0),
        ..limits()
    });
    let mut blocker = world.submit(Want::read(&[8]));
    let mut queued = world.submit(Want::read(&[8]));
    let (counter, waker) = Counter::new();
    world.core.close_admission();
    let polled = world.core.poll_drained(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    world.start().finish();
    drop(blocker.outcome());
    queued.drop_future();
    assert_eq!(counter.wakes(), 0, "a drop runs no foreign code");
    world.dispose();
    assert_eq!(counter.wakes(), 1);
    assert_eq!(world.outside.seen().drained, 1);
    assert!(world.core.is_finished());
}

#[test]
fn a_core_with_a_long_disposal_list_can_be_dropped() {
    const DROPPED: usize = if cfg!(miri) { 200 } else { 100_000 };
    let world = world();
    let mut last = None;
    for _ in 0..DROPPED {
        let mut job = world.prepare(Want::read(&[8]));
        job.drop_future();
        last = Some(job.memory.clone());
    }
    drop(world);
    last.expect("at least one").assert_released();
}

#[test]
fn the_core_goes_with_its_last_handle_ticket_and_canceller() {
    let world = world();
    let core = Arc::downgrade(&world.core);
    let mut quarantined = world.submit(Want::read(&[8, 600, 600]).deadline(10));
    drop(world.start());
    assert_eq!(quarantined.outcome().ending, Ending::Quarantined);
    let mut job = world.submit(Want::read(&[8]));
    let canceller = job.handle().canceller();
    while let Some(part) = world.take_part() {
        drop(part);
    }
    job.drop_future();
    quarantined.drop_future();
    drop((world, job, quarantined));
    assert!(core.upgrade().is_some(), "the canceller holds it");
    drop(canceller);
    assert!(core.upgrade().is_none(), "the model keeps itself alive");
}
