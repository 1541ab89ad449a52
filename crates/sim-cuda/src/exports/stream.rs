//! Streams.
#![allow(
    unsafe_code,
    reason = "C functions: exported by name, and the caller vouches for its pointers"
)]

use super::put;
use crate::call;
use crate::code::Code;
use crate::entry::Entry;
use crate::work::Work;

const NON_BLOCKING: u32 = 1;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut usize, flags: u32) -> i32 {
    call::context(Entry::cuStreamCreate, |_, context| {
        if flags > NON_BLOCKING || stream.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let made = context.new_stream(flags != NON_BLOCKING)?;
        // SAFETY: as the caller vouches.
        unsafe { put(stream, made) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: usize) -> i32 {
    call::context(Entry::cuStreamSynchronize, |_, context| {
        context.stream(stream)?.synchronize()
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: usize) -> i32 {
    call::context(Entry::cuStreamQuery, |_, context| {
        context.stream(stream)?.query()
    })
}

/// The event may be another context's: that is how devices wait for each other.
#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, flags: u32) -> i32 {
    call::context(Entry::cuStreamWaitEvent, |driver, context| {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        let stream = context.stream(stream)?;
        let device = driver.device_of_handle(event).ok_or(Code::INVALID_HANDLE)?;
        let owner = device.context().ok_or(Code::INVALID_HANDLE)?;
        if let Some(completion) = owner.event(event)?.latest() {
            let after = context.implied_order(&stream);
            stream.issue(Work::Wait(completion), after);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamGetCtx(stream: usize, context: *mut usize) -> i32 {
    call::context(Entry::cuStreamGetCtx, |_, current| {
        current.stream(stream)?;
        // SAFETY: as the caller vouches.
        unsafe { put(context, current.handle) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: usize) -> i32 {
    call::context(Entry::cuStreamDestroy_v2, |_, context| {
        context.destroy_stream(stream)
    })
}
