//! Events.
#![allow(
    unsafe_code,
    reason = "C functions: exported by name, and the caller vouches for its pointers"
)]

use std::sync::Arc;

use super::put;
use crate::call;
use crate::code::Code;
use crate::entry::Entry;
use crate::event::Completion;
use crate::work::Work;

/// Blocking waits, no timing, for other processes.
const FLAGS: u32 = 1 | 2 | 4;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut usize, flags: u32) -> i32 {
    call::context(Entry::cuEventCreate, |_, context| {
        if flags & !FLAGS != 0 || event.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: as the caller vouches.
        unsafe { put(event, context.new_event()) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: usize, stream: usize) -> i32 {
    call::context(Entry::cuEventRecord, |_, context| {
        let event = context.event(event)?;
        let stream = context.stream(stream)?;
        let completion = Arc::new(Completion::new(Arc::clone(&context.health)));
        event.record(Arc::clone(&completion));
        let after = context.implied_order(&stream);
        stream.issue(Work::Record(completion), after);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: usize) -> i32 {
    call::context(Entry::cuEventQuery, |_, context| {
        context.event(event)?.query()
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: usize) -> i32 {
    call::context(Entry::cuEventSynchronize, |_, context| {
        context.event(event)?.synchronize()
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: usize) -> i32 {
    call::context(Entry::cuEventDestroy_v2, |_, context| {
        context.destroy_event(event)
    })
}
