//! Failures looked for: a wrapper that calls another function than its name says, or names another
//! in its error; arguments that the library would take and harm with; an errno that is another
//! call's; a structure that is read though it was not written.
//!
//! Mechanism: about fifty wrappers that look alike, and a library that checks little.
//!
//! Method: tables without a library, whose functions note which of them was called.
//!
//! Unsafe, because the wrappers are; the functions behind them touch nothing but what is given to
//! them here.
#![allow(unsafe_code, reason = "the wrappers under test are unsafe")]

mod arguments;

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::os::fd::AsFd;
use std::ptr;
use std::time::Duration;

use super::symbols::Symbols;
use super::*;
use crate::cuda::Stream;
use crate::table::Stub;

thread_local! {
    /// The function that was called last by this thread.
    static CALLED: Cell<Option<&'static str>> = const { Cell::new(None) };
}

const REFUSED: Status = Status {
    err: Code(9999),
    cu_err: 0,
};

impl Stub for Status {
    fn of(symbol: &'static str) -> Self {
        CALLED.set(Some(symbol));
        REFUSED
    }
}

impl Stub for isize {
    fn of(symbol: &'static str) -> Self {
        CALLED.set(Some(symbol));
        -9999
    }
}

impl Stub for i64 {
    fn of(symbol: &'static str) -> Self {
        CALLED.set(Some(symbol));
        0
    }
}

impl Stub for () {
    fn of(symbol: &'static str) {
        CALLED.set(Some(symbol));
    }
}

/// The error of a wrapper, and that it comes from the function that it names.
#[track_caller]
fn told<T: std::fmt::Debug>(result: Result<T, CufileError>) -> &'static str {
    let error = result.unwrap_err();
    let failure = error.failure().expect("the call was made");
    assert_eq!(failure.code(), Some(Code(9999)), "{error}");
    assert_eq!(CALLED.take(), Some(error.call()), "{error}");
    error.call()
}

fn transfer() -> Transfer {
    Transfer {
        base: ptr::null_mut(),
        buf_offset: 0,
        file_offset: 0,
        len: 1,
    }
}

/// All wrappers that can fail by a code and are safe.
fn safe_calls(library: &Library) -> Vec<&'static str> {
    let file = File::open("/dev/null").unwrap();
    vec![
        told(library.version()),
        told(library.driver_open()),
        told(library.driver_properties()),
        told(library.set_poll_mode(true, 4)),
        told(library.set_max_direct_io_size(1)),
        told(library.set_max_cache_size(1)),
        told(library.set_max_pinned_mem_size(1)),
        told(library.bar_size_kb(0)),
        told(library.p2p_flags(StatusFlags::NVME)),
        told(library.set_p2p_flags(StatusFlags::NVME, P2pFlags::P2PDMA)),
        told(library.handle_register(file.as_fd())),
        told(library.batch_set_up(1)),
        told(library.size_parameter(SizeParameter::IO_BATCHSIZE)),
        told(library.bool_parameter(BoolParameter::PARALLEL_IO)),
        told(library.string_parameter(StringParameter::LOG_DIR)),
        told(library.set_size_parameter(SizeParameter::IO_BATCHSIZE, 1)),
        told(library.set_bool_parameter(BoolParameter::PARALLEL_IO, true)),
        told(library.set_string_parameter(StringParameter::LOG_DIR, "/tmp")),
        told(library.size_parameter_range(SizeParameter::IO_BATCHSIZE)),
        told(library.posix_pool(3)),
        told(library.set_posix_pool(&[4], &[128])),
        told(library.bounce_buffers(3)),
        told(library.set_bounce_buffers(&[4], &[128])),
        told(library.export_pcie_topology("topology.json")),
        told(library.set_stats_level(StatsLevel::BASIC)),
        told(library.stats_level()),
        told(library.stats_start()),
        told(library.stats_stop()),
        told(library.stats_reset()),
    ]
}

#[allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "one fact makes all of them sound: the functions touch nothing"
)]
fn unsafe_calls(library: &Library) -> Vec<&'static str> {
    let (file, null) = (FileHandle::NULL, ptr::null_mut());
    let (batch, stream) = (Batch::NULL, Stream::NULL);
    let mut cells = Cells::new(1, 0, 0).unwrap();
    let cells = &raw mut cells;
    let request = IoParams::new(Opcode::READ, file, &transfer(), 7).unwrap();
    let mut events = [IoEvent::EMPTY];
    // SAFETY: no function of this table touches anything.
    unsafe {
        vec![
            told(library.driver_close()),
            told(library.buf_register(null, 1, BufferFlags::NONE)),
            told(library.buf_deregister(null)),
            told(library.read(file, &transfer())),
            told(library.write(file, &transfer())),
            told(library.readv(file, &[], 0)),
            told(library.writev(file, &[], 0)),
            told(library.read_async(file, null, cells, stream)),
            told(library.write_async(file, null, cells, stream)),
            told(library.stream_register(stream, StreamRegisterFlags::NONE)),
            told(library.stream_deregister(stream)),
            told(library.batch_submit(batch, &mut [request])),
            told(library.batch_status(batch, 1, &mut events, Duration::ZERO)),
            told(library.batch_cancel(batch)),
        ]
    }
}

/// Those that have no result.
fn silent_calls(library: &Library) -> Vec<&'static str> {
    let mut called = Vec::new();
    assert_eq!(library.use_count(), 0);
    called.extend(CALLED.take());
    // SAFETY: no function of this table touches anything.
    unsafe { library.handle_deregister(FileHandle::NULL) };
    called.extend(CALLED.take());
    // SAFETY: as above.
    let destroyed = unsafe { library.batch_destroy(Batch::NULL) };
    assert_eq!(destroyed, Ok(()));
    called.extend(CALLED.take());
    called
}

