//! What a backend reports of a part, and how an operation ends, with the engine's lock held.

use std::sync::Arc;

use super::inner::{Effects, InFlight, Inner};
use crate::budget::Standing;
use crate::domain::{Domain, Environment, PartOutcome};
use crate::operation::{Ending, Operation, Phase, Rejection, Role, State};
use crate::policy::ReleasePolicy as _;
use crate::scheduler::Remainder;
use crate::ticket::{Next, PartKey};

impl<D: Domain> Inner<D> {
    pub(super) fn operation_of(&mut self, key: PartKey) -> Option<Arc<Operation<D>>> {
        self.in_flight.get::<D::Policy>(key)?.operation.clone()
    }

    pub(super) fn start(
        &mut self,
        key: PartKey,
        clock: &dyn Environment<D>,
        effects: &mut Effects<D>,
    ) -> bool {
        let Some(part) = self.in_flight.get::<D::Policy>(key) else {
            return false;
        };
        let Some(operation) = &part.operation else {
            self.take_back(key, effects);
            return false;
        };
        let mut state = operation.lock();
        if part.offset >= state.unneeded_from() {
            drop(state);
            self.take_back(key, effects);
            return false;
        }
        state.part_started();
        state.hear(clock);
        drop(state);
        part.standing = Standing::Issued;
        let (cost, urgent) = (part.cost, part.urgent);
        self.budget
            .shift(cost, urgent, Standing::Reserved, Standing::Issued);
        true
    }

    /// Undoes a grant that never became visible.
    pub(super) fn take_back(&mut self, key: PartKey, effects: &mut Effects<D>) {
        let is_reserved = |part: &&mut InFlight<D>| part.standing == Standing::Reserved;
        let known = self.in_flight.get::<D::Policy>(key);
        if known.filter(is_reserved).is_none() {
            return;
        }
        let Some(part) = self.in_flight.remove::<D::Policy>(key) else {
            return;
        };
        self.budget
            .shift(part.cost, part.urgent, Standing::Reserved, Standing::Free);
        self.free_slots.give(part.slot);
        if let Some(operation) = part.operation {
            let mut state = operation.lock();
            if state.is_live() {
                state.part_withdrawn(part.offset);
                self.settle_if_quiet(&operation, &mut state, effects);
                effects.wakers.extend(state.take_payload_waker());
            }
        }
    }

    pub(super) fn advance(&mut self, key: PartKey, clock: &dyn Environment<D>) -> Next {
        let Some(part) = self.in_flight.get::<D::Policy>(key) else {
            return Next::Skip;
        };
        part.stage = part.stage.saturating_add(1);
        if part.slot.is_some() && D::Policy::slot_is_free_after(part.stage, part.stages) {
            // Only a broken policy says so before the last stage.
            self.free_slots.give(part.slot.take());
            if let Some(size) = part.cost.slot.take() {
                self.budget.free_slot_early(size);
            }
            return Next::Proceed;
        }
        self.report(key, clock)
    }

    pub(super) fn report(&mut self, key: PartKey, clock: &dyn Environment<D>) -> Next {
        let part = self.in_flight.get::<D::Policy>(key);
        let Some(operation) = part.and_then(|part| part.operation.as_ref()) else {
            return Next::Skip;
        };
        let mut state = operation.lock();
        state.hear(clock);
        if state.detached {
            Next::Skip
        } else {
            Next::Proceed
        }
    }

    pub(super) fn free_worker(&mut self, key: PartKey) {
        if let Some(part) = self.in_flight.get::<D::Policy>(key)
            && part.standing == Standing::Issued
            && std::mem::take(&mut part.cost.worker)
        {
            self.budget.free_worker(part.urgent);
        }
    }

    /// The part is done with the payload, not with its slot.
    pub(super) fn let_go(
        &mut self,
        key: PartKey,
        clock: &dyn Environment<D>,
        effects: &mut Effects<D>,
    ) {
        let Some(part) = self.in_flight.get::<D::Policy>(key) else {
            return;
        };
        let Some(operation) = part.operation.as_ref().filter(|_| part.holds) else {
            return;
        };
        part.holds = false;
        let mut state = operation.lock();
        state.hear(clock);
        state.part_let_go();
        effects.wakers.extend(state.take_payload_waker());
    }

