//! Admission, grants and withdrawal, with the engine's lock held.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::Drained;
use crate::budget::{Budget, Cost, Limits, SlotSize, Standing};
use crate::disposer::DisposalList;
use crate::domain::{Class, Domain, Environment, Tick};
use crate::ledger::{Doubt, Ledger};
use crate::operation::{Ending, Operation, Phase, Rejection, Role, Spec, State, StopReason};
use crate::policy::ReleasePolicy as _;
use crate::scheduler::{Parts, Pick, Remainder, Scheduler};
use crate::table::Table;
use crate::ticket::{PartKey, SlotId};
use crate::timers::Timers;
use crate::wakers::Wakers;

pub(super) struct Inner<D: Domain> {
    pub(super) open: bool,
    /// Nothing more is granted: what is queued is being withdrawn.
    pub(super) stopped: bool,
    pub(super) drain_told: bool,
    quiet_limit: Duration,
    pub(super) live: usize,
    pub(super) scheduler: Scheduler<D>,
    /// Admitted operations that wait for earlier writes of their file, or for their gate.
    pub(super) barriers: BTreeMap<u64, Arc<Operation<D>>>,
    pub(super) budget: Budget,
    pub(super) free_slots: FreeSlots,
    pub(super) in_flight: Table<InFlight<D>>,
    pub(super) timers: Timers<D>,
    pub(super) disposal: DisposalList<D>,
    pub(super) stray_completions: u64,
    pub(super) drained: Drained,
    pub(super) drain_wakers: Vec<Waker>,
}

/// A part in a backend's hands.
pub(super) struct InFlight<D: Domain> {
    /// `None` once the operation has ended without it. Issued, the entry then stands for what is
    /// quarantined; reserved, for a part that a backend holds and will not be able to start.
    pub(super) operation: Option<Arc<Operation<D>>>,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) cost: Cost,
    pub(super) urgent: bool,
    pub(super) slot: Option<u32>,
    pub(super) stage: u8,
    pub(super) stages: u8,
    pub(super) standing: Standing,
    /// May yet touch the payload.
    pub(super) holds: bool,
}

pub(super) type LostWrite<D> = (
    Arc<Ledger<<D as Domain>::Fault>>,
    Doubt<<D as Domain>::Fault>,
);

/// Which slots are free: large ones are numbered from 0 on, small ones after them.
pub(super) struct FreeSlots {
    large: Vec<u32>,
    small: Vec<u32>,
    first_small: u32,
}

impl FreeSlots {
    fn new(large: u32, small: u32) -> Self {
        let end = large
            .checked_add(small)
            .expect("fewer than 2^32 parts and slots");
        Self {
            large: (0..large).rev().collect(),
            small: (large..end).rev().collect(),
            first_small: large,
        }
    }

    fn take(&mut self, size: SlotSize) -> u32 {
        let free = match size {
            SlotSize::Small => &mut self.small,
            SlotSize::Large => &mut self.large,
        };
        free.pop().expect("a slot permit stands for a free slot")
    }

    pub(super) fn give(&mut self, slot: Option<u32>) {
        let Some(slot) = slot else {
            return;
        };
        if slot < self.first_small {
            self.large.push(slot);
        } else {
            self.small.push(slot);
        }
    }
}

/// What a transition owes the outside, done after the locks are gone.
pub(super) struct Effects<D: Domain> {
    pub(super) wakers: Wakers,
    /// Set by a broken policy only: the outcome that becomes visible after the wake.
    pub(super) publish_late: Option<Arc<Operation<D>>>,
    pub(super) alarm: Option<Tick>,
    pub(super) lost_write: Option<LostWrite<D>>,
    /// Parts of operations that have ended before any was issued, to be dropped without a lock.
    pub(super) unissued: Vec<Parts<D>>,
    pub(super) disposal: bool,
    pub(super) drained: bool,
}

impl<D: Domain> Effects<D> {
    pub(super) const fn new() -> Self {
        Self {
            wakers: Wakers::new(),
            publish_late: None,
            alarm: None,
            lost_write: None,
            unissued: Vec::new(),
            disposal: false,
            drained: false,
        }
    }
}

