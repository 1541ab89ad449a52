//! Failure looked for: a payload that its owner has back while a part may touch it, or that the owner
//! waits for in vain (I13, I25).

#![cfg(not(any(completion_loom, completion_shuttle)))]

mod support;

use std::task::{Context, Poll, Waker};

use support::wakers::Counter;
use support::{Job, Want, World, ledger, limit, limits};
use tokio_cufile_completion::{Ending, Limits, PayloadState, PayloadWatch, WhenQuiet};

type Watch = PayloadWatch<support::Fake<WhenQuiet>>;

fn world() -> World<WhenQuiet> {
    World::new(limits())
}

fn watch(job: &Job<WhenQuiet>) -> Watch {
    job.handle().payload_watch()
}

fn poll(watch: &Watch, waker: &Waker) -> Poll<PayloadState> {
    watch.poll_free(&mut Context::from_waker(waker))
}

fn look(watch: &Watch) -> Option<PayloadState> {
    match poll(watch, Waker::noop()) {
        Poll::Ready(state) => Some(state),
        Poll::Pending => None,
    }
}

#[test]
fn the_last_part_to_let_go_wakes_once_and_the_end_does_not_again() {
    let world = world();
    let mut job = world.submit(Want::read(&[8, 8]));
    let watch = watch(&job);
    let (counter, waker) = Counter::new();
    assert!(poll(&watch, &waker).is_pending());
    let parts = world.start_all();
    parts[0].ticket.let_go();
    parts[0].ticket.let_go();
    assert_eq!(counter.wakes(), 0, "letting go twice is letting go once");
    parts[1].ticket.let_go();
    assert_eq!(counter.wakes(), 1);
    assert_eq!(look(&watch), Some(PayloadState::Free));
    job.assert_pending();
    job.memory.assert_held();
    for part in parts {
        part.finish();
    }
    assert_eq!(counter.wakes(), 1);
    assert_eq!(job.outcome().ending, Ending::Done);
    assert_eq!(look(&watch), Some(PayloadState::Free));
}

#[test]
fn parts_that_are_still_to_be_granted_hold_it() {
    let world = World::<WhenQuiet>::new(Limits {
        parts: limit(1, 0),
        ..limits()
    });
    let job = world.submit(Want::read(&[8, 8]));
    let watch = watch(&job);
    let first = world.start();
    first.ticket.let_go();
    assert_eq!(look(&watch), None);
    first.finish();
    assert_eq!(look(&watch), None, "granted and not started");
    world.start().ticket.let_go();
    assert_eq!(look(&watch), Some(PayloadState::Free));
}

#[test]
fn parts_that_do_not_let_go_hold_it_to_their_end() {
    let world = world();
    let mut job = world.submit(Want::read(&[8, 8]));
    let watch = watch(&job);
    let (counter, waker) = Counter::new();
    assert!(poll(&watch, &waker).is_pending());
    let mut parts = world.start_all();
    parts.remove(0).fail(0, "EIO");
    assert!(
        look(&watch).is_none(),
        "the part behind the failure goes on"
    );
    assert!(poll(&watch, &waker).is_pending());
    parts.remove(0).finish();
    assert_eq!(counter.wakes(), 1);
    assert_eq!(look(&watch), Some(PayloadState::Free));
    assert!(matches!(job.outcome().ending, Ending::Failed { .. }));
}

#[test]
fn a_stop_frees_it_when_what_was_started_has_let_go() {
    let world = World::<WhenQuiet>::new(Limits {
        parts: limit(1, 0),
        ..limits()
    });
    let job = world.submit(Want::read(&[8, 8]));
    let watch = watch(&job);
    let (counter, waker) = Counter::new();
    let started = world.start();
    assert!(poll(&watch, &waker).is_pending());
    started.ticket.let_go();
    assert_eq!(counter.wakes(), 0);
    job.cancel();
    assert_eq!(counter.wakes(), 1);
    assert_eq!(look(&watch), Some(PayloadState::Free));
    started.finish();

    let queued = world.submit(Want::read(&[8]).deadline(10));
    let watch = queued.handle().payload_watch();
    assert!(poll(&watch, &waker).is_pending());
    world.advance_to(10);
    assert_eq!(counter.wakes(), 2);
    assert_eq!(look(&watch), Some(PayloadState::Free));
}

