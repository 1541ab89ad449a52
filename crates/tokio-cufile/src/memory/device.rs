//! Device buffers, and owned exclusive parts of them.
#![allow(
    unsafe_code,
    reason = "implements the sealed trait: vouches for addresses that a device writes to later"
)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::buf::{IoBuf, IoBufMut, sealed};
use super::lent::{Idle, Lender, buffer_error};
use super::range::EngineId;
use super::region::{DeviceRange, Region};
use crate::compat::DeviceSide;
use crate::cuda::{Allocation, fill, read_back};
use crate::cufile::{BufRegistration, Registered};
use crate::engine::{Disposed, Engine, Shared as EngineShared};
use crate::error::{ErrorKind, Operation, Result};
use crate::op::Request;

/// Memory of a CUDA device for reads and writes, freed with the last of it.
///
/// Its content is whatever was there: CUDA does not clear memory. Not `Clone`; to have several
/// operations in one buffer at once, lend it in [`part`](Self::part)s.
///
/// A kernel finds it at [`address`](Self::address). Nothing orders a kernel with a read: launch it
/// once the read has resolved (its bytes are there then, for every stream), or make the operation
/// wait by [`after`](crate::Transfer::after).
///
/// Dropping it is safe at any time and calls no CUDA function on the dropping thread: the engine
/// frees the memory, once no part and no operation has any of it.
pub struct DeviceBuffer {
    shared: Arc<Shared>,
}

struct Shared {
    memory: Disposed<Memory>,
    side: Arc<DeviceSide>,
    lender: Lender,
}

struct Memory {
    /// Before `allocation`, which is freed after it.
    registration: Registered<BufRegistration>,
    registering: Mutex<()>,
    /// cuFile does not let go of the memory, or bytes may still be on their way to it.
    is_stuck: Arc<AtomicBool>,
    allocation: ManuallyDrop<Allocation>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        drop(std::mem::take(&mut self.registration));
        if self.is_stuck.load(Ordering::Acquire) {
            // Freeing what is registered can hang nvidia-fs, and what is still written may by then be
            // somebody else's.
            return;
        }
        // SAFETY: not used after this; the value is going.
        unsafe { ManuallyDrop::drop(&mut self.allocation) };
    }
}

impl Shared {
    fn range(&self) -> DeviceRange {
        self.memory.allocation.range()
    }

    /// On an engine thread.
    fn register(&self, engine: &EngineShared) -> Result<()> {
        let memory = &*self.memory;
        // One after the other: cuFile refuses what is registered.
        let registering = memory.registering.lock();
        let _registering = registering.unwrap_or_else(PoisonError::into_inner);
        if self.range().len() == 0 || memory.registration.get().is_some() {
            return Ok(());
        }
        let (device, range) = (self.side.device(), self.range());
        // SAFETY: the registration is kept beside the allocation, and dropped before it; the
        // allocation is leaked where that says so.
        let registered = unsafe {
            (engine.executors.cufile).register_memory(
                device,
                range,
                &memory.registration,
                &memory.is_stuck,
            )
        };
        registered.map_err(|error| error.with_operation(Operation::Buffer))
    }
}

impl DeviceBuffer {
    /// `len` bytes on the device with that CUDA ordinal. The first buffer on a device readies it:
    /// that takes a good fraction of a second.
    ///
    /// # Errors
    ///
    /// `Unsupported` where there is no CUDA; `DeviceNotFound`; `OutOfMemory`; `DeviceFailed`.
    ///
    /// # Cancellation
    ///
    /// Dropped, what was allocated is freed in the background.
    pub fn new(engine: &Engine, device: u32, len: usize) -> Request<Self> {
        let shared = Arc::clone(&engine.shared);
        let allocate = move || Self::allocate(&shared, device, len);
        Request::detached(&engine.shared, Operation::Buffer, allocate)
    }

    /// On an engine thread.
    fn allocate(engine: &Arc<EngineShared>, device: u32, len: usize) -> Result<Self> {
        let side = engine.devices.get(device)?;
        let memory = Memory {
            registration: Registered::default(),
            registering: Mutex::new(()),
            is_stuck: Arc::default(),
            allocation: ManuallyDrop::new(Allocation::new(side.device(), len)?),
        };
        Ok(Self {
            shared: Arc::new(Shared {
                memory: Disposed::new(engine, memory),
                side,
                lender: Lender::new(engine.id),
            }),
        })
    }

    /// Registers the buffer with cuFile, so that storage reaches it without a bounce buffer; it is
    /// deregistered before it is freed. Pays for a buffer that is used again and again: register one
    /// large buffer rather than many small ones. A buffer that is not registered is served as well.
    ///
    /// # Errors
    ///
    /// `Unsupported` where there is no cuFile; `OutOfMemory` at the limits of what can be pinned: the
    /// GPU's window to the bus (BAR), which all processes share, and cuFile's own setting; what
    /// cuFile says else. The buffer stays usable, unregistered.
    pub fn register(&self, engine: &Engine) -> Request<()> {
        let (engine_shared, shared) = (Arc::clone(&engine.shared), Arc::clone(&self.shared));
        Request::detached(&engine.shared, Operation::Buffer, move || {
            shared.lender.check_engine(engine_shared.id)?;
            shared.register(&engine_shared)
        })
    }

