//! The driver's codes: integers with names.

use std::fmt;

/// A code that a call of the driver ended with, `CUresult`.
///
/// An integer, so that a code which a later driver invents is still a value: it is kept, compared
/// and printed.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct CuResult(pub i32);

impl CuResult {
    /// CUDA's name of the code, or none for a code that is not in the table of this crate.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        self.entry().map(|entry| entry.name)
    }

    /// What the code means, in a few words.
    #[must_use]
    pub fn meaning(self) -> Option<&'static str> {
        self.entry().map(|entry| entry.meaning)
    }

    /// Whether the code is [`SUCCESS`](Self::SUCCESS).
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::SUCCESS
    }

    /// Whether CUDA cannot be used any more in this context or process, whatever is done: every
    /// later call gives the same code, and what was queued may or may not have happened.
    ///
    /// These are the codes of which the driver's documentation says so, and the uncorrectable
    /// errors of memory and NVLink.
    #[must_use]
    pub fn ends_context(self) -> bool {
        matches!(
            self,
            Self::DEINITIALIZED
                | Self::ECC_UNCORRECTABLE
                | Self::NVLINK_UNCORRECTABLE
                | Self::CONTAINED
                | Self::ILLEGAL_ADDRESS
                | Self::LAUNCH_TIMEOUT
                | Self::CONTEXT_IS_DESTROYED
                | Self::ASSERT
                | Self::HARDWARE_STACK_ERROR
                | Self::ILLEGAL_INSTRUCTION
                | Self::MISALIGNED_ADDRESS
                | Self::INVALID_ADDRESS_SPACE
                | Self::INVALID_PC
                | Self::LAUNCH_FAILED
                | Self::TENSOR_MEMORY_LEAK
                | Self::MPS_CLIENT_TERMINATED
                | Self::EXTERNAL_DEVICE
        )
    }

    fn entry(self) -> Option<&'static Entry> {
        let place = CODES.binary_search_by_key(&self.0, |entry| entry.code);
        place.ok().and_then(|index| CODES.get(index))
    }
}

impl fmt::Display for CuResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "unknown CUDA code {}", self.0),
        }
    }
}

struct Entry {
    code: i32,
    name: &'static str,
    meaning: &'static str,
}

macro_rules! codes {
    ($($short:ident = $code:literal, $name:ident, $meaning:literal;)*) => {
        impl CuResult {
            $(
                #[doc = concat!("`", stringify!($name), "`: ", $meaning, ".")]
                pub const $short: Self = Self($code);
            )*
        }

        /// In the order of the codes.
        const CODES: &[Entry] = &[$(Entry {
            code: $code,
            name: stringify!($name),
            meaning: $meaning,
        }),*];
    };
}

