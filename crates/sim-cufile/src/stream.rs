//! Requests in streams: parameters are read when their turn has come, and what came of it is written
//! some time after the bytes.
#![allow(
    unsafe_code,
    reason = "parameters and result are in the caller's cells, for as long as the stream needs"
)]

use std::ffi::c_void;
use std::time::Duration;

use sim_common::Rng;
use sim_common::monitor::{self, lock};

use crate::code::{Fail, Result};
use crate::cuda;
use crate::driver;
use crate::faults::script::{Place, Subject};
use crate::state::{State, caught};
use crate::stats::By;
use crate::transfer::{self, InFlight, Request};

/// The four numbers of a request, wherever its caller keeps them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cells {
    pub(crate) len: *const usize,
    pub(crate) file_offset: *const i64,
    pub(crate) buf_offset: *const i64,
    pub(crate) done: *mut isize,
}

struct Queued {
    state: &'static State,
    handle: usize,
    base: usize,
    cells: Cells,
    write: bool,
    stream: usize,
    path: String,
    in_flight: InFlight,
}

/// Puts a request into a stream, and holds its caller up where that is full.
pub(crate) fn submit(
    state: &'static State,
    (handle, base, stream): (usize, usize, usize),
    cells: Cells,
    write: bool,
) -> Result {
    let cuda = cuda::get().ok_or(Fail::Code(crate::code::INTERNAL_ERROR))?;
    cuda.context()?;
    driver::open_if_needed(state)?;
    wait_for_room(state, stream);
    let queued = Box::new(Queued {
        state,
        handle,
        base,
        cells,
        write,
        stream,
        path: transfer::path(state, handle),
        in_flight: InFlight::new(state, handle, base),
    });
    lock(&state.inner)
        .streams
        .entry(stream)
        .or_default()
        .in_flight += 1;
    let argument = Box::into_raw(queued);
    // SAFETY: `run` takes the box back, once.
    let put = unsafe { cuda.enqueue(stream, run, argument.cast()) };
    if put.is_err() {
        // SAFETY: it was not taken, so the box is still ours.
        drop(unsafe { Box::from_raw(argument) });
        leave(state, stream);
    }
    put
}

fn wait_for_room(state: &State, stream: usize) {
    let has_room = || {
        let inner = lock(&state.inner);
        let used = inner
            .streams
            .get(&stream)
            .map_or(0, |stream| stream.in_flight);
        used < state.settings.backlog
    };
    if !has_room() {
        let counter = &state.counts.blocked_submissions;
        counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        monitor::wait(has_room);
    }
}

fn leave(state: &State, stream: usize) {
    if let Some(stream) = lock(&state.inner).streams.get_mut(&stream) {
        stream.in_flight = stream.in_flight.saturating_sub(1);
    }
    monitor::ring();
}

unsafe extern "C" fn run(argument: *mut c_void, turn: i32) {
    // SAFETY: made by `submit`, and given once.
    let queued = unsafe { Box::from_raw(argument.cast::<Queued>()) };
    let (state, stream) = (queued.state, queued.stream);
    if turn == 1 {
        queued.execute();
    } else {
        let counter = &state.counts.abandoned;
        counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    drop(queued);
    leave(state, stream);
}

impl Queued {
    fn execute(&self) {
        let subject = if self.write {
            Subject::Write
        } else {
            Subject::Read
        };
        let device = cuda::get().and_then(|cuda| cuda.device_of(self.base));
        let place = Place {
            device,
            file: Some(&self.path),
        };
        let spoiled = self.state.faults.at(subject, place);
        // Only now: whoever submitted it may have changed them until here.
        let request = self.request();
        let told = spoiled.and_then(|spoiled| transfer::perform(self.state, &request, &spoiled));
        let told = match told {
            Ok(told) => told,
            Err(fail) => fail.negated(),
        };
        self.delay();
        // SAFETY: the cell lives until the stream has passed, by the contract of the call.
        unsafe { self.cells.done.write_volatile(told) };
    }

    fn request(&self) -> Request {
        // SAFETY: the cells live until the stream has passed, by the contract of the call.
        let len = unsafe { self.cells.len.read_volatile() };
        // SAFETY: as above.
        let file_offset = unsafe { self.cells.file_offset.read_volatile() };
        // SAFETY: as above.
        let buf_offset = unsafe { self.cells.buf_offset.read_volatile() };
        Request {
            handle: self.handle,
            base: self.base,
            len,
            file_offset,
            buf_offset,
            write: self.write,
            by: By::Stream,
        }
    }

    /// The bytes are there before the count is: nobody may take one for the other.
    fn delay(&self) {
        let place = self.cells.done as u64 ^ self.stream as u64;
        let mut rng = Rng::new(self.state.settings.seed, place);
        if rng.below(4) == 0 {
            monitor::pause(Duration::from_micros(rng.below(300)));
        }
        // The file and the buffer are in use until here.
        let _ = &self.in_flight;
    }
}

pub(crate) fn register(state: &State, stream: usize) -> Result {
    lock(&state.inner)
        .streams
        .entry(stream)
        .or_default()
        .is_registered = true;
    Ok(())
}

pub(crate) fn deregister(state: &State, stream: usize) -> Result {
    let mut inner = lock(&state.inner);
    let Some(found) = inner.streams.get_mut(&stream) else {
        return Err(Fail::Code(crate::code::INVALID_VALUE));
    };
    found.is_registered = false;
    let in_flight = found.in_flight;
    if in_flight == 0 {
        inner.streams.remove(&stream);
    }
    drop(inner);
    if in_flight > 0 {
        let what = format_args!("a stream was deregistered with {in_flight} requests in flight");
        caught(&state.counts.streams_ended_in_flight, what);
    }
    Ok(())
}
