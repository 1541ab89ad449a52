//! A world around the completion model: a backend that finishes parts when told, a clock that moves
//! when told, and memory that knows when it was released.
//!
//! The backend holds every part until the test says what becomes of it: in any order, in full,
//! short, over-long, faulty, twice, under a stale key, or lost. Everything is generic over the
//! release policy, so that a scenario that the shipped policy passes can be shown to fail with each
//! broken one.

#![allow(dead_code, reason = "each test binary uses a part of it")]

#[cfg(completion_loom)]
pub(crate) mod explore;
pub(crate) mod hardware;
pub(crate) mod policies;
pub(crate) mod scenarios;
pub(crate) mod simulation;
pub(crate) mod wakers;

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio_cufile_completion::{
    Census, Class, Core, Cost, Disposal, Domain, Doubt, Environment, Handle, IssuedPart, Ledger,
    Limit, Limits, Part, ReleasePolicy, Report, Role, Settlement, SlotSize, Spec, Tick,
};

use self::hardware::{Buffer, Memory, Started, Touch};

pub(crate) const QUIET_LIMIT: Duration = Duration::from_nanos(100);

/// The types of the fake engine.
#[derive(Debug)]
pub(crate) struct Fake<P>(PhantomData<P>);

impl<P: ReleasePolicy> Domain for Fake<P> {
    type Task = Touch;
    type Fault = &'static str;
    type Report = Tally;
    type Policy = P;
}

/// How many parts were reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally(pub(crate) u64);

impl Report for Tally {
    fn merge(&mut self, part: Self) {
        self.0 += part.0;
    }
}

/// What the outside has seen.
pub(crate) struct Outside<P: ReleasePolicy> {
    state: Mutex<Seen<P>>,
}

pub(crate) struct Seen<P: ReleasePolicy> {
    pub(crate) parts: VecDeque<IssuedPart<Fake<P>>>,
    pub(crate) now: u64,
    pub(crate) alarm: Option<u64>,
    pub(crate) disposals_asked: u64,
    pub(crate) lost: Vec<(String, Doubt<&'static str>)>,
    pub(crate) drained: u64,
    /// Parts are dropped as they come, as by a backend that is closing.
    pub(crate) closed: bool,
}

impl<P: ReleasePolicy> Outside<P> {
    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Door<P: ReleasePolicy>(Arc<Outside<P>>);

impl<P: ReleasePolicy> Environment<Fake<P>> for Door<P> {
    fn submit(&self, part: IssuedPart<Fake<P>>) {
        let refused = {
            let mut seen = self.0.seen();
            if seen.closed {
                Some(part)
            } else {
                seen.parts.push_back(part);
                None
            }
        };
        drop(refused);
    }

    fn now(&self) -> Tick {
        Tick(self.0.seen().now)
    }

    fn set_alarm(&self, at: Tick) {
        self.0.seen().alarm = Some(at.0);
    }

    fn disposal_waits(&self) {
        self.0.seen().disposals_asked += 1;
    }

    fn lost_write(&self, file: &Arc<Path>, doubt: Doubt<&'static str>) {
        self.0.seen().lost.push((file.display().to_string(), doubt));
    }

    fn drained(&self) {
        self.0.seen().drained += 1;
    }
}

pub(crate) const fn limit(capacity: u64, reserve: u64) -> Limit {
    Limit { capacity, reserve }
}

/// Room for four parts of any size up to 1000 bytes, two slots, no reserve.
pub(crate) const fn limits() -> Limits {
    Limits {
        bytes: limit(1000, 0),
        parts: limit(4, 0),
        slots: limit(2, 0),
        small_slots: limit(0, 0),
        workers: limit(0, 0),
        queued_max: 64,
        quiet_limit: QUIET_LIMIT,
    }
}

pub(crate) struct World<P: ReleasePolicy> {
    pub(crate) core: Arc<Core<Fake<P>>>,
    pub(crate) outside: Arc<Outside<P>>,
}

impl<P: ReleasePolicy> Clone for World<P> {
    fn clone(&self) -> Self {
        Self {
            core: Arc::clone(&self.core),
            outside: Arc::clone(&self.outside),
        }
    }
}

impl<P: ReleasePolicy> World<P> {
    pub(crate) fn new(limits: Limits) -> Self {
        let outside = Arc::new(Outside {
            state: Mutex::new(Seen {
                parts: VecDeque::new(),
                now: 1,
                alarm: None,
                disposals_asked: 0,
                lost: Vec::new(),
                drained: 0,
                closed: false,
            }),
        });
        let core = Core::new(limits, Box::new(Door(Arc::clone(&outside))));
        Self { core, outside }
    }

