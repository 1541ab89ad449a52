//! Statistics.
#![allow(
    unsafe_code,
    reason = "C functions: exported by name, and the caller vouches for its pointers"
)]

use std::ffi::c_int;

use sim_common::monitor::lock;

use super::{put, put_all};
use crate::call;
use crate::code::{DRIVER_NOT_INITIALIZED, Fail, INVALID_VALUE, Result, Status};
use crate::entry::Entry;
use crate::state::Inner;
use crate::stats::Stats;
use crate::version;

#[unsafe(no_mangle)]
extern "C" fn cuFileSetStatsLevel(level: c_int) -> Status {
    call::status(Entry::cuFileSetStatsLevel, |state| {
        if !(0..=3).contains(&level) {
            return Err(Fail::Code(INVALID_VALUE));
        }
        lock(&state.inner).level = level;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileGetStatsLevel(to: *mut c_int) -> Status {
    call::status(Entry::cuFileGetStatsLevel, |state| {
        // SAFETY: as the caller vouches.
        unsafe { put(to, lock(&state.inner).level) }
    })
}

fn when_open(entry: Entry, run: impl FnOnce(&mut Inner) -> Result) -> Status {
    call::status(entry, |state| {
        let mut inner = lock(&state.inner);
        if inner.uses == 0 {
            return Err(Fail::Code(DRIVER_NOT_INITIALIZED));
        }
        run(&mut inner)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileStatsStart() -> Status {
    when_open(Entry::cuFileStatsStart, |inner| {
        if inner.level == 0 {
            return Err(Fail::Code(INVALID_VALUE));
        }
        inner.is_counting = true;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileStatsStop() -> Status {
    when_open(Entry::cuFileStatsStop, |inner| {
        inner.is_counting = false;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileStatsReset() -> Status {
    when_open(Entry::cuFileStatsReset, |inner| {
        inner.stats = Stats::default();
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileGetStatsL1(to: *mut u64) -> Status {
    // SAFETY: as the caller vouches.
    unsafe { tell(Entry::cuFileGetStatsL1, 1, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileGetStatsL2(to: *mut u64) -> Status {
    // SAFETY: as the caller vouches.
    unsafe { tell(Entry::cuFileGetStatsL2, 2, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileGetStatsL3(to: *mut u64) -> Status {
    // SAFETY: as the caller vouches.
    unsafe { tell(Entry::cuFileGetStatsL3, 3, to) }
}

/// # Safety
///
/// `to` is null or has room for the structure of this version.
unsafe fn tell(entry: Entry, level: c_int, to: *mut u64) -> Status {
    call::status(entry, |state| {
        let inner = lock(&state.inner);
        if !inner.is_counting || inner.level < level {
            return Err(Fail::Code(INVALID_VALUE));
        }
        let version = version::number();
        let words = match level {
            1 => inner.stats.level1(version),
            2 => inner.stats.level2(version),
            _ => inner.stats.level3(version),
        };
        // SAFETY: as the caller vouches.
        unsafe { put_all(to, &words) }
    })
}
