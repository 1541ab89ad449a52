//! What an address is.
//!
//! Unsafe, because the driver answers through an array of pointers.
#![allow(
    unsafe_code,
    reason = "the driver answers through an array of pointers"
)]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use super::driver::Driver;
use super::error::CudaError;
use super::result::CuResult;
use super::types::{Context, DevicePtr, MemoryPool, MemoryType, PointerAttribute};

/// What the driver knows about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PointerAttributes {
    /// The context that the memory belongs to. None for memory of no single context (pools,
    /// virtual memory management) and for addresses that the driver does not know.
    pub context: Option<Context>,
    /// Where the memory is.
    pub memory_type: MemoryType,
    /// The ordinal of the device that it belongs to. Means something for memory that the driver
    /// knows only; the driver then also says negative numbers for "no device".
    pub device_ordinal: i32,
    /// Whether it is managed: moved between host and device as it is touched.
    pub is_managed: bool,
    /// Whether the older way of sharing with other processes takes it, which is so for
    /// `cuMemAlloc`'s.
    pub is_legacy_cuda_ipc_capable: bool,
    /// Whether memory is behind the address.
    pub is_mapped: bool,
    /// The pool that it comes from.
    pub mempool_handle: Option<MemoryPool>,
    /// The address at which the device of the current context reaches it.
    pub device_pointer: Option<DevicePtr>,
    /// The address at which the host reaches it.
    pub host_pointer: Option<usize>,
    /// Where its allocation begins; none where the driver does not say.
    pub range_start: Option<DevicePtr>,
    /// How many bytes its allocation has; 0 where the driver does not say.
    pub range_bytes: u64,
    /// All of it in one word.
    pub kind: AllocationKind,
}

/// How memory was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AllocationKind {
    /// The driver does not know the address: ordinary host memory, or no memory.
    Unknown,
    /// Host memory that the driver allocated or registered.
    Host,
    /// Managed: `cuMemAllocManaged`.
    Managed,
    /// Device memory with a fixed place: `cuMemAlloc`.
    Device,
    /// Device memory of a pool: `cuMemAllocAsync`.
    Pool,
    /// Device memory of virtual memory management: `cuMemCreate` and `cuMemMap`.
    Virtual,
    /// Of a type that has no name here: [`PointerAttributes::memory_type`] has its number.
    Other,
}

impl Driver {
    /// `cuPointerGetAttributes`: what an address is, of device or host. An address that the driver
    /// does not know is no error: its [kind](PointerAttributes::kind) is
    /// [`Unknown`](AllocationKind::Unknown).
    ///
    /// A driver that is too old for the question about pools is asked the others again.
    ///
    /// # Errors
    ///
    /// [`INVALID_CONTEXT`](CuResult::INVALID_CONTEXT) where no context is current.
    pub fn pointer_attributes(&self, address: DevicePtr) -> Result<PointerAttributes, CudaError> {
        let cells = match self.ask(address, ASKED) {
            Err(error) if error.result() == Some(CuResult::INVALID_VALUE) => {
                self.ask(address, &ASKED[..UNTIL_POOLS])?
            }
            answer => answer?,
        };
        let mut attributes = decode(&cells);
        if attributes.kind == AllocationKind::Device && self.is_virtual(address)? {
            attributes.kind = AllocationKind::Virtual;
        }
        Ok(attributes)
    }

    fn ask(&self, address: DevicePtr, asked: &[PointerAttribute]) -> Result<Cells, CudaError> {
        let mut cells: Cells = [0; ASKED.len()];
        let places: [*mut c_void; ASKED.len()] =
            cells.each_mut().map(|cell| ptr::from_mut(cell).cast());
        let count = c_uint::try_from(asked.len()).unwrap_or(0);
        // SAFETY: the driver reads `count` attributes and as many pointers, of which both arrays
        // have at least that many, and writes at most 8 bytes to each place, which have 8. It looks
        // the address up and does not follow it.
        let result = unsafe {
            (self.symbols.pointer_get_attributes)(count, asked.as_ptr(), places.as_ptr(), address)
        };
        self.check("cuPointerGetAttributes", result)?;
        Ok(cells)
    }

