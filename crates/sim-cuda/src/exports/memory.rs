//! Device memory.
#![allow(
    unsafe_code,
    reason = "C functions: exported by name, and the caller vouches for its pointers"
)]

use std::sync::Arc;

use super::put;
use crate::call;
use crate::code::{Code, Result};
use crate::context::Context;
use crate::entry::Entry;
use crate::memory::Origin;
use crate::stream::Stream;
use crate::work::{Place, Work};

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(pointer: *mut usize, len: usize) -> i32 {
    call::context(Entry::cuMemAlloc_v2, |_, context| {
        if pointer.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let made = context.device.memory.allocate(len, Origin::Fixed)?;
        // SAFETY: as the caller vouches.
        unsafe { put(pointer, made.face) }
    })
}

/// Attached to all streams, or to the host until a stream asks for it.
const ATTACHMENTS: [u32; 2] = [1, 2];

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocManaged(pointer: *mut usize, len: usize, flags: u32) -> i32 {
    call::context(Entry::cuMemAllocManaged, |_, context| {
        if pointer.is_null() || !ATTACHMENTS.contains(&flags) {
            return Err(Code::INVALID_VALUE);
        }
        let made = context.device.memory.allocate(len, Origin::Managed)?;
        // SAFETY: as the caller vouches.
        unsafe { put(pointer, made.face) }
    })
}

/// A real driver may wait here for all that was issued. This one never does: who counts on it is
/// found out.
#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(pointer: usize) -> i32 {
    call::context(Entry::cuMemFree_v2, |driver, _| {
        let device = driver.device_of_pointer(pointer);
        let device = device.ok_or(Code::INVALID_VALUE)?;
        device.memory.free(pointer, &device.counters)
    })
}

/// The pointer is there at once, the memory when the stream has come to it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocAsync(pointer: *mut usize, len: usize, stream: usize) -> i32 {
    call::context(Entry::cuMemAllocAsync, |_, context| {
        if pointer.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let stream = context.stream(stream)?;
        let made = context.device.memory.allocate(len, Origin::Pool)?;
        let after = context.implied_order(&stream);
        stream.issue(Work::Allocate(Arc::clone(&made)), after);
        // SAFETY: as the caller vouches.
        unsafe { put(pointer, made.face) }
    })
}

/// No call may name the memory any more; what was issued before in the stream still may use it.
#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(pointer: usize, stream: usize) -> i32 {
    call::context(Entry::cuMemFreeAsync, |_, context| {
        let stream = context.stream(stream)?;
        let (allocation, offset) = context.device.memory.find_range(pointer, 1)?;
        if offset != 0 {
            return Err(Code::INVALID_VALUE);
        }
        allocation.ask_end()?;
        let after = context.implied_order(&stream);
        stream.issue(Work::Free(allocation), after);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> i32 {
    call::context(Entry::cuMemGetInfo_v2, |_, context| {
        let (free_bytes, total_bytes) = context.device.memory.info();
        // SAFETY: as the caller vouches.
        unsafe { put(free, free_bytes) }?;
        // SAFETY: as the caller vouches.
        unsafe { put(total, total_bytes) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8_v2(pointer: usize, byte: u8, len: usize) -> i32 {
    call::context(Entry::cuMemsetD8_v2, |_, context| {
        let stream = context.default_stream()?;
        let ticket = fill(context, &stream, pointer, byte, len)?;
        stream.wait(ticket)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(pointer: usize, byte: u8, len: usize, stream: usize) -> i32 {
    call::context(Entry::cuMemsetD8Async, |_, context| {
        let stream = context.stream(stream)?;
        fill(context, &stream, pointer, byte, len).map(drop)
    })
}

fn fill(context: &Context, stream: &Stream, pointer: usize, byte: u8, len: usize) -> Result<u64> {
    if len == 0 {
        return Ok(stream.issued());
    }
    let (allocation, offset) = context.device.memory.find_range(pointer, len)?;
    let work = Work::Fill(Place::Device(allocation, offset), len, byte);
    Ok(stream.issue(work, context.implied_order(stream)))
}
