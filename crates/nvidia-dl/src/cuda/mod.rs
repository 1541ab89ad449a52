//! libcuda: the driver's calls, through a table filled at run time.
//!
//! [`Driver::load`] finds the library and looks up its functions; it calls none of them.
//! [`Driver::init`] is the first call. Every call that works in a context needs one
//! [current](Driver::ctx_set_current) in the calling thread, else it ends as
//! [`INVALID_CONTEXT`](CuResult::INVALID_CONTEXT).
//!
//! | calls | are in |
//! |---|---|
//! | `cuInit`, versions, devices, contexts | [`Driver::init`], [`device_count`](Driver::device_count), [`primary_ctx_retain`](Driver::primary_ctx_retain) |
//! | streams and events | [`Driver::stream_create`], [`event_record`](Driver::event_record), [`event_query`](Driver::event_query) |
//! | device memory and copies | [`Driver::mem_alloc`], [`memcpy_htod_async`](Driver::memcpy_htod_async) |
//! | pinning host memory | [`Driver::host_register`] |
//! | what an address is | [`Driver::pointer_attributes`] |
//!
//! A call is safe where no argument can make the driver touch memory that it should not: the worst
//! is a leak or an error. The others are `unsafe`, and say what the caller promises. Handles are
//! numbers here; owning them is for the layer above.

mod calls;
mod driver;
mod error;
mod memory;
mod pointer;
mod result;
mod symbols;
#[cfg(test)]
mod tests;
mod types;

pub use driver::Driver;
pub use error::{CudaError, Words};
pub use pointer::{AllocationKind, PointerAttributes};
pub use result::CuResult;
pub use symbols::{OPTIONAL_SYMBOLS, REQUIRED_SYMBOLS};
pub use types::{
    Context, Device, DeviceAttribute, DevicePtr, DriverVersion, Event, EventFlags,
    HostRegisterFlags, MemoryPool, MemoryType, PointerAttribute, Stream, StreamFlags,
};