#[test]
fn a_dropped_handle_frees_it_at_the_end_at_the_latest() {
    let world = world();
    let (counter, waker) = Counter::new();
    let mut reserved = world.prepare(Want::read(&[8]));
    let watch_of_reserved = watch(&reserved);
    assert!(poll(&watch_of_reserved, &waker).is_pending());
    reserved.drop_future();
    assert_eq!(counter.wakes(), 0, "a drop wakes nobody");
    world.dispose();
    assert_eq!(counter.wakes(), 1);
    assert_eq!(look(&watch_of_reserved), Some(PayloadState::Free));

    let mut issued = world.submit(Want::write(&ledger(), 0, &[8, 8]));
    let watch_of_issued = watch(&issued);
    let parts = world.start_all();
    assert!(poll(&watch_of_issued, &waker).is_pending());
    issued.drop_future();
    assert_eq!(look(&watch_of_issued), None, "hardware reads it");
    assert!(poll(&watch_of_issued, &waker).is_pending());
    for part in parts {
        issued.memory.assert_held();
        part.finish();
    }
    world.dispose();
    assert_eq!(counter.wakes(), 2);
    assert_eq!(look(&watch_of_issued), Some(PayloadState::Free));
}

#[test]
fn taken_back_before_the_start_it_is_free() {
    let world = world();
    let (counter, waker) = Counter::new();
    let mut job = world.prepare(Want::read(&[8]));
    let watch = watch(&job);
    assert!(poll(&watch, &waker).is_pending());
    let taken = job.handle.as_mut().and_then(|handle| handle.take_back());
    assert!(taken.is_some());
    assert_eq!(counter.wakes(), 1);
    assert_eq!(look(&watch), Some(PayloadState::Free));
}

#[test]
fn quarantine_loses_it_with_parts_that_hold_it_and_not_without() {
    for lets_go in [false, true] {
        let world = world();
        let mut job = world.submit(Want::read(&[8]));
        let watch = watch(&job);
        let (counter, waker) = Counter::new();
        let started = world.start();
        assert!(poll(&watch, &waker).is_pending());
        if lets_go {
            started.ticket.let_go();
        }
        job.cancel();
        world.pass_quiet_limit();
        assert_eq!(counter.wakes(), 1);
        assert_eq!(job.outcome().ending, Ending::Quarantined);
        // Too late, and it changes nothing.
        started.ticket.let_go();
        let expected = if lets_go {
            PayloadState::Free
        } else {
            PayloadState::Lost
        };
        assert_eq!(look(&watch), Some(expected));
        job.memory.assert_held();
        started.finish();
    }
}

#[test]
fn another_payload_takes_its_place_before_the_start_only() {
    let world = world();
    let mut job = world.prepare(Want::read(&[8]));
    let handle = job.handle.take().expect("there");
    let cancel = handle.canceller();
    let Ok(wrapped) = handle.map(|buffer| (buffer, 7)) else {
        panic!("it was not submitted");
    };
    cancel.cancel();
    wrapped.submit(job.want.spec(&job.memory));
    let mut wrapped = wrapped;
    let polled = wrapped.poll_settled(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(outcome) = polled else {
        panic!("cancelled before it was submitted");
    };
    assert_eq!(outcome.payload.expect("it comes back").1, 7);

    let mut job = world.submit(Want::read(&[8]));
    let handle = job.handle.take().expect("there");
    let Err(handle) = handle.map(|buffer| (buffer, 7)) else {
        panic!("it was submitted");
    };
    job.handle = Some(handle);
    world.run();
    assert_eq!(job.outcome().ending, Ending::Done);
}
