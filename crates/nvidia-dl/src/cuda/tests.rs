//! Failures looked for: a wrapper that calls another function than its name says, or names another
//! in its error; a code that is taken for one that it is not; an answer of the driver that is read
//! from the wrong place or at the wrong width.
//!
//! Mechanism: about fifty wrappers that look alike, and answers that arrive through untyped
//! pointers.
//!
//! Method: tables without a library. In the first, each function ends with a code that tells its
//! place, so that a wrapper's error must name the function that was in truth called.
//!
//! Unsafe, because the wrappers are; the functions behind them touch nothing.
#![allow(unsafe_code, reason = "the wrappers under test are unsafe")]

use std::ffi::{c_char, c_uint, c_void};
use std::{ptr, slice};

use super::symbols::Symbols;
use super::*;

fn error_of<T: std::fmt::Debug>(result: Result<T, CudaError>) -> CudaError {
    result.unwrap_err()
}

/// The errors of all safe wrappers, and of the unsafe ones that are given null everywhere.
fn all_errors(driver: &Driver) -> Vec<CudaError> {
    let (device, address, null) = (Device(0), DevicePtr::NULL, ptr::null_mut::<u8>());
    let (stream, event) = (Stream::NULL, Event::NULL);
    let mut errors = vec![
        error_of(driver.init()),
        error_of(driver.driver_version()),
        error_of(driver.device_count()),
        error_of(driver.device(0)),
        error_of(driver.device_name(device)),
        error_of(driver.device_total_mem(device)),
        error_of(driver.device_attribute(DeviceAttribute::MEMORY_POOLS_SUPPORTED, device)),
        error_of(driver.primary_ctx_retain(device)),
        error_of(driver.ctx_get_current()),
        error_of(driver.ctx_get_device()),
        error_of(driver.ctx_synchronize()),
        error_of(driver.stream_create(StreamFlags::NON_BLOCKING)),
        error_of(driver.event_create(EventFlags::DISABLE_TIMING)),
        error_of(driver.mem_alloc(1)),
        error_of(driver.mem_get_info()),
        error_of(driver.pointer_attributes(address)),
        error_of(driver.device_pci_bus_id(device)),
        error_of(driver.mem_get_address_range(address)),
        error_of(driver.host_get_device_pointer(null)),
    ];
    // SAFETY: no function of this table touches anything.
    let unsafe_ones = unsafe { errors_of_unsafe(driver, device, stream, event, address, null) };
    errors.extend(unsafe_ones);
    errors
}

/// # Safety
///
/// No function of the driver's table touches anything.
#[allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "one fact makes all of them sound: the functions touch nothing"
)]
unsafe fn errors_of_unsafe(
    driver: &Driver,
    device: Device,
    stream: Stream,
    event: Event,
    address: DevicePtr,
    null: *mut u8,
) -> Vec<CudaError> {
    // SAFETY: the caller's promise.
    unsafe {
        vec![
            error_of(driver.primary_ctx_release(device)),
            error_of(driver.ctx_set_current(None)),
            error_of(driver.stream_query(stream)),
            error_of(driver.stream_synchronize(stream)),
            error_of(driver.stream_wait_event(stream, event)),
            error_of(driver.stream_get_ctx(stream)),
            error_of(driver.stream_destroy(stream)),
            error_of(driver.event_record(event, stream)),
            error_of(driver.event_query(event)),
            error_of(driver.event_synchronize(event)),
            error_of(driver.event_destroy(event)),
            error_of(driver.mem_free(address)),
            error_of(driver.mem_alloc_async(1, stream)),
            error_of(driver.mem_free_async(address, stream)),
            error_of(driver.memset_d8(address, 0, 1)),
            error_of(driver.memset_d8_async(address, 0, 1, stream)),
            error_of(driver.memcpy_htod(address, null, 1)),
            error_of(driver.memcpy_dtoh(null, address, 1)),
            error_of(driver.memcpy_htod_async(address, null, 1, stream)),
            error_of(driver.memcpy_dtoh_async(null, address, 1, stream)),
            error_of(driver.memcpy_dtod_async(address, address, 1, stream)),
            error_of(driver.host_register(null, 1, HostRegisterFlags::PORTABLE)),
            error_of(driver.host_unregister(null)),
        ]
    }
}

