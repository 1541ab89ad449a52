//! Handles, structures and flags as libcufile takes them.
#![allow(unsafe_code, reason = "handles are pointers that may cross threads")]

use std::ffi::{c_int, c_void};
use std::ptr;

use super::code::Code;
use crate::newtype::{bits, handles};

handles! {
    /// A registered file, `CUfileHandle_t`. Not a pointer in the versions that were examined: it
    /// holds the number of the descriptor, so a handle that outlives its descriptor reads whatever
    /// file has that number then.
    FileHandle;
    /// A batch, `CUfileBatchHandle_t`.
    Batch;
}

/// What most calls return, `CUfileError_t`: the library's code and, for one code, CUDA's.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Status {
    /// The library's code.
    pub err: Code,
    /// A code of the CUDA driver, which means something only beside
    /// [`Code::CUDA_DRIVER_ERROR`]. It has been seen to be other than 0 beside success.
    pub cu_err: c_int,
}

/// What a file is registered by, `CUfileDescr_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    kind: u32,
    before_union: u32,
    /// Of the union's two members only the descriptor is used. The rest of it stays 0.
    fd: c_int,
    rest_of_union: u32,
    fs_ops: *const c_void,
}

impl Descriptor {
    /// The kind that names an open file of the system.
    const OPAQUE_FD: u32 = 1;

    pub(crate) const fn of(fd: c_int) -> Self {
        Self {
            kind: Self::OPAQUE_FD,
            before_union: 0,
            fd,
            rest_of_union: 0,
            fs_ops: ptr::null(),
        }
    }
}

/// What the library says about itself, `CUfileDrvProps_t`. A field that it did not write is 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverProperties {
    /// Major version of nvidia-fs, 0 where there is none.
    pub nvfs_major_version: u32,
    /// Minor version of nvidia-fs.
    pub nvfs_minor_version: u32,
    /// KiB up to which completion is polled for.
    pub poll_thresh_size: usize,
    /// KiB of the largest piece that a request is cut into.
    pub max_direct_io_size: usize,
    /// Where GPUDirect Storage is possible.
    pub status_flags: StatusFlags,
    /// How the library is set.
    pub control_flags: ControlFlags,
    /// What the library can do.
    pub feature_flags: FeatureFlags,
    /// KiB of GPU memory for bounce buffers, for each GPU.
    pub max_device_cache_size: u32,
    /// KiB of each bounce buffer.
    pub per_buffer_cache_size: u32,
    /// KiB of GPU memory that may be pinned.
    pub max_device_pinned_mem_size: u32,
    /// The largest batch.
    pub max_batch_io_size: u32,
    /// Milliseconds that a batch may take.
    pub max_batch_io_timeout_ms: u32,
}

/// One request of a batch, `CUfileIOParams_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct IoParams {
    mode: u32,
    base: *mut c_void,
    file_offset: i64,
    buf_offset: i64,
    size: usize,
    handle: FileHandle,
    opcode: u32,
    /// A pointer for the library, which it does not follow.
    cookie: usize,
}

impl IoParams {
    /// The only mode that there is.
    const BATCH: u32 = 1;

    /// The offsets are not negative: see [`Transfer`](super::Transfer).
    pub(crate) fn of(
        handle: FileHandle,
        base: *mut c_void,
        (size, file_offset, buf_offset): (usize, i64, i64),
        (opcode, cookie): (Opcode, usize),
    ) -> Self {
        Self {
            mode: Self::BATCH,
            base,
            file_offset,
            buf_offset,
            size,
            handle,
            opcode: opcode.0,
            cookie,
        }
    }
}

/// What came of one request of a batch, `CUfileIOEvents_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct IoEvent {
    /// The number that the request was given.
    pub cookie: usize,
    /// How far it has come.
    pub status: BatchStatus,
    /// Bytes, or an error as a negative number in an unsigned field.
    pub ret: usize,
}

impl IoEvent {
    /// Room for one.
    pub const EMPTY: Self = Self {
        cookie: 0,
        status: BatchStatus::NONE,
        ret: 0,
    };
}

/// One piece of memory of a vectored call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IoVec {
    /// Where it begins, on a device or on the host.
    pub base: *mut c_void,
    /// Its bytes.
    pub len: usize,
}

/// What a request of a batch does, `CUfileOpcode_t`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opcode(pub u32);

