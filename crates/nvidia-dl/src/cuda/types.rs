//! Handles, addresses, flags and attributes as the driver takes them.
#![allow(unsafe_code, reason = "handles are pointers that may cross threads")]

use std::ffi::c_void;
use std::fmt;
use std::ptr;

use crate::newtype::{handles, integers};

handles! {
    /// A context, `CUcontext`.
    Context;
    /// A stream, `CUstream`. The null handle is the legacy default stream.
    Stream;
    /// An event, `CUevent`.
    Event;
    /// A pool of stream-ordered allocations, `CUmemoryPool`.
    MemoryPool;
}

/// A device, `CUdevice`: a small number, valid in every thread.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device(pub i32);

/// An address in a device's memory, `CUdeviceptr`. The host may not follow it.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The null address, which no allocation has.
    pub const NULL: Self = Self(0);

    /// Whether this is the null address.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The address as C functions take it that know no difference between host and device, such
    /// as those of libcufile.
    #[must_use]
    pub fn as_void(self) -> *mut c_void {
        // As wide as an address wherever this crate is built.
        ptr::with_exposed_provenance_mut(usize::from_ne_bytes(self.0.to_ne_bytes()))
    }

    /// The address `bytes` further on, or none where addresses end.
    #[must_use]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(address) => Some(Self(address)),
            None => None,
        }
    }
}

impl fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DevicePtr({:#x})", self.0)
    }
}

integers! {
    /// How a stream is made, `CUstream_flags`.
    StreamFlags(u32) {
        /// Waits for the legacy default stream, and is waited for by it.
        DEFAULT = 0,
        /// Has nothing to do with the legacy default stream.
        NON_BLOCKING = 1,
    }
    /// How an event is made, `CUevent_flags`. Combine with `|`.
    EventFlags(u32) {
        /// Takes times; waiting for it spins.
        DEFAULT = 0,
        /// Waiting for it sleeps.
        BLOCKING_SYNC = 1,
        /// Takes no times, which makes recording and querying cheaper.
        DISABLE_TIMING = 2,
    }
    /// How host memory is registered, `CU_MEMHOSTREGISTER_*`. Combine with `|`.
    HostRegisterFlags(u32) {
        /// Pinned for the current context only.
        NONE = 0,
        /// Pinned for every context.
        PORTABLE = 1,
        /// Also mapped into the device's addresses.
        DEVICE_MAP = 2,
        /// Memory of a device, such as a PCI window of another one.
        IO_MEMORY = 4,
        /// The device will only read.
        READ_ONLY = 8,
    }
    /// What can be asked about a device, `CUdevice_attribute`; any of the driver's numbers may be
    /// asked.
    DeviceAttribute(i32) {
        /// PCI bus number.
        PCI_BUS_ID = 33,
        /// PCI device number.
        PCI_DEVICE_ID = 34,
        /// How many copies can run at once.
        ASYNC_ENGINE_COUNT = 40,
        /// 1 where host and device share one range of addresses.
        UNIFIED_ADDRESSING = 41,
        /// PCI domain number.
        PCI_DOMAIN_ID = 50,
        /// Major part of the compute capability.
        COMPUTE_CAPABILITY_MAJOR = 75,
        /// Minor part of the compute capability.
        COMPUTE_CAPABILITY_MINOR = 76,
        /// 1 where managed memory is there.
        MANAGED_MEMORY = 83,
        /// 1 where virtual memory management (`cuMemCreate`, `cuMemMap`) is there.
        VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
        /// 1 where host memory may be registered [read-only](HostRegisterFlags::READ_ONLY).
        READ_ONLY_HOST_REGISTER_SUPPORTED = 113,
        /// 1 where stream-ordered allocation (`cuMemAllocAsync`) is there.
        MEMORY_POOLS_SUPPORTED = 115,
        /// 1 where GPUDirect RDMA is there.
        GPU_DIRECT_RDMA_SUPPORTED = 116,
    }
    /// What can be asked about an address, `CUpointer_attribute`.
    PointerAttribute(u32) {
        /// The context that the memory belongs to.
        CONTEXT = 1,
        /// Where the memory is: a [`MemoryType`].
        MEMORY_TYPE = 2,
        /// The address at which a device reaches it.
        DEVICE_POINTER = 3,
        /// The address at which the host reaches it.
        HOST_POINTER = 4,
        /// Whether it is managed memory.
        IS_MANAGED = 8,
        /// The ordinal of the device that it belongs to.
        DEVICE_ORDINAL = 9,
        /// Whether the older way of sharing with other processes takes it.
        IS_LEGACY_CUDA_IPC_CAPABLE = 10,
        /// Where its allocation begins.
        RANGE_START_ADDR = 11,
        /// How long its allocation is.
        RANGE_SIZE = 12,
        /// Whether memory is behind the address.
        MAPPED = 13,
        /// The pool that it comes from.
        MEMPOOL_HANDLE = 17,
    }
    /// Where memory is, `CUmemorytype`. An integer: later drivers may know more kinds.
    MemoryType(u32) {
        /// The driver does not know the address.
        UNKNOWN = 0,
        /// On the host.
        HOST = 1,
        /// On a device.
        DEVICE = 2,
        /// An array, which has no linear addresses.
        ARRAY = 3,
        /// Either, at one address.
        UNIFIED = 4,
    }
}

impl std::ops::BitOr for EventFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl std::ops::BitOr for HostRegisterFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for MemoryType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UNKNOWN => f.write_str("unknown to the driver"),
            Self::HOST => f.write_str("host"),
            Self::DEVICE => f.write_str("device"),
            Self::ARRAY => f.write_str("array"),
            Self::UNIFIED => f.write_str("unified"),
            Self(other) => write!(f, "unknown memory type {other}"),
        }
    }
}

/// A version of CUDA that a driver speaks, as it tells it: 1000 × major + 10 × minor.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DriverVersion(pub i32);

impl DriverVersion {
    /// 12 in 12.4.
    #[must_use]
    pub const fn major(self) -> i32 {
        self.0 / 1000
    }

    /// 4 in 12.4.
    #[must_use]
    pub const fn minor(self) -> i32 {
        self.0 % 1000 / 10
    }
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())
    }
}
