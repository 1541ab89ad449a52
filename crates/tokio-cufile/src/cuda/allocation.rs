//! Device memory that frees itself.
#![allow(unsafe_code, reason = "memory is freed and copied by address")]

use std::sync::Arc;

use nvidia_dl::cuda::{DevicePtr, Stream};

use super::device::Device;
use crate::error::Error;
use crate::memory::DeviceRange;

/// One allocation. To be dropped on an engine thread: freeing waits for the whole device.
#[derive(Debug)]
pub(crate) struct Allocation {
    device: Arc<Device>,
    start: DevicePtr,
    len: usize,
}

impl Allocation {
    /// `len` bytes, whose content is whatever was there. 0 takes no memory.
    ///
    /// # Errors
    ///
    /// `OutOfMemory`, and what else the driver says.
    pub(crate) fn new(device: &Arc<Device>, len: usize) -> Result<Self, Error> {
        device.check()?;
        device.bind()?;
        let start = match len {
            0 => DevicePtr::NULL,
            _ => device
                .driver
                .mem_alloc(len)
                .map_err(|error| device.error(error))?,
        };
        Ok(Self {
            device: Arc::clone(device),
            start,
            len,
        })
    }

    pub(crate) fn range(&self) -> DeviceRange {
        DeviceRange::new(self.device.ordinal(), self.start.0, self.len)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.start.is_null() {
            return;
        }
        let driver = self.device.driver;
        // SAFETY: it was allocated in `new`, and whoever used it is done: an operation in flight
        // owns its share of the allocation.
        let free = || unsafe { driver.mem_free(self.start) };
        // A context in error has lost its memory anyway; freed twice it cannot be.
        self.device.end_of("allocation", free);
    }
}

/// Copies device memory to the host, and waits for it. Blocks; for what is not worth a slot.
///
/// # Safety
///
/// The range lies in an allocation that lives and that nobody writes meanwhile.
pub(crate) unsafe fn read_back(
    device: &Device,
    from: DeviceRange,
    to: &mut [u8],
) -> Result<(), Error> {
    assert!(to.len() == from.len(), "as many bytes on both sides");
    // The driver refuses a copy of nothing from nowhere.
    if to.is_empty() {
        return Ok(());
    }
    device.check()?;
    device.bind()?;
    let address = DevicePtr(from.address());
    // SAFETY: both have that length; the caller vouches for the device's, and the host's is borrowed
    // until the call returns, which is when the copy has ended.
    let copied = unsafe {
        device
            .driver
            .memcpy_dtoh(to.as_mut_ptr(), address, to.len())
    };
    copied.map_err(|error| device.error(error))
}

/// A range that was not filled.
#[derive(Debug)]
pub(crate) struct Unfilled {
    pub(crate) error: Error,
    /// Bytes may still be on their way: the range is not to be freed.
    pub(crate) is_underway: bool,
}

/// Copies host memory to the device, and waits for it. Blocks.
///
/// # Safety
///
/// The range lies in an allocation that lives and that nobody touches meanwhile, and for good where the
/// error says that bytes are underway.
pub(crate) unsafe fn fill(device: &Device, to: DeviceRange, from: &[u8]) -> Result<(), Unfilled> {
    assert!(to.len() == from.len(), "as many bytes on both sides");
    // The driver refuses a copy of nothing from nowhere.
    if from.is_empty() {
        return Ok(());
    }
    let ready = device.check().and_then(|()| device.bind());
    ready.map_err(|error| Unfilled {
        error,
        is_underway: false,
    })?;
    let (driver, address) = (device.driver, DevicePtr(to.address()));
    // SAFETY: both have that length; the caller vouches for the device's, and the host's is borrowed
    // until the call returns, which is when its bytes have been taken.
    let copied = unsafe { driver.memcpy_htod(address, from.as_ptr(), from.len()) };
    // They arrive later, and our own streams do not wait for the default stream, where that is. Also
    // after an error: what the call has begun is not known.
    // SAFETY: the default stream is never destroyed.
    let arrived = unsafe { driver.stream_synchronize(Stream::NULL) };
    let is_underway = arrived.is_err();
    copied.and(arrived).map_err(|error| Unfilled {
        error: device.error(error),
        is_underway,
    })
}