impl Opcode {
    /// From the file to memory.
    pub const READ: Self = Self(0);
    /// From memory to the file.
    pub const WRITE: Self = Self(1);
}

/// How a buffer is registered.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BufferFlags(pub c_int);

impl BufferFlags {
    /// Nothing special.
    pub const NONE: Self = Self(0);
    /// Also for RDMA.
    pub const RDMA_REGISTER: Self = Self(1);
    /// RDMA may be reordered.
    pub const RDMA_RELAXED_ORDERING: Self = Self(2);
}

bits! {
    /// How far a request of a batch has come, `CUfileStatus_t`.
    BatchStatus {
        /// Not begun.
        WAITING = 0x1, "waiting";
        /// Under way.
        PENDING = 0x2, "pending";
        /// Its arguments were refused.
        INVALID = 0x4, "invalid";
        /// Cancelled.
        CANCELED = 0x8, "cancelled";
        /// Ended: the result says how.
        COMPLETE = 0x10, "complete";
        /// Ran out of time.
        TIMEOUT = 0x20, "timed out";
        /// Failed: the result says why.
        FAILED = 0x40, "failed";
    }
    /// What is promised about operations in a stream when it is registered. None of them changes
    /// when the library reads the parameters: it does when the operation runs.
    StreamRegisterFlags {
        /// Buffer offsets are known when an operation is submitted.
        FIXED_BUF_OFFSET = 1, "fixed buffer offset";
        /// File offsets are known when an operation is submitted.
        FIXED_FILE_OFFSET = 2, "fixed file offset";
        /// Sizes are known when an operation is submitted.
        FIXED_FILE_SIZE = 4, "fixed size";
        /// All of these are multiples of 4 KiB.
        PAGE_ALIGNED_INPUTS = 8, "page aligned";
    }
    /// Where GPUDirect Storage is possible, `dstatusflags`.
    StatusFlags {
        /// Lustre.
        LUSTRE = 0x1, "Lustre";
        /// Weka.
        WEKA = 0x2, "Weka";
        /// NFS.
        NFS = 0x4, "NFS";
        /// GPFS.
        GPFS = 0x8, "GPFS";
        /// NVMe.
        NVME = 0x10, "NVMe";
        /// NVMe over fabrics.
        NVMEOF = 0x20, "NVMe-oF";
        /// SCSI.
        SCSI = 0x40, "SCSI";
        /// ScaleFlux CSD.
        SCALEFLUX_CSD = 0x80, "ScaleFlux CSD";
        /// NVMesh.
        NVMESH = 0x100, "NVMesh";
        /// BeeGFS.
        BEEGFS = 0x200, "BeeGFS";
        /// NVMe by P2PDMA; no longer set from 1.16 on.
        NVME_P2P = 0x800, "NVMe by P2PDMA";
        /// ScateFS.
        SCATEFS = 0x1000, "ScateFS";
        /// virtio-fs.
        VIRTIOFS = 0x2000, "virtio-fs";
        /// PanFS.
        PANFS = 0x4000, "PanFS";
    }
    /// How the library is set, `dcontrolflags`.
    ControlFlags {
        /// Completion is polled for.
        USE_POLL_MODE = 0x1, "poll mode";
        /// Reads and writes go through the host where GPUDirect Storage is not possible.
        ALLOW_COMPAT_MODE = 0x2, "compatibility mode allowed";
        /// Plain POSIX I/O (1.17 and later).
        POSIX_IO_MODE = 0x4, "plain POSIX I/O";
        /// What cannot go the direct way is read another way (1.17 and later).
        GDS_FALLBACK_IO = 0x10, "GDS fall-back I/O";
    }
    /// What the library can do, `fflags`.
    FeatureFlags {
        /// Over a nearer GPU.
        DYNAMIC_ROUTING = 0x1, "dynamic routing";
        /// Batches.
        BATCH_IO = 0x2, "batch I/O";
        /// Operations in streams.
        STREAMS = 0x4, "streams";
        /// One request on several threads.
        PARALLEL_IO = 0x8, "parallel I/O";
        /// P2PDMA.
        P2P = 0x10, "P2P";
    }
    /// Ways to a device, from 1.16 on.
    P2pFlags {
        /// The kernel's P2PDMA.
        P2PDMA = 1, "P2PDMA";
        /// nvidia-fs.
        NVFS = 2, "nvidia-fs";
        /// dma-buf.
        DMABUF = 4, "DMABUF";
        /// From chip to chip.
        C2C = 8, "C2C";
    }
}

