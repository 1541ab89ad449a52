//! Reading and writing at once.
#![allow(
    unsafe_code,
    reason = "C functions: exported by name, and the caller vouches for its pointers"
)]

use std::ffi::c_uint;

use crate::call;
use crate::code::{Fail, INVALID_VALUE, Result};
use crate::entry::Entry;
use crate::faults::Spoiled;
use crate::os;
use crate::state::{self, Inside, State};
use crate::stats::By;
use crate::transfer::{self, InFlight, Request};

#[unsafe(no_mangle)]
extern "C" fn cuFileRead(handle: usize, base: usize, len: usize, file: i64, within: i64) -> isize {
    let request = Request {
        handle,
        base,
        len,
        file_offset: file,
        buf_offset: within,
        write: false,
        by: By::Call,
    };
    at_once(Entry::cuFileRead, &[request])
}

#[unsafe(no_mangle)]
extern "C" fn cuFileWrite(handle: usize, base: usize, len: usize, file: i64, within: i64) -> isize {
    let request = Request {
        handle,
        base,
        len,
        file_offset: file,
        buf_offset: within,
        write: true,
        by: By::Call,
    };
    at_once(Entry::cuFileWrite, &[request])
}

#[repr(C)]
struct IoVec {
    base: usize,
    len: usize,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileReadv(
    handle: usize,
    pieces: *const IoVec,
    count: usize,
    file: i64,
    _flags: c_uint,
) -> isize {
    // SAFETY: as the caller vouches.
    let requests = unsafe { vector(handle, (pieces, count), file, false) };
    at_once(Entry::cuFileReadv, &requests)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileWritev(
    handle: usize,
    pieces: *const IoVec,
    count: usize,
    file: i64,
    _flags: c_uint,
) -> isize {
    // SAFETY: as the caller vouches.
    let requests = unsafe { vector(handle, (pieces, count), file, true) };
    at_once(Entry::cuFileWritev, &requests)
}

/// # Safety
///
/// `pieces` is null or has `count` elements.
unsafe fn vector(
    handle: usize,
    (pieces, count): (*const IoVec, usize),
    mut file_offset: i64,
    write: bool,
) -> Vec<Request> {
    if pieces.is_null() {
        return Vec::new();
    }
    // SAFETY: as the caller vouches.
    let pieces = unsafe { std::slice::from_raw_parts(pieces, count) };
    let request = |piece: &IoVec| {
        let request = Request {
            handle,
            base: piece.base,
            len: piece.len,
            file_offset,
            buf_offset: 0,
            write,
            by: By::Vector,
        };
        file_offset = file_offset.saturating_add(i64::try_from(piece.len).unwrap_or(i64::MAX));
        request
    };
    pieces.iter().map(request).collect()
}

/// One request after the other, up to the first that is short. An error is told as it was measured:
/// by -1 and its number in `errno`, but for those of CUDA, which come in the documented form.
fn at_once(entry: Entry, requests: &[Request]) -> isize {
    let _inside = Inside::new(entry);
    let told = state::get().and_then(|state| {
        let first = requests.first().ok_or(Fail::Code(INVALID_VALUE))?;
        let path = transfer::path(state, first.handle);
        let spoiled = call::begin(state, entry, Some(&path))?;
        run(state, requests, &spoiled)
    });
    // What the first request has made.
    super::at_exit_again();
    match told {
        Ok(told) => {
            // Left dirty, as it has been seen; a count that faults have made up explains nothing.
            os::set_errno(if told < 0 { 0 } else { libc::ENOENT });
            told
        }
        Err(fail @ Fail::Cuda(_)) => {
            os::set_errno(libc::ENOENT);
            fail.negated()
        }
        Err(fail) => {
            os::set_errno(fail.number());
            -1
        }
    }
}

fn run(state: &'static State, requests: &[Request], spoiled: &Spoiled) -> Result<isize> {
    let mut all = 0_isize;
    for request in requests {
        let _held = InFlight::new(state, request.handle, request.base);
        let told = transfer::perform(state, request, spoiled)?;
        all = all.saturating_add(told);
        if usize::try_from(told) != Ok(request.len) {
            break;
        }
    }
    Ok(all)
}
