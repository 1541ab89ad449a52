//! Device memory that cuFile has pinned, so that storage reaches it without a bounce buffer.
#![allow(
    unsafe_code,
    reason = "memory is registered by address, until it is deregistered"
)]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvidia_dl::cuda::DevicePtr;
use nvidia_dl::cufile::{BufferFlags, Code};

use super::Cufile;
use super::leaving::Purpose;
use super::part::error_of;
use super::registration::Registered;
use super::session::Session;
use crate::cuda::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::DeviceRange;

/// What is registered, by the address where it begins.
#[derive(Debug, Default)]
pub(super) struct Pinned(Mutex<BTreeMap<u64, DeviceRange>>);

impl Pinned {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, DeviceRange>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How cuFile is to be told of memory: the start of what was registered and the offset in it, or
    /// the memory's own start.
    pub(super) fn place_of(&self, memory: DeviceRange) -> (*mut c_void, usize) {
        let registered = self.lock();
        let before = registered.range(..=memory.address()).next_back();
        let offset_in = |range: DeviceRange| {
            let offset = usize::try_from(memory.address() - range.address()).ok()?;
            range.sub(offset, memory.len()).map(|_| offset)
        };
        match before.and_then(|(_, &range)| offset_in(range).map(|offset| (range, offset))) {
            Some((range, offset)) => (DevicePtr(range.address()).as_void(), offset),
            None => (DevicePtr(memory.address()).as_void(), 0),
        }
    }

    /// Bytes of one device.
    fn total(&self, device: u32) -> u64 {
        let registered = self.lock();
        let ranges = registered.values().filter(|range| range.device() == device);
        ranges.map(|range| range.len() as u64).sum()
    }
}

/// One registered allocation. Dropped before the memory is freed: freeing what is registered can hang
/// nvidia-fs.
#[derive(Debug)]
pub(crate) struct BufRegistration {
    session: Arc<Session>,
    device: Arc<Device>,
    range: DeviceRange,
    /// Set where cuFile does not let go of the memory.
    is_stuck: Arc<AtomicBool>,
}

impl Cufile {
    /// Registers the whole of an allocation for its owner. Blocks.
    ///
    /// # Errors
    ///
    /// `Unsupported`, with the reason, where there is no cuFile; as [`BufRegistration::new`].
    ///
    /// # Safety
    ///
    /// The allocation outlives `registered`, and is leaked where `is_stuck` is set by then.
    pub(crate) unsafe fn register_memory(
        &self,
        device: &Arc<Device>,
        range: DeviceRange,
        registered: &Registered<BufRegistration>,
        is_stuck: &Arc<AtomicBool>,
    ) -> Result<()> {
        let absent = |reason| Error::new(ErrorKind::Unsupported, reason);
        let session = self.session().map_err(absent)?;
        // SAFETY: as the caller vouches.
        registered.set(unsafe { BufRegistration::new(&session, device, range, is_stuck) }?);
        self.registered.add(registered);
        Ok(())
    }
}

impl BufRegistration {
    /// Registers the whole of an allocation. Blocks.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` at the limits of what can be pinned; what cuFile says.
    ///
    /// # Safety
    ///
    /// The allocation outlives the value, and is leaked where `is_stuck` is set by then.
    unsafe fn new(
        session: &Arc<Session>,
        device: &Arc<Device>,
        range: DeviceRange,
        is_stuck: &Arc<AtomicBool>,
    ) -> Result<Self> {
        device.check()?;
        device.bind()?;
        let wanted = session.pinned().total(range.device()) + range.len() as u64;
        if let Some((what, limit)) = session.pinning_limit(range.device())
            && wanted > limit
        {
            let reason = format!("{wanted} bytes would be registered, and {what} allows {limit}");
            return Err(Error::new(ErrorKind::OutOfMemory, reason).with_device(range.device()));
        }
        let base = DevicePtr(range.address()).as_void();
        let library = session.library().call(Purpose::Register);
        // SAFETY: by the caller's word the memory outlives this value, whose drop deregisters it.
        let registered = unsafe { library.buf_register(base, range.len(), BufferFlags::NONE) };
        drop(library);
        registered.map_err(|error| error_of(error).with_device(range.device()))?;
        session.pinned().lock().insert(range.address(), range);
        Ok(Self {
            session: Arc::clone(session),
            device: Arc::clone(device),
            range,
            is_stuck: Arc::clone(is_stuck),
        })
    }
}

impl Drop for BufRegistration {
    fn drop(&mut self) {
        self.session.pinned().lock().remove(&self.range.address());
        let library = self.session.library();
        let Some(library) = library.call_unless_leaving(Purpose::Register) else {
            self.is_stuck.store(true, Ordering::Release);
            return;
        };
        drop(self.device.bind());
        let base = DevicePtr(self.range.address()).as_void();
        // SAFETY: registered in `new`; what was in flight had a share of the memory, or its operation
        // is quarantined, and then it is not ended.
        let deregistered = unsafe { library.buf_deregister(base) };
        drop(library);
        let Err(error) = deregistered else {
            return;
        };
        let code = error.failure().and_then(|failure| failure.code());
        if code != Some(Code::MEMORY_NOT_REGISTERED) {
            self.is_stuck.store(true, Ordering::Release);
        }
        tracing::warn!(%error, "device memory was not deregistered from cuFile");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_inside_a_registration_is_told_by_its_base() {
        let pinned = Pinned::default();
        let whole = DeviceRange::new(0, 0x10_000, 0x1000);
        pinned.lock().insert(whole.address(), whole);
        let told = |address, len| {
            let (base, offset) = pinned.place_of(DeviceRange::new(0, address, len));
            (base.addr(), offset)
        };
        assert_eq!(told(0x10_000, 0x1000), (0x10_000, 0));
        assert_eq!(told(0x10_800, 0x800), (0x10_000, 0x800));
        // Not all inside: by its own address.
        assert_eq!(told(0x10_800, 0x801), (0x10_800, 0));
        assert_eq!(told(0xf_fff, 1), (0xf_fff, 0));
        assert_eq!(told(0x11_000, 1), (0x11_000, 0));
        assert_eq!((pinned.total(0), pinned.total(1)), (0x1000, 0));
    }
}
