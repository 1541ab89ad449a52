//! Start, devices, contexts, streams and events.
//!
//! Unsafe, because every call of the driver is foreign, and most answer through a pointer.
#![allow(unsafe_code, reason = "foreign calls that answer through pointers")]

use std::ffi::{c_char, c_int};

use super::driver::Driver;
use super::error::CudaError;
use super::result::CuResult;
use super::types::{
    Context, Device, DeviceAttribute, DriverVersion, Event, EventFlags, Stream, StreamFlags,
};

/// Start and devices.
impl Driver {
    /// `cuInit`: must have succeeded before any other call, and may be made again. Takes up to
    /// seconds where the kernel's driver was not loaded.
    ///
    /// # Errors
    ///
    /// [`NO_DEVICE`](CuResult::NO_DEVICE) without a visible GPU,
    /// [`STUB_LIBRARY`](CuResult::STUB_LIBRARY) for the toolkit's stub,
    /// [`SYSTEM_DRIVER_MISMATCH`](CuResult::SYSTEM_DRIVER_MISMATCH) after an upgrade without a
    /// restart.
    pub fn init(&self) -> Result<(), CudaError> {
        // SAFETY: takes a number only.
        let result = unsafe { (self.symbols.init)(0) };
        self.check("cuInit", result)
    }

    /// `cuDriverGetVersion`: the newest CUDA that this driver speaks. Works before
    /// [`init`](Self::init).
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn driver_version(&self) -> Result<DriverVersion, CudaError> {
        let mut version: c_int = 0;
        // SAFETY: writes one integer to a place that lives.
        let result = unsafe { (self.symbols.driver_get_version)(&raw mut version) };
        self.check("cuDriverGetVersion", result)?;
        Ok(DriverVersion(version))
    }

    /// `cuDeviceGetCount`: how many devices are visible (`CUDA_VISIBLE_DEVICES` hides some).
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn device_count(&self) -> Result<i32, CudaError> {
        let mut count: c_int = 0;
        // SAFETY: writes one integer to a place that lives.
        let result = unsafe { (self.symbols.device_get_count)(&raw mut count) };
        self.check("cuDeviceGetCount", result)?;
        Ok(count)
    }

    /// `cuDeviceGet`: the device of an ordinal, from 0 to [`device_count`](Self::device_count) − 1.
    ///
    /// # Errors
    ///
    /// [`INVALID_DEVICE`](CuResult::INVALID_DEVICE) for another ordinal.
    pub fn device(&self, ordinal: i32) -> Result<Device, CudaError> {
        let mut device = Device(0);
        // SAFETY: writes one integer to a place that lives.
        let result = unsafe { (self.symbols.device_get)(&raw mut device, ordinal) };
        self.check("cuDeviceGet", result)?;
        Ok(device)
    }

    /// `cuDeviceGetName`: such as `NVIDIA H200`.
    ///
    /// # Errors
    ///
    /// [`INVALID_DEVICE`](CuResult::INVALID_DEVICE).
    pub fn device_name(&self, device: Device) -> Result<String, CudaError> {
        let mut text = Text::new();
        // SAFETY: writes at most `capacity` bytes to a place that has them.
        let result =
            unsafe { (self.symbols.device_get_name)(text.start(), Text::capacity(), device) };
        self.check("cuDeviceGetName", result)?;
        Ok(text.into_string())
    }

    /// `cuDeviceGetPCIBusId`: such as `0000:0f:00.0`, the name of the device's folder in
    /// `/sys/bus/pci/devices` (there in small letters).
    ///
    /// # Errors
    ///
    /// [`INVALID_DEVICE`](CuResult::INVALID_DEVICE), and [`CudaError::Unsupported`].
    pub fn device_pci_bus_id(&self, device: Device) -> Result<String, CudaError> {
        const CALL: &str = "cuDeviceGetPCIBusId";
        let get = present(self.symbols.device_get_pci_bus_id, CALL)?;
        let mut text = Text::new();
        // SAFETY: writes at most `capacity` bytes to a place that has them.
        let result = unsafe { get(text.start(), Text::capacity(), device) };
        self.check(CALL, result)?;
        Ok(text.into_string())
    }

    /// `cuDeviceTotalMem`: bytes of memory on the device.
    ///
    /// # Errors
    ///
    /// [`INVALID_DEVICE`](CuResult::INVALID_DEVICE).
    pub fn device_total_mem(&self, device: Device) -> Result<usize, CudaError> {
        let mut bytes = 0_usize;
        // SAFETY: writes one size to a place that lives.
        let result = unsafe { (self.symbols.device_total_mem)(&raw mut bytes, device) };
        self.check("cuDeviceTotalMem_v2", result)?;
        Ok(bytes)
    }

    /// `cuDeviceGetAttribute`.
    ///
    /// # Errors
    ///
    /// [`INVALID_VALUE`](CuResult::INVALID_VALUE) for an attribute that the driver does not know.
    pub fn device_attribute(
        &self,
        attribute: DeviceAttribute,
        device: Device,
    ) -> Result<i32, CudaError> {
        let mut value: c_int = 0;
        // SAFETY: writes one integer to a place that lives.
        let result =
            unsafe { (self.symbols.device_get_attribute)(&raw mut value, attribute, device) };
        self.check("cuDeviceGetAttribute", result)?;
        Ok(value)
    }
}

