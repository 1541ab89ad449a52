//! Device memory, copies, and pinned host memory.
//!
//! Unsafe, because these calls name memory by address, and most go on after they have returned.
#![allow(unsafe_code, reason = "memory is named by address, across time")]

use super::calls::present;
use super::driver::Driver;
use super::error::CudaError;
use super::types::{DevicePtr, HostRegisterFlags, Stream};

/// Device memory. All calls work in this thread's context.
impl Driver {
    /// `cuMemAlloc`: bytes of device memory, aligned to at least 256, with any contents. May wait
    /// for work of the whole device.
    ///
    /// # Errors
    ///
    /// [`OUT_OF_MEMORY`](super::CuResult::OUT_OF_MEMORY);
    /// [`INVALID_VALUE`](super::CuResult::INVALID_VALUE) for 0 bytes.
    pub fn mem_alloc(&self, bytes: usize) -> Result<DevicePtr, CudaError> {
        let mut address = DevicePtr::NULL;
        // SAFETY: writes one address to a place that lives.
        let result = unsafe { (self.symbols.mem_alloc)(&raw mut address, bytes) };
        self.check("cuMemAlloc_v2", result)?;
        Ok(address)
    }

    /// `cuMemFree`. May wait for work of the whole device.
    ///
    /// # Safety
    ///
    /// The address is the start of an allocation that the caller owns, and nothing uses the memory
    /// any more: no work in flight on any stream, no registration elsewhere.
    ///
    /// # Errors
    ///
    /// What the driver says; the memory must then be taken as leaked.
    pub unsafe fn mem_free(&self, address: DevicePtr) -> Result<(), CudaError> {
        // SAFETY: the caller owns the allocation and has ended all use of it.
        let result = unsafe { (self.symbols.mem_free)(address) };
        self.check("cuMemFree_v2", result)
    }

    /// `cuMemAllocAsync`: memory from the device's current pool, which may be used in the order of
    /// the stream.
    ///
    /// # Safety
    ///
    /// The stream is alive.
    ///
    /// # Errors
    ///
    /// As [`mem_alloc`](Self::mem_alloc), and [`CudaError::Unsupported`].
    pub unsafe fn mem_alloc_async(
        &self,
        bytes: usize,
        stream: Stream,
    ) -> Result<DevicePtr, CudaError> {
        const CALL: &str = "cuMemAllocAsync";
        let alloc = present(self.symbols.mem_alloc_async, CALL)?;
        let mut address = DevicePtr::NULL;
        // SAFETY: the caller keeps the stream alive; writes one address to a place that lives.
        let result = unsafe { alloc(&raw mut address, bytes, stream) };
        self.check(CALL, result)?;
        Ok(address)
    }

    /// `cuMemFreeAsync`: frees in the order of the stream.
    ///
    /// # Safety
    ///
    /// As [`mem_free`](Self::mem_free), but for work that the stream has already been made to wait
    /// for. The stream is alive.
    ///
    /// # Errors
    ///
    /// What the driver says, and [`CudaError::Unsupported`].
    pub unsafe fn mem_free_async(
        &self,
        address: DevicePtr,
        stream: Stream,
    ) -> Result<(), CudaError> {
        const CALL: &str = "cuMemFreeAsync";
        let free = present(self.symbols.mem_free_async, CALL)?;
        // SAFETY: the caller owns the allocation, and all its use is ordered before this.
        let result = unsafe { free(address, stream) };
        self.check(CALL, result)
    }

