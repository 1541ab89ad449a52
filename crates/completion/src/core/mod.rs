//! Admission, grants, settlement: every transition of every operation, under one lock.
//!
//! Lock order: the engine's state, then one operation's, then one ledger's. The environment but for
//! its clock, wakers and payload drops run with none of them held: a transition collects them as
//! [`Effects`].

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use self::inner::{Effects, Granted, Inner};
use crate::budget::{Census, Limits};
use crate::domain::{Domain, Environment, PartOutcome, Tick};
use crate::operation::{Operation, Phase, Rejection, Spec, StopReason};
use crate::sync::{Mutex, MutexGuard, lock};
use crate::ticket::{IssuedPart, Next, PartKey};
use crate::wakers::Wakers;

mod inner;
mod settle;

/// The completion model of one engine.
pub struct Core<D: Domain> {
    inner: Mutex<Inner<D>>,
    environment: Box<dyn Environment<D>>,
    limits: Limits,
    operations: AtomicU64,
}

impl<D: Domain> fmt::Debug for Core<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// What became of the operations that were live when admission closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Ended after their parts were quiet.
    pub drained: u64,
    /// Withdrawn before anything was issued.
    pub withdrawn: u64,
    /// Leaked, in this engine's whole life: quiet could not be proved.
    pub quarantined: u64,
}

impl<D: Domain> Core<D> {
    /// A model that hands parts to `environment`.
    ///
    /// # Panics
    ///
    /// When a reserve in `limits` leaves nothing to other classes, or when there are more parts or
    /// slots than 2^32.
    #[must_use]
    pub fn new(limits: Limits, environment: Box<dyn Environment<D>>) -> Arc<Self> {
        let inner = Inner::new(&limits);
        Arc::new(Self {
            inner: Mutex::new(inner),
            environment,
            limits,
            operations: AtomicU64::new(0),
        })
    }

    pub(crate) fn environment(&self) -> &dyn Environment<D> {
        &*self.environment
    }

