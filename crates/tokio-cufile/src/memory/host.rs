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

use std::fmt;
use std::ops::Range;
use std::slice;
use std::sync::Arc;

use super::lent::{Idle, Lender};
use super::mapping::{Mapping, Prefault, Purpose};
use super::range::{EngineId, MemoryRange};
use crate::error::{Operation, Result};

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
        let lender = Lender::new(engine);
        Ok(Self {
            shared: Arc::new(Shared { mapping, lender }),
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
        self.shared.lender.all_home()?;
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
        self.shared.lender.all_home()?;
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
        self.shared.lender.lend(&range, self.len())?;
        Ok(HostPart {
            shared: Arc::clone(&self.shared),
            range,
        })
    }

    /// How many parts are out, empty ones not counted.
    #[must_use]
    pub fn parts_out(&self) -> usize {
        self.shared.lender.parts_out()
    }

    /// Resolves when no part is out. May be dropped at any time; several may wait.
    ///
    /// A part whose operation was quarantined is never given back: who waits for it waits for ever.
    /// Such an operation's error has the kind [`Quarantined`](crate::ErrorKind::Quarantined).
    pub fn idle(&self) -> Idle<'_> {
        self.shared.lender.idle()
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
        self.shared.lender.all_home()?;
        // SAFETY: no part is out and none can be lent while self is borrowed mutably, so nobody
        // else touches the bytes.
        unsafe { self.shared.mapping.prefault() }
            .map_err(|error| error.with_operation(Operation::Buffer))
    }

    /// Where the bytes lie, for an operation of `engine` that is about to own the buffer.
    pub(super) fn prepare_whole(&mut self, engine: EngineId) -> Result<MemoryRange> {
        self.shared.lender.check_engine(engine)?;
        self.shared.lender.all_home()?;
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
        let rest = self.shared.lender.split(&mut self.range, at)?;
        Ok(Self {
            shared: Arc::clone(&self.shared),
            range: rest,
        })
    }

    /// Where the bytes lie, for an operation of `engine` that is about to own the part.
    pub(super) fn prepare_part(&mut self, engine: EngineId) -> Result<MemoryRange> {
        self.shared.lender.check_engine(engine)?;
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
        self.shared.lender.take_back(&self.range);
    }
}

impl fmt::Debug for HostPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostPart")
            .field("range", &self.range)
            .finish()
    }
}

struct Shared {
    mapping: Mapping,
    lender: Lender,
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
