//! Requests in streams.
#![allow(
    unsafe_code,
    reason = "C functions: exported by name, and the caller vouches for its pointers"
)]

use std::ffi::c_uint;

use crate::call;
use crate::code::{Fail, INVALID_VALUE, Status};
use crate::entry::Entry;
use crate::state;
use crate::stream::{self, Cells, Entered};
use crate::transfer;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileReadAsync(
    handle: usize,
    base: usize,
    len: *const usize,
    file_offset: *const i64,
    buf_offset: *const i64,
    done: *mut isize,
    stream: usize,
) -> Status {
    let cells = Cells {
        len,
        file_offset,
        buf_offset,
        done,
    };
    submit(Entry::cuFileReadAsync, (handle, base, stream), cells, false)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileWriteAsync(
    handle: usize,
    base: usize,
    len: *const usize,
    file_offset: *const i64,
    buf_offset: *const i64,
    done: *mut isize,
    stream: usize,
) -> Status {
    let cells = Cells {
        len,
        file_offset,
        buf_offset,
        done,
    };
    submit(Entry::cuFileWriteAsync, (handle, base, stream), cells, true)
}

fn submit(entry: Entry, what: (usize, usize, usize), cells: Cells, write: bool) -> Status {
    let _entered = state::get().map(|state| Entered::new(state, what.2));
    let path = state::get().map(|state| transfer::path(state, what.0));
    call::about(entry, path.ok().as_deref(), |state| {
        let pointers = [cells.len.is_null(), cells.file_offset.is_null()];
        if pointers.contains(&true) || cells.buf_offset.is_null() || cells.done.is_null() {
            return Err(Fail::Code(INVALID_VALUE));
        }
        stream::submit(state, what, cells, write)
    })
}

/// Takes the null stream too, and does not need the library open.
#[unsafe(no_mangle)]
extern "C" fn cuFileStreamRegister(stream: usize, flags: c_uint) -> Status {
    call::status(Entry::cuFileStreamRegister, |state| {
        if flags > 15 {
            return Err(Fail::Code(INVALID_VALUE));
        }
        stream::register(state, stream)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileStreamDeregister(stream: usize) -> Status {
    call::status(Entry::cuFileStreamDeregister, |state| {
        stream::deregister(state, stream)
    })
}