    pub(crate) fn next_operation(&self) -> u64 {
        self.operations.fetch_add(1, Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Inner<D>> {
        lock(&self.inner)
    }

    pub(crate) fn next_disposal(&self) -> Option<Arc<Operation<D>>> {
        self.lock().disposal.pop()
    }

    /// Every permit, slot and operation at this instant.
    #[must_use]
    pub fn census(&self) -> Census {
        let inner = self.lock();
        Census {
            bytes: inner.budget.bytes(),
            parts: inner.budget.parts(),
            slots: inner.budget.slots(),
            small_slots: inner.budget.small_slots(),
            workers: inner.budget.workers(),
            queued: inner.queued(),
            live: inner.live,
            stray_completions: inner.stray_completions,
            quarantined_operations: inner.drained.quarantined,
        }
    }

    fn apply(&self, mut effects: Effects<D>) {
        drop(effects.unissued);
        if let Some(at) = effects.alarm {
            self.environment.set_alarm(at);
        }
        effects.wakers.wake();
        if let Some(operation) = effects.publish_late {
            operation.lock().phase = Phase::Settled;
        }
        if let Some((ledger, doubt)) = effects.lost_write {
            self.environment.lost_write(ledger.path(), doubt);
        }
        if effects.disposal {
            self.environment.disposal_waits();
        }
        if effects.drained {
            self.environment.drained();
        }
    }

    // Admission.

    pub(crate) fn submit(self: &Arc<Self>, operation: &Arc<Operation<D>>, spec: Spec<D>) {
        let mut effects = Effects::new();
        let deadline = spec.deadline;
        let is_late = deadline.is_some_and(|at| at <= self.environment.now());
        let granted = {
            let mut inner = self.lock();
            if is_late {
                operation.lock().stop.get_or_insert(StopReason::Deadline);
            }
            let refusal = if !inner.open {
                Some(Rejection::ShuttingDown)
            } else if inner.queued() >= self.limits.queued_max {
                Some(Rejection::QueueFull)
            } else {
                None
            };
            inner.admit(operation, spec, refusal, &mut effects);
            if let Some(at) = deadline {
                let mut state = operation.lock();
                if state.is_live() {
                    inner.set_timer(operation, &mut state, at, &mut effects);
                }
            }
            inner.grant(self.environment(), &mut effects)
        };
        self.apply(effects);
        self.hand_out(granted);
    }

    /// Hands out parts for as long as permits last. Called whenever permits or work appear.
    pub(crate) fn pump(self: &Arc<Self>) {
        let mut effects = Effects::new();
        let granted = self.lock().grant(self.environment(), &mut effects);
        self.apply(effects);
        self.hand_out(granted);
    }

    /// Hands out what was granted under the lock just left, and whatever can be granted after it.
    fn hand_out(self: &Arc<Self>, mut granted: Granted<D>) {
        loop {
            match granted {
                Granted::Part {
                    key,
                    slot,
                    task,
                    spent,
                    more,
                } => {
                    drop(spent);
                    let core = Arc::clone(self);
                    self.environment
                        .submit(IssuedPart::new(core, key, slot, task));
                    if !more {
                        return;
                    }
                }
                Granted::Refused(remainder) => drop(remainder),
                Granted::Nothing => return,
            }
            let mut effects = Effects::new();
            granted = self.lock().grant(self.environment(), &mut effects);
            self.apply(effects);
        }
    }

    // Withdrawal.

    /// Asks an operation to stop. Without effect on one that has ended.
    pub(crate) fn stop(self: &Arc<Self>, operation: &Arc<Operation<D>>, why: StopReason) {
        let mut effects = Effects::new();
        let withdrawn = {
            let mut inner = self.lock();
            let now = self.environment.now();
            inner.stop(operation, why, now, &mut effects)
        };
        drop(withdrawn);
        self.apply(effects);
        self.pump();
    }

    /// The future was dropped. Nothing here allocates or runs foreign code (I11): the rest is the
    /// disposer's.
    pub(crate) fn detach(&self, operation: &Arc<Operation<D>>) {
        let mut effects = Effects::new();
        {
            let mut inner = self.lock();
            inner.detach(operation, &mut effects);
        }
        self.apply(effects);
    }

    // A backend's reports, through the part's token.

    pub(crate) fn start(self: &Arc<Self>, key: PartKey) -> bool {
        let mut effects = Effects::new();
        let started = self.lock().start(key, self.environment(), &mut effects);
        self.apply(effects);
        if !started {
            self.pump();
        }
        started
    }

    /// Grants nothing itself: a backend that drops one part drops the next as well, and the calls
    /// would nest. The disposer does.
    pub(crate) fn hand_back(&self, key: PartKey) {
        let mut effects = Effects::new();
        let withdrawn = {
            let mut inner = self.lock();
            let now = self.environment.now();
            let operation = inner.operation_of(key);
            let withdrawn =
                operation.and_then(|of| inner.stop(&of, StopReason::HandedBack, now, &mut effects));
            inner.take_back(key, &mut effects);
            withdrawn
        };
        drop(withdrawn);
        effects.disposal = true;
        self.apply(effects);
    }

    /// A stage of the part that is not its last was seen complete. By name; see
    /// [`Ticket::advance`](crate::Ticket::advance).
    pub fn advance(&self, key: PartKey) -> Next {
        self.lock().advance(key, self.environment())
    }

    /// The rest of the part occupies no worker. By name; see
    /// [`Ticket::free_worker`](crate::Ticket::free_worker).
    pub(crate) fn free_worker(self: &Arc<Self>, key: PartKey) {
        let mut effects = Effects::new();
        let granted = {
            let mut inner = self.lock();
            inner.free_worker(key);
            inner.grant(self.environment(), &mut effects)
        };
        self.hand_out(granted);
        self.apply(effects);
    }

    pub(crate) fn let_go(&self, key: PartKey) {
        let mut effects = Effects::new();
        self.lock().let_go(key, self.environment(), &mut effects);
        self.apply(effects);
    }

    pub(crate) fn is_given_up(&self, key: PartKey) -> bool {
        let operation = self.lock().operation_of(key);
        operation.is_none_or(|operation| !operation.lock().is_live())
    }

    pub(crate) fn report(&self, key: PartKey) -> Next {
        self.lock().report(key, self.environment())
    }

    /// The part is quiet. By name; see [`Ticket::finish`](crate::Ticket::finish). A key of no part
    /// in flight is counted and dropped (I5, I6).
    pub fn finish(self: &Arc<Self>, key: PartKey, outcome: PartOutcome<D>) {
        let mut effects = Effects::new();
        let granted = self.finish_part(key, outcome, &mut effects);
        // Before the wake: whoever it wakes may end the engine.
        self.hand_out(granted);
        self.apply(effects);
    }

    /// As [`finish`](Self::finish), but whom it would wake is added to `wakers`. By name; see
    /// [`Ticket::finish_with`](crate::Ticket::finish_with).
    pub fn finish_with(
        self: &Arc<Self>,
        key: PartKey,
        outcome: PartOutcome<D>,
        wakers: &mut Wakers,
    ) {
        let mut effects = Effects::new();
        effects.wakers = std::mem::take(wakers);
        let granted = self.finish_part(key, outcome, &mut effects);
        // A broken policy publishes after its wake, and must go on to do so.
        if effects.publish_late.is_none() {
            *wakers = std::mem::take(&mut effects.wakers);
        }
        self.hand_out(granted);
        self.apply(effects);
    }

    /// Ends a part and grants the next, under one lock.
    fn finish_part(
        &self,
        key: PartKey,
        outcome: PartOutcome<D>,
        effects: &mut Effects<D>,
    ) -> Granted<D> {
        let (withdrawn, granted) = {
            let mut inner = self.lock();
            let withdrawn = inner.finish(key, outcome, self.environment(), effects);
            (withdrawn, inner.grant(self.environment(), effects))
        };
        drop(withdrawn);
        granted
    }

    /// Nobody will ever know when the part is quiet: its operation is quarantined (I3).
    pub fn lose(self: &Arc<Self>, key: PartKey) {
        let mut effects = Effects::new();
        let withdrawn = {
            let mut inner = self.lock();
            if let Some(operation) = inner.operation_of(key) {
                inner.quarantine(&operation, Some(key), &mut effects)
            } else {
                inner.stray_completions += 1;
                None
            }
        };
        drop(withdrawn);
        self.apply(effects);
        self.pump();
    }

    // Time.

    /// Does what is due at the engine's present time. Gives the time of what is due next.
    pub fn fire(self: &Arc<Self>) -> Option<Tick> {
        loop {
            let mut effects = Effects::new();
            let withdrawn = {
                let mut inner = self.lock();
                let now = self.environment.now();
                let Some(due) = inner.timers.pop_due(now) else {
                    return inner.timers.next();
                };
                inner.time_is_up(&due, now, &mut effects)
            };
            drop(withdrawn);
            self.apply(effects);
            self.pump();
        }
    }

    // Shutdown.

    /// Admits nothing more. What is live goes on.
    pub fn close_admission(&self) {
        let mut effects = Effects::new();
        {
            let mut inner = self.lock();
            inner.open = false;
            inner.note_drained(&mut effects);
        }
        self.apply(effects);
    }

    /// Stops every live operation: what is not issued is withdrawn, the rest is given the quiet
    /// limit (I20). Closes admission first.
    pub fn stop_all(self: &Arc<Self>) {
        self.close_admission();
        self.lock().stopped = true;
        loop {
            let queued = self.lock().any_queued();
            match queued {
                Some(operation) => self.stop(&operation, StopReason::Shutdown),
                None => break,
            }
        }
        let issued: Vec<_> = {
            let mut inner = self.lock();
            inner
                .in_flight
                .values()
                .filter_map(|part| part.operation.clone())
                .collect()
        };
        for operation in issued {
            self.stop(&operation, StopReason::Shutdown);
        }
    }

    /// Tells what a dropped handle could not: that it was the last.
    pub(crate) fn tell_drained(&self) {
        let mut effects = Effects::new();
        self.lock().note_drained(&mut effects);
        self.apply(effects);
    }

    /// Ready once admission is closed and every operation has settled.
    pub fn poll_drained(&self, cx: &mut Context<'_>) -> Poll<Drained> {
        let fresh = cx.waker().clone();
        let mut inner = self.lock();
        if !inner.open && inner.live == 0 {
            let drained = inner.drained;
            drop(inner);
            return Poll::Ready(drained);
        }
        let stale: Vec<_> = inner
            .drain_wakers
            .extract_if(.., |waker| waker.will_wake(&fresh))
            .collect();
        inner.drain_wakers.push(fresh);
        drop(inner);
        drop(stale);
        Poll::Pending
    }

    /// Whether admission is closed, every operation has settled and nothing waits for disposal:
    /// the engine's threads may end.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        let inner = self.lock();
        !inner.open && inner.live == 0 && inner.disposal.is_empty()
    }

    /// Ends an operation that stands at its gate.
    pub(crate) fn fail_gated(self: &Arc<Self>, operation: &Arc<Operation<D>>, fault: D::Fault) {
        let mut effects = Effects::new();
        self.lock().fail_gated(operation, fault, &mut effects);
        self.apply(effects);
        // A sync may have waited for it.
        self.pump();
    }

    pub(crate) fn open_barriers(self: &Arc<Self>, opened: Vec<u64>) {
        if opened.is_empty() {
            return;
        }
        let mut effects = Effects::new();
        self.lock().open_barriers(opened, &mut effects);
        self.apply(effects);
    }
}
