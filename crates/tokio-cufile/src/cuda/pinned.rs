//! The staging slots, pinned: copies of memory that is not run at an eighth of the speed, and hold
//! up whoever issues them.
#![allow(unsafe_code, reason = "registers memory with the driver by address")]

use std::sync::Arc;

use nvidia_dl::cuda::{CuResult, HostRegisterFlags};

use super::device::Device;
use crate::error::Error;
use crate::memory::SlotArena;

/// All slots of one engine, registered for every device. Unregistered when the last one who may copy
/// is gone; to be dropped on an engine thread.
#[derive(Debug)]
pub(crate) struct Pinned {
    slots: Arc<SlotArena>,
    device: Arc<Device>,
}

impl Pinned {
    /// Pins every slot. Obtains their memory, so it is slow.
    ///
    /// # Errors
    ///
    /// `OutOfMemory`, and what else the driver says: then nothing is copied, since a copy from
    /// memory that is not pinned would stall its thread.
    pub(crate) fn new(slots: &Arc<SlotArena>, device: &Arc<Device>) -> Result<Self, Error> {
        device.bind()?;
        // Before the call: whether one that fails has pinned is not known, so `drop` unpins.
        let pinned = Self {
            slots: Arc::clone(slots),
            device: Arc::clone(device),
        };
        let memory = slots.memory();
        // SAFETY: the arena is mapped as long as the value above holds it, and `drop` unregisters.
        let registered = unsafe {
            device
                .driver
                .host_register(memory.as_ptr(), memory.len(), HostRegisterFlags::PORTABLE)
        };
        registered.map_err(|error| device.error(error))?;
        Ok(pinned)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let driver = self.device.driver;
        let start = self.slots.memory().as_ptr();
        // SAFETY: registered in `new`, or not at all. Whoever issues copies holds a share of this value until
        // their events are complete, or leaks it.
        let unregister = || unsafe { driver.host_unregister(start) };
        let unregistered = self.device.bind().map(|()| unregister());
        let is_unpinned = match &unregistered {
            Ok(Ok(())) => true,
            Ok(Err(error)) => error.result() == Some(CuResult::HOST_MEMORY_NOT_REGISTERED),
            Err(_) => false,
        };
        if !is_unpinned {
            // The driver may go on using pages that it holds pinned: they stay mapped.
            tracing::warn!(?unregistered, "the slots stay pinned and mapped");
            #[expect(clippy::disallowed_methods, reason = "see above")]
            std::mem::forget(Arc::clone(&self.slots));
        }
    }
}