impl StreamRegisterFlags {
    /// All four.
    pub const ALL: Self = Self(15);
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    fn layout<T>() -> (usize, usize) {
        (size_of::<T>(), align_of::<T>())
    }

    #[test]
    fn structures_have_the_size_and_alignment_of_the_headers() {
        assert_eq!(layout::<Status>(), (8, 4));
        assert_eq!(layout::<Descriptor>(), (24, 8));
        assert_eq!(layout::<DriverProperties>(), (56, 8));
        assert_eq!(layout::<IoParams>(), (64, 8));
        assert_eq!(layout::<IoEvent>(), (24, 8));
        assert_eq!(layout::<IoVec>(), (16, 8));
        assert_eq!(layout::<FileHandle>(), layout::<*mut c_void>());
        assert_eq!(layout::<Batch>(), layout::<*mut c_void>());
        assert_eq!(layout::<BufferFlags>(), layout::<c_int>());
        assert_eq!(layout::<Opcode>(), layout::<c_int>());
    }

    #[test]
    fn fields_lie_where_the_headers_have_them() {
        assert_eq!(offset_of!(Status, err), 0);
        assert_eq!(offset_of!(Status, cu_err), 4);
        assert_eq!(offset_of!(Descriptor, kind), 0);
        assert_eq!(offset_of!(Descriptor, fd), 8);
        assert_eq!(offset_of!(Descriptor, fs_ops), 16);
        assert_eq!(offset_of!(IoParams, mode), 0);
        assert_eq!(offset_of!(IoParams, base), 8);
        assert_eq!(offset_of!(IoParams, file_offset), 16);
        assert_eq!(offset_of!(IoParams, buf_offset), 24);
        assert_eq!(offset_of!(IoParams, size), 32);
        assert_eq!(offset_of!(IoParams, handle), 40);
        assert_eq!(offset_of!(IoParams, opcode), 48);
        assert_eq!(offset_of!(IoParams, cookie), 56);
        assert_eq!(offset_of!(IoEvent, cookie), 0);
        assert_eq!(offset_of!(IoEvent, status), 8);
        assert_eq!(offset_of!(IoEvent, ret), 16);
        assert_eq!(offset_of!(IoVec, base), 0);
        assert_eq!(offset_of!(IoVec, len), 8);
    }

    #[test]
    fn properties_lie_where_the_headers_have_them() {
        let offsets = [
            (offset_of!(DriverProperties, nvfs_major_version), 0),
            (offset_of!(DriverProperties, nvfs_minor_version), 4),
            (offset_of!(DriverProperties, poll_thresh_size), 8),
            (offset_of!(DriverProperties, max_direct_io_size), 16),
            (offset_of!(DriverProperties, status_flags), 24),
            (offset_of!(DriverProperties, control_flags), 28),
            (offset_of!(DriverProperties, feature_flags), 32),
            (offset_of!(DriverProperties, max_device_cache_size), 36),
            (offset_of!(DriverProperties, per_buffer_cache_size), 40),
            (offset_of!(DriverProperties, max_device_pinned_mem_size), 44),
            (offset_of!(DriverProperties, max_batch_io_size), 48),
            (offset_of!(DriverProperties, max_batch_io_timeout_ms), 52),
        ];
        for (found, expected) in offsets {
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn bits_have_names_and_others_stay_numbers() {
        let flags = StatusFlags::NVME | StatusFlags::VIRTIOFS | StatusFlags(0x8000_0000);
        assert_eq!(flags.to_string(), "NVMe, virtio-fs, 0x80000000");
        assert!(flags.contains(StatusFlags::NVME));
        assert!(!flags.contains(StatusFlags::NFS));
        assert_eq!(FeatureFlags::NONE.to_string(), "none");
        assert_eq!(FeatureFlags(0x100).to_string(), "0x100");
        assert_eq!(
            StreamRegisterFlags::FIXED_BUF_OFFSET
                | StreamRegisterFlags::FIXED_FILE_OFFSET
                | StreamRegisterFlags::FIXED_FILE_SIZE
                | StreamRegisterFlags::PAGE_ALIGNED_INPUTS,
            StreamRegisterFlags::ALL
        );
    }
}
