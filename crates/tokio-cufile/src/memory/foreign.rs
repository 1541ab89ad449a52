//! Memory that other code allocated: on a device, or known to the driver in another way.
#![allow(
    unsafe_code,
    reason = "vouches, on the word of whoever made the value, for addresses that a device or the \
              kernel writes to later"
)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use nvidia_dl::cuda::{AllocationKind, DevicePtr, PointerAttributes};

use super::buf::{IoBuf, IoBufMut, sealed};
use super::lent::buffer_error;
use super::range::{EngineId, MemoryRange};
use super::region::{DeviceRange, Region};
use crate::compat::DeviceSide;
use crate::cuda::CudaEvent;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::op::Request;

/// What the driver knows an address as, and which way its bytes go.
///
/// | class | way |
/// |---|---|
/// | [`Device`](Self::Device), [`Pool`](Self::Pool) | by cuFile, where it serves the file; else through a staging slot, copied by the device |
/// | [`Virtual`](Self::Virtual) | through a staging slot: cuFile was not tried with it |
/// | [`Managed`](Self::Managed) | the same; the driver may move its pages meanwhile, which is slower |
/// | [`Host`](Self::Host) | as host memory: in place where its address is aligned |
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PointerClass {
    /// Device memory with a fixed place: `cuMemAlloc`, `cudaMalloc`.
    Device,
    /// Device memory of a pool: `cuMemAllocAsync`, `cudaMallocAsync`.
    Pool,
    /// Device memory of virtual memory management: `cuMemCreate` and `cuMemMap`.
    Virtual,
    /// Managed: `cuMemAllocManaged`, `cudaMallocManaged`.
    Managed,
    /// Host memory that the driver allocated or registered: `cuMemHostAlloc`, `cuMemHostRegister`.
    Host,
}

impl fmt::Display for PointerClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device memory",
            Self::Pool => "device memory of a pool",
            Self::Virtual => "device memory of virtual memory management",
            Self::Managed => "managed memory",
            Self::Host => "pinned host memory",
        })
    }
}

/// Memory of somebody else's, with what keeps it alive.
///
/// An operation owns the value until the hardware is done with the memory, and so its owner; in
/// quarantine the owner is leaked. Dropped with an operation, the owner is dropped on an engine
/// thread.
pub struct ForeignMemory<T> {
    region: Region,
    class: PointerClass,
    side: Arc<DeviceSide>,
    engine: EngineId,
    ready: Option<Arc<CudaEvent>>,
    owner: T,
}

impl<T: Send + 'static> ForeignMemory<T> {
    /// `len` bytes from `address` on, which `owner` keeps alive, as seen in the primary context of
    /// the device with that CUDA ordinal. The driver is asked what they are.
    ///
    /// # Safety
    ///
    /// As long as the value lives, the bytes stay allocated at that address, wherever it and its
    /// owner are moved, and nobody else touches them while an operation owns the value: no thread,
    /// and no work in a stream but what is [waited for](Self::when). Host memory is initialised.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for an address that the driver does not know, memory of another device, and a
    /// range that its allocation does not hold (no bytes may be anywhere); `Unsupported`,
    /// `DeviceNotFound`, `DeviceFailed`. The owner is dropped then, on an engine thread.
    pub unsafe fn new(
        engine: &Engine,
        device: u32,
        address: u64,
        len: usize,
        owner: T,
    ) -> Request<Self> {
        let shared = Arc::clone(&engine.shared);
        Request::detached(&engine.shared, Operation::Buffer, move || {
            let side = shared.devices.get(device)?;
            // SAFETY: passed on from the caller.
            unsafe { Self::classified(shared.id, &side, address, len, owner) }
        })
    }

    /// The same at once, on an engine thread.
    ///
    /// # Safety
    ///
    /// As for [`new`](Self::new).
    pub(crate) unsafe fn classified(
        engine: EngineId,
        side: &Arc<DeviceSide>,
        address: u64,
        len: usize,
        owner: T,
    ) -> Result<Self> {
        let (class, region) = classify(side, address, len)?;
        Ok(Self {
            region,
            class,
            side: Arc::clone(side),
            engine,
            ready: None,
            owner,
        })
    }

    /// Every operation on it waits for `event` before it is admitted: for work that was queued in a
    /// stream and uses the memory.
    pub fn when(mut self, event: Arc<CudaEvent>) -> Self {
        self.ready = Some(event);
        self
    }
}

impl<T> ForeignMemory<T> {
    /// What the driver knows it as.
    pub const fn class(&self) -> PointerClass {
        self.class
    }

