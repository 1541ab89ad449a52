//! The future's side of an operation: a handle, and nothing that hardware could touch.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::core::Core;
use crate::domain::Domain;
use crate::operation::{Operation, Payload, Phase, Settlement, Spec, StopReason};
use crate::wakers::Wakers;

/// Owns the right to an operation's outcome.
///
/// Dropping it never blocks, allocates, panics or runs foreign code (I11): what was not issued is
/// withdrawn, what was is detached, and the payload goes to the disposer when it is quiet.
#[must_use = "dropping the handle withdraws or detaches the operation"]
pub struct Handle<D: Domain, T> {
    core: Arc<Core<D>>,
    operation: Arc<Operation<D>>,
    done: bool,
    payload: PhantomData<fn() -> T>,
}

impl<D: Domain, T: Send + 'static> Handle<D, T> {
    /// Gives an operation its payload: all that its parts will touch (I1). Nothing is issued.
    pub fn new(core: &Arc<Core<D>>, payload: T) -> Self {
        let operation = Arc::new(Operation::new(core.next_operation(), Box::new(payload)));
        Self {
            core: Arc::clone(core),
            operation,
            done: false,
            payload: PhantomData,
        }
    }

    /// Admits the operation. Whatever prevents that arrives as its outcome.
    ///
    /// # Panics
    ///
    /// When it was submitted before.
    pub fn submit(&self, spec: Spec<D>) {
        self.core.submit(&self.operation, spec);
    }

    /// The outcome, once there is one. The last waker given is woken.
    pub fn poll_settled(&mut self, cx: &mut Context<'_>) -> Poll<Settlement<D, T>> {
        if let Some(settlement) = self.take() {
            return Poll::Ready(settlement);
        }
        // Cloned and dropped outside the lock: a waker is foreign code (I14).
        let fresh = cx.waker().clone();
        let (stale, settled) = {
            let mut state = self.operation.lock();
            if state.phase == Phase::Settled {
                (Some(fresh), true)
            } else {
                (state.waker.replace(fresh), false)
            }
        };
        drop(stale);
        // It settled before the waker was there, or whoever settles it finds the waker (I13).
        if settled {
            self.take().map_or(Poll::Pending, Poll::Ready)
        } else {
            Poll::Pending
        }
    }

    fn take(&mut self) -> Option<Settlement<D, T>> {
        let (settlement, waker) = {
            let mut state = self.operation.lock();
            if state.phase != Phase::Settled {
                return None;
            }
            // A canceller may keep the control block for long: it shall not keep the waker.
            (state.settlement(), state.waker.take())
        };
        drop(waker);
        self.done = true;
        Some(Settlement {
            ending: settlement.ending,
            bytes: settlement.bytes,
            parts: settlement.parts,
            report: settlement.report,
            payload: settlement.payload.map(Self::unbox),
        })
    }

    /// Puts another payload in the place of the first, before the operation is submitted.
    ///
    /// # Errors
    ///
    /// The handle, once it was submitted.
    pub fn map<U: Send + 'static>(
        mut self,
        map: impl FnOnce(T) -> U,
    ) -> Result<Handle<D, U>, Self> {
        let payload = {
            let mut state = self.operation.lock();
            if state.phase != Phase::Reserved {
                drop(state);
                return Err(self);
            }
            state.payload.take()
        };
        // What the payload becomes is foreign code. Nobody else touches that of an operation that
        // was not submitted.
        let payload = payload.map(|payload| Box::new(map(Self::unbox(payload))) as Payload);
        self.operation.lock().payload = payload;
        self.done = true;
        Ok(Handle {
            core: Arc::clone(&self.core),
            operation: Arc::clone(&self.operation),
            done: false,
            payload: PhantomData,
        })
    }

    /// Takes the payload of an operation that was never submitted.
    pub fn take_back(&mut self) -> Option<T> {
        let (payload, watcher) = {
            let mut state = self.operation.lock();
            if state.phase != Phase::Reserved {
                return None;
            }
            state.phase = Phase::Consumed;
            (state.payload.take(), state.payload_waker.take())
        };
        drop(Wakers::from_iter(watcher));
        self.done = true;
        payload.map(Self::unbox)
    }

    fn unbox(payload: Payload) -> T {
        *payload
            .downcast::<T>()
            .expect("`new` boxed a T, and nobody else boxes payloads")
    }
}

impl<D: Domain, T> Handle<D, T> {
    /// The model that the operation belongs to.
    #[must_use]
    pub const fn core(&self) -> &Arc<Core<D>> {
        &self.core
    }