/// What one step of the pump gave.
pub(super) enum Granted<D: Domain> {
    Part {
        key: PartKey,
        slot: Option<SlotId>,
        task: D::Task,
        /// What is left of an operation whose last part this is: nothing, to be dropped without
        /// the lock.
        spent: Option<Parts<D>>,
        /// Whether anything else is queued.
        more: bool,
    },
    Refused(Remainder<D>),
    Nothing,
}

impl<D: Domain> Inner<D> {
    pub(super) fn new(limits: &Limits) -> Self {
        let count = |all: u64| u32::try_from(all).expect("fewer than 2^32 parts and slots");
        Self {
            open: true,
            stopped: false,
            drain_told: false,
            quiet_limit: limits.quiet_limit,
            live: 0,
            scheduler: Scheduler::new(),
            barriers: BTreeMap::new(),
            budget: Budget::new(limits),
            free_slots: FreeSlots::new(
                count(limits.slots.capacity),
                count(limits.small_slots.capacity),
            ),
            in_flight: Table::new(count(limits.parts.capacity)),
            timers: Timers::new(),
            disposal: DisposalList::new(),
            stray_completions: 0,
            drained: Drained::default(),
            drain_wakers: Vec::new(),
        }
    }

    pub(super) fn queued(&self) -> usize {
        self.scheduler.queued() + self.barriers.len()
    }

    pub(super) fn any_queued(&self) -> Option<Arc<Operation<D>>> {
        self.scheduler
            .any()
            .or_else(|| self.barriers.values().next().cloned())
    }

    pub(super) fn set_timer(
        &mut self,
        operation: &Arc<Operation<D>>,
        state: &mut State<D>,
        at: Tick,
        effects: &mut Effects<D>,
    ) {
        if let Some(old) = state.timer.replace(at) {
            self.timers.remove(old, operation.id);
        }
        let was_next = self.timers.next();
        self.timers.insert(at, operation);
        if was_next.is_none_or(|next| at < next) {
            effects.alarm = Some(at);
        }
    }

    pub(super) fn clear_timer(&mut self, operation: &Operation<D>, state: &mut State<D>) {
        if let Some(at) = state.timer.take() {
            self.timers.remove(at, operation.id);
        }
    }

    pub(super) fn admit(
        &mut self,
        operation: &Arc<Operation<D>>,
        spec: Spec<D>,
        refusal: Option<Rejection>,
        effects: &mut Effects<D>,
    ) {
        let mut state = operation.lock();
        state.admit(spec.class, spec.total, spec.ledger);
        self.live += 1;
        if let Some(refusal) = refusal {
            state.waiting_parts = Some(spec.parts);
            state.ending = Some(Ending::Rejected(refusal));
            return self.settle(operation, &mut state, effects);
        }
        if state.stop.is_some() {
            state.waiting_parts = Some(spec.parts);
            state.end();
            return self.settle(operation, &mut state, effects);
        }
        let ticket = match &state.role {
            Role::Write(ledger, _) => Some(ledger.begin()),
            _ => None,
        };
        state.write_ticket = ticket;
        debug_assert!(
            !(spec.gated && matches!(&state.role, Role::Barrier(_))),
            "a barrier has a gate of its own"
        );
        let waits =
            spec.gated || matches!(&state.role, Role::Barrier(ledger) if ledger.wait(operation.id));
        state.waiting_parts = Some(spec.parts);
        if waits {
            self.barriers.insert(operation.id, Arc::clone(operation));
        } else {
            self.enqueue(operation, &mut state, effects);
        }
    }

    pub(super) fn enqueue(
        &mut self,
        operation: &Arc<Operation<D>>,
        state: &mut State<D>,
        effects: &mut Effects<D>,
    ) {
        let Some(mut rest) = state.waiting_parts.take() else {
            return;
        };
        let Some(head) = rest.next() else {
            // `settle` passes it on, since it is not to be dropped under the lock.
            state.waiting_parts = Some(rest);
            state.end();
            return self.settle(operation, state, effects);
        };
        let remainder = Remainder { head, rest };
        let age = self
            .scheduler
            .push(state.class, Arc::clone(operation), remainder);
        state.queued_at = Some(age);
    }

