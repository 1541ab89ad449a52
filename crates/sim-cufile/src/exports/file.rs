//! Files and buffers.
#![allow(
    unsafe_code,
    reason = "C functions: exported by name, and the caller vouches for its pointers"
)]

use std::ffi::{c_int, c_void};

use sim_common::monitor::lock;

use super::put;
use crate::call;
use crate::code::{Fail, INVALID_VALUE, Status};
use crate::driver;
use crate::entry::Entry;
use crate::os;
use crate::state::{self, Inside};
use crate::transfer;

#[repr(C)]
struct Descriptor {
    kind: u32,
    fd: u64,
    fs_ops: *const c_void,
}

const OPAQUE_FD: u32 = 1;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileHandleRegister(
    handle: *mut usize,
    descriptor: *const Descriptor,
) -> Status {
    if descriptor.is_null() {
        return Status::of(Err(Fail::Code(INVALID_VALUE)));
    }
    // SAFETY: not null, so a descriptor as the caller vouches.
    let descriptor = unsafe { &*descriptor };
    // The union's first half; the other may hold anything.
    let [a, b, c, d, ..] = descriptor.fd.to_ne_bytes();
    let fd = c_int::from_ne_bytes([a, b, c, d]);
    let path = os::path(fd);
    call::about(Entry::cuFileHandleRegister, Some(&path.clone()), |state| {
        if descriptor.kind != OPAQUE_FD || !descriptor.fs_ops.is_null() {
            return Err(Fail::Code(INVALID_VALUE));
        }
        let made = driver::register_file(state, fd, path);
        lock(&state.inner)
            .stats
            .handle_registers
            .count(made.is_ok());
        // SAFETY: as the caller vouches.
        unsafe { put(handle, made?) }
    })
}

/// Has no result, so no fault either.
#[unsafe(no_mangle)]
extern "C" fn cuFileHandleDeregister(handle: usize) {
    let _inside = Inside::new(Entry::cuFileHandleDeregister);
    if let Ok(state) = state::get() {
        let path = transfer::path(state, handle);
        // A fault may be slow or hang; one that fails has nobody to tell.
        let _ = call::begin(state, Entry::cuFileHandleDeregister, Some(&path));
        driver::deregister_file(state, handle);
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuFileBufRegister(base: usize, len: usize, _flags: c_int) -> Status {
    call::status(Entry::cuFileBufRegister, |state| {
        driver::register_buffer(state, base, len)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileBufDeregister(base: usize) -> Status {
    call::status(Entry::cuFileBufDeregister, |state| {
        driver::deregister_buffer(state, base)
    })
}
