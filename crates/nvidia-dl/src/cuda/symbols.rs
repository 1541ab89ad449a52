//! The table of the driver's functions.
//!
//! Unsafe, because the types of the functions are declared here and not checked by anyone: an
//! address becomes a function of that type.
#![allow(
    unsafe_code,
    reason = "an address becomes a function of a declared type"
)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem;
use std::path::PathBuf;

use super::result::CuResult;
use super::types::{
    Context, Device, DeviceAttribute, DevicePtr, Event, EventFlags, HostRegisterFlags,
    PointerAttribute, Stream, StreamFlags,
};
use crate::load::{Library, LoadError};

macro_rules! c_name {
    ($symbol:ident) => {
        const {
            match CStr::from_bytes_with_nul(concat!(stringify!($symbol), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("an identifier has no zero byte"),
            }
        }
    };
}

macro_rules! table {
    (
        required { $($field:ident = $symbol:ident($($type:ty),*);)* }
        optional { $($opt_field:ident = $opt_symbol:ident($($opt_type:ty),*);)* }
    ) => {
        /// Symbols without which no [`Driver`](super::Driver) is made.
        pub const REQUIRED_SYMBOLS: &[&str] = &[$(stringify!($symbol)),*];

        /// Symbols that a driver may lack: the calls that need them then end as
        /// [`Unsupported`](super::CudaError::Unsupported).
        pub const OPTIONAL_SYMBOLS: &[&str] = &[$(stringify!($opt_symbol)),*];

        #[derive(Clone, Copy)]
        pub(crate) struct Symbols {
            $(pub(crate) $field: unsafe extern "C" fn($($type),*) -> CuResult,)*
            $(pub(crate) $opt_field: Option<unsafe extern "C" fn($($opt_type),*) -> CuResult>,)*
        }

        impl Symbols {
            /// Looks up all symbols, and calls none.
            pub(crate) fn find(library: &Library) -> Result<(Self, PathBuf), LoadError> {
                let mut any = None;
                let mut look = |name: &CStr| {
                    let address = library.symbol(name);
                    any = any.or(address);
                    address
                };
                let symbols = Self {
                    $($field: {
                        let Some(address) = look(c_name!($symbol)) else {
                            return Err(LoadError::MissingSymbol {
                                library: library.path(any),
                                symbol: stringify!($symbol),
                            });
                        };
                        // SAFETY: the address is of the function of this name, whose type is
                        // declared in the table as the driver's documentation has it; a function
                        // pointer is as large as an address.
                        unsafe {
                            mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($type),*) -> CuResult,
                            >(address)
                        }
                    },)*
                    $($opt_field: look(c_name!($opt_symbol)).map(|address| {
                        // SAFETY: as above.
                        unsafe {
                            mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($opt_type),*) -> CuResult,
                            >(address)
                        }
                    }),)*
                };
                Ok((symbols, library.path(any)))
            }

            /// The same number for the same library, however it was named. None is ever unloaded,
            /// so no other gets it.
            pub(crate) fn id(&self) -> usize {
                (self.init as *const ()).addr()
            }

            /// A table without a library: each function ends with a code that tells its place,
            /// counted through the required and then the optional symbols.
            #[cfg(test)]
            pub(super) fn telling_their_places() -> Self {
                Self {
                    $($field: {
                        extern "C" fn stub($(_: $type),*) -> CuResult {
                            place_of(stringify!($symbol))
                        }
                        stub
                    },)*
                    $($opt_field: {
                        extern "C" fn stub($(_: $opt_type),*) -> CuResult {
                            place_of(stringify!($opt_symbol))
                        }
                        Some(stub)
                    },)*
                }
            }

            /// The optional symbols that are not there.
            pub(crate) fn missing(&self) -> Vec<&'static str> {
                let mut missing = Vec::new();
                $(if self.$opt_field.is_none() {
                    missing.push(stringify!($opt_symbol));
                })*
                missing
            }
        }
    };
}

/// The code of a stub: one that the table of codes does not have.
#[cfg(test)]
fn place_of(symbol: &str) -> CuResult {
    let mut symbols = REQUIRED_SYMBOLS.iter().chain(OPTIONAL_SYMBOLS);
    let place = symbols.position(|&known| known == symbol);
    CuResult(10_000 + place.map_or(-1, |place| i32::try_from(place).unwrap_or(-1)))
}

