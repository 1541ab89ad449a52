//! Copies.
#![allow(
    unsafe_code,
    reason = "C functions: exported by name, and the caller vouches for its pointers"
)]

use crate::call;
use crate::code::{Code, Result};
use crate::context::Context;
use crate::driver::Driver;
use crate::entry::Entry;
use crate::raw;
use crate::stats::add;
use crate::stream::Stream;
use crate::work::{Copy, Place, Work};

/// From memory that is not pinned it returns when the bytes are taken, and they arrive later: what
/// other streams do is not ordered behind it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoD_v2(to: usize, from: usize, len: usize) -> i32 {
    call::context(Entry::cuMemcpyHtoD_v2, |driver, context| {
        let to = on_device(driver, to, len)?;
        let stream = context.default_stream()?;
        stream.synchronize()?;
        match driver.host.pin(context.device.ordinal, from, len) {
            Some(range) => {
                let source = Place::Host(from, Some(range));
                let ticket = issue(context, &stream, source, to, len)?;
                stream.wait(ticket)
            }
            None => {
                // SAFETY: the caller vouches for the source.
                let source = unsafe { staged(from, len) };
                issue(context, &stream, source, to, len).map(drop)
            }
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoH_v2(to: usize, from: usize, len: usize) -> i32 {
    call::context(Entry::cuMemcpyDtoH_v2, |driver, context| {
        let from = on_device(driver, from, len)?;
        let stream = context.default_stream()?;
        let ticket = issue(context, &stream, from, Place::Host(to, None), len)?;
        stream.wait(ticket)
    })
}

/// From pinned memory the bytes are read when the stream has come to it. Others are taken now.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: usize,
    from: usize,
    len: usize,
    stream: usize,
) -> i32 {
    call::context(Entry::cuMemcpyHtoDAsync_v2, |driver, context| {
        let stream = context.stream(stream)?;
        let to = on_device(driver, to, len)?;
        let source = match driver.host.pin(context.device.ordinal, from, len) {
            Some(range) => Place::Host(from, Some(range)),
            None => {
                add(&context.device.counters.pageable_copies, 1);
                // SAFETY: the caller vouches for the source.
                unsafe { staged(from, len) }
            }
        };
        issue(context, &stream, source, to, len).map(drop)
    })
}

/// To pinned memory the bytes come later. With other memory the call returns when they are there.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: usize,
    from: usize,
    len: usize,
    stream: usize,
) -> i32 {
    call::context(Entry::cuMemcpyDtoHAsync_v2, |driver, context| {
        let stream = context.stream(stream)?;
        let from = on_device(driver, from, len)?;
        let range = driver.host.pin(context.device.ordinal, to, len);
        let is_pageable = range.is_none();
        let ticket = issue(context, &stream, from, Place::Host(to, range), len)?;
        if is_pageable {
            add(&context.device.counters.pageable_copies, 1);
            return stream.wait(ticket);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: usize, from: usize, len: usize, stream: usize) -> i32 {
    call::context(Entry::cuMemcpyDtoDAsync_v2, |driver, context| {
        let stream = context.stream(stream)?;
        let (to, from) = (on_device(driver, to, len)?, on_device(driver, from, len)?);
        issue(context, &stream, from, to, len).map(drop)
    })
}

fn on_device(driver: &Driver, pointer: usize, len: usize) -> Result<Place> {
    let device = driver.device_of_pointer(pointer);
    let device = device.ok_or(Code::INVALID_VALUE)?;
    let (allocation, offset) = device.memory.find_range(pointer, len)?;
    Ok(Place::Device(allocation, offset))
}

fn issue(context: &Context, stream: &Stream, from: Place, to: Place, len: usize) -> Result<u64> {
    if len == 0 {
        return Ok(stream.issued());
    }
    if let Place::Host(0, _) = from {
        return Err(Code::INVALID_VALUE);
    }
    if let Place::Host(0, _) = to {
        return Err(Code::INVALID_VALUE);
    }
    let work = Work::Copy(Copy { from, to, len });
    Ok(stream.issue(work, context.implied_order(stream)))
}

/// # Safety
///
/// `from` is null or valid for reads of `len` bytes.
unsafe fn staged(from: usize, len: usize) -> Place {
    if from == 0 {
        return Place::Host(0, None);
    }
    let mut bytes = vec![0_u8; len];
    // SAFETY: the source is as the caller vouches, and the destination is as long.
    unsafe { raw::copy(from, bytes.as_mut_ptr() as usize, len) };
    Place::Staged(bytes)
}