    /// Asserts that nothing is lost and nothing is counted twice (I9).
    pub(crate) fn check(&self) -> Census {
        let census = self.core.census();
        assert!(census.is_conserved(), "permits do not add up: {census:?}");
        census
    }

    pub(crate) fn prepare(&self, want: Want) -> Job<P> {
        self.prepare_with(want, Memory::new())
    }

    pub(crate) fn prepare_with(&self, want: Want, memory: Memory) -> Job<P> {
        let buffer = Buffer::new(&memory, want.panics_on_drop);
        Job {
            handle: Some(Handle::new(&self.core, buffer)),
            memory,
            want,
            submitted: false,
            world: self.clone(),
        }
    }

    pub(crate) fn submit(&self, want: Want) -> Job<P> {
        let job = self.prepare(want);
        job.submit();
        job
    }

    /// Parts that the backend holds and has not started.
    pub(crate) fn waiting(&self) -> usize {
        self.outside.seen().parts.len()
    }

    pub(crate) fn take_part(&self) -> Option<IssuedPart<Fake<P>>> {
        self.outside.seen().parts.pop_front()
    }

    /// Starts the oldest part that was not stopped.
    pub(crate) fn try_start(&self) -> Option<Started<P>> {
        while let Some(part) = self.take_part() {
            let started = part.start();
            self.check();
            if let Some((ticket, task)) = started {
                return Some(Started::new(ticket, task));
            }
        }
        None
    }

    pub(crate) fn start(&self) -> Started<P> {
        self.try_start().expect("the backend was given a part")
    }

    pub(crate) fn start_all(&self) -> Vec<Started<P>> {
        std::iter::from_fn(|| self.try_start()).collect()
    }

    /// Starts and finishes parts until the backend holds none.
    pub(crate) fn run(&self) {
        while let Some(started) = self.try_start() {
            started.finish();
            self.check();
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.outside.seen().now
    }

    /// Moves the clock and does what is due.
    pub(crate) fn advance_to(&self, now: u64) {
        self.outside.seen().now = now;
        let next = self.core.fire();
        self.outside.seen().alarm = next.map(|tick| tick.0);
        self.check();
    }

    /// Moves the clock past the quiet limit from now.
    pub(crate) fn pass_quiet_limit(&self) {
        let limit = u64::try_from(QUIET_LIMIT.as_nanos()).expect("the limit is small");
        self.advance_to(self.now() + limit);
    }

    pub(crate) fn dispose(&self) -> Disposal {
        let disposal = self.core.dispose();
        self.check();
        disposal
    }

    /// Asserts that nothing is in flight, and that only `quarantined` parts are gone.
    pub(crate) fn assert_all_free(&self, quarantined: u64) {
        let census = self.check();
        assert!(census.is_idle(), "something is in flight: {census:?}");
        assert_eq!(census.queued, 0, "something is queued: {census:?}");
        let parts = census.parts;
        assert_eq!(parts.quarantined, quarantined, "quarantined: {census:?}");
        assert_eq!(
            parts.free + quarantined,
            parts.capacity,
            "permits did not come back: {census:?}"
        );
        assert_eq!(census.bytes.issued + census.slots.issued, 0, "{census:?}");
    }

    pub(crate) fn poll_drained(&self) -> Poll<tokio_cufile_completion::Drained> {
        self.core
            .poll_drained(&mut Context::from_waker(Waker::noop()))
    }
}

/// What a test wants done.
#[derive(Clone)]
pub(crate) struct Want {
    pub(crate) parts: Vec<u64>,
    pub(crate) class: Class,
    pub(crate) deadline: Option<u64>,
    pub(crate) slot: Option<SlotSize>,
    pub(crate) worker: bool,
    pub(crate) gated: bool,
    pub(crate) stages: u8,
    pub(crate) write: Option<(Arc<Ledger<&'static str>>, u64)>,
    pub(crate) barrier: Option<Arc<Ledger<&'static str>>>,
    pub(crate) panics_on_drop: bool,
}

impl Want {
    /// A read in parts of these lengths.
    pub(crate) fn read(parts: &[u64]) -> Self {
        Self {
            parts: parts.to_vec(),
            class: Class::Normal,
            deadline: None,
            slot: None,
            worker: false,
            gated: false,
            stages: 1,
            write: None,
            barrier: None,
            panics_on_drop: false,
        }
    }

    pub(crate) fn write(ledger: &Arc<Ledger<&'static str>>, offset: u64, parts: &[u64]) -> Self {
        let mut want = Self::read(parts);
        want.write = Some((Arc::clone(ledger), offset));
        want
    }

