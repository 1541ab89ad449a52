//! Requests in streams: parameters are read when their turn has come, and what came of it is written
//! some time after the bytes.
#![allow(
    unsafe_code,
    reason = "parameters and result are in the caller's cells, for as long as the stream needs"
)]

use std::ffi::c_void;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sim_common::Rng;
use sim_common::monitor::{self, lock};

use crate::code::{Fail, Result};
use crate::cuda;
use crate::driver;
use crate::faults::script::{Place, Subject};
use crate::state::{State, caught, crash};
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

/// A thread is in a call for a stream while this is kept.
#[derive(Debug)]
pub(crate) struct Entered {
    state: &'static State,
    stream: usize,
}

impl Entered {
    /// The call begins, and stays for a moment at times, so that calls that can overlap do. Ends the
    /// process where another one has not returned.
    pub(crate) fn new(state: &'static State, stream: usize) -> Self {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        let is_first = lock(&state.inner).entered.insert(stream);
        if !is_first {
            // Measured: `putStreamOp: Assertion 'tmp == sinfo' failed`.
            crash(format_args!("two calls at once for the stream {stream:#x}"));
        }
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let mut rng = Rng::new(state.settings.seed, call);
        if rng.below(4) == 0 {
            monitor::pause(Duration::from_micros(rng.below(100)));
        }
        Self { state, stream }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        lock(&self.state.inner).entered.remove(&self.stream);
    }
}

/// What is in the cells of a request.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    len: usize,
    file_offset: i64,
    buf_offset: i64,
}

impl Cells {
    fn read(&self) -> Numbers {
        // SAFETY: the cells live until the stream has passed, by the contract of the call.
        let len = unsafe { self.len.read_volatile() };
        // SAFETY: as above.
        let file_offset = unsafe { self.file_offset.read_volatile() };
        // SAFETY: as above.
        let buf_offset = unsafe { self.buf_offset.read_volatile() };
        Numbers {
            len,
            file_offset,
            buf_offset,
        }
    }
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
    start_helper();
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
    enter(state, stream);
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

/// The library has threads of its own from its first request in a stream on, which stay, and have the
/// name of the thread that made it.
fn start_helper() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let stay = || loop {
            std::thread::park();
        };
        // Without a name of its own it has this thread's. It does nothing, so it may be missing.
        let _ = std::thread::Builder::new().spawn(stay);
    });
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
        counter.fetch_add(1, Ordering::Relaxed);
        monitor::wait(has_room);
    }
}

/// One more in a stream. With another in it, the real library corrupts the heap where it was not told
/// of the stream.
fn enter(state: &State, stream: usize) {
    let (others, is_registered) = {
        let mut inner = lock(&state.inner);
        let used = inner.streams.entry(stream).or_default();
        used.in_flight += 1;
        (used.in_flight - 1, used.is_registered)
    };
    if others > 0 && !is_registered {
        let what = format_args!(
            "a request was put into the stream {stream:#x}, which is not registered, beside {others} \
             others"
        );
        caught(&state.counts.unregistered_together, what);
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
    let mut queued = unsafe { Box::from_raw(argument.cast::<Queued>()) };
    let (state, stream) = (queued.state, queued.stream);
    if turn == 1 {
        queued.execute();
    } else {
        let counter = &state.counts.abandoned;
        counter.fetch_add(1, Ordering::Relaxed);
    }
    drop(queued);
    leave(state, stream);
}

impl Queued {
    fn execute(&mut self) {
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
        let Numbers {
            len,
            file_offset,
            buf_offset,
        } = self.cells.read();
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