// Those with a version in their name must be asked for by that name: the plain one is an older
// function with other types.
table! {
    required {
        init = cuInit(c_uint);
        driver_get_version = cuDriverGetVersion(*mut c_int);
        device_get_count = cuDeviceGetCount(*mut c_int);
        device_get = cuDeviceGet(*mut Device, c_int);
        device_get_name = cuDeviceGetName(*mut c_char, c_int, Device);
        device_total_mem = cuDeviceTotalMem_v2(*mut usize, Device);
        device_get_attribute = cuDeviceGetAttribute(*mut c_int, DeviceAttribute, Device);

        device_primary_ctx_retain = cuDevicePrimaryCtxRetain(*mut Context, Device);
        device_primary_ctx_release = cuDevicePrimaryCtxRelease_v2(Device);
        ctx_get_current = cuCtxGetCurrent(*mut Context);
        ctx_set_current = cuCtxSetCurrent(Context);
        ctx_get_device = cuCtxGetDevice(*mut Device);
        ctx_synchronize = cuCtxSynchronize();

        stream_create = cuStreamCreate(*mut Stream, StreamFlags);
        stream_query = cuStreamQuery(Stream);
        stream_synchronize = cuStreamSynchronize(Stream);
        stream_wait_event = cuStreamWaitEvent(Stream, Event, c_uint);
        stream_destroy = cuStreamDestroy_v2(Stream);

        event_create = cuEventCreate(*mut Event, EventFlags);
        event_record = cuEventRecord(Event, Stream);
        event_query = cuEventQuery(Event);
        event_synchronize = cuEventSynchronize(Event);
        event_destroy = cuEventDestroy_v2(Event);

        mem_alloc = cuMemAlloc_v2(*mut DevicePtr, usize);
        mem_free = cuMemFree_v2(DevicePtr);
        mem_get_info = cuMemGetInfo_v2(*mut usize, *mut usize);
        memset_d8 = cuMemsetD8_v2(DevicePtr, u8, usize);
        memset_d8_async = cuMemsetD8Async(DevicePtr, u8, usize, Stream);
        pointer_get_attributes = cuPointerGetAttributes(
            c_uint, *const PointerAttribute, *const *mut c_void, DevicePtr
        );

        memcpy_htod = cuMemcpyHtoD_v2(DevicePtr, *const c_void, usize);
        memcpy_dtoh = cuMemcpyDtoH_v2(*mut c_void, DevicePtr, usize);
        memcpy_htod_async = cuMemcpyHtoDAsync_v2(DevicePtr, *const c_void, usize, Stream);
        memcpy_dtoh_async = cuMemcpyDtoHAsync_v2(*mut c_void, DevicePtr, usize, Stream);
        memcpy_dtod_async = cuMemcpyDtoDAsync_v2(DevicePtr, DevicePtr, usize, Stream);
        mem_host_register = cuMemHostRegister_v2(*mut c_void, usize, HostRegisterFlags);
        mem_host_unregister = cuMemHostUnregister(*mut c_void);

        get_error_name = cuGetErrorName(CuResult, *mut *const c_char);
        get_error_string = cuGetErrorString(CuResult, *mut *const c_char);
    }
    optional {
        device_get_pci_bus_id = cuDeviceGetPCIBusId(*mut c_char, c_int, Device);
        stream_get_ctx = cuStreamGetCtx(Stream, *mut Context);
        mem_alloc_async = cuMemAllocAsync(*mut DevicePtr, usize, Stream);
        mem_free_async = cuMemFreeAsync(DevicePtr, Stream);
        mem_get_address_range = cuMemGetAddressRange_v2(*mut DevicePtr, *mut usize, DevicePtr);
        mem_host_get_device_pointer = cuMemHostGetDevicePointer_v2(
            *mut DevicePtr, *mut c_void, c_uint
        );
        mem_retain_allocation_handle = cuMemRetainAllocationHandle(*mut u64, *mut c_void);
        mem_release = cuMemRelease(u64);
    }
}