    /// `cuMemGetInfo`: bytes that are free, and bytes in all, on the device of this thread's
    /// context.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn mem_get_info(&self) -> Result<(usize, usize), CudaError> {
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: writes two sizes to places that live.
        let result = unsafe { (self.symbols.mem_get_info)(&raw mut free, &raw mut total) };
        self.check("cuMemGetInfo_v2", result)?;
        Ok((free, total))
    }

    /// `cuMemGetAddressRange`: the start and the length of the allocation that holds an address.
    ///
    /// # Errors
    ///
    /// What the driver says for an address that it does not know, and [`CudaError::Unsupported`].
    pub fn mem_get_address_range(
        &self,
        address: DevicePtr,
    ) -> Result<(DevicePtr, usize), CudaError> {
        const CALL: &str = "cuMemGetAddressRange_v2";
        let get = present(self.symbols.mem_get_address_range, CALL)?;
        let (mut start, mut bytes) = (DevicePtr::NULL, 0_usize);
        // SAFETY: the driver looks the address up and does not follow it; writes an address and a
        // size to places that live.
        let result = unsafe { get(&raw mut start, &raw mut bytes, address) };
        self.check(CALL, result)?;
        Ok((start, bytes))
    }

    /// `cuMemsetD8`: sets bytes. Mostly asynchronous to the host, in the legacy default stream.
    ///
    /// # Safety
    ///
    /// The memory is allocated, has that many bytes, and nothing else uses it until this has ended.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub unsafe fn memset_d8(
        &self,
        address: DevicePtr,
        value: u8,
        bytes: usize,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller vouches for the memory.
        let result = unsafe { (self.symbols.memset_d8)(address, value, bytes) };
        self.check("cuMemsetD8_v2", result)
    }

    /// `cuMemsetD8Async`: sets bytes in the order of the stream.
    ///
    /// # Safety
    ///
    /// The memory is allocated, has that many bytes, and until the stream is past this, nothing
    /// else uses it and it stays. The stream is alive.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub unsafe fn memset_d8_async(
        &self,
        address: DevicePtr,
        value: u8,
        bytes: usize,
        stream: Stream,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller vouches for the memory until the stream is past this.
        let result = unsafe { (self.symbols.memset_d8_async)(address, value, bytes, stream) };
        self.check("cuMemsetD8Async", result)
    }
}

/// Copies. Those that end in `async` return before they are done where the host memory is pinned;
/// an event recorded behind one says when it is.
impl Driver {
    /// `cuMemcpyHtoD`: from host to device. The host memory may be used again on return.
    ///
    /// From memory that is not pinned the bytes may not have arrived by then: they are on their way in
    /// the default stream, and streams that do not wait for that one may come first (CUDA, "API
    /// synchronization behavior"; seen on an H200). [`stream_synchronize`](Self::stream_synchronize) of
    /// [`Stream::NULL`] waits for them.
    ///
    /// # Safety
    ///
    /// Both ranges are allocated, have that many bytes, and nobody writes them meanwhile.
    ///
    /// # Errors
    ///
    /// An error of earlier work in the context, too.
    pub unsafe fn memcpy_htod(
        &self,
        to: DevicePtr,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller vouches for both ranges.
        let result = unsafe { (self.symbols.memcpy_htod)(to, from.cast(), bytes) };
        self.check("cuMemcpyHtoD_v2", result)
    }

    /// `cuMemcpyDtoH`: from device to host. Done on return.
    ///
    /// # Safety
    ///
    /// Both ranges are allocated, have that many bytes, and nothing else uses the host's meanwhile.
    ///
    /// # Errors
    ///
    /// An error of earlier work in the context, too.
    pub unsafe fn memcpy_dtoh(
        &self,
        to: *mut u8,
        from: DevicePtr,
        bytes: usize,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller vouches for both ranges.
        let result = unsafe { (self.symbols.memcpy_dtoh)(to.cast(), from, bytes) };
        self.check("cuMemcpyDtoH_v2", result)
    }

    /// `cuMemcpyHtoDAsync`: from host to device, in the order of the stream.
    ///
    /// # Safety
    ///
    /// Both ranges are allocated and have that many bytes; until the stream is past this they stay,
    /// nobody writes the host's, and nothing else uses the device's. The stream is alive.
    ///
    /// # Errors
    ///
    /// What the driver says. Nothing may be concluded about whether the copy was queued.
    pub unsafe fn memcpy_htod_async(
        &self,
        to: DevicePtr,
        from: *const u8,
        bytes: usize,
        stream: Stream,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller vouches for both ranges until the stream is past this.
        let result = unsafe { (self.symbols.memcpy_htod_async)(to, from.cast(), bytes, stream) };
        self.check("cuMemcpyHtoDAsync_v2", result)
    }

