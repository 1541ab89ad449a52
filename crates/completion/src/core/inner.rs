//! Admission, grants and withdrawal, with the engine's lock held.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use super::Drained;
use crate::budget::{Budget, Cost, Limits, Standing};
use crate::disposer::DisposalList;
use crate::domain::{Class, Domain, Tick};
use crate::operation::{Ending, Operation, Phase, Rejection, Role, Spec, State, StopReason};
use crate::policy::ReleasePolicy as _;
use crate::scheduler::{Entry, Pick, Scheduler};
use crate::table::Table;
use crate::ticket::{PartKey, SlotId};
use crate::timers::Timers;

pub(super) struct Inner<D: Domain> {
    pub(super) open: bool,
    pub(super) live: usize,
    pub(super) scheduler: Scheduler<D>,
    /// Admitted operations that wait for earlier writes of their file.
    pub(super) barriers: BTreeMap<u64, Arc<Operation<D>>>,
    pub(super) budget: Budget,
    pub(super) free_slots: Vec<u32>,
    pub(super) in_flight: Table<InFlight<D>>,
    pub(super) timers: Timers<D>,
    pub(super) disposal: DisposalList<D>,
    pub(super) stray_completions: u64,
    pub(super) drained: Drained,
    pub(super) drain_wakers: Vec<Waker>,
}

/// A part in a backend's hands.
pub(super) struct InFlight<D: Domain> {
    /// `None` once the operation was quarantined: the entry then stands for what is lost.
    pub(super) operation: Option<Arc<Operation<D>>>,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) cost: Cost,
    pub(super) urgent: bool,
    pub(super) slot: Option<u32>,
    pub(super) stage: u8,
    pub(super) stages: u8,
    pub(super) standing: Standing,
}

/// What a transition owes the outside, done after the locks are gone.
pub(super) struct Effects<D: Domain> {
    pub(super) wakers: Vec<Waker>,
    /// Set by a broken policy only: the outcome that becomes visible after the wake.
    pub(super) publish_late: Option<Arc<Operation<D>>>,
    pub(super) alarm: Option<Tick>,
    pub(super) disposal: bool,
    pub(super) drained: bool,
}

impl<D: Domain> Effects<D> {
    pub(super) const fn new() -> Self {
        Self {
            wakers: Vec::new(),
            publish_late: None,
            alarm: None,
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
    },
    Refused(Entry<D>),
    Nothing,
}

impl<D: Domain> Inner<D> {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            open: true,
            live: 0,
            scheduler: Scheduler::new(),
            barriers: BTreeMap::new(),
            budget: Budget::new(limits),
            free_slots: (0..limits.slots).rev().collect(),
            in_flight: Table::new(limits.parts),
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
        let waits = matches!(&state.role, Role::Barrier(ledger) if ledger.wait(operation.id));
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
            state.set_exhausted();
            state.end();
            return self.settle(operation, state, effects);
        };
        let entry = Entry {
            operation: Arc::clone(operation),
            head,
            rest,
        };
        state.queued_at = Some(self.scheduler.push(state.class, entry));
    }

    pub(super) fn open_barriers(&mut self, opened: Vec<u64>, effects: &mut Effects<D>) {
        for id in opened {
            if let Some(operation) = self.barriers.remove(&id) {
                let mut state = operation.lock();
                self.enqueue(&operation, &mut state, effects);
            }
        }
    }

    pub(super) fn grant(&mut self, effects: &mut Effects<D>) -> Granted<D> {
        let (operation, part, class, last) = match self.scheduler.pick(&self.budget) {
            Pick::Wait => return Granted::Nothing,
            Pick::Hopeless(entry) => {
                self.refuse(&entry.operation, effects);
                return Granted::Refused(entry);
            }
            Pick::Grant {
                operation,
                part,
                class,
                last,
            } => (operation, part, class, last),
        };
        let mut state = operation.lock();
        state.part_granted(part.offset + part.len, last);
        if last {
            state.queued_at = None;
        }
        drop(state);
        let urgent = class == Class::Urgent;
        self.budget
            .shift(part.cost, urgent, Standing::Free, Standing::Reserved);
        let slot = part.cost.slot.then(|| {
            self.free_slots
                .pop()
                .expect("a slot permit stands for a free slot")
        });
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
        });
        Granted::Part {
            key,
            slot: slot.map(SlotId),
            task: part.task,
        }
    }

    /// The operation's next part can never be granted. What was issued still has to end.
    pub(super) fn refuse(&mut self, operation: &Arc<Operation<D>>, effects: &mut Effects<D>) {
        let mut state = operation.lock();
        state.queued_at = None;
        state.ending = Some(Ending::Rejected(Rejection::NoCapacity));
        state.stop = Some(StopReason::Shutdown);
        if state.is_quiet() {
            self.settle(operation, &mut state, effects);
        }
    }

    /// Takes what the scheduler has of an operation, for its caller to drop without the lock.
    pub(super) fn unqueue(
        &mut self,
        operation: &Operation<D>,
        state: &mut State<D>,
    ) -> Option<Entry<D>> {
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
        quiet_at: Tick,
        now: Tick,
        effects: &mut Effects<D>,
    ) -> Option<Entry<D>> {
        let mut state = operation.lock();
        match state.phase {
            Phase::Reserved => {
                state.stop.get_or_insert(why);
                return None;
            }
            Phase::Queued | Phase::Issued => {}
            Phase::Settled | Phase::Consumed => return None,
        }
        let first_stop = state.stop.is_none() || state.stop == Some(StopReason::Dropped);
        state.stop.get_or_insert(why);
        let withdrawn = self.unqueue(operation, &mut state);
        if state.is_quiet() || D::Policy::releases_in_flight(why) {
            state.end();
            self.settle(operation, &mut state, effects);
        } else if first_stop || state.timer.is_none() {
            // Without a timer: its future was dropped after an earlier stop.
            state.heard_at = now;
            self.set_timer(operation, &mut state, quiet_at, effects);
        }
        withdrawn
    }

    pub(super) fn detach(&mut self, operation: &Arc<Operation<D>>, effects: &mut Effects<D>) {
        let mut state = operation.lock();
        state.detached = true;
        match state.phase {
            Phase::Consumed => return,
            Phase::Reserved => self.dispose(operation, &mut state, effects),
            Phase::Settled => {
                // Its loss is on record when the disposer comes to it. A barrier waits for that.
                if let Role::Write(ledger, _) = &state.role
                    && state.is_loss()
                {
                    ledger.expect_loss();
                    state.loss_expected = true;
                }
                self.dispose(operation, &mut state, effects);
            }
            Phase::Queued | Phase::Issued => {
                state.stop.get_or_insert(StopReason::Dropped);
                // Nobody waits for it, however long its parts take; but a shutdown does.
                if self.open {
                    self.clear_timer(operation, &mut state);
                }
                let withdrawn = self.unqueue(operation, &mut state);
                state.withdrawn = withdrawn;
                if state.is_quiet() || D::Policy::releases_in_flight(StopReason::Dropped) {
                    state.end();
                    self.settle(operation, &mut state, effects);
                }
            }
        }
        drop(state);
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