    /// Ends an operation that waits at its gate.
    pub(super) fn fail_gated(
        &mut self,
        operation: &Arc<Operation<D>>,
        fault: D::Fault,
        effects: &mut Effects<D>,
    ) {
        if self.barriers.remove(&operation.id).is_none() {
            return;
        }
        let mut state = operation.lock();
        state.ending = Some(Ending::Failed { offset: 0, fault });
        self.settle(operation, &mut state, effects);
    }

    pub(super) fn open_barriers(&mut self, opened: Vec<u64>, effects: &mut Effects<D>) {
        for id in opened {
            if let Some(operation) = self.barriers.remove(&id) {
                let mut state = operation.lock();
                self.enqueue(&operation, &mut state, effects);
            }
        }
    }

    pub(super) fn grant(
        &mut self,
        environment: &dyn Environment<D>,
        effects: &mut Effects<D>,
    ) -> Granted<D> {
        if self.stopped {
            return Granted::Nothing;
        }
        let (operation, part, class, spent) = match self.scheduler.pick(&self.budget) {
            Pick::Wait => return Granted::Nothing,
            Pick::Hopeless(operation, remainder) => {
                self.refuse(&operation, environment.now(), effects);
                return Granted::Refused(remainder);
            }
            Pick::Grant {
                operation,
                part,
                class,
                spent,
            } => (operation, part, class, spent),
        };
        let mut state = operation.lock();
        state.part_granted(part.offset + part.len, spent.is_some());
        if spent.is_some() {
            state.queued_at = None;
        }
        drop(state);
        let urgent = class == Class::Urgent;
        self.budget
            .shift(part.cost, urgent, Standing::Free, Standing::Reserved);
        let slot = part.cost.slot.map(|size| self.free_slots.take(size));
        let key = self.in_flight.insert(InFlight {
            operation: Some(operation),
            offset: part.offset,
            len: part.len,
            cost: part.cost,
            urgent,
            slot,
            stage: 0,
            stages: part.stages,
            standing: Standing::Reserved,
            holds: true,
        });
        Granted::Part {
            key,
            slot: slot.map(SlotId),
            task: part.task,
            spent,
            more: !self.scheduler.is_empty(),
        }
    }

    /// The operation's next part can never be granted. What was issued still has to end.
    fn refuse(&mut self, operation: &Arc<Operation<D>>, now: Tick, effects: &mut Effects<D>) {
        let mut state = operation.lock();
        state.queued_at = None;
        state.refusal = Some(Rejection::NoCapacity);
        state.stop.get_or_insert(StopReason::Shutdown);
        self.abandon_unstarted(operation, &mut state, 0);
        if state.is_quiet() {
            state.end();
            self.settle(operation, &mut state, effects);
        } else {
            self.watch(operation, &mut state, now, effects);
            effects.wakers.extend(state.take_payload_waker());
        }
    }

    /// From now on, the operation's silence counts.
    fn watch(
        &mut self,
        operation: &Arc<Operation<D>>,
        state: &mut State<D>,
        now: Tick,
        effects: &mut Effects<D>,
    ) {
        if state.watched {
            return;
        }
        state.watched = true;
        state.heard_at = now;
        self.set_timer(operation, state, now.after(self.quiet_limit), effects);
    }

    /// Lets go of the parts, from offset `from` on, that a backend holds and has not started: no
    /// hardware knows of them, so they need not be waited for (I24). Their permits follow when the
    /// backend comes to them.
    pub(super) fn abandon_unstarted(
        &mut self,
        operation: &Arc<Operation<D>>,
        state: &mut State<D>,
        from: u64,
    ) {
        for part in self.in_flight.values() {
            if !state.has_unstarted() {
                return;
            }
            let is_theirs = |of: &Arc<Operation<D>>| Arc::ptr_eq(of, operation);
            if part.standing == Standing::Reserved
                && part.offset >= from
                && part.operation.as_ref().is_some_and(is_theirs)
            {
                part.operation = None;
                state.part_withdrawn(part.offset);
            }
        }
    }

