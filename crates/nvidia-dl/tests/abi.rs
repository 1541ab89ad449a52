//! Failure looked for: a type that the driver takes at another size than ours, or a code that
//! turns into another.
//!
//! Mechanism: our declarations are checked by no header.
//!
//! Method: sizes against the C types of the documentation; codes against names picked from it by
//! hand; and the whole table of codes walked.

use std::ffi::{c_int, c_uint, c_void};

use nvidia_dl::cuda::{
    Context, CuResult, CudaError, Device, DeviceAttribute, DevicePtr, Driver, DriverVersion, Event,
    EventFlags, HostRegisterFlags, MemoryPool, MemoryType, OPTIONAL_SYMBOLS, PointerAttribute,
    REQUIRED_SYMBOLS, Stream, StreamFlags,
};

fn layout<T>() -> (usize, usize) {
    (size_of::<T>(), align_of::<T>())
}

#[test]
fn handles_and_addresses_have_the_size_of_the_drivers() {
    let pointer = layout::<*mut c_void>();
    assert_eq!(layout::<Context>(), pointer);
    assert_eq!(layout::<Stream>(), pointer);
    assert_eq!(layout::<Event>(), pointer);
    assert_eq!(layout::<MemoryPool>(), pointer);
    assert_eq!(layout::<DevicePtr>(), layout::<std::ffi::c_ulonglong>());
    assert_eq!(layout::<DevicePtr>(), pointer);
}

#[test]
fn numbers_have_the_size_of_the_drivers() {
    let int = layout::<c_int>();
    assert_eq!(layout::<CuResult>(), int);
    assert_eq!(layout::<Device>(), int);
    assert_eq!(layout::<DriverVersion>(), int);
    assert_eq!(layout::<DeviceAttribute>(), int);
    let uint = layout::<c_uint>();
    assert_eq!(layout::<StreamFlags>(), uint);
    assert_eq!(layout::<EventFlags>(), uint);
    assert_eq!(layout::<HostRegisterFlags>(), uint);
    assert_eq!(layout::<PointerAttribute>(), uint);
    assert_eq!(layout::<MemoryType>(), uint);
}

#[test]
fn codes_have_the_names_of_the_documentation() {
    let codes = [
        (0, "CUDA_SUCCESS"),
        (1, "CUDA_ERROR_INVALID_VALUE"),
        (2, "CUDA_ERROR_OUT_OF_MEMORY"),
        (3, "CUDA_ERROR_NOT_INITIALIZED"),
        (4, "CUDA_ERROR_DEINITIALIZED"),
        (34, "CUDA_ERROR_STUB_LIBRARY"),
        (100, "CUDA_ERROR_NO_DEVICE"),
        (101, "CUDA_ERROR_INVALID_DEVICE"),
        (201, "CUDA_ERROR_INVALID_CONTEXT"),
        (214, "CUDA_ERROR_ECC_UNCORRECTABLE"),
        (304, "CUDA_ERROR_OPERATING_SYSTEM"),
        (400, "CUDA_ERROR_INVALID_HANDLE"),
        (600, "CUDA_ERROR_NOT_READY"),
        (700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
        (712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"),
        (719, "CUDA_ERROR_LAUNCH_FAILED"),
        (801, "CUDA_ERROR_NOT_SUPPORTED"),
        (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
        (999, "CUDA_ERROR_UNKNOWN"),
    ];
    for (code, name) in codes {
        assert_eq!(CuResult(code).name(), Some(name));
    }
    assert_eq!(CuResult::NOT_READY, CuResult(600));
    assert_eq!(CuResult::ILLEGAL_ADDRESS, CuResult(700));
}

/// A table out of order would lose codes in the binary search: then fewer than all are found.
#[test]
fn every_code_of_the_table_is_found_once() {
    let names: Vec<_> = (-1..2000)
        .filter_map(|code| CuResult(code).name())
        .collect();
    assert_eq!(names.len(), CODES_KNOWN, "{names:?}");
    let mut once = names.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), names.len(), "a name stands for two codes");
    let errors = names.iter().filter(|name| name.starts_with("CUDA_ERROR_"));
    assert_eq!(errors.count(), names.len() - 1, "all but CUDA_SUCCESS");
}

/// The lines of the table, so that the walk has something to disagree with.
const CODES_KNOWN: usize = 102;

#[test]
fn an_unknown_code_is_kept_and_printed_as_a_number() {
    let unknown = CuResult(9999);
    assert_eq!(unknown.0, 9999);
    assert_eq!(unknown.name(), None);
    assert_eq!(unknown.meaning(), None);
    assert_eq!(unknown.to_string(), "unknown CUDA code 9999");
    assert!(!unknown.is_success());
    assert!(!unknown.ends_context());
    assert_eq!(CuResult(-1).to_string(), "unknown CUDA code -1");
}

#[test]
fn an_error_names_the_call_the_code_and_the_meaning() {
    let error = CudaError::failed("cuMemAlloc_v2", CuResult::OUT_OF_MEMORY);
    assert_eq!(
        error.to_string(),
        "cuMemAlloc_v2 failed: CUDA_ERROR_OUT_OF_MEMORY (2): \
         the device or the driver has not enough memory"
    );
}

#[test]
fn only_what_cannot_be_undone_ends_a_context() {
    assert!(CuResult::ILLEGAL_ADDRESS.ends_context());
    assert!(CuResult::LAUNCH_FAILED.ends_context());
    for passing in [
        CuResult::SUCCESS,
        CuResult::NOT_READY,
        CuResult::OUT_OF_MEMORY,
        CuResult::INVALID_VALUE,
        CuResult::HOST_MEMORY_ALREADY_REGISTERED,
    ] {
        assert!(!passing.ends_context(), "{passing}");
    }
}

#[test]
fn versions_are_read_as_cuda_writes_them() {
    let version = DriverVersion(12040);
    assert_eq!((version.major(), version.minor()), (12, 4));
    assert_eq!(version.to_string(), "12.4");
    assert_eq!(DriverVersion(13000).to_string(), "13.0");
}

#[test]
fn attributes_have_the_numbers_of_the_documentation() {
    let numbers = [
        (PointerAttribute::CONTEXT, 1),
        (PointerAttribute::MEMORY_TYPE, 2),
        (PointerAttribute::DEVICE_POINTER, 3),
        (PointerAttribute::HOST_POINTER, 4),
        (PointerAttribute::IS_MANAGED, 8),
        (PointerAttribute::DEVICE_ORDINAL, 9),
        (PointerAttribute::IS_LEGACY_CUDA_IPC_CAPABLE, 10),
        (PointerAttribute::RANGE_START_ADDR, 11),
        (PointerAttribute::RANGE_SIZE, 12),
        (PointerAttribute::MAPPED, 13),
        (PointerAttribute::MEMPOOL_HANDLE, 17),
    ];
    for (attribute, number) in numbers {
        assert_eq!(attribute.0, number);
    }
    assert_eq!(DeviceAttribute::MEMORY_POOLS_SUPPORTED.0, 115);
}

#[test]
fn no_symbol_is_listed_twice() {
    let mut all: Vec<_> = REQUIRED_SYMBOLS.iter().chain(OPTIONAL_SYMBOLS).collect();
    let listed = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), listed);
    assert!(all.iter().all(|symbol| symbol.starts_with("cu")));
}

#[test]
fn a_driver_and_its_handles_cross_threads() {
    fn crosses<T: Send + Sync + 'static>() {}
    crosses::<&'static Driver>();
    crosses::<Context>();
    crosses::<Stream>();
    crosses::<Event>();
    crosses::<CudaError>();
}
