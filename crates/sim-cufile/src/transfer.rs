//! Requests: bytes between a file and memory.

use std::sync::atomic::Ordering;

use sim_common::monitor::lock;

use crate::code::{self, Fail, Result};
use crate::cuda;
use crate::driver;
use crate::faults::Spoiled;
use crate::os::{self, Access};
use crate::params;
use crate::settings::Route;
use crate::state::{State, caught};
use crate::stats::{By, Piece};
use crate::version;

/// The largest request: what is beyond is not moved.
const BYTES_MAX: usize = (1 << 31) - 4096;
pub(crate) const PAGE: usize = 4096;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) handle: usize,
    pub(crate) base: usize,
    pub(crate) len: usize,
    pub(crate) file_offset: i64,
    pub(crate) buf_offset: i64,
    pub(crate) write: bool,
    pub(crate) by: By,
}

/// File and buffer of a request are in use while this is kept.
#[derive(Debug)]
pub(crate) struct InFlight {
    state: &'static State,
    fd: Option<i32>,
    buffer: Option<usize>,
}

impl InFlight {
    pub(crate) fn new(state: &'static State, handle: usize, base: usize) -> Self {
        let mut inner = lock(&state.inner);
        let fd = driver::descriptor_of(handle);
        let fd = fd.filter(|fd| match inner.files.get_mut(fd) {
            Some(file) => {
                file.in_flight += 1;
                true
            }
            None => false,
        });
        let buffer = inner.buffers.get_mut(&base).map(|buffer| {
            buffer.in_flight += 1;
            base
        });
        let all: usize = inner.files.values().map(|file| file.in_flight).sum();
        state
            .counts
            .in_flight_max
            .fetch_max(all as u64, Ordering::Relaxed);
        Self { state, fd, buffer }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut inner = lock(&self.state.inner);
        // Either may have ended meanwhile, which was said then, and a new one be there.
        if let Some(file) = self.fd.and_then(|fd| inner.files.get_mut(&fd)) {
            file.in_flight = file.in_flight.saturating_sub(1);
        }
        if let Some(buffer) = self.buffer.and_then(|base| inner.buffers.get_mut(&base)) {
            buffer.in_flight = buffer.in_flight.saturating_sub(1);
        }
    }
}

/// The path of the file of a handle, for faults.
pub(crate) fn path(state: &State, handle: usize) -> String {
    let inner = lock(&state.inner);
    let file = driver::descriptor_of(handle).and_then(|fd| inner.files.get(&fd));
    file.map_or_else(String::new, |file| file.path.clone())
}

/// Does what a request says, as far as the faults let it, and what it tells: a count, or whatever
/// the faults want told.
pub(crate) fn perform(
    state: &'static State,
    request: &Request,
    spoiled: &Spoiled,
) -> Result<isize> {
    if let Some(raw) = spoiled.raw {
        return Ok(raw);
    }
    let moved = checked(state, request).and_then(|plan| plan.run(state, request, spoiled));
    let mut inner = lock(&state.inner);
    if inner.is_counting {
        inner
            .stats
            .count_call(request.by, request.write, moved.ok());
    }
    drop(inner);
    let told = moved?.saturating_add(spoiled.long);
    match spoiled.result {
        Some(fail) => Err(fail),
        None => Ok(isize::try_from(told).unwrap_or(isize::MAX)),
    }
}

/// What of a request was found to be there.
struct Plan {
    access: Access,
    device: Option<i32>,
    address: usize,
    route: Route,
    piece_bytes: usize,
}