    /// The timer of an operation has fired: its deadline, or the quiet limit.
    pub(super) fn time_is_up(
        &mut self,
        operation: &Arc<Operation<D>>,
        now: Tick,
        effects: &mut Effects<D>,
    ) -> Option<Remainder<D>> {
        let mut state = operation.lock();
        state.timer = None;
        if !state.watched {
            drop(state);
            return self.stop(operation, StopReason::Deadline, now, effects);
        }
        let quarantine_at = state.heard_at.after(self.quiet_limit);
        if quarantine_at > now {
            self.set_timer(operation, &mut state, quarantine_at, effects);
            return None;
        }
        drop(state);
        self.quarantine(operation, None, effects)
    }

    /// Takes what the scheduler has of an operation, for its caller to drop without the lock.
    pub(super) fn unqueue(
        &mut self,
        operation: &Operation<D>,
        state: &mut State<D>,
    ) -> Option<Remainder<D>> {
        if self.barriers.remove(&operation.id).is_some()
            && let Role::Barrier(ledger) = &state.role
        {
            ledger.forget(operation.id);
        }
        let age = state.queued_at.take()?;
        self.scheduler.remove(state.class, age)
    }

    pub(super) fn stop(
        &mut self,
        operation: &Arc<Operation<D>>,
        why: StopReason,
        now: Tick,
        effects: &mut Effects<D>,
    ) -> Option<Remainder<D>> {
        let mut state = operation.lock();
        match state.phase {
            Phase::Reserved => {
                state.stop.get_or_insert(why);
                return None;
            }
            Phase::Queued | Phase::Issued => {}
            Phase::Settled | Phase::Consumed => return None,
        }
        state.stop.get_or_insert(why);
        let withdrawn = self.unqueue(operation, &mut state);
        self.abandon_unstarted(operation, &mut state, 0);
        if state.is_quiet() || D::Policy::releases_in_flight(why) {
            state.end();
            self.settle(operation, &mut state, effects);
        } else {
            self.watch(operation, &mut state, now, effects);
            effects.wakers.extend(state.take_payload_waker());
        }
        withdrawn
    }

    pub(super) fn detach(&mut self, operation: &Arc<Operation<D>>, effects: &mut Effects<D>) {
        let mut state = operation.lock();
        state.detached = true;
        match state.phase {
            Phase::Consumed => {}
            Phase::Reserved => self.dispose(operation, &mut state, effects),
            Phase::Settled => {
                effects.lost_write = Self::record_now(&mut state);
                self.dispose(operation, &mut state, effects);
            }
            Phase::Queued | Phase::Issued => {
                state.stop.get_or_insert(StopReason::Dropped);
                if !self.stopped {
                    // Nobody waits for it, however long its parts take.
                    self.clear_timer(operation, &mut state);
                    state.watched = false;
                }
                if let Some(withdrawn) = self.unqueue(operation, &mut state) {
                    state.withdrawn = Some(withdrawn);
                    // Another operation may be next now: the disposer grants it.
                    effects.disposal = true;
                }
                self.abandon_unstarted(operation, &mut state, 0);
                if state.is_quiet() || D::Policy::releases_in_flight(StopReason::Dropped) {
                    state.end();
                    self.settle(operation, &mut state, effects);
                }
            }
        }
    }

    /// The write's ticket ended when it settled, so a sync that comes next would not wait for the
    /// disposer: the loss is recorded at once. Unless the file is gone and no sync will come: then
    /// the disposer tells, since telling may allocate.
    fn record_now(state: &mut State<D>) -> Option<LostWrite<D>> {
        let Role::Write(ledger, _) = &state.role else {
            return None;
        };
        if ledger.is_abandoned() || !D::Policy::records_orphans() {
            return None;
        }
        let ledger = Arc::clone(ledger);
        let (loss, offset) = state.take_loss()?;
        let untold = ledger.record(loss, offset)?;
        Some((ledger, untold))
    }

    pub(super) fn dispose(
        &mut self,
        operation: &Arc<Operation<D>>,
        state: &mut State<D>,
        effects: &mut Effects<D>,
    ) {
        self.disposal.push(operation, &mut state.next_disposal);
        effects.disposal = true;
    }
}