    /// What can cancel the operation from elsewhere.
    pub fn canceller(&self) -> Canceller<D> {
        Canceller {
            core: Arc::clone(&self.core),
            operation: Arc::clone(&self.operation),
        }
    }

    /// What tells when the payload is free, which may be before the operation has ended. One for
    /// each operation: a second takes the first one's wakes.
    pub fn payload_watch(&self) -> PayloadWatch<D> {
        PayloadWatch {
            operation: Arc::clone(&self.operation),
        }
    }
}

impl<D: Domain, T> Handle<D, T> {
    /// What admits the operation that was submitted [`gated`](Spec::gated).
    pub fn gate(&self) -> Gate<D> {
        Gate {
            core: Arc::clone(&self.core),
            operation: Arc::clone(&self.operation),
        }
    }
}

impl<D: Domain, T> Drop for Handle<D, T> {
    fn drop(&mut self) {
        if !self.done {
            self.core.detach(&self.operation);
        }
    }
}

impl<D: Domain, T> fmt::Debug for Handle<D, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("operation", &self.operation.id)
            .finish_non_exhaustive()
    }
}

/// Lets a gated operation in. Keeps the control block alive, not the payload.
pub struct Gate<D: Domain> {
    core: Arc<Core<D>>,
    operation: Arc<Operation<D>>,
}

impl<D: Domain> Gate<D> {
    /// The operation waits for permits from now on. Without effect the second time, and on one that
    /// has ended.
    pub fn open(&self) {
        self.core.open_barriers(vec![self.operation.id]);
        self.core.pump();
    }

    /// The operation ends with `fault`, before anything of it was issued: what it waited for will
    /// not come. Without effect on one that was let in, or has ended.
    pub fn fail(&self, fault: D::Fault) {
        self.core.fail_gated(&self.operation, fault);
    }

    /// Whether the operation has ended without it: it was stopped, or dropped.
    #[must_use]
    pub fn is_moot(&self) -> bool {
        !self.operation.lock().is_live()
    }
}

impl<D: Domain> fmt::Debug for Gate<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("operation", &self.operation.id)
            .finish_non_exhaustive()
    }
}

/// Asks an operation to stop. Keeps the control block alive, not the payload: that goes with the
/// outcome.
pub struct Canceller<D: Domain> {
    core: Arc<Core<D>>,
    operation: Arc<Operation<D>>,
}

impl<D: Domain> Canceller<D> {
    /// Nothing more is issued for the operation. It settles when what was issued is quiet, or as
    /// quarantined after the quiet limit. Before it was submitted: at submission, without effect.
    pub fn cancel(&self) {
        self.core.stop(&self.operation, StopReason::Cancelled);
    }
}

impl<D: Domain> Clone for Canceller<D> {
    fn clone(&self) -> Self {
        Self {
            core: Arc::clone(&self.core),
            operation: Arc::clone(&self.operation),
        }
    }
}

impl<D: Domain> fmt::Debug for Canceller<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Canceller")
            .field("operation", &self.operation.id)
            .finish_non_exhaustive()
    }
}

/// Whether a payload may be touched again by its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadState {
    /// No part touches it any more, and none will (I25).
    Free,
    /// Its operation was quarantined with parts that might yet: it is leaked.
    Lost,
}

/// Learns when an operation's payload is free. Gives no access to it: a payload whose inside is to
/// be taken out early shares that with who watches.
pub struct PayloadWatch<D: Domain> {
    operation: Arc<Operation<D>>,
}

impl<D: Domain> PayloadWatch<D> {
    /// Ready when every part has let go or ended and no other will be issued, and at the latest
    /// when the operation has ended. The last waker given is woken. When the operation's handle is
    /// dropped in between, the wake may come as late as its end.
    pub fn poll_free(&self, cx: &mut Context<'_>) -> Poll<PayloadState> {
        // Cloned and dropped outside the lock: a waker is foreign code (I14).
        let fresh = cx.waker().clone();
        let (stale, free) = {
            let mut state = self.operation.lock();
            if state.payload_lost {
                (Some(fresh), Some(PayloadState::Lost))
            } else if state.is_payload_free::<D::Policy>() {
                (Some(fresh), Some(PayloadState::Free))
            } else {
                (state.payload_waker.replace(fresh), None)
            }
        };
        drop(stale);
        free.map_or(Poll::Pending, Poll::Ready)
    }
}

impl<D: Domain> fmt::Debug for PayloadWatch<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PayloadWatch")
            .field("operation", &self.operation.id)
            .finish_non_exhaustive()
    }
}
