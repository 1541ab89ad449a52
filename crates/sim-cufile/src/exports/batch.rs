//! Batches.
#![allow(
    unsafe_code,
    reason = "C functions: exported by name, and the caller vouches for its pointers"
)]

use std::ffi::c_uint;
use std::time::Duration;

use sim_common::monitor::lock;

use super::{put, put_all};
use crate::batch;
use crate::call;
use crate::code::{Fail, INVALID_VALUE, Status};
use crate::driver;
use crate::entry::Entry;
use crate::params;
use crate::state;
use crate::stats::By;
use crate::transfer::Request;

#[repr(C)]
struct IoParams {
    mode: u32,
    base: usize,
    file_offset: i64,
    buf_offset: i64,
    size: usize,
    handle: usize,
    opcode: u32,
    cookie: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct IoEvent {
    cookie: usize,
    status: u32,
    ret: isize,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileBatchIOSetUp(to: *mut usize, room: c_uint) -> Status {
    call::status(Entry::cuFileBatchIOSetUp, |state| {
        driver::open_if_needed(state)?;
        let most = lock(&state.inner).params.size(params::BATCH_SIZE);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        if room == 0 || room > most {
            return Err(Fail::Code(INVALID_VALUE));
        }
        // SAFETY: as the caller vouches.
        unsafe { put(to, batch::set_up(room)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileBatchIOSubmit(
    handle: usize,
    count: c_uint,
    requests: *const IoParams,
    _flags: c_uint,
) -> Status {
    call::status(Entry::cuFileBatchIOSubmit, |state| {
        if requests.is_null() {
            return Err(Fail::Code(INVALID_VALUE));
        }
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: not null, so there are as many, as the caller vouches.
        let requests = unsafe { std::slice::from_raw_parts(requests, count) };
        if requests.iter().any(|one| one.mode != 1 || one.opcode > 1) {
            return Err(Fail::Code(INVALID_VALUE));
        }
        let request = |one: &IoParams| {
            let request = Request {
                handle: one.handle,
                base: one.base,
                len: one.size,
                file_offset: one.file_offset,
                buf_offset: one.buf_offset,
                write: one.opcode == 1,
                by: By::Batch,
            };
            (request, one.cookie)
        };
        batch::submit(state, handle, requests.iter().map(request).collect())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileBatchIOGetStatus(
    handle: usize,
    least: c_uint,
    count: *mut c_uint,
    events: *mut IoEvent,
    timeout: *const libc::timespec,
) -> Status {
    call::status(Entry::cuFileBatchIOGetStatus, |_| {
        if count.is_null() {
            return Err(Fail::Code(INVALID_VALUE));
        }
        // SAFETY: not null, so a number as the caller vouches.
        let room = usize::try_from(unsafe { count.read() }).unwrap_or(0);
        let least = usize::try_from(least).unwrap_or(0);
        // SAFETY: null, or a time as the caller vouches.
        let timeout = unsafe { timeout.as_ref() }.map(|time| {
            let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
            Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
        });
        let ended = batch::status(handle, (least, room), timeout)?;
        let told: Vec<IoEvent> = ended
            .iter()
            .map(|one| IoEvent {
                cookie: one.cookie,
                status: one.status,
                ret: one.ret,
            })
            .collect();
        // SAFETY: there is room for as many as `count` said, as the caller vouches.
        unsafe { put_all(events, &told) }?;
        // SAFETY: as above.
        unsafe { put(count, c_uint::try_from(told.len()).unwrap_or(0)) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileBatchIOCancel(handle: usize) -> Status {
    call::status(Entry::cuFileBatchIOCancel, |_| batch::cancel(handle))
}

#[unsafe(no_mangle)]
extern "C" fn cuFileBatchIODestroy(handle: usize) {
    if let Ok(state) = state::get() {
        state.called(Entry::cuFileBatchIODestroy);
        batch::destroy(handle);
    }
}
