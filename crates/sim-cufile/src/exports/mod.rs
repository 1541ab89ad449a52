//! The functions with the C interface of the library, and what they share.
#![allow(
    unsafe_code,
    reason = "results go where the caller's pointers say, and the end of the process is asked for"
)]

mod batch;
mod control;
mod driver;
mod file;
mod parameter;
mod stats;
mod stream;
mod transfer;

use std::ffi::{CStr, c_char};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::code::{Fail, INVALID_VALUE, Result};
use crate::{driver as library, state};

/// Writes a result to where the caller wants it.
///
/// # Safety
///
/// `to` is null, which is refused, or valid for a write.
unsafe fn put<T>(to: *mut T, value: T) -> Result {
    if to.is_null() {
        return Err(Fail::Code(INVALID_VALUE));
    }
    // SAFETY: not null, so valid for a write as the caller vouches.
    unsafe { to.write(value) };
    Ok(())
}

/// Writes words to where the caller wants them, as many as the version has, whatever there is room
/// for: as the real library does.
///
/// # Safety
///
/// `to` is null, which is refused, or valid for writes of as many words.
unsafe fn put_all<T: Copy>(to: *mut T, values: &[T]) -> Result {
    if to.is_null() {
        return Err(Fail::Code(INVALID_VALUE));
    }
    // SAFETY: not null, so valid for as many writes as the caller vouches.
    unsafe { to.copy_from(values.as_ptr(), values.len()) };
    Ok(())
}

/// A text of the caller's.
///
/// # Safety
///
/// `from` is null, which is refused, or a text that ends with a zero.
unsafe fn text(from: *const c_char) -> Result<String> {
    if from.is_null() {
        return Err(Fail::Code(INVALID_VALUE));
    }
    // SAFETY: not null, so a text as the caller vouches.
    let text = unsafe { CStr::from_ptr(from) };
    Ok(text.to_string_lossy().into_owned())
}

/// The process that has opened the library.
static OPENER: AtomicU32 = AtomicU32::new(0);

/// Asks, once, to be told when the process begins to end.
pub(crate) fn at_exit() {
    static ASKED: Once = Once::new();
    ask(&ASKED);
}

/// The same once more, as what is made later is destroyed earlier.
pub(crate) fn at_exit_again() {
    static ASKED: Once = Once::new();
    ask(&ASKED);
}

fn ask(asked: &Once) {
    extern "C" fn begin() {
        // What happens in a child of the process is not known: nothing, here.
        if OPENER.load(Ordering::Relaxed) != std::process::id() {
            return;
        }
        state::begin_exit();
        if let Ok(state) = state::get() {
            library::end_of_process(state);
        }
    }
    asked.call_once(|| {
        OPENER.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: the code of the function is never unloaded (see `build.rs`).
        let status = unsafe { libc::atexit(begin) };
        assert_eq!(status, 0, "there is room for one function more");
    });
}