/// Called for a purpose of ours, and with an error that is not passed on.
const WITHOUT_WRAPPER: [&str; 4] = [
    "cuGetErrorName",
    "cuGetErrorString",
    "cuMemRetainAllocationHandle",
    "cuMemRelease",
];

#[test]
fn every_wrapper_calls_the_function_that_its_error_names() {
    let driver = Driver::of(Symbols::telling_their_places());
    let errors = all_errors(&driver);
    let symbols = || REQUIRED_SYMBOLS.iter().chain(OPTIONAL_SYMBOLS).copied();
    for error in &errors {
        let code = error.result().unwrap().0;
        let called = symbols().nth(usize::try_from(code - 10_000).unwrap());
        assert_eq!(called, Some(error.call()), "{error}");
    }
    for symbol in symbols().filter(|symbol| !WITHOUT_WRAPPER.contains(symbol)) {
        let named = errors.iter().filter(|error| error.call() == symbol);
        assert_eq!(named.count(), 1, "wrappers of {symbol}");
    }
}

#[test]
fn a_missing_optional_function_is_named_by_the_call_that_needs_it() {
    let mut symbols = Symbols::telling_their_places();
    symbols.mem_alloc_async = None;
    symbols.device_get_pci_bus_id = None;
    let driver = Driver::of(symbols);
    assert_eq!(
        driver.missing_symbols(),
        ["cuDeviceGetPCIBusId", "cuMemAllocAsync"]
    );
    let error = driver.device_pci_bus_id(Device(0)).unwrap_err();
    assert_eq!(error.call(), "cuDeviceGetPCIBusId");
    assert_eq!(error.result(), None);
    assert!(
        error.to_string().contains("no cuDeviceGetPCIBusId"),
        "{error}"
    );
}

fn succeeding(code: CuResult) -> Driver {
    extern "C" fn ready(_: Event) -> CuResult {
        CuResult::SUCCESS
    }
    extern "C" fn not_ready(_: Event) -> CuResult {
        CuResult::NOT_READY
    }
    let mut symbols = Symbols::telling_their_places();
    symbols.event_query = if code.is_success() { ready } else { not_ready };
    Driver::of(symbols)
}

#[test]
fn work_that_has_not_ended_is_no_error() {
    for (code, ready) in [(CuResult::SUCCESS, true), (CuResult::NOT_READY, false)] {
        let driver = succeeding(code);
        // SAFETY: the function of this table touches nothing.
        let answer = unsafe { driver.event_query(Event::NULL) };
        assert_eq!(answer, Ok(ready));
    }
}

#[test]
fn a_code_that_nobody_knows_stays_a_number() {
    extern "C" fn unheard_of(_: c_uint) -> CuResult {
        CuResult(9999)
    }
    let mut symbols = Symbols::telling_their_places();
    symbols.init = unheard_of;
    let error = Driver::of(symbols).init().unwrap_err();
    assert_eq!(error.result(), Some(CuResult(9999)));
    assert_eq!(error.to_string(), "cuInit failed: unknown CUDA code 9999");
}

#[test]
fn a_code_that_only_the_driver_knows_gets_the_drivers_words() {
    extern "C" fn of_tomorrow(_: c_uint) -> CuResult {
        CuResult(9999)
    }
    extern "C" fn name(code: CuResult, text: *mut *const c_char) -> CuResult {
        assert_eq!(code, CuResult(9999));
        // SAFETY: the caller gives a place for one pointer.
        unsafe { text.write(c"CUDA_ERROR_OF_TOMORROW".as_ptr()) };
        CuResult::SUCCESS
    }
    extern "C" fn meaning(_: CuResult, text: *mut *const c_char) -> CuResult {
        // SAFETY: as above.
        unsafe { text.write(c"not yet".as_ptr()) };
        CuResult::SUCCESS
    }
    let mut symbols = Symbols::telling_their_places();
    symbols.init = of_tomorrow;
    symbols.get_error_name = name;
    symbols.get_error_string = meaning;
    let error = Driver::of(symbols).init().unwrap_err();
    assert_eq!(
        error.to_string(),
        "cuInit failed: CUDA_ERROR_OF_TOMORROW (9999): not yet"
    );
}

