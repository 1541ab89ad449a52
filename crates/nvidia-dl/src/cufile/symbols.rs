//! The table of libcufile's functions.
//!
//! The types are declared here, and not checked by anyone.
#![allow(
    unsafe_code,
    reason = "an address becomes a function of a declared type"
)]

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

use super::types::{
    Batch, BufferFlags, Descriptor, DriverProperties, FileHandle, IoEvent, IoParams, IoVec, Status,
};
use crate::cuda::Stream;
use crate::table::table;

// `cuFileDriverClose_v2` is what the header makes of `cuFileDriverClose`.
table! {
    id read;
    required {
        driver_open = cuFileDriverOpen() -> Status;
        driver_close = cuFileDriverClose_v2 or cuFileDriverClose() -> Status;
        driver_get_properties = cuFileDriverGetProperties(*mut DriverProperties) -> Status;
        driver_set_poll_mode = cuFileDriverSetPollMode(bool, usize) -> Status;
        driver_set_max_direct_io_size = cuFileDriverSetMaxDirectIOSize(usize) -> Status;
        driver_set_max_cache_size = cuFileDriverSetMaxCacheSize(usize) -> Status;
        driver_set_max_pinned_mem_size = cuFileDriverSetMaxPinnedMemSize(usize) -> Status;
        use_count = cuFileUseCount() -> c_long;

        handle_register = cuFileHandleRegister(*mut FileHandle, *mut Descriptor) -> Status;
        handle_deregister = cuFileHandleDeregister(FileHandle) -> ();
        buf_register = cuFileBufRegister(*const c_void, usize, BufferFlags) -> Status;
        buf_deregister = cuFileBufDeregister(*const c_void) -> Status;
        read = cuFileRead(FileHandle, *mut c_void, usize, i64, i64) -> isize;
        write = cuFileWrite(FileHandle, *const c_void, usize, i64, i64) -> isize;
    }
    optional {
        batch_set_up = cuFileBatchIOSetUp(*mut Batch, c_uint) -> Status;
        batch_submit = cuFileBatchIOSubmit(Batch, c_uint, *mut IoParams, c_uint) -> Status;
        batch_get_status = cuFileBatchIOGetStatus(
            Batch, c_uint, *mut c_uint, *mut IoEvent, *mut libc::timespec
        ) -> Status;
        batch_cancel = cuFileBatchIOCancel(Batch) -> Status;
        batch_destroy = cuFileBatchIODestroy(Batch) -> ();

        read_async = cuFileReadAsync(
            FileHandle, *mut c_void, *mut usize, *mut i64, *mut i64, *mut isize, Stream
        ) -> Status;
        write_async = cuFileWriteAsync(
            FileHandle, *mut c_void, *mut usize, *mut i64, *mut i64, *mut isize, Stream
        ) -> Status;
        stream_register = cuFileStreamRegister(Stream, c_uint) -> Status;
        stream_deregister = cuFileStreamDeregister(Stream) -> Status;

        get_version = cuFileGetVersion(*mut c_int) -> Status;

        get_parameter_size = cuFileGetParameterSizeT(u32, *mut usize) -> Status;
        get_parameter_bool = cuFileGetParameterBool(u32, *mut u8) -> Status;
        get_parameter_string = cuFileGetParameterString(u32, *mut c_char, c_int) -> Status;
        set_parameter_size = cuFileSetParameterSizeT(u32, usize) -> Status;
        set_parameter_bool = cuFileSetParameterBool(u32, bool) -> Status;
        set_parameter_string = cuFileSetParameterString(u32, *const c_char) -> Status;

        set_stats_level = cuFileSetStatsLevel(c_int) -> Status;
        get_stats_level = cuFileGetStatsLevel(*mut c_int) -> Status;
        stats_start = cuFileStatsStart() -> Status;
        stats_stop = cuFileStatsStop() -> Status;
        stats_reset = cuFileStatsReset() -> Status;
        get_stats_l1 = cuFileGetStatsL1(*mut c_void) -> Status;
        get_stats_l2 = cuFileGetStatsL2(*mut c_void) -> Status;
        get_stats_l3 = cuFileGetStatsL3(*mut c_void) -> Status;
        get_bar_size_kb = cuFileGetBARSizeInKB(c_int, *mut usize) -> Status;
        get_parameter_min_max = cuFileGetParameterMinMaxValue(
            u32, *mut usize, *mut usize
        ) -> Status;
        get_posix_pool = cuFileGetParameterPosixPoolSlabArray(
            *mut usize, *mut usize, c_int
        ) -> Status;
        set_posix_pool = cuFileSetParameterPosixPoolSlabArray(
            *const usize, *const usize, c_int
        ) -> Status;

        get_p2p_flags = cuFileDriverGetP2PFlags(u32, *mut u32) -> Status;
        set_p2p_flags = cuFileDriverSetP2PFlags(u32, u32) -> Status;

        export_pcie_topology = cuFileExportPCIeTopology(*const c_char) -> Status;
        get_bounce_buffers = cuFileGetParameterGpuBounceBufferSlabArray(
            *mut usize, *mut usize, c_int
        ) -> Status;
        set_bounce_buffers = cuFileSetParameterGpuBounceBufferSlabArray(
            *const usize, *const usize, c_int
        ) -> Status;

        readv = cuFileReadv(FileHandle, *const IoVec, usize, i64, c_uint) -> isize;
        writev = cuFileWritev(FileHandle, *const IoVec, usize, i64, c_uint) -> isize;
    }
}