/// Contexts.
impl Driver {
    /// `cuDevicePrimaryCtxRetain`: the context that all of a process shares on this device, made if
    /// need be (which takes a good fraction of a second). Does not make it current. Each retain
    /// wants one [release](Self::primary_ctx_release).
    ///
    /// # Errors
    ///
    /// [`DEVICE_UNAVAILABLE`](CuResult::DEVICE_UNAVAILABLE),
    /// [`OUT_OF_MEMORY`](CuResult::OUT_OF_MEMORY), and others.
    pub fn primary_ctx_retain(&self, device: Device) -> Result<Context, CudaError> {
        let mut context = Context::NULL;
        // SAFETY: writes one handle to a place that lives.
        let result = unsafe { (self.symbols.device_primary_ctx_retain)(&raw mut context, device) };
        self.check("cuDevicePrimaryCtxRetain", result)?;
        Ok(context)
    }

    /// `cuDevicePrimaryCtxRelease`: gives one retain back. The last one destroys the context, its
    /// memory, its streams and its events.
    ///
    /// # Safety
    ///
    /// The caller owns one retain, and what it used under it (handles, memory, work in flight) is
    /// not used any more.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub unsafe fn primary_ctx_release(&self, device: Device) -> Result<(), CudaError> {
        // SAFETY: the caller owns a retain and has ended all use under it.
        let result = unsafe { (self.symbols.device_primary_ctx_release)(device) };
        self.check("cuDevicePrimaryCtxRelease_v2", result)
    }

    /// `cuCtxGetCurrent`: the context of this thread, or none.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn ctx_get_current(&self) -> Result<Option<Context>, CudaError> {
        let mut context = Context::NULL;
        // SAFETY: writes one handle to a place that lives.
        let result = unsafe { (self.symbols.ctx_get_current)(&raw mut context) };
        self.check("cuCtxGetCurrent", result)?;
        Ok((!context.is_null()).then_some(context))
    }

    /// `cuCtxSetCurrent`: makes a context this thread's, or takes it away.
    ///
    /// # Safety
    ///
    /// The context is alive, and stays so while it is current.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub unsafe fn ctx_set_current(&self, context: Option<Context>) -> Result<(), CudaError> {
        let context = context.unwrap_or(Context::NULL);
        // SAFETY: the caller keeps the context alive; null takes the current one away.
        let result = unsafe { (self.symbols.ctx_set_current)(context) };
        self.check("cuCtxSetCurrent", result)
    }

    /// `cuCtxGetDevice`: the device of this thread's context.
    ///
    /// # Errors
    ///
    /// [`INVALID_CONTEXT`](CuResult::INVALID_CONTEXT) where none is current.
    pub fn ctx_get_device(&self) -> Result<Device, CudaError> {
        let mut device = Device(0);
        // SAFETY: writes one integer to a place that lives.
        let result = unsafe { (self.symbols.ctx_get_device)(&raw mut device) };
        self.check("cuCtxGetDevice", result)?;
        Ok(device)
    }

    /// `cuCtxSynchronize`: blocks until all work in this thread's context has ended.
    ///
    /// # Errors
    ///
    /// An error of that work, too.
    pub fn ctx_synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: takes nothing; only waits.
        let result = unsafe { (self.symbols.ctx_synchronize)() };
        self.check("cuCtxSynchronize", result)
    }
}