fn checked(state: &State, request: &Request) -> Result<Plan> {
    let not_registered = Fail::Code(code::HANDLE_NOT_REGISTERED);
    let fd = driver::descriptor_of(request.handle).ok_or(not_registered)?;
    let inner = lock(&state.inner);
    let file = inner.files.get(&fd).ok_or(not_registered)?;
    let (identity, path) = (file.identity, file.path.clone());
    let buffer = inner.buffers.get(&request.base).copied();
    let route = driver::route(state, &inner);
    let piece_bytes = inner.params.size(params::MAX_DIRECT_IO_KB) * 1024;
    drop(inner);
    if request.file_offset < 0 {
        return Err(Fail::Code(code::INVALID_VALUE));
    }
    let about = os::about(fd)?;
    if about.identity != identity {
        let what = format_args!("a request for {path}, whose number is another file's");
        caught(&state.counts.stale_files, what);
    }
    let refuses = if request.write {
        libc::O_RDONLY
    } else {
        libc::O_WRONLY
    };
    if about.flags & libc::O_ACCMODE == refuses {
        return Err(not_open_for(request.write));
    }
    let within = offset_in_buffer(state, request, buffer.map(|buffer| buffer.len))?;
    let device = cuda::get().and_then(|cuda| cuda.device_of(request.base));
    // A thread of a stream or a batch has no context of its own.
    if let (Some(cuda), Some(_), By::Call | By::Vector) = (cuda::get(), device, request.by) {
        cuda.context()?;
    }
    Ok(Plan {
        access: Access::new(fd, about.flags, request.write)?,
        device,
        address: request.base.wrapping_add(within),
        route: if device.is_some() {
            route
        } else {
            Route::Posix
        },
        piece_bytes,
    })
}

/// Of a file that is not open for what is asked. Where between 1.15 and 1.20 a write began to be told
/// by the library's own code is not known, nor what a read was told by before.
fn not_open_for(write: bool) -> Fail {
    if write && version::number() < 1160 {
        Fail::Errno(libc::EPERM)
    } else {
        Fail::Code(code::INVALID_FILE_OPEN_FLAG)
    }
}

/// The real library does not look at a negative offset, and writes before the buffer.
fn offset_in_buffer(state: &State, request: &Request, registered: Option<usize>) -> Result<usize> {
    let invalid = Fail::Code(code::INVALID_VALUE);
    let Ok(within) = usize::try_from(request.buf_offset) else {
        let what = format_args!("an offset of {} in a buffer", request.buf_offset);
        caught(&state.counts.negative_offsets, what);
        return Err(invalid);
    };
    let end = within.checked_add(request.len).ok_or(invalid)?;
    match registered {
        Some(len) if end > len => Err(invalid),
        // Measured: without registration only the start will do in a stream.
        None if within > 0 && request.by == By::Stream => Err(invalid),
        _ => Ok(within),
    }
}

impl Plan {
    fn run(&self, state: &State, request: &Request, spoiled: &Spoiled) -> Result<usize> {
        let len = request.len.min(BYTES_MAX);
        let len = spoiled.short.map_or(len, |short| len.min(short));
        let mut moved = 0;
        while moved < len {
            let piece = (len - moved).min(self.piece_bytes);
            let offset = request
                .file_offset
                .saturating_add(i64::try_from(moved).unwrap_or(i64::MAX));
            let done = self.piece(request.write, moved, piece, offset);
            self.count(state, request.write, (moved, offset), (done.ok(), spoiled));
            let done = done?;
            moved += done;
            if done < piece {
                break;
            }
        }
        if spoiled.flip && moved > 0 && !request.write {
            self.flip(moved / 2)?;
        }
        Ok(moved)
    }

    fn piece(&self, write: bool, at: usize, len: usize, offset: i64) -> Result<usize> {
        let address = self.address + at;
        let transfer = |bytes| self.access.transfer(write, bytes, len, offset);
        match (cuda::get(), self.device) {
            (Some(cuda), Some(_)) => cuda.access((address, len), !write, transfer)?,
            _ => transfer(address),
        }
    }

    fn flip(&self, at: usize) -> Result {
        let address = self.address + at;
        match (cuda::get(), self.device) {
            (Some(cuda), Some(_)) => cuda.access((address, 1), true, os::flip),
            _ => {
                os::flip(address);
                Ok(())
            }
        }
    }

    fn count(
        &self,
        state: &State,
        write: bool,
        (at, offset): (usize, i64),
        (bytes, spoiled): (Option<usize>, &Spoiled),
    ) {
        let is_page = |number: usize| number.is_multiple_of(PAGE);
        let aligned = is_page(self.address + at)
            && is_page(bytes.unwrap_or(0))
            && offset.trailing_zeros() >= PAGE.trailing_zeros();
        let mut inner = lock(&state.inner);
        if inner.is_counting {
            inner.stats.count_piece(&Piece {
                device: self.device,
                write,
                route: spoiled
                    .route
                    .filter(|_| self.device.is_some())
                    .unwrap_or(self.route),
                aligned,
                bytes,
            });
        }
    }
}
