//! Pinned host memory.
#![allow(
    unsafe_code,
    reason = "C functions: exported by name, and the caller vouches for its pointers"
)]

use std::sync::Arc;

use super::put;
use crate::call;
use crate::code::Code;
use crate::context::Context;
use crate::driver::Driver;
use crate::entry::Entry;
use crate::host::InUse;
use crate::stats::late;

/// Portable, mapped, I/O memory, read-only; for allocations the third is write-combined.
const FLAGS: u32 = 0xF;

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(start: usize, len: usize, flags: u32) -> i32 {
    call::context(Entry::cuMemHostRegister_v2, |driver, context| {
        if flags & !FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        driver
            .host
            .register(context.device.ordinal, start, len, flags)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(start: usize) -> i32 {
    call::context(Entry::cuMemHostUnregister, |driver, context| {
        let ended = driver.host.unregister(start)?;
        report(context, &ended, "unregistered");
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(pointer: *mut usize, len: usize, flags: u32) -> i32 {
    call::context(Entry::cuMemHostAlloc, |driver, context| {
        if flags & !FLAGS != 0 || pointer.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let start = driver.host.allocate(context.device.ordinal, len, flags)?;
        // SAFETY: as the caller vouches.
        unsafe { put(pointer, start) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(start: usize) -> i32 {
    call::context(Entry::cuMemFreeHost, |driver, context| {
        let ended = driver.host.free(start)?;
        report(context, &ended, "freed");
        Ok(())
    })
}

/// With unified addressing the two pointers are one.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    pointer: *mut usize,
    host: usize,
    flags: u32,
) -> i32 {
    call::context(Entry::cuMemHostGetDevicePointer_v2, |driver, context| {
        if flags != 0 || !is_pinned(driver, context, host) {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: as the caller vouches.
        unsafe { put(pointer, host) }
    })
}

fn is_pinned(driver: &Driver, context: &Arc<Context>, host: usize) -> bool {
    let range = driver.host.around(host);
    range.is_some_and(|range| range.serves(context.device.ordinal))
}

fn report(context: &Context, ended: &InUse, how: &str) {
    let Some(range) = &ended.0 else {
        return;
    };
    late(
        &context.device.counters.unregistered_in_use,
        &format!(
            "{} bytes of pinned host memory at {:#x} were {how} with copies outstanding on              SIMULATED GPU {}",
            range.len, range.start, range.ordinal
        ),
    );
}