    pub(crate) fn sync(ledger: &Arc<Ledger<&'static str>>) -> Self {
        let mut want = Self::read(&[0]);
        want.barrier = Some(Arc::clone(ledger));
        want
    }

    pub(crate) const fn class(mut self, class: Class) -> Self {
        self.class = class;
        self
    }

    pub(crate) const fn deadline(mut self, at: u64) -> Self {
        self.deadline = Some(at);
        self
    }

    pub(crate) const fn through_slot(mut self, stages: u8) -> Self {
        self.slot = Some(SlotSize::Large);
        self.stages = stages;
        self
    }

    pub(crate) const fn through_small_slot(mut self, stages: u8) -> Self {
        self.slot = Some(SlotSize::Small);
        self.stages = stages;
        self
    }

    pub(crate) const fn by_worker(mut self) -> Self {
        self.worker = true;
        self
    }

    pub(crate) const fn gated(mut self) -> Self {
        self.gated = true;
        self
    }

    pub(crate) const fn panics_on_drop(mut self) -> Self {
        self.panics_on_drop = true;
        self
    }

    fn role(&self) -> Role<&'static str> {
        match (&self.write, &self.barrier) {
            (Some((ledger, offset)), _) => Role::Write(Arc::clone(ledger), *offset),
            (None, Some(ledger)) => Role::Barrier(Arc::clone(ledger)),
            (None, None) => Role::None,
        }
    }

    pub(crate) fn spec<P: ReleasePolicy>(&self, memory: &Memory) -> Spec<Fake<P>> {
        let (slot, worker) = (self.slot, self.worker);
        let (stages, memory) = (self.stages, memory.clone());
        let lens = self.parts.clone();
        let parts = lens.into_iter().scan(0, move |at, len| {
            let offset = *at;
            *at += len;
            Some(Part {
                offset,
                len,
                cost: Cost {
                    bytes: len,
                    slot,
                    worker,
                },
                stages,
                task: Touch::new(&memory, offset, len),
            })
        });
        Spec {
            class: self.class,
            deadline: self.deadline.map(Tick),
            total: self.parts.iter().sum(),
            parts: Box::new(parts),
            ledger: self.role(),
            gated: self.gated,
        }
    }
}

pub(crate) type Outcome<P> = Settlement<Fake<P>, Buffer>;

/// An operation in a test's hands.
pub(crate) struct Job<P: ReleasePolicy> {
    pub(crate) handle: Option<Handle<Fake<P>, Buffer>>,
    pub(crate) memory: Memory,
    pub(crate) want: Want,
    /// For a test that submits later.
    pub(crate) submitted: bool,
    world: World<P>,
}

impl<P: ReleasePolicy> Job<P> {
    pub(crate) fn handle(&self) -> &Handle<Fake<P>, Buffer> {
        self.handle.as_ref().expect("the handle was not dropped")
    }

    pub(crate) fn submit(&self) {
        self.handle().submit(self.want.spec(&self.memory));
        self.world.check();
    }

    pub(crate) fn poll_with(&mut self, waker: &Waker) -> Option<Outcome<P>> {
        let handle = self.handle.as_mut().expect("the handle was not dropped");
        let polled = handle.poll_settled(&mut Context::from_waker(waker));
        self.world.check();
        match polled {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    pub(crate) fn poll(&mut self) -> Option<Outcome<P>> {
        self.poll_with(Waker::noop())
    }

    pub(crate) fn outcome(&mut self) -> Outcome<P> {
        self.poll().expect("the operation has settled")
    }

    pub(crate) fn assert_pending(&mut self) {
        assert!(self.poll().is_none(), "settled too early");
    }

    pub(crate) fn cancel(&self) {
        self.handle().canceller().cancel();
        self.world.check();
    }

    /// Drops the future.
    pub(crate) fn drop_future(&mut self) {
        drop(self.handle.take());
        self.world.check();
    }
}

pub(crate) fn ledger() -> Arc<Ledger<&'static str>> {
    Arc::new(Ledger::new(Path::new("file").into()))
}

/// Asserts that `broken` is caught, and for the right reason.
pub(crate) fn assert_panics(reasons: &[&str], broken: impl FnOnce()) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(broken)) else {
        panic!("the broken engine passed");
    };
    let message = panic.downcast_ref::<String>().map(String::as_str);
    let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
    let message = message.unwrap_or("");
    assert!(
        reasons.iter().any(|reason| message.contains(reason)),
        "caught for another reason: {message}"
    );
}