#[test]
fn a_device_name_without_an_end_is_cut_and_never_overrun() {
    extern "C" fn endless(text: *mut c_char, capacity: i32, _: Device) -> CuResult {
        let capacity = usize::try_from(capacity).unwrap();
        // SAFETY: the caller gives a place of `capacity` bytes.
        unsafe { text.cast::<u8>().write_bytes(b'x', capacity) };
        CuResult::SUCCESS
    }
    let mut symbols = Symbols::telling_their_places();
    symbols.device_get_name = endless;
    let name = Driver::of(symbols).device_name(Device(0)).unwrap();
    assert_eq!(name, "x".repeat(256));
}

/// A driver of CUDA 11 or later, in miniature: addresses from 4096 on are of the kind that the
/// thousands digit tells.
mod pointers {
    use super::*;

    const DEVICE: u64 = 0x1000;
    const POOL: u64 = 0x2000;
    const VIRTUAL: u64 = 0x3000;
    const HOST: u64 = 0x4000;
    const MANAGED: u64 = 0x5000;
    const LATER_KIND: u64 = 0x6000;

    extern "C" fn attributes(
        count: c_uint,
        asked: *const PointerAttribute,
        places: *const *mut c_void,
        address: DevicePtr,
    ) -> CuResult {
        let count = usize::try_from(count).unwrap();
        // SAFETY: the caller gives `count` attributes.
        let asked = unsafe { slice::from_raw_parts(asked, count) };
        // SAFETY: and as many places.
        let places = unsafe { slice::from_raw_parts(places, count) };
        for (&attribute, &place) in asked.iter().zip(places) {
            answer(attribute, place, address.0);
        }
        CuResult::SUCCESS
    }

    /// Writes as many bytes as the documentation says.
    fn answer(attribute: PointerAttribute, place: *mut c_void, address: u64) {
        let base = address & !0xfff;
        let known = (DEVICE..=LATER_KIND).contains(&base);
        let memory_type = match base {
            DEVICE | POOL | VIRTUAL | MANAGED => MemoryType::DEVICE.0,
            HOST => MemoryType::HOST.0,
            LATER_KIND => 77,
            _ => 0,
        };
        let write = |bytes: &[u8]| {
            // SAFETY: each place has 8 bytes, and no answer is longer.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast(), bytes.len()) };
        };
        match attribute {
            PointerAttribute::MEMORY_TYPE => write(&memory_type.to_ne_bytes()),
            PointerAttribute::DEVICE_ORDINAL => {
                write(&(if known { 3_i32 } else { -2 }).to_ne_bytes());
            }
            PointerAttribute::IS_MANAGED => write(&[u8::from(base == MANAGED)]),
            PointerAttribute::MAPPED => write(&[u8::from(known)]),
            PointerAttribute::IS_LEGACY_CUDA_IPC_CAPABLE => write(&[u8::from(base == DEVICE)]),
            PointerAttribute::CONTEXT if base == DEVICE => write(&0xc0_u64.to_ne_bytes()),
            PointerAttribute::MEMPOOL_HANDLE if base == POOL => write(&0xb0_u64.to_ne_bytes()),
            PointerAttribute::DEVICE_POINTER if known => write(&address.to_ne_bytes()),
            PointerAttribute::HOST_POINTER if base == HOST => write(&address.to_ne_bytes()),
            PointerAttribute::RANGE_START_ADDR if known => write(&base.to_ne_bytes()),
            PointerAttribute::RANGE_SIZE if known => write(&0x800_u64.to_ne_bytes()),
            _ => write(&0_u64.to_ne_bytes()),
        }
    }

    /// One that knows ten attributes, as the first drivers of CUDA 11.
    extern "C" fn without_pools(
        count: c_uint,
        asked: *const PointerAttribute,
        places: *const *mut c_void,
        address: DevicePtr,
    ) -> CuResult {
        match count {
            ..=10 => attributes(count, asked, places, address),
            _ => CuResult::INVALID_VALUE,
        }
    }