    pub(super) fn finish(
        &mut self,
        key: PartKey,
        outcome: PartOutcome<D>,
        clock: &dyn Environment<D>,
        effects: &mut Effects<D>,
    ) -> Option<Remainder<D>> {
        let Some(part) = self.in_flight.get::<D::Policy>(key) else {
            self.stray_completions += 1;
            return None;
        };
        let Some(operation) = part.operation.clone() else {
            self.stray_completions += 1;
            return None;
        };
        if outcome.bytes > part.len {
            // More than was asked for: nobody knows where the rest went (I18).
            return self.quarantine(&operation, Some(key), effects);
        }
        let part = self.in_flight.remove::<D::Policy>(key)?;
        if D::Policy::returns_permits() {
            self.budget
                .shift(part.cost, part.urgent, part.standing, Standing::Free);
        }
        self.free_slots.give(part.slot);
        let mut state = operation.lock();
        if !state.is_live() {
            return None;
        }
        state.hear(clock);
        state.part_finished(part.offset, part.len, outcome);
        if part.holds {
            state.part_let_go();
        }
        let withdrawn = if state.is_stopping() {
            let unneeded = state.unneeded_from();
            self.abandon_unstarted(&operation, &mut state, unneeded);
            self.unqueue(&operation, &mut state)
        } else {
            None
        };
        self.settle_if_quiet(&operation, &mut state, effects);
        effects.wakers.extend(state.take_payload_waker());
        withdrawn
    }

    pub(super) fn settle_if_quiet(
        &mut self,
        operation: &Arc<Operation<D>>,
        state: &mut State<D>,
        effects: &mut Effects<D>,
    ) {
        if !state.is_quiet() {
            return;
        }
        state.end();
        self.settle(operation, state, effects);
    }

    /// The one place where an operation ends (I5).
    pub(super) fn settle(
        &mut self,
        operation: &Arc<Operation<D>>,
        state: &mut State<D>,
        effects: &mut Effects<D>,
    ) {
        assert!(state.is_live(), "an operation ends once");
        self.clear_timer(operation, state);
        self.live -= 1;
        self.count_drained(state);
        state.phase = Phase::Settled;
        if state.detached {
            // The disposer tells that it was the last: a drop may be on the way here (I11).
            self.dispose(operation, state, effects);
        } else {
            self.note_drained(effects);
            // A future that is forgotten shall not keep what they hold, a file for example (I12).
            effects.unissued.extend(state.waiting_parts.take());
            if let Some(waker) = state.waker.take() {
                effects.wakers.push(waker);
            }
            effects.wakers.extend(state.payload_waker.take());
            if !D::Policy::publishes_before_wake() {
                state.phase = Phase::Issued;
                effects.publish_late = Some(Arc::clone(operation));
            }
            // An orphaned write's end is told by the disposer, after its loss.
            if let (Role::Write(ledger, _), Some(ticket)) = (&state.role, state.write_ticket) {
                let opened = ledger.finish(ticket);
                state.write_ticket = None;
                self.open_barriers(opened, effects);
            }
        }
    }

    pub(super) const fn count_drained(&mut self, state: &State<D>) {
        match state.ending {
            Some(Ending::Quarantined) => self.drained.quarantined += 1,
            _ if self.open => {}
            // Was not live when admission closed.
            Some(Ending::Rejected(Rejection::ShuttingDown)) => {}
            Some(Ending::Stopped(_) | Ending::Rejected(_)) if !state.was_started() => {
                self.drained.withdrawn += 1;
            }
            _ => self.drained.drained += 1,
        }
    }

    pub(super) fn note_drained(&mut self, effects: &mut Effects<D>) {
        if !self.open && self.live == 0 {
            effects.wakers.append(&mut self.drain_wakers);
            effects.drained = !std::mem::replace(&mut self.drain_told, true);
        }
    }

    /// Leaks the payload, and what one part, or every started part, holds of the budget, for good.
    pub(super) fn quarantine(
        &mut self,
        operation: &Arc<Operation<D>>,
        part: Option<PartKey>,
        effects: &mut Effects<D>,
    ) -> Option<Remainder<D>> {
        self.quarantine_permits(operation, part);
        let mut state = operation.lock();
        if !state.is_live() {
            return None;
        }
        let withdrawn = self.unqueue(operation, &mut state);
        self.abandon_unstarted(operation, &mut state, 0);
        state.payload_lost = !state.is_payload_free::<D::Policy>();
        #[expect(clippy::disallowed_methods, reason = "this is the quarantine")]
        std::mem::forget(state.payload.take());
        state.ending = Some(Ending::Quarantined);
        self.settle(operation, &mut state, effects);
        withdrawn
    }

    /// The permits of one part, or of every started part.
    fn quarantine_permits(&mut self, operation: &Arc<Operation<D>>, only: Option<PartKey>) {
        let only = only.map(PartKey::index);
        let mut state = operation.lock();
        for (index, part) in self.in_flight.enumerate() {
            let of = part.operation.as_ref();
            if !of.is_some_and(|of| Arc::ptr_eq(of, operation)) {
                continue;
            }
            state.part_unknown(part.offset);
            if part.standing == Standing::Issued && only.is_none_or(|only| only == index) {
                part.operation = None;
                part.standing = Standing::Quarantined;
                let (cost, urgent) = (part.cost, part.urgent);
                self.budget
                    .shift(cost, urgent, Standing::Issued, Standing::Quarantined);
            }
        }
    }
}