    /// The length in bytes.
    pub const fn len(&self) -> usize {
        self.region.len()
    }

    /// Whether it holds no byte.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What keeps it alive.
    pub const fn owner(&self) -> &T {
        &self.owner
    }

    /// Gives up the view of the memory.
    pub fn into_owner(self) -> T {
        self.owner
    }
}

impl<T> fmt::Debug for ForeignMemory<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignMemory")
            .field("class", &self.class)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// On an engine thread. No bytes may be anywhere: empty slices have all kinds of addresses.
fn classify(side: &DeviceSide, address: u64, len: usize) -> Result<(PointerClass, Region)> {
    if len == 0 {
        let nowhere = DeviceRange::new(side.device().ordinal(), 0, 0);
        return Ok((PointerClass::Device, Region::Device(nowhere)));
    }
    let attributes = side.device().pointer_attributes(address)?;
    let ordinal = side.device().ordinal();
    let class = class_of(&attributes).ok_or_else(|| {
        invalid(format!(
            "the driver knows no memory at {address:#x} ({:?}): use HostBuffer or Vec<u8> for host \
             memory that is not registered with it",
            attributes.kind
        ))
    })?;
    let holds = holds(&attributes, address, len);
    if !holds {
        return Err(invalid(format!(
            "{len} bytes at {address:#x} are not all inside their allocation, {} bytes at {:#x}",
            attributes.range_bytes,
            attributes.range_start.map_or(0, |DevicePtr(start)| start)
        )));
    }
    if class == PointerClass::Host {
        return host_region(&attributes, address, len).map(|region| (class, region));
    }
    let is_elsewhere = u32::try_from(attributes.device_ordinal) != Ok(ordinal);
    if is_elsewhere && class != PointerClass::Managed {
        let reason = format!(
            "the memory is on device {}, not on device {ordinal}",
            attributes.device_ordinal
        );
        return Err(invalid(reason).with_device(ordinal));
    }
    let range = DeviceRange::new(ordinal, address, len);
    Ok((class, Region::Device(range)))
}

const fn class_of(attributes: &PointerAttributes) -> Option<PointerClass> {
    Some(match attributes.kind {
        AllocationKind::Device => PointerClass::Device,
        AllocationKind::Pool => PointerClass::Pool,
        AllocationKind::Virtual => PointerClass::Virtual,
        AllocationKind::Managed => PointerClass::Managed,
        AllocationKind::Host => PointerClass::Host,
        _ => return None,
    })
}

/// Whether the allocation holds the range, as far as the driver says.
fn holds(attributes: &PointerAttributes, address: u64, len: usize) -> bool {
    let Some(DevicePtr(start)) = attributes.range_start else {
        return true;
    };
    let end = address.checked_add(len as u64);
    let allocated_end = start.checked_add(attributes.range_bytes);
    start <= address && end.is_some() && end <= allocated_end
}

/// The host reaches pinned memory at the address that the driver says, which may be another one.
fn host_region(attributes: &PointerAttributes, address: u64, len: usize) -> Result<Region> {
    let host = attributes
        .host_pointer
        .or_else(|| usize::try_from(address).ok());
    let start = host.and_then(|host| NonNull::new(std::ptr::with_exposed_provenance_mut(host)));
    let start = start.ok_or_else(|| invalid("the host does not reach the memory".to_owned()))?;
    Ok(Region::Host(MemoryRange::new(start, len)))
}

fn invalid(reason: String) -> Error {
    buffer_error(ErrorKind::InvalidInput, reason)
}

// SAFETY: whoever made the value vouches for it, in the words of this trait.
unsafe impl<T: Send + 'static> sealed::Memory for ForeignMemory<T> {
    fn prepare(&mut self, engine: EngineId) -> Result<Region> {
        if self.engine != engine {
            let reason = "the memory was given to another engine".to_owned();
            return Err(buffer_error(ErrorKind::WrongEngine, reason));
        }
        Ok(self.region)
    }

    fn device(&self) -> Option<Arc<DeviceSide>> {
        matches!(self.region, Region::Device(_)).then(|| Arc::clone(&self.side))
    }

    fn suits_cufile(&self) -> bool {
        !matches!(self.class, PointerClass::Virtual | PointerClass::Managed)
    }

    fn ready(&self) -> Option<Arc<CudaEvent>> {
        self.ready.clone()
    }
}

impl<T: Send + 'static> IoBuf for ForeignMemory<T> {}
impl<T: Send + 'static> IoBufMut for ForeignMemory<T> {}