    /// Whether the buffer is registered with cuFile: from [`register`](Self::register) on until the
    /// engine has shut down.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.shared.memory.registration.is_there()
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.range().len()
    }

    /// Whether it holds no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The CUDA ordinal of its device.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.shared.range().device()
    }

    /// Where it begins in the device's address space (`CUdeviceptr`); 0 for an empty buffer.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.shared.range().address()
    }

    /// Lends `range` out: whoever holds the part has these bytes alone, until it is dropped.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a range that ends before it begins or beyond the buffer; `Busy` when it
    /// overlaps a part that is out.
    pub fn part(&mut self, range: Range<usize>) -> Result<DevicePart> {
        self.shared.lender.lend(&range, self.len())?;
        Ok(DevicePart {
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
}

impl DeviceBuffer {
    /// Copies `range` to host memory, for tests, checksums and small values. Through the driver and
    /// memory that is not pinned: at an eighth of the speed of a read or a write.
    ///
    /// # Errors
    ///
    /// `Busy`, `WrongEngine`, `InvalidInput` for a range outside the buffer, `DeviceFailed`. The
    /// buffer is gone then.
    pub fn copy_to_host(self, engine: &Engine, range: Range<usize>) -> Request<(Self, Vec<u8>)> {
        let id = engine.shared.id;
        Request::detached(&engine.shared, Operation::Buffer, move || {
            let from = self.whole_part(id, range)?;
            let mut bytes = vec![0; from.len()];
            // SAFETY: the buffer owns the allocation, no part is out, and the closure owns the
            // buffer until the copy has ended.
            unsafe { read_back(self.shared.side.device(), from, &mut bytes) }?;
            Ok((self, bytes))
        })
    }

    /// Copies `bytes` into the buffer, from `offset` on. As [`copy_to_host`](Self::copy_to_host).
    ///
    /// # Errors
    ///
    /// As `copy_to_host`.
    pub fn copy_from_host(self, engine: &Engine, offset: usize, bytes: Vec<u8>) -> Request<Self> {
        let id = engine.shared.id;
        Request::detached(&engine.shared, Operation::Buffer, move || {
            let to = self.whole_part(id, offset..offset.saturating_add(bytes.len()))?;
            // SAFETY: as in `copy_to_host`; what may still be written is never freed.
            let filled = unsafe { fill(self.shared.side.device(), to, &bytes) };
            filled.map_err(|unfilled| {
                if unfilled.is_underway {
                    self.shared.memory.is_stuck.store(true, Ordering::Release);
                }
                unfilled.error
            })?;
            Ok(self)
        })
    }

    fn whole_part(&self, engine: EngineId, range: Range<usize>) -> Result<DeviceRange> {
        self.shared.lender.check_engine(engine)?;
        self.shared.lender.all_home()?;
        let whole = self.shared.range();
        let len = range.end.checked_sub(range.start);
        let part = len.and_then(|len| whole.sub(range.start, len));
        part.ok_or_else(|| {
            let reason = format!("{range:?} of a buffer of {} bytes", whole.len());
            buffer_error(ErrorKind::InvalidInput, reason)
        })
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("device", &self.device())
            .field("len", &self.len())
            .field("parts_out", &self.parts_out())
            .finish_non_exhaustive()
    }
}

/// An exclusive, owned part of a [`DeviceBuffer`]. Dropping it gives the range back.
///
/// Keeps the memory alive by itself: the buffer may be dropped first.
pub struct DevicePart {
    shared: Arc<Shared>,
    range: Range<usize>,
}

impl DevicePart {
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

    /// The CUDA ordinal of its device.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.memory().device()
    }

    /// Where it begins in the device's address space (`CUdeviceptr`).
    #[must_use]
    pub fn address(&self) -> u64 {
        self.memory().address()
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

    fn memory(&self) -> DeviceRange {
        let whole = self.shared.range();
        let part = whole.sub(self.range.start, self.range.len());
        part.expect("checked when the part was lent")
    }
}

impl Drop for DevicePart {
    fn drop(&mut self) {
        self.shared.lender.take_back(&self.range);
    }
}

impl fmt::Debug for DevicePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DevicePart")
            .field("device", &self.device())
            .field("range", &self.range)
            .finish()
    }
}

// SAFETY: the allocation lives as long as the buffer and never moves; the host has no slice of it.
// Parts take a borrow of the owned value, and no part is out. Kernels of the user's are the user's
// promise, as for everybody who works with CUDA: the buffer's documentation says so.
unsafe impl sealed::Memory for DeviceBuffer {
    fn prepare(&mut self, engine: EngineId) -> Result<Region> {
        self.shared.lender.check_engine(engine)?;
        self.shared.lender.all_home()?;
        Ok(Region::Device(self.shared.range()))
    }

    fn device(&self) -> Option<Arc<DeviceSide>> {
        Some(Arc::clone(&self.shared.side))
    }
}

impl IoBuf for DeviceBuffer {}
impl IoBufMut for DeviceBuffer {}

// SAFETY: as for the buffer; the table of parts gives the range to no other part.
unsafe impl sealed::Memory for DevicePart {
    fn prepare(&mut self, engine: EngineId) -> Result<Region> {
        self.shared.lender.check_engine(engine)?;
        Ok(Region::Device(self.memory()))
    }

    fn device(&self) -> Option<Arc<DeviceSide>> {
        Some(Arc::clone(&self.shared.side))
    }
}

impl IoBuf for DevicePart {}
impl IoBufMut for DevicePart {}
