//! Version, opening and closing, properties.
#![allow(
    unsafe_code,
    reason = "C functions: exported by name, and the caller vouches for its pointers"
)]

use std::ffi::{c_char, c_int, c_long};

use sim_common::monitor::lock;

use super::{put, text};
use crate::call;
use crate::code::{Fail, INTERNAL_ERROR, INVALID_VALUE, Result, Status};
use crate::cuda;
use crate::driver;
use crate::entry::Entry;
use crate::params;
use crate::settings::Route;
use crate::state::{self, State};
use crate::version;

/// Works without the simulation asked for, as the real one works without a GPU.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileGetVersion(to: *mut c_int) -> Status {
    // SAFETY: as the caller vouches.
    Status::of(unsafe { put(to, version::number()) })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverOpen() -> Status {
    call::status(Entry::cuFileDriverOpen, driver::open)
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverClose() -> Status {
    call::status(Entry::cuFileDriverClose_v2, driver::close)
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverClose_v2() -> Status {
    call::status(Entry::cuFileDriverClose_v2, driver::close)
}

#[unsafe(no_mangle)]
extern "C" fn cuFileUseCount() -> c_long {
    state::get().map_or(0, |state| {
        state.called(Entry::cuFileUseCount);
        lock(&state.inner).uses
    })
}

/// Before the library is open, later versions leave it as it was, and earlier ones ask the driver.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileDriverGetProperties(to: *mut Properties) -> Status {
    call::status(Entry::cuFileDriverGetProperties, |state| {
        if lock(&state.inner).uses == 0 {
            if version::number() >= 1170 {
                return Ok(());
            }
            if cuda::get().is_none() {
                return Err(Fail::Cuda(3));
            }
        }
        // SAFETY: as the caller vouches.
        unsafe { put(to, Properties::of(state)) }
    })
}

#[repr(C)]
struct Properties {
    nvfs_version: [u32; 2],
    poll_threshold: usize,
    max_direct_io: usize,
    status: u32,
    control: u32,
    features: u32,
    cache: u32,
    per_buffer_cache: u32,
    pinned: u32,
    batch_size: u32,
    batch_timeout_ms: u32,
}

impl Properties {
    fn of(state: &State) -> Self {
        let inner = lock(&state.inner);
        let params = &inner.params;
        let size = |index: usize| params.size(index);
        let short = |index: usize| u32::try_from(size(index)).unwrap_or(u32::MAX);
        let is_direct = driver::route(state, &inner) != Route::Posix;
        Self {
            nvfs_version: if state.settings.route == Route::NvidiaFs {
                [2, 26]
            } else {
                [0, 0]
            },
            poll_threshold: size(params::POLL_KB),
            max_direct_io: size(params::MAX_DIRECT_IO_KB),
            // NVMe.
            status: u32::from(is_direct) << 4,
            control: u32::from(params.bool(params::POLL_MODE))
                | u32::from(params.bool(params::ALLOW_COMPAT)) << 1,
            // Batches and streams.
            features: 0b110,
            cache: short(params::MAX_CACHE_KB),
            per_buffer_cache: short(params::BUFFER_CACHE_KB),
            pinned: short(params::MAX_PINNED_KB),
            batch_size: short(params::BATCH_SIZE),
            batch_timeout_ms: short(params::BATCH_TIMEOUT_MS),
        }
    }
}

/// What is set once the library is open does nothing, without a word.
fn set_early(entry: Entry, run: impl FnOnce(&mut params::Params) -> Result) -> Status {
    call::status(entry, |state| {
        let mut inner = lock(&state.inner);
        if inner.uses == 0 {
            run(&mut inner.params)
        } else {
            Ok(())
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverSetPollMode(poll: bool, kb: usize) -> Status {
    set_early(Entry::cuFileDriverSetPollMode, |params| {
        params.set_bool(0, poll)?;
        params.set_size(10, kb)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverSetMaxDirectIOSize(kb: usize) -> Status {
    set_early(Entry::cuFileDriverSetMaxDirectIOSize, |params| {
        params.set_size(5, kb)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverSetMaxCacheSize(kb: usize) -> Status {
    set_early(Entry::cuFileDriverSetMaxCacheSize, |params| {
        params.set_size(6, kb)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverSetMaxPinnedMemSize(kb: usize) -> Status {
    set_early(Entry::cuFileDriverSetMaxPinnedMemSize, |params| {
        params.set_size(8, kb)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileGetBARSizeInKB(_gpu: c_int, to: *mut usize) -> Status {
    call::status(Entry::cuFileGetBARSizeInKB, |state| {
        // SAFETY: as the caller vouches.
        unsafe { put(to, state.settings.bar_kb) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileDriverGetP2PFlags(_storage: u32, to: *mut u32) -> Status {
    call::status(Entry::cuFileDriverGetP2PFlags, |state| {
        let route = match driver::route(state, &lock(&state.inner)) {
            Route::Posix => 0,
            Route::P2pdma => 1,
            Route::NvidiaFs => 2,
        };
        let flags = lock(&state.inner).params.p2p | route;
        // SAFETY: as the caller vouches.
        unsafe { put(to, flags) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverSetP2PFlags(_storage: u32, flags: u32) -> Status {
    call::status(Entry::cuFileDriverSetP2PFlags, |state| {
        // The others are read-only.
        if flags & !1 != 0 {
            return Err(Fail::Code(INVALID_VALUE));
        }
        lock(&state.inner).params.p2p = flags;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileExportPCIeTopology(file: *const c_char) -> Status {
    call::status(Entry::cuFileExportPCIeTopology, |_| {
        // SAFETY: as the caller vouches.
        let file = unsafe { text(file) }?;
        let written = std::fs::write(file, "{ \"SIMULATED\": [] }\n");
        written.map_err(|error| Fail::Errno(error.raw_os_error().unwrap_or(INTERNAL_ERROR)))
    })
}
