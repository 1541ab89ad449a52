//! Host buffers, and owned exclusive parts of them.
//!
//! The bytes are reached by address only. A slice over the whole buffer exists while no part is
//! out, a slice over a part's range while that part is in the user's hands; a part in flight is
//! owned by its operation, so that nobody can ask it for one. All slices derive from the mapping's
//! address and none from another slice, so they cannot invalidate each other.
#![allow(
    unsafe_code,
    reason = "slices over mapped memory: what may be aliased is decided at run time, by the table \
              of parts that are out"
)]

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::mapping::{Mapping, Prefault, Purpose};
use super::range::{EngineId, MemoryRange};
use crate::error::{Error, ErrorKind, Operation, Result};

/// Host memory for reads and writes: zeroed, page aligned, and from 2 MiB on aligned to 2 MiB and
/// on huge pages where the system grants them.
///
/// Worth reusing: obtaining fresh pages costs far more processor time than a read into them.
/// Memory is obtained at the first touch, or by [`prefault`](Self::prefault). From 2 MiB on it is
/// reserved in steps of 2 MiB.
///
/// Not `Clone`. To have several operations in one buffer at once, lend it in
/// [`part`](Self::part)s. Dropping the buffer while parts are out is safe: the memory goes when
/// the last part does.
///
/// # Fork
///
/// A child inherits a copy. While a read is in flight, a process that forks must not write to
/// bytes that share a page with the read's destination (the neighbour of an unaligned part): on
/// older kernels the bytes read may then be lost.
pub struct HostBuffer {
    shared: Arc<Shared>,
}

impl HostBuffer {
    /// `len` zeroed bytes for operations of `engine`: aligned for direct I/O, on 2 MiB pages where
    /// it is that long and the system has them. See [`prefault`](Self::prefault) for buffers that
    /// must not cost page faults later. A length of 0 is allowed and takes no memory.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` when the system refuses; `InvalidInput` for a length beyond any address space.
    pub fn new(engine: &crate::Engine, len: usize) -> Result<Self> {
        Self::allocate(engine.shared.id, len)
    }

    pub(crate) fn allocate(engine: EngineId, len: usize) -> Result<Self> {
        let mapping = Mapping::new(len, Purpose::User, Prefault::OnTouch)
            .map_err(|error| error.with_operation(Operation::Buffer))?;
        let lent = Mutex::new(Lent::default());
        Ok(Self {
            shared: Arc::new(Shared {
                mapping,
                engine,
                lent,
            }),
        })
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.mapping.range().len()
    }

    /// Whether it holds no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, for reading.
    ///
    /// # Errors
    ///
    /// `Busy` while a part is out.
    pub fn as_slice(&self) -> Result<&[u8]> {
        self.shared.all_home()?;
        let range = self.shared.mapping.range();
        // SAFETY: the mapping's range is initialised and lives as long as self. No part is
        // out, and lending one takes `&mut self`, so that nobody writes while the slice lives.
        Ok(unsafe { slice::from_raw_parts(range.as_ptr(), range.len()) })
    }

    /// The bytes, for writing.
    ///
    /// # Errors
    ///
    /// `Busy` while a part is out.
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8]> {
        self.shared.all_home()?;
        let range = self.shared.mapping.range();
        // SAFETY: as in `as_slice`; and since the slice borrows self mutably, no other slice of
        // the buffer lives either.
        Ok(unsafe { slice::from_raw_parts_mut(range.as_ptr(), range.len()) })
    }

    /// Lends `range` out: whoever holds the part has these bytes alone, until it is dropped.
    ///
    /// Parts may be moved to other threads and into operations, several at once. An empty part is
    /// allowed; it lends nothing, overlaps nothing and is not counted.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a range that ends before it begins or beyond the buffer; `Busy` when it
    /// overlaps a part that is out.
    pub fn part(&mut self, range: Range<usize>) -> Result<HostPart> {
        if range.start > range.end || range.end > self.len() {
            let reason = format!("part {range:?} of a buffer of {} bytes", self.len());
            return Err(buffer_error(ErrorKind::InvalidInput, reason));
        }
        if !self.shared.lock().lend(&range) {
            let reason = format!("part {range:?} overlaps a part that is out");
            return Err(buffer_error(ErrorKind::Busy, reason));
        }
        Ok(HostPart {
            shared: Arc::clone(&self.shared),
            range,
        })
    }

    /// How many parts are out, empty ones not counted.
    #[must_use]
    pub fn parts_out(&self) -> usize {
        self.shared.lock().parts.len()
    }

    /// Resolves when no part is out. May be dropped at any time; several may wait.
    pub fn idle(&self) -> Idle<'_> {
        Idle {
            shared: &self.shared,
            ticket: None,
        }
    }

    /// Obtains all memory now, so that no operation has to; the contents stay as they are.
    ///
    /// Blocks: about 0.13 s of processor time a GiB on huge pages, two to four times that on small
    /// ones. In async code call it from a blocking task.
    ///
    /// # Errors
    ///
    /// `Busy` while a part is out; `OutOfMemory` when the system has none left.
    pub fn prefault(&mut self) -> Result<()> {
        self.shared.all_home()?;
        // SAFETY: no part is out and none can be lent while self is borrowed mutably, so nobody
        // else touches the bytes.
        unsafe { self.shared.mapping.prefault() }
            .map_err(|error| error.with_operation(Operation::Buffer))
    }

    /// Where the bytes lie, for an operation of `engine` that is about to own the buffer.
    pub(super) fn prepare_whole(&mut self, engine: EngineId) -> Result<MemoryRange> {
        self.shared.check_engine(engine)?;
        self.shared.all_home()?;
        Ok(self.shared.mapping.range())
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBuffer")
            .field("len", &self.len())
            .field("parts_out", &self.parts_out())
            .finish()
    }
}

