//! Failure looked for: foreign code that runs under a lock of the model, or whose panic breaks it
//! (I11, I13, I14, I15). The probes ask the core something: under its lock, they would never return.

#![cfg(not(any(completion_loom, completion_shuttle)))]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::hardware::Memory;
use support::wakers::{Counter, Inline};
use support::{Fake, Want, World, limit, limits, scenarios};
use tokio_cufile_completion::{Core, Disposal, Ending, Limits, Part, Spec, WhenQuiet};

fn world() -> World<WhenQuiet> {
    World::new(limits())
}

#[test]
fn the_outcome_is_there_when_the_waker_is_called() {
    scenarios::an_outcome_is_there_when_its_waker_is_called::<WhenQuiet>();
}

#[test]
fn the_last_waker_is_woken_once_and_the_earlier_ones_never() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]));
    let (stale, stale_waker) = Counter::new();
    let (fresh, fresh_waker) = Counter::new();
    assert!(job.poll_with(&stale_waker).is_none());
    assert!(job.poll_with(&fresh_waker).is_none());
    world.run();
    assert_eq!((stale.wakes(), fresh.wakes()), (0, 1));
    assert_eq!(Arc::strong_count(&stale), 2, "the replaced clone is gone");
    assert_eq!(job.outcome().ending, Ending::Done);
}

#[test]
fn a_dropped_future_is_not_woken() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]));
    let (counter, waker) = Counter::new();
    assert!(job.poll_with(&waker).is_none());
    let started = world.start();
    job.drop_future();
    started.finish();
    world.dispose();
    assert_eq!(counter.wakes(), 0);
    drop(waker);
    assert_eq!(Arc::strong_count(&counter), 1, "the disposer let go of it");
}

#[test]
fn a_waker_that_panics_harms_nobody() {
    let world = world();
    let mut first = world.submit(Want::read(&[8]));
    let mut second = world.submit(Want::read(&[8]));
    let waker = Inline::waker(|| panic!("a waker that panics"));
    assert!(first.poll_with(&waker).is_none());
    world.run();
    assert_eq!(first.outcome().ending, Ending::Done);
    assert_eq!(second.outcome().ending, Ending::Done);
    world.assert_all_free(0);
}

#[test]
fn a_payload_whose_drop_panics_harms_nobody() {
    let world = world();
    let mut bad = world.submit(Want::read(&[8]).panics_on_drop());
    let mut good = [(); 2].map(|()| world.submit(Want::read(&[8])));
    world.run();
    bad.drop_future();
    good.iter_mut().for_each(support::Job::drop_future);
    let expected = Disposal {
        operations: 3,
        panics: 1,
    };
    assert_eq!(world.dispose(), expected);
    bad.memory.assert_released();
    good.iter().for_each(|good| good.memory.assert_released());
    world.assert_all_free(0);
}

/// Asks the core something, wherever it is dropped.
struct Probe {
    core: Arc<Core<Fake<WhenQuiet>>>,
    dropped: Arc<AtomicUsize>,
}

impl Probe {
    fn new(world: &World<WhenQuiet>, dropped: &Arc<AtomicUsize>) -> Self {
        Self {
            core: Arc::clone(&world.core),
            dropped: Arc::clone(dropped),
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        assert!(self.core.census().is_conserved());
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

/// A spec whose iterator carries a probe.
fn probed(
    world: &World<WhenQuiet>,
    parts: &[u64],
    dropped: &Arc<AtomicUsize>,
) -> Spec<Fake<WhenQuiet>> {
    let mut spec = Want::read(parts).spec(&Memory::new());
    let probe = Probe::new(world, dropped);
    let mut inner: Box<dyn Iterator<Item = Part<_>> + Send> = spec.parts;
    spec.parts = Box::new(std::iter::from_fn(move || {
        let _alive = &probe;
        inner.next()
    }));
    spec
}

#[test]
fn wakers_run_without_a_lock() {
    let world = world();
    let mut job = world.submit(Want::read(&[8]));
    let core = Arc::clone(&world.core);
    let waker = Inline::waker(move || assert!(core.census().is_conserved()));
    assert!(job.poll_with(&waker).is_none());
    world.run();
    assert_eq!(job.outcome().ending, Ending::Done);
}

#[test]
fn part_iterators_are_dropped_without_a_lock() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let world = World::<WhenQuiet>::new(Limits {
        parts: limit(1, 0),
        queued_max: 2,
        ..limits()
    });
    let job = |parts: &[u64]| {
        let job = world.prepare(Want::read(parts));
        job.handle().submit(probed(&world, parts, &dropped));
        job
    };
    let empty = job(&[]);
    let used_up = job(&[8]);
    let started = world.start();
    let cancelled = job(&[8, 8]);
    let mut withdrawn = job(&[8]);
    let refused = job(&[8]);
    cancelled.cancel();
    withdrawn.drop_future();
    started.finish();
    let failing = job(&[8, 8]);
    world.start().fail(0, "EIO");
    let hopeless = job(&[2000]);
    let lost = job(&[8, 8]);
    drop(world.start());
    for mut job in [
        empty, used_up, cancelled, withdrawn, refused, failing, hopeless, lost,
    ] {
        job.drop_future();
    }
    world.dispose();
    assert_eq!(dropped.load(Ordering::SeqCst), 8, "every iterator, once");
}

#[test]
fn a_quarantined_operation_does_not_keep_itself_alive() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let world = World::<WhenQuiet>::new(Limits {
        parts: limit(1, 0),
        ..limits()
    });
    let mut job = world.prepare(Want::read(&[8, 8]));
    job.handle().submit(probed(&world, &[8, 8], &dropped));
    drop(world.start());
    assert_eq!(job.outcome().ending, Ending::Quarantined);
    job.drop_future();
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}
