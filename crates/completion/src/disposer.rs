//! Where payloads are dropped: on a thread of the engine's that may block, never on a tokio worker
//! and never on a thread that reaps completions (design rule 5, I11).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::core::Core;
use crate::domain::Domain;
use crate::operation::{Operation, Phase, Role};
use crate::policy::ReleasePolicy as _;
use crate::wakers::Wakers;

/// A list through the operations themselves, so that adding to it allocates nothing (I11).
#[derive(Debug)]
pub(crate) struct DisposalList<D: Domain> {
    head: Option<Arc<Operation<D>>>,
}

impl<D: Domain> DisposalList<D> {
    pub(crate) const fn new() -> Self {
        Self { head: None }
    }

    /// Takes the operation's state, since its caller holds the lock.
    pub(crate) fn push(
        &mut self,
        operation: &Arc<Operation<D>>,
        next_disposal: &mut Option<Arc<Operation<D>>>,
    ) {
        *next_disposal = self.head.replace(Arc::clone(operation));
    }

    pub(crate) fn pop(&mut self) -> Option<Arc<Operation<D>>> {
        let operation = self.head.take()?;
        self.head = operation.lock().next_disposal.take();
        Some(operation)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.head.is_none()
    }
}

impl<D: Domain> Drop for DisposalList<D> {
    /// One by one: dropped through its links, a long list would overflow the stack.
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

/// What one round of disposal did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disposal {
    /// Operations whose remains were dropped.
    pub operations: u64,
    /// How many of these drops panicked. The panic is contained.
    pub panics: u64,
}

impl<D: Domain> Core<D> {
    /// Drops what nobody awaits any more: payloads, their owners, unissued parts, wakers. Records
    /// the losses of orphaned writes, and does what a drop left undone: it wakes who waits for the
    /// drain, and grants what the drop made room for. Runs foreign code; call it where blocking is
    /// allowed.
    pub fn dispose(self: &Arc<Self>) -> Disposal {
        let mut done = Disposal::default();
        while let Some(operation) = self.next_disposal() {
            done.operations += 1;
            done.panics += u64::from(!self.dispose_of(&operation));
        }
        // What a drop owes the outside but must not do itself (I11).
        self.tell_drained();
        self.pump();
        done
    }

    /// Whether every drop went without a panic.
    fn dispose_of(self: &Arc<Self>, operation: &Arc<Operation<D>>) -> bool {
        self.close_account(operation);
        let mut state = operation.lock();
        state.phase = Phase::Consumed;
        let payload = state.payload.take();
        let rest = (
            state.withdrawn.take(),
            state.waiting_parts.take(),
            state.waker.take(),
        );
        let watcher = state.payload_waker.take();
        drop(state);
        drop(Wakers::from_iter(watcher));
        // Apart, since a second panic during the first one's unwinding would abort.
        let payload = catch_unwind(AssertUnwindSafe(|| drop(payload)));
        let rest = catch_unwind(AssertUnwindSafe(|| drop(rest)));
        payload.is_ok() && rest.is_ok()
    }

    /// First the loss, then the end of the write: a barrier that the end opens must see the loss.
    fn close_account(self: &Arc<Self>, operation: &Arc<Operation<D>>) {
        let (ledger, doubt, opened) = {
            let mut state = operation.lock();
            let ticket = state.write_ticket.take();
            let loss = state.take_loss();
            let Role::Write(ledger, _) = &state.role else {
                return;
            };
            let ledger = Arc::clone(ledger);
            let loss = loss.filter(|_| D::Policy::records_orphans());
            let doubt = loss.and_then(|(loss, offset)| ledger.record(loss, offset));
            let opened = ticket.map(|ticket| ledger.finish(ticket));
            (ledger, doubt, opened)
        };
        if let Some(doubt) = doubt {
            self.environment().lost_write(ledger.path(), doubt);
        }
        self.open_barriers(opened.unwrap_or_default());
    }
}
