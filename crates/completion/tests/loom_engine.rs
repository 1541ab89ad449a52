//! Exhaustive models of several operations, or of three threads, with loom.
//!
//! Bound: none for 2 threads; at most 3 preemptions for 3 threads. `LOOM_MAX_PREEMPTIONS=N` sets
//! another bound for all. How to run them: see `loom_operation.rs`.

#![cfg(completion_loom)]

mod support;

use loom::thread;
use support::explore::{explore, explore_with};
use support::wakers::{block_on, wait};
use support::{Job, Want, World, ledger, limit, limits};
use tokio_cufile_completion::{Ending, Limits, Rejection, StopReason, WhenQuiet};

fn world() -> World<WhenQuiet> {
    World::new(Limits {
        parts: limit(1, 0),
        slots: limit(1, 0),
        small_slots: limit(0, 0),
        ..limits()
    })
}

fn wait_for(job: &mut Job<WhenQuiet>) -> Ending<&'static str> {
    wait(job.handle.take().expect("there")).ending
}

/// I9, I10: the one permit and the one slot that come back are granted once.
#[test]
fn a_finish_against_a_submit_grants_the_slot_once() {
    explore(|| {
        let world = world();
        let mut first = world.submit(Want::read(&[8]).through_slot(1));
        let mut second = world.submit(Want::read(&[8]).through_slot(1));
        let started = world.start();
        let backend = thread::spawn(move || started.finish());
        let mut third = world.submit(Want::read(&[8]).through_slot(1));
        backend.join().expect("the backend");
        assert_eq!(world.waiting(), 1, "one of the two was granted");
        world.run();
        for job in [&mut first, &mut second, &mut third] {
            assert_eq!(job.outcome().ending, Ending::Done);
        }
        world.assert_all_free(0);
    });
}

/// I20: what is submitted as the engine stops is refused or withdrawn, and nothing stays.
#[test]
fn a_submit_against_shutdown_is_refused_or_withdrawn() {
    explore(|| {
        let world = world();
        let job = world.prepare(Want::read(&[8]));
        let user = {
            let world = world.clone();
            thread::spawn(move || {
                job.submit();
                drop(world);
                job
            })
        };
        world.core.stop_all();
        let mut job = user.join().expect("the user");
        let ending = job.outcome().ending;
        assert!(
            ending == Ending::Rejected(Rejection::ShuttingDown)
                || ending == Ending::Stopped(StopReason::Shutdown),
            "{ending:?}"
        );
        assert!(world.try_start().is_none());
        assert!(world.poll_drained().is_ready());
        world.assert_all_free(0);
    });
}

/// I13, I20: whoever waits for the drain as the last operation settles is woken.
#[test]
fn a_drain_against_the_last_settlement_is_not_missed() {
    explore(|| {
        let world = world();
        let mut job = world.submit(Want::read(&[8]));
        let started = world.start();
        let backend = thread::spawn(move || started.finish());
        world.core.close_admission();
        let drained = block_on(std::future::poll_fn(|cx| world.core.poll_drained(cx)));
        backend.join().expect("the backend");
        assert!(drained.drained <= 1);
        assert_eq!(job.outcome().ending, Ending::Done);
    });
}

/// I8: a sync that is submitted as an orphaned write fails sees the loss.
#[test]
fn a_sync_against_a_failing_orphan_sees_the_loss() {
    explore(|| {
        let world = world();
        let ledger = ledger();
        let mut write = world.submit(Want::write(&ledger, 0, &[8]));
        let started = world.start();
        write.drop_future();
        let backend = {
            let world = world.clone();
            thread::spawn(move || {
                started.fail(0, "EIO");
                world.dispose();
            })
        };
        let mut sync = world.submit(Want::sync(&ledger));
        if let Some(started) = world.try_start() {
            assert!(ledger.doubt().is_some(), "the sync began too early");
            started.finish();
        }
        backend.join().expect("the backend");
        world.run();
        assert_eq!(wait_for(&mut sync), Ending::Done);
        assert!(ledger.doubt().is_some(), "the loss left no trace");
        world.assert_all_free(0);
    });
}

/// I8: a failed write that is dropped unread has told its loss before the drop returns.
#[test]
fn a_sync_after_the_drop_of_a_write_that_is_settling_sees_the_loss() {
    explore(|| {
        let world = world();
        let ledger = ledger();
        let mut write = world.submit(Want::write(&ledger, 0, &[8]));
        let started = world.start();
        let backend = thread::spawn(move || started.fail(0, "EIO"));
        write.drop_future();
        let sync = world.submit(Want::sync(&ledger));
        if let Some(started) = world.try_start() {
            assert!(ledger.doubt().is_some(), "the sync began too early");
            started.finish();
        }
        backend.join().expect("the backend");
        world.dispose();
        world.run();
        assert!(ledger.doubt().is_some(), "the loss left no trace");
        drop(sync);
        world.dispose();
        world.assert_all_free(0);
    });
}

const PREEMPTIONS_OF_THREE: Option<usize> = Some(3);

/// I3, I5, I13: two parts finish on two threads while a third polls.
#[test]
fn two_parts_that_finish_at_once_settle_their_operation_once() {
    explore_with(PREEMPTIONS_OF_THREE, || {
        let world = World::<WhenQuiet>::new(limits());
        let mut job = world.submit(Want::read(&[8, 8]));
        let parts = world.start_all().into_iter();
        let backends: Vec<_> = parts
            .map(|part| thread::spawn(move || part.finish()))
            .collect();
        assert_eq!(wait_for(&mut job), Ending::Done);
        for backend in backends {
            backend.join().expect("a backend");
        }
        job.memory.assert_released();
        world.assert_all_free(0);
    });
}

/// I5, I11, I24: a part is started, its operation cancelled and its future dropped, all at once.
#[test]
fn start_cancel_and_drop_at_once_end_the_operation_once() {
    explore_with(PREEMPTIONS_OF_THREE, || {
        let world = world();
        let mut job = world.submit(Want::read(&[8]));
        let part = world.take_part().expect("granted");
        let canceller = job.handle().canceller();
        let backend = thread::spawn(move || {
            if let Some((ticket, task)) = part.start() {
                support::hardware::Started::new(ticket, task).finish();
            }
        });
        let other = thread::spawn(move || canceller.cancel());
        job.drop_future();
        world.dispose();
        backend.join().expect("the backend");
        other.join().expect("the canceller");
        world.dispose();
        job.memory.assert_released();
        world.assert_all_free(0);
    });
}

/// I9, I10: a part finishes and another is lost while a third is submitted.
#[test]
fn a_finish_a_loss_and_a_submit_at_once_conserve_the_permits() {
    explore_with(PREEMPTIONS_OF_THREE, || {
        let world = World::<WhenQuiet>::new(Limits {
            parts: limit(2, 0),
            ..limits()
        });
        let mut sound = world.submit(Want::read(&[8]));
        let mut lost = world.submit(Want::read(&[8]));
        let (finishes, loses) = (world.start(), world.start());
        let first = thread::spawn(move || finishes.finish());
        let second = thread::spawn(move || drop(loses));
        let mut third = world.submit(Want::read(&[8]));
        first.join().expect("the first backend");
        second.join().expect("the second backend");
        world.run();
        assert_eq!(sound.outcome().ending, Ending::Done);
        assert_eq!(lost.outcome().ending, Ending::Quarantined);
        assert_eq!(third.outcome().ending, Ending::Done);
        world.assert_all_free(1);
    });
}