/// An exclusive, owned part of a [`HostBuffer`]. Dropping it gives the range back.
///
/// Keeps the memory alive by itself: the buffer may be dropped first.
pub struct HostPart {
    shared: Arc<Shared>,
    range: Range<usize>,
}

impl HostPart {
    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it holds no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Where it lies in its buffer, in bytes.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The bytes, for reading.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        let range = self.memory();
        // SAFETY: the mapping is initialised and lives as long as self. The table of parts gives
        // this range to no other part and keeps the buffer from slicing; writing through self
        // takes `&mut self`.
        unsafe { slice::from_raw_parts(range.as_ptr(), range.len()) }
    }

    /// The bytes, for writing.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let range = self.memory();
        // SAFETY: as in `as_slice`; and the slice borrows self mutably.
        unsafe { slice::from_raw_parts_mut(range.as_ptr(), range.len()) }
    }

    /// Splits at `at`, counted from the part's start: self keeps `[0, at)`, the rest is returned.
    ///
    /// # Errors
    ///
    /// `InvalidInput` when `at` is beyond the end; self is unchanged then.
    pub fn split_off(&mut self, at: usize) -> Result<Self> {
        if at > self.len() {
            let reason = format!("split at {at} of a part of {} bytes", self.len());
            return Err(buffer_error(ErrorKind::InvalidInput, reason));
        }
        let middle = self.range.start + at;
        let rest = middle..self.range.end;
        self.shared.lock().split(&self.range, middle);
        self.range.end = middle;
        Ok(Self {
            shared: Arc::clone(&self.shared),
            range: rest,
        })
    }

    /// Where the bytes lie, for an operation of `engine` that is about to own the part.
    pub(super) fn prepare_part(&mut self, engine: EngineId) -> Result<MemoryRange> {
        self.shared.check_engine(engine)?;
        Ok(self.memory())
    }

    fn memory(&self) -> MemoryRange {
        let whole = self.shared.mapping.range();
        whole
            .sub(self.range.start, self.range.len())
            .expect("checked when the part was lent")
    }
}

impl Drop for HostPart {
    fn drop(&mut self) {
        let waiters = self.shared.lock().take_back(&self.range);
        // The lock is free again: a waker may run any code.
        for waiter in waiters {
            // A waker that panics must not keep the others asleep, nor unwind out of a drop.
            let _contained = catch_unwind(AssertUnwindSafe(|| waiter.waker.wake()));
        }
    }
}

impl fmt::Debug for HostPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostPart")
            .field("range", &self.range)
            .finish()
    }
}

/// Resolves when no part of the buffer is out: see [`HostBuffer::idle`].
#[must_use = "futures do nothing unless polled"]
pub struct Idle<'a> {
    shared: &'a Shared,
    /// This future's place among the waiters, from its first pending poll on.
    ticket: Option<u64>,
}

impl Future for Idle<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // Cloned before, and the old one dropped after the lock is held: both may run any code.
        let waker = context.waker().clone();
        let (ticket, displaced) = {
            let mut lent = self.shared.lock();
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
            let withdrawn = self.shared.lock().stop_waiting(ticket);
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

struct Shared {
    mapping: Mapping,
    engine: EngineId,
    lent: Mutex<Lent>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Lent> {
        // No foreign code runs under this lock, and every change of the table is one step: there
        // is no half-made state that a poisoned lock would warn of.
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all_home(&self) -> Result<()> {
        // Taking the lock after the last part's drop released it also makes that part's bytes
        // visible here.
        let out = self.lock().parts.len();
        match out {
            0 => Ok(()),
            1 => Err(buffer_error(ErrorKind::Busy, "a part is out".to_owned())),
            out => Err(buffer_error(
                ErrorKind::Busy,
                format!("{out} parts are out"),
            )),
        }
    }

    fn check_engine(&self, engine: EngineId) -> Result<()> {
        if self.engine == engine {
            return Ok(());
        }
        let reason = "the buffer was allocated for another engine".to_owned();
        Err(buffer_error(ErrorKind::WrongEngine, reason))
    }
}

fn buffer_error(kind: ErrorKind, reason: String) -> Error {
    Error::new(kind, reason).with_operation(Operation::Buffer)
}

/// The parts that are out, and who waits for none to be.
#[derive(Default)]
struct Lent {
    /// Start to end; disjoint, none empty.
    parts: BTreeMap<usize, usize>,
    /// One entry for each [`Idle`] that has been polled since parts were last all home.
    waiters: Vec<Waiter>,
    ticket_next: u64,
}

struct Waiter {
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

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
