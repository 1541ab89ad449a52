//! Contexts.
#![allow(
    unsafe_code,
    reason = "C functions: exported by name, and the caller vouches for its pointers"
)]

use super::put;
use crate::call;
use crate::code::Code;
use crate::context::Context;
use crate::entry::Entry;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: i32) -> i32 {
    call::device(Entry::cuDevicePrimaryCtxRetain, device, |_, device| {
        if context.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: as the caller vouches.
        unsafe { put(context, device.retain()) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: i32) -> i32 {
    call::device(
        Entry::cuDevicePrimaryCtxRelease_v2,
        device,
        |driver, device| device.release(driver),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    device: i32,
    flags: *mut u32,
    active: *mut i32,
) -> i32 {
    call::device(Entry::cuDevicePrimaryCtxGetState, device, |_, device| {
        // SAFETY: as the caller vouches.
        unsafe { put(flags, 0) }?;
        // SAFETY: as the caller vouches.
        unsafe { put(active, i32::from(device.retained() > 0)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetCurrent(context: *mut usize) -> i32 {
    call::process(Entry::cuCtxGetCurrent, |_| {
        // SAFETY: as the caller vouches.
        unsafe { put(context, Context::current_handle()) }
    })
}

/// Null takes the thread's context away.
#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: usize) -> i32 {
    call::process(Entry::cuCtxSetCurrent, |driver| {
        if context != 0 && Context::find(driver, context).is_none() {
            return Err(Code::INVALID_CONTEXT);
        }
        Context::set_current(context);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetDevice(device: *mut i32) -> i32 {
    call::context(Entry::cuCtxGetDevice, |_, context| {
        let ordinal = i32::try_from(context.device.ordinal).map_err(|_| Code::UNKNOWN)?;
        // SAFETY: as the caller vouches.
        unsafe { put(device, ordinal) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> i32 {
    call::context(Entry::cuCtxSynchronize, |_, context| context.synchronize())
}
