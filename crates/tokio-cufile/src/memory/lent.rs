//! Which parts of a buffer are out, and who waits for none to be: the same for host and for device
//! memory.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::range::EngineId;
use crate::error::{Error, ErrorKind, Operation, Result};

/// A buffer's table of parts, and the engine that it was allocated for.
pub(super) struct Lender {
    pub(super) engine: EngineId,
    lent: Mutex<Lent>,
}

impl Lender {
    pub(super) fn new(engine: EngineId) -> Self {
        Self {
            engine,
            lent: Mutex::new(Lent::default()),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Lent> {
        // No foreign code runs under this lock, and every change of the table is one step: there
        // is no half-made state that a poisoned lock would warn of.
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many parts are out, empty ones not counted.
    pub(super) fn parts_out(&self) -> usize {
        self.lock().parts.len()
    }

    pub(super) fn all_home(&self) -> Result<()> {
        // Taking the lock after the last part's drop released it also makes that part's bytes
        // visible here.
        match self.parts_out() {
            0 => Ok(()),
            1 => Err(buffer_error(ErrorKind::Busy, "a part is out".to_owned())),
            out => Err(buffer_error(
                ErrorKind::Busy,
                format!("{out} parts are out"),
            )),
        }
    }

    pub(super) fn check_engine(&self, engine: EngineId) -> Result<()> {
        if self.engine == engine {
            return Ok(());
        }
        let reason = "the buffer was allocated for another engine".to_owned();
        Err(buffer_error(ErrorKind::WrongEngine, reason))
    }

    /// Lends `range` of a buffer of `len` bytes.
    pub(super) fn lend(&self, range: &Range<usize>, len: usize) -> Result<()> {
        if range.start > range.end || range.end > len {
            let reason = format!("part {range:?} of a buffer of {len} bytes");
            return Err(buffer_error(ErrorKind::InvalidInput, reason));
        }
        if !self.lock().lend(range) {
            let reason = format!("part {range:?} overlaps a part that is out");
            return Err(buffer_error(ErrorKind::Busy, reason));
        }
        Ok(())
    }

    /// Makes two parts of one. Gives the second.
    pub(super) fn split(&self, range: &mut Range<usize>, at: usize) -> Result<Range<usize>> {
        if at > range.len() {
            let reason = format!("split at {at} of a part of {} bytes", range.len());
            return Err(buffer_error(ErrorKind::InvalidInput, reason));
        }
        let middle = range.start + at;
        let rest = middle..range.end;
        self.lock().split(range, middle);
        range.end = middle;
        Ok(rest)
    }

    /// A part has gone.
    pub(super) fn take_back(&self, range: &Range<usize>) {
        let waiters = self.lock().take_back(range);
        // The lock is free again: a waker may run any code.
        for waiter in waiters {
            // A waker that panics must not keep the others asleep, nor unwind out of a drop.
            let _contained = catch_unwind(AssertUnwindSafe(|| waiter.waker.wake()));
        }
    }

    pub(super) const fn idle(&self) -> Idle<'_> {
        Idle {
            lender: self,
            ticket: None,
        }
    }
}

pub(super) fn buffer_error(kind: ErrorKind, reason: String) -> Error {
    Error::new(kind, reason).with_operation(Operation::Buffer)
}

/// Resolves when no part of the buffer is out: see [`HostBuffer::idle`](crate::HostBuffer::idle).
#[must_use = "futures do nothing unless polled"]
pub struct Idle<'a> {
    lender: &'a Lender,
    /// This future's place among the waiters, from its first pending poll on.
    ticket: Option<u64>,
}

impl Future for Idle<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // Cloned before, and the old one dropped after the lock is held: both may run any code.
        let waker = context.waker().clone();
        let (ticket, displaced) = {
            let mut lent = self.lender.lock();
            if lent.parts.is_empty() {
                return Poll::Ready(());
            }
            lent.wait(self.ticket, waker)
        };
        drop(displaced);
        self.ticket = Some(ticket);
        Poll::Pending
    }
}

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let withdrawn = self.lender.lock().stop_waiting(ticket);
            drop(withdrawn);
        }
    }
}

impl fmt::Debug for Idle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idle")
            .field("waiting", &self.ticket.is_some())
            .finish()
    }
}

/// The parts that are out, and who waits for none to be.
#[derive(Default)]
pub(super) struct Lent {
    /// Start to end; disjoint, none empty.
    pub(super) parts: BTreeMap<usize, usize>,
    /// One entry for each [`Idle`] that has been polled since parts were last all home.
    pub(super) waiters: Vec<Waiter>,
    ticket_next: u64,
}

pub(super) struct Waiter {
    ticket: u64,
    waker: Waker,
}

impl Lent {
    /// Whether the range was free and is lent now.
    fn lend(&mut self, range: &Range<usize>) -> bool {
        if range.is_empty() {
            return true;
        }
        // Parts are disjoint, so of all that begin before our end the last one ends last.
        let nearest = self.parts.range(..range.end).next_back();
        let free = nearest.is_none_or(|(_, &end)| end <= range.start);
        if free {
            self.parts.insert(range.start, range.end);
        }
        free
    }

    fn split(&mut self, range: &Range<usize>, middle: usize) {
        // With an empty half there is one part before and after; it has the same bytes.
        if range.start < middle && middle < range.end {
            let replaced = self.parts.insert(range.start, middle);
            debug_assert_eq!(replaced, Some(range.end), "a living part is in the table");
            self.parts.insert(middle, range.end);
        }
    }

    /// The waiters to wake, once the lock is released.
    fn take_back(&mut self, range: &Range<usize>) -> Vec<Waiter> {
        if range.is_empty() {
            return Vec::new();
        }
        let end = self.parts.remove(&range.start);
        debug_assert_eq!(end, Some(range.end), "a living part is in the table");
        if self.parts.is_empty() {
            std::mem::take(&mut self.waiters)
        } else {
            Vec::new()
        }
    }

    /// The waiter's ticket, and the waker that the new one displaces.
    fn wait(&mut self, ticket: Option<u64>, waker: Waker) -> (u64, Option<Waker>) {
        let known = self
            .waiters
            .iter_mut()
            .find(|waiter| Some(waiter.ticket) == ticket);
        if let Some(waiter) = known {
            return (
                waiter.ticket,
                Some(std::mem::replace(&mut waiter.waker, waker)),
            );
        }
        let ticket = self.ticket_next;
        self.ticket_next += 1;
        self.waiters.push(Waiter { ticket, waker });
        (ticket, None)
    }

    fn stop_waiting(&mut self, ticket: u64) -> Option<Waiter> {
        let index = self
            .waiters
            .iter()
            .position(|waiter| waiter.ticket == ticket)?;
        Some(self.waiters.swap_remove(index))
    }
}