codes! {
    SUCCESS = 0, CUDA_SUCCESS, "the call did what it says";
    INVALID_VALUE = 1, CUDA_ERROR_INVALID_VALUE, "an argument is outside of what the call takes";
    OUT_OF_MEMORY = 2, CUDA_ERROR_OUT_OF_MEMORY, "the device or the driver has not enough memory";
    NOT_INITIALIZED = 3, CUDA_ERROR_NOT_INITIALIZED, "cuInit was not called, or failed";
    DEINITIALIZED = 4, CUDA_ERROR_DEINITIALIZED, "the driver is shutting down, as it does when the process exits";
    PROFILER_DISABLED = 5, CUDA_ERROR_PROFILER_DISABLED, "the profiler is not set up for this run";
    PROFILER_NOT_INITIALIZED = 6, CUDA_ERROR_PROFILER_NOT_INITIALIZED, "the profiler was not initialised";
    PROFILER_ALREADY_STARTED = 7, CUDA_ERROR_PROFILER_ALREADY_STARTED, "the profiler runs already";
    PROFILER_ALREADY_STOPPED = 8, CUDA_ERROR_PROFILER_ALREADY_STOPPED, "the profiler does not run";
    STUB_LIBRARY = 34, CUDA_ERROR_STUB_LIBRARY, "this libcuda is the toolkit's stub for linking, not a driver";
    DEVICE_UNAVAILABLE = 46, CUDA_ERROR_DEVICE_UNAVAILABLE, "the device is taken, for example in exclusive mode by another process";
    NO_DEVICE = 100, CUDA_ERROR_NO_DEVICE, "the driver sees no device";
    INVALID_DEVICE = 101, CUDA_ERROR_INVALID_DEVICE, "there is no such device";
    DEVICE_NOT_LICENSED = 102, CUDA_ERROR_DEVICE_NOT_LICENSED, "the virtual GPU has no licence";
    INVALID_IMAGE = 200, CUDA_ERROR_INVALID_IMAGE, "the kernel image is not valid";
    INVALID_CONTEXT = 201, CUDA_ERROR_INVALID_CONTEXT, "no context is current in this thread, or not a valid one";
    CONTEXT_ALREADY_CURRENT = 202, CUDA_ERROR_CONTEXT_ALREADY_CURRENT, "the context is current already";
    MAP_FAILED = 205, CUDA_ERROR_MAP_FAILED, "mapping failed";
    UNMAP_FAILED = 206, CUDA_ERROR_UNMAP_FAILED, "unmapping failed";
    ARRAY_IS_MAPPED = 207, CUDA_ERROR_ARRAY_IS_MAPPED, "a mapped array cannot be destroyed";
    ALREADY_MAPPED = 208, CUDA_ERROR_ALREADY_MAPPED, "the resource is mapped already";
    NO_BINARY_FOR_GPU = 209, CUDA_ERROR_NO_BINARY_FOR_GPU, "the kernel image has no code for this device";
    ALREADY_ACQUIRED = 210, CUDA_ERROR_ALREADY_ACQUIRED, "the resource was acquired already";
    NOT_MAPPED = 211, CUDA_ERROR_NOT_MAPPED, "the resource is not mapped";
    NOT_MAPPED_AS_ARRAY = 212, CUDA_ERROR_NOT_MAPPED_AS_ARRAY, "the resource is not mapped as an array";
    NOT_MAPPED_AS_POINTER = 213, CUDA_ERROR_NOT_MAPPED_AS_POINTER, "the resource is not mapped as a pointer";
    ECC_UNCORRECTABLE = 214, CUDA_ERROR_ECC_UNCORRECTABLE, "memory of the device has an error that could not be corrected";
    UNSUPPORTED_LIMIT = 215, CUDA_ERROR_UNSUPPORTED_LIMIT, "the device does not have this limit";
    CONTEXT_ALREADY_IN_USE = 216, CUDA_ERROR_CONTEXT_ALREADY_IN_USE, "the context is in use by another thread";
    PEER_ACCESS_UNSUPPORTED = 217, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "these devices cannot reach each other's memory";
    INVALID_PTX = 218, CUDA_ERROR_INVALID_PTX, "the PTX could not be compiled";
    INVALID_GRAPHICS_CONTEXT = 219, CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, "the graphics context is not valid";
    NVLINK_UNCORRECTABLE = 220, CUDA_ERROR_NVLINK_UNCORRECTABLE, "NVLink had an error that could not be corrected";
    JIT_COMPILER_NOT_FOUND = 221, CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "the PTX compiler library is not installed";
    UNSUPPORTED_PTX_VERSION = 222, CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "the PTX is newer than the driver";
    JIT_COMPILATION_DISABLED = 223, CUDA_ERROR_JIT_COMPILATION_DISABLED, "compiling PTX is switched off";
    UNSUPPORTED_EXEC_AFFINITY = 224, CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, "the device does not have this kind of affinity";
    UNSUPPORTED_DEVSIDE_SYNC = 225, CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC, "the code synchronises on the device, which is not supported";
    CONTAINED = 226, CUDA_ERROR_CONTAINED, "an error of the device was contained, and the process must be restarted to use CUDA";
    INVALID_SOURCE = 300, CUDA_ERROR_INVALID_SOURCE, "the kernel source is not valid";
    FILE_NOT_FOUND = 301, CUDA_ERROR_FILE_NOT_FOUND, "a file is not there";
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302, CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, "a library of the driver lacks a symbol";
    SHARED_OBJECT_INIT_FAILED = 303, CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "a library of the driver could not be initialised";
    OPERATING_SYSTEM = 304, CUDA_ERROR_OPERATING_SYSTEM, "a system call failed, for example for want of permission on /dev/nvidia*";
    INVALID_HANDLE = 400, CUDA_ERROR_INVALID_HANDLE, "a handle (context, stream, event) is not valid here";
    ILLEGAL_STATE = 401, CUDA_ERROR_ILLEGAL_STATE, "a resource is not in a state that allows this";
    LOSSY_QUERY = 402, CUDA_ERROR_LOSSY_QUERY, "the answer would lose information";
    NOT_FOUND = 500, CUDA_ERROR_NOT_FOUND, "a name was not found";
    NOT_READY = 600, CUDA_ERROR_NOT_READY, "earlier work has not ended yet";
    ILLEGAL_ADDRESS = 700, CUDA_ERROR_ILLEGAL_ADDRESS, "the device used an address that is not valid";
    LAUNCH_OUT_OF_RESOURCES = 701, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "a kernel needs more than the device has";
    LAUNCH_TIMEOUT = 702, CUDA_ERROR_LAUNCH_TIMEOUT, "a kernel ran longer than the device allows";
    LAUNCH_INCOMPATIBLE_TEXTURING = 703, CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, "texturing modes do not fit";
    PEER_ACCESS_ALREADY_ENABLED = 704, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is enabled already";
    PEER_ACCESS_NOT_ENABLED = 705, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access is not enabled";
    PRIMARY_CONTEXT_ACTIVE = 708, CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "the device's primary context exists already";
    CONTEXT_IS_DESTROYED = 709, CUDA_ERROR_CONTEXT_IS_DESTROYED, "the current context was destroyed, or is a primary one that is not initialised";
    ASSERT = 710, CUDA_ERROR_ASSERT, "an assertion failed on the device";
    TOO_MANY_PEERS = 711, CUDA_ERROR_TOO_MANY_PEERS, "the hardware has no room for more peers";
    HOST_MEMORY_ALREADY_REGISTERED = 712, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "the host memory is registered already, in part or whole";
    HOST_MEMORY_NOT_REGISTERED = 713, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "the host memory is not registered";
    HARDWARE_STACK_ERROR = 714, CUDA_ERROR_HARDWARE_STACK_ERROR, "the device had a stack error";
    ILLEGAL_INSTRUCTION = 715, CUDA_ERROR_ILLEGAL_INSTRUCTION, "the device met an illegal instruction";
    MISALIGNED_ADDRESS = 716, CUDA_ERROR_MISALIGNED_ADDRESS, "the device used an address that is not aligned";
    INVALID_ADDRESS_SPACE = 717, CUDA_ERROR_INVALID_ADDRESS_SPACE, "the device used an address of another address space";
    INVALID_PC = 718, CUDA_ERROR_INVALID_PC, "the device's program counter left its range";
    LAUNCH_FAILED = 719, CUDA_ERROR_LAUNCH_FAILED, "a kernel failed";
    COOPERATIVE_LAUNCH_TOO_LARGE = 720, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "a cooperative launch has more blocks than run at once";
    TENSOR_MEMORY_LEAK = 721, CUDA_ERROR_TENSOR_MEMORY_LEAK, "a kernel ended without giving its tensor memory back";
    NOT_PERMITTED = 800, CUDA_ERROR_NOT_PERMITTED, "the operation is not permitted";
    NOT_SUPPORTED = 801, CUDA_ERROR_NOT_SUPPORTED, "the system or the device does not support this";
    SYSTEM_NOT_READY = 802, CUDA_ERROR_SYSTEM_NOT_READY, "the system is not ready for CUDA, for example because the fabric manager does not run";
    SYSTEM_DRIVER_MISMATCH = 803, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "libcuda and the kernel's driver are of different versions";
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804, CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "the forward-compatible libcuda does not support this device";
    MPS_CONNECTION_FAILED = 805, CUDA_ERROR_MPS_CONNECTION_FAILED, "the MPS daemon or server could not be reached";
    MPS_RPC_FAILURE = 806, CUDA_ERROR_MPS_RPC_FAILURE, "a call to the MPS server failed";
    MPS_SERVER_NOT_READY = 807, CUDA_ERROR_MPS_SERVER_NOT_READY, "the MPS server is not ready";
    MPS_MAX_CLIENTS_REACHED = 808, CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, "the MPS server has no room for another client";
    MPS_MAX_CONNECTIONS_REACHED = 809, CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, "the device has no room for another MPS connection";
    MPS_CLIENT_TERMINATED = 810, CUDA_ERROR_MPS_CLIENT_TERMINATED, "the MPS server ended this client";
    CDP_NOT_SUPPORTED = 811, CUDA_ERROR_CDP_NOT_SUPPORTED, "kernels cannot launch kernels here";
    CDP_VERSION_MISMATCH = 812, CUDA_ERROR_CDP_VERSION_MISMATCH, "two versions of kernels launching kernels meet";
    STREAM_CAPTURE_UNSUPPORTED = 900, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "not while a stream is being captured";
    STREAM_CAPTURE_INVALIDATED = 901, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "an earlier error made the capture invalid";
    STREAM_CAPTURE_MERGE = 902, CUDA_ERROR_STREAM_CAPTURE_MERGE, "this would join two captures";
    STREAM_CAPTURE_UNMATCHED = 903, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the capture did not begin in this stream";
    STREAM_CAPTURE_UNJOINED = 904, CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "the capture has a branch that was not joined";
    STREAM_CAPTURE_ISOLATION = 905, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "a dependency would leave the capture";
    STREAM_CAPTURE_IMPLICIT = 906, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "the legacy default stream would join the capture";
    CAPTURED_EVENT = 907, CUDA_ERROR_CAPTURED_EVENT, "the event was last recorded in a capture";
    STREAM_CAPTURE_WRONG_THREAD = 908, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "the capture began in another thread";
    TIMEOUT = 909, CUDA_ERROR_TIMEOUT, "the wait's time is over";
    GRAPH_EXEC_UPDATE_FAILURE = 910, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "the graph cannot be updated so";
    EXTERNAL_DEVICE = 911, CUDA_ERROR_EXTERNAL_DEVICE, "a device outside of CUDA failed";
    INVALID_CLUSTER_SIZE = 912, CUDA_ERROR_INVALID_CLUSTER_SIZE, "the launch's clusters are misconfigured";
    FUNCTION_NOT_LOADED = 913, CUDA_ERROR_FUNCTION_NOT_LOADED, "the function is not loaded";
    INVALID_RESOURCE_TYPE = 914, CUDA_ERROR_INVALID_RESOURCE_TYPE, "a resource is of the wrong type";
    INVALID_RESOURCE_CONFIGURATION = 915, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "resources are too few, or do not fit";
    KEY_ROTATION = 916, CUDA_ERROR_KEY_ROTATION, "rotating keys failed";
    STREAM_DETACHED = 917, CUDA_ERROR_STREAM_DETACHED, "the stream is detached";
    GRAPH_RECAPTURE_FAILURE = 918, CUDA_ERROR_GRAPH_RECAPTURE_FAILURE, "the graph could not be captured again";
    UNKNOWN = 999, CUDA_ERROR_UNKNOWN, "the driver does not say";
}
