//! A device of whatever driver the loader finds, real or simulated, and how the harness reaches its
//! memory: by copies of its own that the engine knows nothing of. And host memory that such a driver
//! knows.
//!
//! Unsafe, because copies and registrations name memory by address.
#![allow(
    unsafe_code,
    reason = "copies and registrations name memory by address"
)]

use std::sync::Arc;

use nvidia_dl::Search;
use nvidia_dl::cuda::{Context, CudaError, DevicePtr, Driver, HostRegisterFlags, Stream};
use tokio_cufile::{DevicePart, HostBuffer};

use super::field::text;

/// A device, with a context that stays to the end of the process.
#[derive(Debug)]
pub(super) struct Cuda {
    driver: &'static Driver,
    context: Context,
    name: String,
    /// Its CUDA ordinal.
    pub(super) ordinal: u32,
}

impl Cuda {
    pub(super) fn open(ordinal: u32) -> Result<Self, String> {
        let driver = Driver::load(&Search::libcuda());
        let driver = driver.map_err(|error| format!("there is no CUDA: {error}"))?;
        driver.init().map_err(text)?;
        if driver.device_count().map_err(text)? == 0 {
            return Err("CUDA sees no device".to_owned());
        }
        let device = driver.device(i32::try_from(ordinal).map_err(text)?);
        let device = device.map_err(text)?;
        Ok(Self {
            driver,
            context: driver.primary_ctx_retain(device).map_err(text)?,
            name: driver.device_name(device).map_err(text)?,
            ordinal,
        })
    }

    /// The name of a simulated one says so.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The bytes of a part. Waits for the copy.
    ///
    /// # Panics
    ///
    /// When the device does not give them.
    pub(super) fn peek(&self, part: &DevicePart) -> Vec<u8> {
        let mut bytes = vec![0; part.len()];
        let copied = self.enter().and_then(|()| {
            let (to, from) = (bytes.as_mut_ptr(), DevicePtr(part.address()));
            // SAFETY: the part is device memory of that length, which lives as long as it, and no
            // operation has it; the bytes are this function's own. What a broken engine stores
            // meanwhile is seen or not.
            unsafe { self.driver.memcpy_dtoh(to, from, bytes.len()) }
        });
        copied.unwrap_or_else(|error| panic!("the harness cannot look at its memory: {error}"));
        bytes
    }

    /// Changes the bytes of a part. Waits until they are there.
    ///
    /// # Panics
    ///
    /// When the device does not take them, or there are fewer or more.
    pub(super) fn poke(&self, part: &mut DevicePart, bytes: &[u8]) {
        assert_eq!(part.len(), bytes.len(), "all of a part is filled");
        let copied = self.enter().and_then(|()| {
            let to = DevicePtr(part.address());
            // SAFETY: the part is device memory of that length, which lives as long as it, and no
            // operation has it.
            unsafe { self.driver.memcpy_htod(to, bytes.as_ptr(), bytes.len()) }?;
            // What is not pinned may be on its way to the device when the copy returns, and the
            // engine's streams wait for no other.
            // SAFETY: the default stream is always there.
            unsafe { self.driver.stream_synchronize(Stream::NULL) }
        });
        copied.unwrap_or_else(|error| panic!("the harness cannot fill its memory: {error}"));
    }

    fn enter(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained, and never released.
        unsafe { self.driver.ctx_set_current(Some(self.context)) }
    }
}

/// Host memory that the driver knows.
#[derive(Debug)]
pub(super) struct Registered {
    cuda: Arc<Cuda>,
    /// Exposed.
    start: usize,
}

impl Registered {
    /// All of `buffer`, which has to live for longer.
    pub(super) fn new(cuda: &Arc<Cuda>, buffer: &mut HostBuffer) -> Result<Self, String> {
        let bytes = buffer.as_mut_slice().map_err(text)?;
        let (start, len) = (bytes.as_mut_ptr(), bytes.len());
        cuda.enter().map_err(text)?;
        let flags = HostRegisterFlags::PORTABLE;
        // SAFETY: the buffer is mapped as long as it lives, and the caller keeps it for longer than
        // the value, whose end unregisters.
        unsafe { cuda.driver.host_register(start, len, flags) }.map_err(text)?;
        Ok(Self {
            cuda: Arc::clone(cuda),
            start: start.expose_provenance(),
        })
    }

    /// The device whose driver was told.
    pub(super) fn ordinal(&self) -> u32 {
        self.cuda.ordinal
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let start = std::ptr::with_exposed_provenance_mut(self.start);
        let unregistered = self.cuda.enter().and_then(|()| {
            // SAFETY: registered by `new`; the device makes no copies of this memory, which the
            // library reads and writes by the host.
            unsafe { self.cuda.driver.host_unregister(start) }
        });
        if let Err(error) = unregistered {
            eprintln!("stress: host memory stays registered: {error}");
        }
    }
}
