//! Wakers of operations that have settled.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Wakers to be woken together: a backend that reaps many completions at a time wakes after the
/// last, so that the first wake does not set a thread against the rest. Dropped, it wakes them.
#[derive(Debug, Default)]
pub struct Wakers(Vec<Waker>);

impl Wakers {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn push(&mut self, waker: Waker) {
        self.0.push(waker);
    }

    pub(crate) fn extend(&mut self, waker: Option<Waker>) {
        self.0.extend(waker);
    }

    pub(crate) fn append(&mut self, wakers: &mut Vec<Waker>) {
        self.0.append(wakers);
    }

    /// Wakes them, in the order in which their operations settled.
    pub fn wake(&mut self) {
        for waker in self.0.drain(..) {
            // A waker is foreign code: its panic ends here (I14, I15).
            drop(catch_unwind(AssertUnwindSafe(|| waker.wake())));
        }
    }
}

impl FromIterator<Waker> for Wakers {
    fn from_iter<I: IntoIterator<Item = Waker>>(wakers: I) -> Self {
        Self(wakers.into_iter().collect())
    }
}

impl Drop for Wakers {
    fn drop(&mut self) {
        self.wake();
    }
}
