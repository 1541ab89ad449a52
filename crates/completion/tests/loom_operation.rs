//! Exhaustive models of one operation between two threads, with loom.
//!
//! Bound: none; every interleaving of 2 threads. (`LOOM_MAX_PREEMPTIONS=N` sets one.) Every lock is
//! a point of choice, and so is every access to the memory that is watched. Run in the release
//! profile:
//!
//! ```text
//! RUSTFLAGS="--cfg completion_loom" cargo test --release -p tokio-cufile-completion --test 'loom_*'
//! ```
//!
//! A lost wake-up shows as a deadlock. The models whose name begins with `control` hold a broken
//! engine, and pass when loom catches it.

#![cfg(completion_loom)]

mod support;

use loom::thread;
use support::explore::{assert_caught, explore};
use support::policies::{FreeOnCancel, FreeOnDeadline, FreeOnDrop, WakeBeforePublish};
use support::wakers::{wait, wait_free};
use support::{Job, Want, World, limit, limits};
use tokio_cufile_completion::{Ending, Limits, PayloadState, ReleasePolicy, StopReason, WhenQuiet};

fn world<P: ReleasePolicy>() -> World<P> {
    World::new(Limits {
        parts: limit(1, 0),
        ..limits()
    })
}

fn wait_for<P: ReleasePolicy>(job: &mut Job<P>) -> Ending<&'static str> {
    let outcome = wait(job.handle.take().expect("there"));
    outcome.ending
}

/// I13, I23: whoever polls while the last part finishes gets the outcome or a wake.
fn poll_against_settle<P: ReleasePolicy>() {
    let world = world::<P>();
    let mut job = world.submit(Want::read(&[8]));
    let started = world.start();
    let backend = thread::spawn(move || started.finish());
    assert_eq!(wait_for(&mut job), Ending::Done);
    backend.join().expect("the backend");
    job.memory.assert_released();
}

/// I13, I25: whoever polls for the payload while the last part lets go finds it free or is woken,
/// before the part ends.
fn poll_against_let_go<P: ReleasePolicy>() {
    let world = world::<P>();
    let mut job = world.submit(Want::read(&[8]));
    let watch = job.handle().payload_watch();
    let started = world.start();
    let backend = thread::spawn(move || {
        started.ticket.let_go();
        started
    });
    assert_eq!(wait_free(&watch), PayloadState::Free);
    backend.join().expect("the backend").finish();
    assert_eq!(wait_for(&mut job), Ending::Done);
}

#[test]
fn a_poll_for_the_payload_against_letting_go_finds_it_free_or_is_woken() {
    explore(poll_against_let_go::<WhenQuiet>);
}

#[test]
fn a_poll_against_the_settlement_finds_the_outcome_or_is_woken() {
    explore(poll_against_settle::<WhenQuiet>);
}

#[test]
fn control_wake_before_publish_is_caught() {
    assert_caught("deadlock", poll_against_settle::<WakeBeforePublish>);
}

/// I3, I24: either the cancel wins and nothing was started, or the start wins and the memory stays.
fn cancel_against_start<P: ReleasePolicy>() {
    let world = world::<P>();
    let mut job = world.submit(Want::read(&[8]));
    let part = world.take_part().expect("granted");
    let backend = thread::spawn(move || {
        let Some((ticket, task)) = part.start() else {
            return false;
        };
        support::hardware::Started::new(ticket, task).finish();
        true
    });
    job.cancel();
    let ending = wait_for(&mut job);
    let was_started = backend.join().expect("the backend");
    let expected = if was_started {
        Ending::Done
    } else {
        Ending::Stopped(StopReason::Cancelled)
    };
    assert_eq!(ending, expected);
    job.memory.assert_released();
    world.assert_all_free(0);
}

#[test]
fn a_cancel_against_the_start_has_exactly_one_winner() {
    explore(cancel_against_start::<WhenQuiet>);
}

