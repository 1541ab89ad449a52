//! Exhaustive models of several operations between two threads, with loom.
//!
//! Bound: every interleaving with at most 2 preemptions, of 2 threads. `LOOM_MAX_PREEMPTIONS=N`
//! sets another bound. How to run them: see `loom_operation.rs`.

#![cfg(completion_loom)]

mod support;

use loom::thread;
use support::wakers::{block_on, wait};
use support::{Job, Want, World, ledger, limits};
use tokio_cufile_completion::{Ending, Limits, Rejection, StopReason, WhenQuiet};

const PREEMPTIONS: usize = 2;

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(PREEMPTIONS));
    builder.check(model);
}

fn world() -> World<WhenQuiet> {
    World::new(Limits {
        parts: 1,
        slots: 1,
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
        let mut job = world.prepare(Want::read(&[8]));
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