/// Streams.
impl Driver {
    /// `cuStreamCreate`, in this thread's context.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn stream_create(&self, flags: StreamFlags) -> Result<Stream, CudaError> {
        let mut stream = Stream::NULL;
        // SAFETY: writes one handle to a place that lives.
        let result = unsafe { (self.symbols.stream_create)(&raw mut stream, flags) };
        self.check("cuStreamCreate", result)?;
        Ok(stream)
    }

    /// `cuStreamQuery`: whether all work in the stream has ended.
    ///
    /// # Safety
    ///
    /// The stream is alive.
    ///
    /// # Errors
    ///
    /// An error of that work, too. Not that it has not ended: that is `Ok(false)`.
    pub unsafe fn stream_query(&self, stream: Stream) -> Result<bool, CudaError> {
        // SAFETY: the caller keeps the stream alive.
        let result = unsafe { (self.symbols.stream_query)(stream) };
        self.check_ready("cuStreamQuery", result)
    }

    /// `cuStreamSynchronize`: blocks until all work in the stream has ended.
    ///
    /// # Safety
    ///
    /// The stream is alive, and stays so until the call returns.
    ///
    /// # Errors
    ///
    /// An error of that work, too.
    pub unsafe fn stream_synchronize(&self, stream: Stream) -> Result<(), CudaError> {
        // SAFETY: the caller keeps the stream alive.
        let result = unsafe { (self.symbols.stream_synchronize)(stream) };
        self.check("cuStreamSynchronize", result)
    }

    /// `cuStreamWaitEvent`: work queued in the stream from here on waits for what the event has
    /// last recorded. Does not block the caller.
    ///
    /// # Safety
    ///
    /// Stream and event are alive.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub unsafe fn stream_wait_event(&self, stream: Stream, event: Event) -> Result<(), CudaError> {
        // SAFETY: the caller keeps both alive.
        let result = unsafe { (self.symbols.stream_wait_event)(stream, event, 0) };
        self.check("cuStreamWaitEvent", result)
    }

    /// `cuStreamGetCtx`: the context of a stream.
    ///
    /// # Safety
    ///
    /// The stream is alive.
    ///
    /// # Errors
    ///
    /// What the driver says, and [`CudaError::Unsupported`].
    pub unsafe fn stream_get_ctx(&self, stream: Stream) -> Result<Context, CudaError> {
        const CALL: &str = "cuStreamGetCtx";
        let get = present(self.symbols.stream_get_ctx, CALL)?;
        let mut context = Context::NULL;
        // SAFETY: the caller keeps the stream alive; writes one handle to a place that lives.
        let result = unsafe { get(stream, &raw mut context) };
        self.check(CALL, result)?;
        Ok(context)
    }

    /// `cuStreamDestroy`: returns at once; what is queued still runs.
    ///
    /// # Safety
    ///
    /// The stream is alive, the caller owns it, and nobody uses it any more.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub unsafe fn stream_destroy(&self, stream: Stream) -> Result<(), CudaError> {
        // SAFETY: the caller owns the stream and has ended all use of it.
        let result = unsafe { (self.symbols.stream_destroy)(stream) };
        self.check("cuStreamDestroy_v2", result)
    }
}

/// Events.
impl Driver {
    /// `cuEventCreate`, in this thread's context. An event that was never recorded is complete.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn event_create(&self, flags: EventFlags) -> Result<Event, CudaError> {
        let mut event = Event::NULL;
        // SAFETY: writes one handle to a place that lives.
        let result = unsafe { (self.symbols.event_create)(&raw mut event, flags) };
        self.check("cuEventCreate", result)?;
        Ok(event)
    }

    /// `cuEventRecord`: the event is complete when the work that is in the stream now has ended.
    ///
    /// # Safety
    ///
    /// Event and stream are alive, and of the same context.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub unsafe fn event_record(&self, event: Event, stream: Stream) -> Result<(), CudaError> {
        // SAFETY: the caller keeps both alive.
        let result = unsafe { (self.symbols.event_record)(event, stream) };
        self.check("cuEventRecord", result)
    }

    /// `cuEventQuery`: whether the event is complete. Does not block.
    ///
    /// # Safety
    ///
    /// The event is alive.
    ///
    /// # Errors
    ///
    /// An error of the recorded work, or of any other in the context, which then proves nothing
    /// about the recorded work. Not that it has not ended: that is `Ok(false)`.
    pub unsafe fn event_query(&self, event: Event) -> Result<bool, CudaError> {
        // SAFETY: the caller keeps the event alive.
        let result = unsafe { (self.symbols.event_query)(event) };
        self.check_ready("cuEventQuery", result)
    }

    /// `cuEventSynchronize`: blocks until the event is complete.
    ///
    /// # Safety
    ///
    /// The event is alive, and stays so until the call returns.
    ///
    /// # Errors
    ///
    /// As [`event_query`](Self::event_query).
    pub unsafe fn event_synchronize(&self, event: Event) -> Result<(), CudaError> {
        // SAFETY: the caller keeps the event alive.
        let result = unsafe { (self.symbols.event_synchronize)(event) };
        self.check("cuEventSynchronize", result)
    }

    /// `cuEventDestroy`: returns at once, also for an event that is not complete.
    ///
    /// # Safety
    ///
    /// The event is alive, the caller owns it, and nobody uses it any more.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub unsafe fn event_destroy(&self, event: Event) -> Result<(), CudaError> {
        // SAFETY: the caller owns the event and has ended all use of it.
        let result = unsafe { (self.symbols.event_destroy)(event) };
        self.check("cuEventDestroy_v2", result)
    }

    fn check_ready(&self, call: &'static str, result: CuResult) -> Result<bool, CudaError> {
        if result == CuResult::NOT_READY {
            return Ok(false);
        }
        self.check(call, result).map(|()| true)
    }
}

/// An optional function, or the error that names it.
pub(super) fn present<F>(function: Option<F>, symbol: &'static str) -> Result<F, CudaError> {
    function.ok_or(CudaError::Unsupported { symbol })
}

/// A place for a short text from the driver.
struct Text([u8; TEXT_BYTES_MAX as usize]);

/// The driver cuts what is longer.
const TEXT_BYTES_MAX: u16 = 256;

impl Text {
    const fn new() -> Self {
        Self([0; TEXT_BYTES_MAX as usize])
    }

    const fn start(&mut self) -> *mut c_char {
        self.0.as_mut_ptr().cast()
    }

    fn capacity() -> c_int {
        c_int::from(TEXT_BYTES_MAX)
    }

    /// Up to the zero, if there is one.
    fn into_string(self) -> String {
        let text = self.0.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }
}
