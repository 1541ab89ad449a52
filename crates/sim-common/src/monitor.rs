//! One bell for everything that somebody may wait for: work done, events complete, contexts lost.
//!
//! A flag is set first and the bell rung after; who waits looks at the flag with the bell's lock
//! held. So nothing is missed, and no lock is held while work is done.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

static LOCK: Mutex<()> = Mutex::new(());
static BELL: Condvar = Condvar::new();

/// Says that some flag has changed.
pub fn ring() {
    let _held = lock(&LOCK);
    BELL.notify_all();
}

/// Returns when `done` says so.
pub fn wait(mut done: impl FnMut() -> bool) {
    let mut held = lock(&LOCK);
    while !done() {
        held = BELL.wait(held).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Lets time pass.
pub fn pause(time: Duration) {
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        if left.is_zero() {
            break;
        }
        std::thread::park_timeout(left);
    }
}

/// A lock that a panic elsewhere does not take away: what is kept in ours is whole at any time.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
