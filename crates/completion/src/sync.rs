//! The lock that a model checker may replace. Shared ownership stays `std`'s: it is not what the
//! models explore, and the replacements cannot hold a `dyn`.

#[cfg(completion_loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(all(completion_shuttle, not(completion_loom)))]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
#[cfg(not(any(completion_loom, completion_shuttle)))]
pub(crate) use std::sync::{Mutex, MutexGuard};

use std::sync::PoisonError;

/// Locks, also when another thread panicked inside: no foreign code ever runs under a lock of this
/// crate, so the state behind it is whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