    /// Whether a handle of virtual memory management is behind the address. Without the call to ask
    /// by, no.
    fn is_virtual(&self, address: DevicePtr) -> Result<bool, CudaError> {
        let (Some(retain), Some(release)) = (
            self.symbols.mem_retain_allocation_handle,
            self.symbols.mem_release,
        ) else {
            return Ok(false);
        };
        let Ok(address) = usize::try_from(address.0) else {
            return Ok(false);
        };
        let mut handle = 0_u64;
        // SAFETY: the driver looks the address up and does not follow it; writes one number to a
        // place that lives.
        let result = unsafe { retain(&raw mut handle, ptr::with_exposed_provenance_mut(address)) };
        if !result.is_success() {
            // Which code it is for other memory is not documented.
            return Ok(false);
        }
        // SAFETY: gives back what was just retained.
        let result = unsafe { release(handle) };
        self.check("cuMemRelease", result).map(|()| true)
    }
}

/// What is asked, oldest first.
const ASKED: &[PointerAttribute; 11] = &[
    PointerAttribute::CONTEXT,
    PointerAttribute::MEMORY_TYPE,
    PointerAttribute::DEVICE_POINTER,
    PointerAttribute::HOST_POINTER,
    PointerAttribute::IS_MANAGED,
    PointerAttribute::DEVICE_ORDINAL,
    PointerAttribute::IS_LEGACY_CUDA_IPC_CAPABLE,
    PointerAttribute::RANGE_START_ADDR,
    PointerAttribute::RANGE_SIZE,
    PointerAttribute::MAPPED,
    PointerAttribute::MEMPOOL_HANDLE,
];

/// How many of them are known to drivers from before pools had handles, CUDA 11.2 and older.
const UNTIL_POOLS: usize = 10;

/// The answers. The driver writes 1, 4 or 8 bytes, by attribute; the rest of a cell is 0.
type Cells = [u64; ASKED.len()];

fn decode(cells: &Cells) -> PointerAttributes {
    let [
        context,
        memory_type,
        device_pointer,
        host_pointer,
        is_managed,
        device_ordinal,
        is_legacy_cuda_ipc_capable,
        range_start,
        range_bytes,
        is_mapped,
        mempool_handle,
    ] = *cells;
    let mut attributes = PointerAttributes {
        context: handle(context).map(Context::from_raw),
        memory_type: MemoryType(u32::from_ne_bytes(first_half(memory_type))),
        device_ordinal: c_int::from_ne_bytes(first_half(device_ordinal)),
        is_managed: is_managed != 0,
        is_legacy_cuda_ipc_capable: is_legacy_cuda_ipc_capable != 0,
        is_mapped: is_mapped != 0,
        mempool_handle: handle(mempool_handle).map(MemoryPool::from_raw),
        device_pointer: (device_pointer != 0).then_some(DevicePtr(device_pointer)),
        host_pointer: usize::try_from(host_pointer).ok().filter(|&host| host != 0),
        range_start: (range_start != 0).then_some(DevicePtr(range_start)),
        range_bytes,
        kind: AllocationKind::Unknown,
    };
    attributes.kind = kind(&attributes);
    attributes
}

/// The kind, but for virtual memory management, which no attribute tells.
fn kind(attributes: &PointerAttributes) -> AllocationKind {
    match attributes.memory_type {
        _ if attributes.is_managed => AllocationKind::Managed,
        MemoryType::UNKNOWN => AllocationKind::Unknown,
        MemoryType::HOST => AllocationKind::Host,
        MemoryType::DEVICE if attributes.mempool_handle.is_some() => AllocationKind::Pool,
        MemoryType::DEVICE => AllocationKind::Device,
        _ => AllocationKind::Other,
    }
}

/// The bytes that a 4-byte value was written to, in either byte order.
fn first_half(cell: u64) -> [u8; 4] {
    let [a, b, c, d, ..] = cell.to_ne_bytes();
    [a, b, c, d]
}

fn handle(cell: u64) -> Option<*mut c_void> {
    let address = usize::try_from(cell).ok().filter(|&address| address != 0)?;
    Some(ptr::with_exposed_provenance_mut(address))
}
