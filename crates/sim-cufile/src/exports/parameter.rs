//! Parameters.
#![allow(
    unsafe_code,
    reason = "C functions: exported by name, and the caller vouches for its pointers"
)]

use std::ffi::{c_char, c_int};

use sim_common::monitor::lock;

use super::{put, put_all, text};
use crate::call;
use crate::code::{Fail, INVALID_VALUE, Result, Status};
use crate::driver;
use crate::entry::Entry;
use crate::params::{self, Params, Slabs};

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileGetParameterSizeT(index: u32, to: *mut usize) -> Status {
    call::status(Entry::cuFileGetParameterSizeT, |state| {
        let value = lock(&state.inner).params.tell_size(index)?;
        // SAFETY: as the caller vouches.
        unsafe { put(to, value) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileGetParameterBool(index: u32, to: *mut bool) -> Status {
    call::status(Entry::cuFileGetParameterBool, |state| {
        let value = lock(&state.inner).params.tell_bool(index)?;
        // SAFETY: as the caller vouches.
        unsafe { put(to, value) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileGetParameterString(index: u32, to: *mut c_char, len: c_int) -> Status {
    call::status(Entry::cuFileGetParameterString, |state| {
        let value = lock(&state.inner).params.tell_string(index)?;
        let mut bytes = value.into_bytes();
        bytes.push(0);
        if bytes.len() > usize::try_from(len).unwrap_or(0) {
            return Err(Fail::Code(INVALID_VALUE));
        }
        // SAFETY: no more than `len`, for which there is room as the caller vouches.
        unsafe { put_all(to.cast(), &bytes) }
    })
}

/// Sets something, unless it is too late.
fn set(entry: Entry, run: impl FnOnce(&mut Params) -> Result) -> Status {
    call::status(entry, |state| {
        let mut inner = lock(&state.inner);
        params::before_open(inner.uses)?;
        run(&mut inner.params)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileSetParameterSizeT(index: u32, value: usize) -> Status {
    set(Entry::cuFileSetParameterSizeT, |params| {
        params.set_size(index, value)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileSetParameterBool(index: u32, value: bool) -> Status {
    set(Entry::cuFileSetParameterBool, |params| {
        params.set_bool(index, value)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileSetParameterString(index: u32, value: *const c_char) -> Status {
    set(Entry::cuFileSetParameterString, |params| {
        // SAFETY: as the caller vouches.
        let value = unsafe { text(value) }?;
        params.set_string(index, value)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileGetParameterMinMaxValue(
    index: u32,
    min: *mut usize,
    max: *mut usize,
) -> Status {
    call::status(Entry::cuFileGetParameterMinMaxValue, |state| {
        driver::ready_for_ranges(state);
        let index = usize::try_from(index).map_err(|_| Fail::Code(INVALID_VALUE))?;
        let range = lock(&state.inner).params.range(index)?;
        // SAFETY: as the caller vouches.
        unsafe { put(min, range.0) }?;
        // SAFETY: as the caller vouches.
        unsafe { put(max, range.1) }
    })
}

const HOST: usize = 0;
const GPU: usize = 1;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileGetParameterPosixPoolSlabArray(
    sizes: *mut usize,
    counts: *mut usize,
    len: c_int,
) -> Status {
    // SAFETY: as the caller vouches.
    unsafe {
        get_slabs(
            Entry::cuFileGetParameterPosixPoolSlabArray,
            HOST,
            (sizes, counts, len),
        )
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileGetParameterGpuBounceBufferSlabArray(
    sizes: *mut usize,
    counts: *mut usize,
    len: c_int,
) -> Status {
    let entry = Entry::cuFileGetParameterGpuBounceBufferSlabArray;
    // SAFETY: as the caller vouches.
    unsafe { get_slabs(entry, GPU, (sizes, counts, len)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileSetParameterPosixPoolSlabArray(
    sizes: *const usize,
    counts: *const usize,
    len: c_int,
) -> Status {
    // SAFETY: as the caller vouches.
    unsafe {
        set_slabs(
            Entry::cuFileSetParameterPosixPoolSlabArray,
            HOST,
            (sizes, counts, len),
        )
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileSetParameterGpuBounceBufferSlabArray(
    sizes: *const usize,
    counts: *const usize,
    len: c_int,
) -> Status {
    let entry = Entry::cuFileSetParameterGpuBounceBufferSlabArray;
    // SAFETY: as the caller vouches.
    unsafe { set_slabs(entry, GPU, (sizes, counts, len)) }
}

/// # Safety
///
/// Both lists are null or have room for `len` numbers.
unsafe fn get_slabs(
    entry: Entry,
    which: usize,
    (sizes, counts, len): (*mut usize, *mut usize, c_int),
) -> Status {
    call::status(entry, |state| {
        let slabs = lock(&state.inner).params.slabs[which].clone();
        let kept = usize::try_from(len).unwrap_or(0).min(slabs.sizes.len());
        // SAFETY: no more than `len`.
        unsafe { put_all(sizes, &slabs.sizes[..kept]) }?;
        // SAFETY: as above.
        unsafe { put_all(counts, &slabs.counts[..kept]) }
    })
}

/// # Safety
///
/// Both lists are null or have `len` numbers.
unsafe fn set_slabs(
    entry: Entry,
    which: usize,
    (sizes, counts, len): (*const usize, *const usize, c_int),
) -> Status {
    set(entry, |params| {
        let len = usize::try_from(len).unwrap_or(0);
        if sizes.is_null() || counts.is_null() || len == 0 {
            return Err(Fail::Code(INVALID_VALUE));
        }
        // SAFETY: not null, so there are as many as the caller vouches.
        let sizes = unsafe { std::slice::from_raw_parts(sizes, len) };
        // SAFETY: as above.
        let counts = unsafe { std::slice::from_raw_parts(counts, len) };
        params.slabs[which] = Slabs {
            sizes: sizes.to_vec(),
            counts: counts.to_vec(),
        };
        Ok(())
    })
}
