//! Names and texts of codes: these work before `cuInit`.
#![allow(
    unsafe_code,
    reason = "C functions: exported by name, and the caller vouches for its pointers"
)]

use std::ffi::{CStr, c_char};

use super::put;
use crate::call;
use crate::code::{Code, Result};
use crate::entry::Entry;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(code: i32, text: *mut *const c_char) -> i32 {
    let name = Code(code).explained().map(|found| found.0);
    call::always(Entry::cuGetErrorName, || {
        // SAFETY: as the caller vouches.
        unsafe { put_static(text, name) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(code: i32, text: *mut *const c_char) -> i32 {
    let explanation = Code(code).explained().map(|found| found.1);
    call::always(Entry::cuGetErrorString, || {
        // SAFETY: as the caller vouches.
        unsafe { put_static(text, explanation) }
    })
}

/// # Safety
///
/// `to` is null or valid for a write.
unsafe fn put_static(to: *mut *const c_char, text: Option<&'static CStr>) -> Result {
    let pointer = text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: as the caller vouches.
    unsafe { put(to, pointer) }?;
    text.map(drop).ok_or(Code::INVALID_VALUE)
}
