//! The functions with the C interface of the driver, and what they share.
#![allow(
    unsafe_code,
    reason = "results go where the caller's pointers say, and the end of the process is asked for"
)]

mod context;
mod control;
mod copy;
mod event;
mod memory;
mod pinned;
mod pointer;
mod refused;
mod start;
mod stream;
mod text;

use std::ffi::c_char;

use crate::code::{Code, Result};
use crate::driver;

/// Writes a result to where the caller wants it.
///
/// # Safety
///
/// `to` is null, which is refused, or valid for a write.
unsafe fn put<T>(to: *mut T, value: T) -> Result {
    if to.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null, so valid for a write as the caller vouches.
    unsafe { to.write(value) };
    Ok(())
}

/// Writes a text that ends with a zero, cut to what there is room for.
///
/// # Safety
///
/// `to` is null, which is refused, or valid for writes of `len` bytes.
unsafe fn put_text(to: *mut c_char, len: i32, text: &str) -> Result {
    let room = usize::try_from(len).unwrap_or(0);
    if to.is_null() || room == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let kept = text.len().min(room - 1);
    // SAFETY: `kept` bytes and the zero are no more than `len`.
    unsafe { to.cast::<u8>().copy_from(text.as_ptr(), kept) };
    // SAFETY: as above.
    unsafe { to.wrapping_add(kept).write(0) };
    Ok(())
}

/// Asks to be told when the process begins to end.
pub(crate) fn at_exit() -> Result {
    extern "C" fn begin() {
        driver::begin_exit();
    }
    // SAFETY: the function only sets a flag, and its code is never unloaded (see `build.rs`).
    let status = unsafe { libc::atexit(begin) };
    if status == 0 {
        Ok(())
    } else {
        Err(Code::OPERATING_SYSTEM)
    }
}