    extern "C" fn refusing(
        _: c_uint,
        _: *const PointerAttribute,
        _: *const *mut c_void,
        _: DevicePtr,
    ) -> CuResult {
        CuResult::INVALID_VALUE
    }

    extern "C" fn retain(handle: *mut u64, address: *mut c_void) -> CuResult {
        if address.addr() & !0xfff != usize::try_from(VIRTUAL).unwrap() {
            return CuResult::INVALID_VALUE;
        }
        // SAFETY: the caller gives a place for one number.
        unsafe { handle.write(42) };
        CuResult::SUCCESS
    }

    extern "C" fn release(handle: u64) -> CuResult {
        match handle {
            42 => CuResult::SUCCESS,
            _ => CuResult::INVALID_HANDLE,
        }
    }

    fn symbols() -> Symbols {
        let mut symbols = Symbols::telling_their_places();
        symbols.pointer_get_attributes = attributes;
        symbols.mem_retain_allocation_handle = Some(retain);
        symbols.mem_release = Some(release);
        symbols
    }

    fn of(symbols: Symbols, address: u64) -> PointerAttributes {
        let driver = Driver::of(symbols);
        driver.pointer_attributes(DevicePtr(address)).unwrap()
    }

    #[test]
    fn every_attribute_is_read_from_its_place_at_its_width() {
        let device = of(symbols(), DEVICE + 8);
        assert_eq!(device.context.unwrap().as_raw().addr(), 0xc0);
        assert_eq!(device.memory_type, MemoryType::DEVICE);
        assert_eq!(device.device_ordinal, 3);
        assert!(!device.is_managed);
        assert!(device.is_legacy_cuda_ipc_capable);
        assert!(device.is_mapped);
        assert_eq!(device.mempool_handle, None);
        assert_eq!(device.device_pointer, Some(DevicePtr(DEVICE + 8)));
        assert_eq!(device.host_pointer, None);
        assert_eq!(device.range_start, Some(DevicePtr(DEVICE)));
        assert_eq!(device.range_bytes, 0x800);
        let pool = of(symbols(), POOL);
        assert_eq!(pool.mempool_handle.unwrap().as_raw().addr(), 0xb0);
        let host = of(symbols(), HOST + 1);
        assert_eq!(host.host_pointer, usize::try_from(HOST + 1).ok());
    }

    #[test]
    fn memory_is_told_apart_by_how_it_was_made() {
        let kinds = [
            (0, AllocationKind::Unknown),
            (DEVICE, AllocationKind::Device),
            (POOL, AllocationKind::Pool),
            (VIRTUAL, AllocationKind::Virtual),
            (HOST, AllocationKind::Host),
            (MANAGED, AllocationKind::Managed),
            (LATER_KIND, AllocationKind::Other),
        ];
        for (address, kind) in kinds {
            assert_eq!(of(symbols(), address).kind, kind, "{address:#x}");
        }
    }

    #[test]
    fn an_unknown_address_is_an_answer_and_no_error() {
        let unknown = of(symbols(), 0x10);
        assert_eq!(unknown.memory_type, MemoryType::UNKNOWN);
        assert_eq!(unknown.device_ordinal, -2);
        assert_eq!(unknown.range_start, None);
    }

    #[test]
    fn an_older_driver_is_asked_for_less() {
        let mut older = symbols();
        older.pointer_get_attributes = without_pools;
        let attributes = of(older, POOL);
        assert_eq!(attributes.kind, AllocationKind::Device);
        assert_eq!(attributes.range_bytes, 0x800);
        assert_eq!(attributes.mempool_handle, None);
    }

    #[test]
    fn a_driver_that_refuses_every_question_is_an_error() {
        let mut deaf = symbols();
        deaf.pointer_get_attributes = refusing;
        let error = Driver::of(deaf).pointer_attributes(DevicePtr(DEVICE));
        assert_eq!(error.unwrap_err().result(), Some(CuResult::INVALID_VALUE));
    }

    #[test]
    fn without_the_call_for_virtual_memory_it_counts_as_device_memory() {
        let mut older = symbols();
        older.mem_retain_allocation_handle = None;
        assert_eq!(of(older, VIRTUAL).kind, AllocationKind::Device);
    }
}
