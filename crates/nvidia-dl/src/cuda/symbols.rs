//! The table of the driver's functions.
//!
//! The types are declared here, and not checked by anyone.
#![allow(
    unsafe_code,
    reason = "an address becomes a function of a declared type"
)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::result::CuResult;
use super::types::{
    Context, Device, DeviceAttribute, DevicePtr, Event, EventFlags, HostRegisterFlags,
    PointerAttribute, Stream, StreamFlags,
};
use crate::table::table;

/// The code of a stub tells its place, counted through the required and then the optional symbols;
/// the table of codes does not have it.
#[cfg(test)]
impl crate::table::Stub for CuResult {
    fn of(symbol: &'static str) -> Self {
        let mut symbols = REQUIRED_SYMBOLS.iter().chain(OPTIONAL_SYMBOLS);
        let place = symbols.position(|&known| known == symbol);
        Self(10_000 + place.map_or(-1, |place| i32::try_from(place).unwrap_or(-1)))
    }
}

// Those with a version in their name must be asked for by that name: the plain one is an older
// function with other types.
table! {
    id init;
    required {
        init = cuInit(c_uint) -> CuResult;
        driver_get_version = cuDriverGetVersion(*mut c_int) -> CuResult;
        device_get_count = cuDeviceGetCount(*mut c_int) -> CuResult;
        device_get = cuDeviceGet(*mut Device, c_int) -> CuResult;
        device_get_name = cuDeviceGetName(*mut c_char, c_int, Device) -> CuResult;
        device_total_mem = cuDeviceTotalMem_v2(*mut usize, Device) -> CuResult;
        device_get_attribute = cuDeviceGetAttribute(*mut c_int, DeviceAttribute, Device) -> CuResult;

        device_primary_ctx_retain = cuDevicePrimaryCtxRetain(*mut Context, Device) -> CuResult;
        device_primary_ctx_release = cuDevicePrimaryCtxRelease_v2(Device) -> CuResult;
        ctx_get_current = cuCtxGetCurrent(*mut Context) -> CuResult;
        ctx_set_current = cuCtxSetCurrent(Context) -> CuResult;
        ctx_get_device = cuCtxGetDevice(*mut Device) -> CuResult;
        ctx_synchronize = cuCtxSynchronize() -> CuResult;

        stream_create = cuStreamCreate(*mut Stream, StreamFlags) -> CuResult;
        stream_query = cuStreamQuery(Stream) -> CuResult;
        stream_synchronize = cuStreamSynchronize(Stream) -> CuResult;
        stream_wait_event = cuStreamWaitEvent(Stream, Event, c_uint) -> CuResult;
        stream_destroy = cuStreamDestroy_v2(Stream) -> CuResult;

        event_create = cuEventCreate(*mut Event, EventFlags) -> CuResult;
        event_record = cuEventRecord(Event, Stream) -> CuResult;
        event_query = cuEventQuery(Event) -> CuResult;
        event_synchronize = cuEventSynchronize(Event) -> CuResult;
        event_destroy = cuEventDestroy_v2(Event) -> CuResult;

        mem_alloc = cuMemAlloc_v2(*mut DevicePtr, usize) -> CuResult;
        mem_free = cuMemFree_v2(DevicePtr) -> CuResult;
        mem_get_info = cuMemGetInfo_v2(*mut usize, *mut usize) -> CuResult;
        memset_d8 = cuMemsetD8_v2(DevicePtr, u8, usize) -> CuResult;
        memset_d8_async = cuMemsetD8Async(DevicePtr, u8, usize, Stream) -> CuResult;
        pointer_get_attributes = cuPointerGetAttributes(
            c_uint, *const PointerAttribute, *const *mut c_void, DevicePtr
        ) -> CuResult;

        memcpy_htod = cuMemcpyHtoD_v2(DevicePtr, *const c_void, usize) -> CuResult;
        memcpy_dtoh = cuMemcpyDtoH_v2(*mut c_void, DevicePtr, usize) -> CuResult;
        memcpy_htod_async = cuMemcpyHtoDAsync_v2(DevicePtr, *const c_void, usize, Stream) -> CuResult;
        memcpy_dtoh_async = cuMemcpyDtoHAsync_v2(*mut c_void, DevicePtr, usize, Stream) -> CuResult;
        memcpy_dtod_async = cuMemcpyDtoDAsync_v2(DevicePtr, DevicePtr, usize, Stream) -> CuResult;
        mem_host_register = cuMemHostRegister_v2(*mut c_void, usize, HostRegisterFlags) -> CuResult;
        mem_host_unregister = cuMemHostUnregister(*mut c_void) -> CuResult;

        get_error_name = cuGetErrorName(CuResult, *mut *const c_char) -> CuResult;
        get_error_string = cuGetErrorString(CuResult, *mut *const c_char) -> CuResult;
    }
    optional {
        device_get_pci_bus_id = cuDeviceGetPCIBusId(*mut c_char, c_int, Device) -> CuResult;
        stream_get_ctx = cuStreamGetCtx(Stream, *mut Context) -> CuResult;
        mem_alloc_async = cuMemAllocAsync(*mut DevicePtr, usize, Stream) -> CuResult;
        mem_free_async = cuMemFreeAsync(DevicePtr, Stream) -> CuResult;
        mem_get_address_range = cuMemGetAddressRange_v2(*mut DevicePtr, *mut usize, DevicePtr) -> CuResult;
        mem_host_get_device_pointer = cuMemHostGetDevicePointer_v2(
            *mut DevicePtr, *mut c_void, c_uint
        ) -> CuResult;
        mem_retain_allocation_handle = cuMemRetainAllocationHandle(*mut u64, *mut c_void) -> CuResult;
        mem_release = cuMemRelease(u64) -> CuResult;
    }
}