    /// `cuMemcpyDtoHAsync`: from device to host, in the order of the stream.
    ///
    /// # Safety
    ///
    /// Both ranges are allocated and have that many bytes; until the stream is past this they stay,
    /// nothing else uses the host's, and nobody writes the device's. The stream is alive.
    ///
    /// # Errors
    ///
    /// What the driver says. Nothing may be concluded about whether the copy was queued.
    pub unsafe fn memcpy_dtoh_async(
        &self,
        to: *mut u8,
        from: DevicePtr,
        bytes: usize,
        stream: Stream,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller vouches for both ranges until the stream is past this.
        let result = unsafe { (self.symbols.memcpy_dtoh_async)(to.cast(), from, bytes, stream) };
        self.check("cuMemcpyDtoHAsync_v2", result)
    }

    /// `cuMemcpyDtoDAsync`: within the devices' memory, in the order of the stream.
    ///
    /// # Safety
    ///
    /// Both ranges are allocated and have that many bytes; until the stream is past this they stay,
    /// nobody writes the source, and nothing else uses the destination. The stream is alive.
    ///
    /// # Errors
    ///
    /// What the driver says. Nothing may be concluded about whether the copy was queued.
    pub unsafe fn memcpy_dtod_async(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: usize,
        stream: Stream,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller vouches for both ranges until the stream is past this.
        let result = unsafe { (self.symbols.memcpy_dtod_async)(to, from, bytes, stream) };
        self.check("cuMemcpyDtoDAsync_v2", result)
    }
}

/// Pinned host memory.
impl Driver {
    /// `cuMemHostRegister`: pins memory of the host, so that copies of it are fast and truly
    /// asynchronous. Slow: it touches every page.
    ///
    /// # Safety
    ///
    /// The range is mapped, and stays so until it is [unregistered](Self::host_unregister).
    ///
    /// # Errors
    ///
    /// [`HOST_MEMORY_ALREADY_REGISTERED`](super::CuResult::HOST_MEMORY_ALREADY_REGISTERED) also for
    /// an overlap; [`OUT_OF_MEMORY`](super::CuResult::OUT_OF_MEMORY).
    pub unsafe fn host_register(
        &self,
        start: *mut u8,
        bytes: usize,
        flags: HostRegisterFlags,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller keeps the range mapped while it is registered.
        let result = unsafe { (self.symbols.mem_host_register)(start.cast(), bytes, flags) };
        self.check("cuMemHostRegister_v2", result)
    }

    /// `cuMemHostUnregister`: of the whole range that was registered with this start.
    ///
    /// # Safety
    ///
    /// The caller registered the range, and no work in flight uses it.
    ///
    /// # Errors
    ///
    /// [`HOST_MEMORY_NOT_REGISTERED`](super::CuResult::HOST_MEMORY_NOT_REGISTERED).
    pub unsafe fn host_unregister(&self, start: *mut u8) -> Result<(), CudaError> {
        // SAFETY: the caller has ended all use of the range by the device.
        let result = unsafe { (self.symbols.mem_host_unregister)(start.cast()) };
        self.check("cuMemHostUnregister", result)
    }

    /// `cuMemHostGetDevicePointer`: the address at which the device reaches registered host memory
    /// that is [mapped](HostRegisterFlags::DEVICE_MAP).
    ///
    /// # Errors
    ///
    /// What the driver says for memory that is not, and [`CudaError::Unsupported`].
    pub fn host_get_device_pointer(&self, host: *mut u8) -> Result<DevicePtr, CudaError> {
        const CALL: &str = "cuMemHostGetDevicePointer_v2";
        let get = present(self.symbols.mem_host_get_device_pointer, CALL)?;
        let mut address = DevicePtr::NULL;
        // SAFETY: the driver looks the host address up and does not follow it; writes one address
        // to a place that lives.
        let result = unsafe { get(&raw mut address, host.cast(), 0) };
        self.check(CALL, result)?;
        Ok(address)
    }
}
