//! The end of a process that still uses libcufile.
//!
//! `exit` runs the library's destructors, and with a thread in one of its calls by then they end the
//! process by an assertion or a fault (measured, 1.15 and 1.20). So every call is counted while it
//! lasts, and every operation that the library has in a stream; and a handler, which runs before those
//! destructors, lets no further call begin and waits for the others. It closes nothing: from a handler
//! that crashes too. Where the destructors would crash all the same, the process ends in the handler.
#![allow(
    unsafe_code,
    reason = "asks to be called when the process ends, and ends it where the library is stuck or crashes"
)]

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ops::Deref;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nvidia_dl::cufile::Library;
use rustix::thread::{Timespec, nanosleep};

/// The longest that the end of a process waits for the library.
const PATIENCE: Duration = Duration::from_secs(5);

/// Between two looks. Whoever ends a call rings no bell: that would take a lock, which at the end of
/// a process somebody may keep.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000,
};

const HOUR: Timespec = Timespec {
    tv_sec: 3600,
    tv_nsec: 0,
};

/// The process ends: no further call begins.
static LEAVING: AtomicBool = AtomicBool::new(false);

/// Calls that have not returned, and operations in streams.
static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// The library's destructors are known to crash as it is.
static ENDS_HERE: AtomicBool = AtomicBool::new(false);

/// The process whose handlers these are: not a child of it.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The [purposes](Purpose) of which a call has returned, by bits.
static RETURNED: AtomicU8 = AtomicU8::new(0);

/// What a call is for. Calls for one purpose may have the library make, the first time, what it has
/// not made for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Purpose {
    Ask = 1,
    Open = 2,
    Register = 4,
    Move = 8,
    Stream = 16,
}

/// The library, for calls that the end of the process waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guarded(&'static Library);

impl Guarded {
    pub(super) const fn new(library: &'static Library) -> Self {
        Self(library)
    }

    /// The file that it was loaded from.
    pub(super) fn path(self) -> &'static Path {
        self.0.path()
    }

    /// The library for as long as the value is kept: for calls only, and never for two values at a
    /// time on one thread. Does not return once the process ends.
    pub(super) fn call(self, purpose: Purpose) -> Call {
        let in_use = InUse::new();
        if is_leaving() {
            drop(in_use);
            wait_for_end();
        }
        self.called(purpose, in_use)
    }

    /// The same; `None` once the process ends. For what gives something back, which nobody needs then,
    /// and which threads do that the end of the process waits for.
    pub(super) fn call_unless_leaving(self, purpose: Purpose) -> Option<Call> {
        let in_use = InUse::new();
        (!is_leaving()).then(|| self.called(purpose, in_use))
    }

    const fn called(self, purpose: Purpose, in_use: InUse) -> Call {
        Call {
            library: self.0,
            purpose,
            _in_use: in_use,
            stays: PhantomData,
        }
    }
}

/// The library, while the end of the process waits.
#[derive(Debug)]
pub(super) struct Call {
    library: &'static Library,
    purpose: Purpose,
    _in_use: InUse,
    /// On the thread that calls.
    stays: PhantomData<*const ()>,
}

impl Call {
    /// For what the library goes on with after the call.
    pub(super) fn goes_on(&self) -> InUse {
        // Whoever waits waits for this call, and from now on for that as well.
        InUse::new()
    }
}

impl Deref for Call {
    type Target = Library;

    fn deref(&self) -> &Library {
        self.library
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // Handlers and destructors run in the reverse order of their registration, and what the library
        // makes in a call it registers there. So there is a handler for each purpose, from after the
        // first call on: one of them is before everything that calls which have returned have made.
        let bit = self.purpose as u8;
        if RETURNED.load(Ordering::Relaxed) & bit == 0
            && RETURNED.fetch_or(bit, Ordering::Relaxed) & bit == 0
        {
            ask_to_be_told();
        }
    }
}

/// Counts as in use while it is kept.
#[derive(Debug)]
pub(super) struct InUse(());

impl InUse {
    fn new() -> Self {
        // Before the look at `LEAVING`, as that is set before the look at the count: in one order for
        // all, so that one of the two sees the other.
        IN_USE.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        IN_USE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Says whether the library's destructors would crash if the process ended now.
pub(super) fn crashes_at_exit(crashes: bool) {
    ENDS_HERE.store(crashes, Ordering::SeqCst);
}

fn is_leaving() -> bool {
    LEAVING.load(Ordering::SeqCst)
}

/// Whoever waits for this thread is to go with the process as well.
fn wait_for_end() -> ! {
    loop {
        pause(&HOUR);
    }
}

/// Takes no lock and no memory.
fn pause(time: &Timespec) {
    // Woken early, its caller looks again.
    let _ = nanosleep(time);
}

#[cfg(not(target_env = "gnu"))]
compile_error!(
    "the exit of a process is watched by glibc's `on_exit`, and libcufile is built for glibc"
);

unsafe extern "C" {
    /// As `atexit`, and the handler is told the status of the process.
    fn on_exit(
        handler: extern "C" fn(status: c_int, argument: *mut c_void),
        argument: *mut c_void,
    ) -> c_int;
}

fn ask_to_be_told() {
    OWNER.store(std::process::id(), Ordering::Relaxed);
    // SAFETY: the function is of this type, and takes any argument. Its code stays: threads run it.
    let refused = unsafe { on_exit(leave, ptr::null_mut()) };
    if refused != 0 {
        tracing::warn!("no memory to be told of the end of the process: libcufile may crash there");
    }
}

/// The process ends. May be called with any lock held by any thread, and takes none.
extern "C" fn leave(status: c_int, _argument: *mut c_void) {
    // A child has the count, and none of the threads that would bring it down.
    let is_owner = OWNER.load(Ordering::Relaxed) == std::process::id();
    // Another handler was first, and has waited.
    if !is_owner || LEAVING.swap(true, Ordering::SeqCst) {
        return;
    }
    let begin = Instant::now();
    while IN_USE.load(Ordering::SeqCst) > 0 && begin.elapsed() < PATIENCE {
        pause(&LOOK);
    }
    if IN_USE.load(Ordering::SeqCst) > 0 || ENDS_HERE.load(Ordering::SeqCst) {
        // Returned from here the library's destructors would be next, and crash the process. So it
        // ends without them, and without the handlers that were registered before.
        // SAFETY: it takes any number.
        unsafe { libc::_exit(status) };
    }
}
