//! One GPU as the engine uses it: its primary context, and whether it can still be trusted.
#![allow(unsafe_code, reason = "contexts are made current by handle")]

use std::sync::OnceLock;

use nvidia_dl::cuda::{Context, CuResult, CudaError, DevicePtr, Driver, PointerAttributes};
use nvidia_dl::{LoadError, Search};

use crate::error::{Error, ErrorKind, VendorCode};

/// The driver library, loaded and initialised.
///
/// # Errors
///
/// `Unsupported` where there is none, or one that lacks a needed function, or one that refuses.
pub(crate) fn open_driver() -> Result<&'static Driver, Error> {
    let driver = Driver::load(&Search::libcuda()).map_err(not_loaded)?;
    driver.init().map_err(|error| {
        let reason = format!("no CUDA: {error}");
        with_code(Error::new(ErrorKind::Unsupported, reason), &error).with_source(error)
    })?;
    Ok(driver)
}

fn not_loaded(error: LoadError) -> Error {
    Error::new(ErrorKind::Unsupported, format!("no CUDA: {error}")).with_source(error)
}

fn with_code(error: Error, cause: &CudaError) -> Error {
    match cause.result() {
        Some(CuResult(code)) => error.with_vendor_code(VendorCode::Cuda(code)),
        None => error,
    }
}

/// A device with its primary context, which stays retained for the life of the process: memory in
/// quarantine and copies that come late need it, and the application shares it anyway.
#[derive(Debug)]
pub(crate) struct Device {
    pub(super) driver: &'static Driver,
    ordinal: u32,
    context: Context,
    name: String,
    /// Set once its context is in error: nothing on it ends provably any more.
    failure: OnceLock<Error>,
}

impl Device {
    /// Retains the primary context of the device with that CUDA ordinal. Slow the first time in a
    /// process.
    ///
    /// # Errors
    ///
    /// `DeviceNotFound` for an ordinal beyond the devices there are; `DeviceFailed` for what the
    /// driver says else.
    pub(crate) fn open(driver: &'static Driver, ordinal: u32) -> Result<Self, Error> {
        let failed = |error| device_error(ordinal, error);
        let count = driver.device_count().map_err(failed)?;
        let index = i32::try_from(ordinal).ok().filter(|&index| index < count);
        let Some(index) = index else {
            let reason = format!("no device {ordinal}: CUDA sees {count}");
            return Err(Error::new(ErrorKind::DeviceNotFound, reason).with_device(ordinal));
        };
        let device = driver.device(index).map_err(failed)?;
        Ok(Self {
            driver,
            ordinal,
            name: driver.device_name(device).map_err(failed)?,
            context: driver.primary_ctx_retain(device).map_err(failed)?,
            failure: OnceLock::new(),
        })
    }

    /// Its CUDA ordinal.
    pub(crate) const fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The name that the driver gives it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether a context of other code's is the one that the engine uses.
    #[cfg(feature = "cudarc")]
    pub(super) fn has_context(&self, context: Context) -> bool {
        self.context == context
    }

    /// Makes its context the calling thread's.
    pub(crate) fn bind(&self) -> Result<(), Error> {
        // SAFETY: the context is retained and never released.
        let bound = unsafe { self.driver.ctx_set_current(Some(self.context)) };
        bound.map_err(|error| self.error(error))
    }

    /// Destroys a thing of its context, of which the calling thread may have another one current.
    pub(super) fn end_of(&self, what: &str, destroy: impl FnOnce() -> Result<(), CudaError>) {
        let destroyed = self
            .bind()
            .and_then(|()| destroy().map_err(|error| self.error(error)));
        match destroyed {
            Ok(()) => {}
            // It ends with its context.
            Err(error) if self.failure.get().is_some() => {
                tracing::debug!(device = self.ordinal, %error, "a {what} was not destroyed");
            }
            Err(error) => {
                tracing::warn!(device = self.ordinal, %error, "a {what} was not destroyed, and stays");
            }
        }
    }

    /// What the driver knows about an address.
    pub(crate) fn pointer_attributes(&self, address: u64) -> Result<PointerAttributes, Error> {
        self.bind()?;
        let attributes = self.driver.pointer_attributes(DevicePtr(address));
        attributes.map_err(|error| self.error(error))
    }

    /// Whether it can be trusted.
    ///
    /// # Errors
    ///
    /// `DeviceFailed`, with what was first seen, once its context was in error.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.failure
            .get()
            .map_or(Ok(()), |error| Err(error.clone()))
    }

    /// The error of a call on this device. Notes it where it says that the context is lost.
    pub(crate) fn error(&self, error: CudaError) -> Error {
        let ends_context = error.result().is_some_and(CuResult::ends_context);
        let described = device_error(self.ordinal, error);
        if ends_context {
            self.give_up(&described);
        }
        described
    }

    /// From now on nothing is issued to it.
    pub(crate) fn give_up(&self, error: &Error) {
        if self.failure.set(error.clone()).is_ok() {
            tracing::error!(device = self.ordinal, name = self.name, %error, "the device is lost");
        }
    }
}

fn device_error(ordinal: u32, error: CudaError) -> Error {
    let reason = format!("device {ordinal}: {error}");
    driver_error(reason, error).with_device(ordinal)
}

fn driver_error(reason: String, error: CudaError) -> Error {
    let kind = match error.result() {
        Some(CuResult::OUT_OF_MEMORY) => ErrorKind::OutOfMemory,
        None => ErrorKind::Unsupported,
        Some(_) => ErrorKind::DeviceFailed,
    };
    with_code(Error::new(kind, reason), &error).with_source(error)
}

/// A device that CUDA sees.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its CUDA ordinal, by which buffers name it.
    pub ordinal: u32,
    /// The name that the driver gives it.
    pub name: String,
    /// All its memory, in bytes.
    pub total_memory: usize,
}

impl DeviceInfo {
    /// Every device that the driver sees. Makes no context.
    pub(crate) fn all(driver: &Driver) -> Result<Vec<Self>, Error> {
        let count = driver
            .device_count()
            .map_err(|error| driver_error(error.to_string(), error))?;
        (0..u32::try_from(count).unwrap_or(0))
            .map(|ordinal| Self::of(driver, ordinal))
            .collect()
    }

    fn of(driver: &Driver, ordinal: u32) -> Result<Self, Error> {
        let failed = |error| device_error(ordinal, error);
        let index = i32::try_from(ordinal).unwrap_or(i32::MAX);
        let device = driver.device(index).map_err(failed)?;
        Ok(Self {
            ordinal,
            name: driver.device_name(device).map_err(failed)?,
            total_memory: driver.device_total_mem(device).map_err(failed)?,
        })
    }
}