#[test]
fn control_free_on_cancel_is_caught() {
    assert_caught(
        "memory was released in flight",
        cancel_against_start::<FreeOnCancel>,
    );
}

/// I3, I5, I11: the payload is released once, by whoever comes last.
fn drop_against_settle<P: ReleasePolicy>() {
    let world = world::<P>();
    let mut job = world.submit(Want::read(&[8]));
    let started = world.start();
    let backend = thread::spawn(move || started.finish());
    job.drop_future();
    world.dispose();
    backend.join().expect("the backend");
    world.dispose();
    job.memory.assert_released();
    world.assert_all_free(0);
}

#[test]
fn a_drop_against_the_settlement_releases_the_memory_once() {
    explore(drop_against_settle::<WhenQuiet>);
}

#[test]
fn control_free_on_drop_is_caught() {
    assert_caught(
        "memory was released in flight",
        drop_against_settle::<FreeOnDrop>,
    );
}

/// I3: the deadline passes as the part finishes.
fn deadline_against_settle<P: ReleasePolicy>() {
    let world = world::<P>();
    let mut job = world.submit(Want::read(&[8]).deadline(10));
    let started = world.start();
    let backend = thread::spawn(move || started.finish());
    world.advance_to(10);
    assert_eq!(wait_for(&mut job), Ending::Done);
    backend.join().expect("the backend");
    job.memory.assert_released();
    world.assert_all_free(0);
}

#[test]
fn a_deadline_against_the_settlement_changes_nothing() {
    explore(deadline_against_settle::<WhenQuiet>);
}

#[test]
fn control_free_on_deadline_is_caught() {
    assert_caught(
        "memory was released in flight",
        deadline_against_settle::<FreeOnDeadline>,
    );
}

#[test]
fn a_drop_against_the_start_either_withdraws_or_detaches() {
    explore(|| {
        let world = world::<WhenQuiet>();
        let mut job = world.submit(Want::read(&[8]));
        let part = world.take_part().expect("granted");
        let backend = thread::spawn(move || {
            if let Some((ticket, task)) = part.start() {
                support::hardware::Started::new(ticket, task).finish();
            }
        });
        job.drop_future();
        world.dispose();
        backend.join().expect("the backend");
        world.dispose();
        job.memory.assert_released();
        world.assert_all_free(0);
    });
}

#[test]
fn a_drop_between_two_stages_releases_nothing_early() {
    explore(|| {
        let world = world::<WhenQuiet>();
        let mut job = world.submit(Want::read(&[8]).through_slot(2));
        let started = world.start();
        let backend = thread::spawn(move || {
            let _ = started.advance();
            started.finish();
        });
        job.drop_future();
        world.dispose();
        backend.join().expect("the backend");
        world.dispose();
        job.memory.assert_released();
        world.assert_all_free(0);
    });
}

#[test]
fn a_cancel_against_a_drop_ends_the_operation_once() {
    explore(|| {
        let world = world::<WhenQuiet>();
        let mut job = world.submit(Want::read(&[8]));
        let canceller = job.handle().canceller();
        let other = thread::spawn(move || canceller.cancel());
        job.drop_future();
        other.join().expect("the canceller");
        assert_eq!(world.dispose().operations, 1);
        assert!(world.try_start().is_none());
        job.memory.assert_released();
        world.assert_all_free(0);
    });
}

#[test]
fn the_quiet_limit_against_a_late_completion_has_one_winner() {
    explore(|| {
        let world = world::<WhenQuiet>();
        let mut job = world.submit(Want::read(&[8]));
        let started = world.start();
        job.cancel();
        let backend = thread::spawn(move || started.finish());
        world.pass_quiet_limit();
        let ending = wait_for(&mut job);
        backend.join().expect("the backend");
        if ending == Ending::Quarantined {
            job.memory.assert_held();
            world.assert_all_free(1);
        } else {
            assert_eq!(ending, Ending::Done);
            job.memory.assert_released();
            world.assert_all_free(0);
        }
    });
}