/// Those of statistics ask for the version first.
fn stats_calls() -> Vec<&'static str> {
    let library = Library::of(with_version(1200));
    vec![
        told(library.stats_l1()),
        told(library.stats_l2()),
        told(library.stats_l3()),
    ]
}

fn with_version(version: i32) -> Symbols {
    extern "C" fn newer(version: *mut c_int) -> Status {
        // SAFETY: the caller gives a place for one number.
        unsafe { version.write(1200) };
        SUCCESS
    }
    extern "C" fn older(version: *mut c_int) -> Status {
        // SAFETY: the caller gives a place for one number.
        unsafe { version.write(1150) };
        SUCCESS
    }
    let mut symbols = Symbols::telling_their_places();
    symbols.get_version = Some(if version >= 1190 { newer } else { older });
    symbols
}

const SUCCESS: Status = Status {
    err: Code::SUCCESS,
    // Seen beside success.
    cu_err: 999,
};

#[test]
fn every_wrapper_calls_the_function_that_its_error_names() {
    let library = Library::of(Symbols::telling_their_places());
    let mut called = safe_calls(&library);
    called.extend(unsafe_calls(&library));
    called.extend(silent_calls(&library));
    called.extend(stats_calls());
    for symbol in REQUIRED_SYMBOLS.iter().chain(OPTIONAL_SYMBOLS) {
        let times = called.iter().filter(|called| called == &symbol).count();
        assert_eq!(times, 1, "wrappers of {symbol}");
    }
    let all = REQUIRED_SYMBOLS.len() + OPTIONAL_SYMBOLS.len();
    assert_eq!(called.len(), all);
}

#[test]
fn a_missing_optional_function_is_named_with_the_version_that_brought_it() {
    let mut symbols = Symbols::telling_their_places();
    symbols.read_async = None;
    symbols.get_stats_l3 = None;
    symbols.get_version = None;
    let library = Library::of(symbols);
    assert_eq!(
        library.missing_symbols(),
        ["cuFileReadAsync", "cuFileGetVersion", "cuFileGetStatsL3"]
    );
    let error = library.stats_l3().unwrap_err();
    assert_eq!(
        error.to_string(),
        "libcufile has no cuFileGetStatsL3: it came with version 1.15"
    );
    // Older than 1.8, which is no error.
    assert_eq!(library.version(), Ok(None));
    assert_eq!(CALLED.take(), None);
}

#[test]
fn every_optional_function_came_with_a_version_and_no_required_one_did() {
    for symbol in OPTIONAL_SYMBOLS {
        assert!(Version::since(symbol).is_some(), "{symbol}");
    }
    for symbol in REQUIRED_SYMBOLS {
        assert_eq!(Version::since(symbol), None, "{symbol}");
    }
    assert_eq!(Version::since("cuFileReadv"), Some(Version(1190)));
    assert_eq!(Version(1150).to_string(), "1.15");
    assert_eq!(Version(1200).to_string(), "1.20");
}

#[test]
fn properties_that_the_library_does_not_write_are_zero() {
    extern "C" fn writes_little(to: *mut DriverProperties) -> Status {
        // SAFETY: the caller gives a whole structure, and looks at it only afterwards.
        let to = unsafe { &mut *to };
        to.max_batch_io_size = 128;
        SUCCESS
    }
    let mut symbols = Symbols::telling_their_places();
    symbols.driver_get_properties = writes_little;
    let properties = Library::of(symbols).driver_properties().unwrap();
    let expected = DriverProperties {
        max_batch_io_size: 128,
        ..DriverProperties::default()
    };
    assert_eq!(properties, expected);
}

#[test]
fn the_layout_of_statistics_is_chosen_by_version() {
    /// Writes as much as the largest version does, each word its own offset.
    extern "C" fn fill(to: *mut c_void) -> Status {
        for place in 0..639_u64 {
            let at = to
                .cast::<u64>()
                .wrapping_add(usize::try_from(place).unwrap());
            // SAFETY: the caller gives a place of 8 KiB.
            unsafe { at.write(8 * place) };
        }
        SUCCESS
    }
    for (version, first_bar) in [(1150, 512), (1200, 624)] {
        let mut symbols = with_version(version);
        symbols.get_stats_l2 = Some(fill);
        let stats = Library::of(symbols).stats_l2().unwrap();
        assert_eq!(stats.read_sizes[0], first_bar, "{version}");
        assert_eq!(stats.basic.vectored.is_some(), version >= 1190);
    }
}

#[test]
fn texts_and_events_are_cut_to_what_is_there() {
    extern "C" fn endless(_: u32, text: *mut c_char, room: c_int) -> Status {
        let room = usize::try_from(room).unwrap();
        // SAFETY: the caller gives a place of `room` bytes.
        unsafe { text.cast::<u8>().write_bytes(b'x', room) };
        SUCCESS
    }
    extern "C" fn tells_too_many(
        _: Batch,
        _: c_uint,
        told: *mut c_uint,
        _: *mut IoEvent,
        _: *mut libc::timespec,
    ) -> Status {
        // SAFETY: the caller gives a place for one number.
        unsafe { told.write(77) };
        SUCCESS
    }
    let mut symbols = Symbols::telling_their_places();
    symbols.get_parameter_string = Some(endless);
    symbols.batch_get_status = Some(tells_too_many);
    let library = Library::of(symbols);
    let text = library.string_parameter(StringParameter::LOG_DIR).unwrap();
    assert_eq!(text.len(), 4095);
    let mut events = [IoEvent::EMPTY; 2];
    // SAFETY: the function of this table touches nothing else.
    let told = unsafe { library.batch_status(Batch::NULL, 1, &mut events, Duration::ZERO) };
    assert_eq!(told, Ok(2));
}
