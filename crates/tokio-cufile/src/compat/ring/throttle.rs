//! How many requests copy from the page cache at once.
//!
//! Each of them occupies a kernel worker and a processor for as long as it copies. More of them than
//! processors, less a few for everybody else, only take each other's time, and this thread's.

use std::collections::VecDeque;
use std::thread;

/// Lets so many run, and keeps the rest in order.
pub(super) struct Throttle<T> {
    running: usize,
    running_max: usize,
    /// Bounded by the permits of parts in flight.
    waiting: VecDeque<T>,
}

impl<T> Throttle<T> {
    /// Three of four processors, and four at least: between two requests of one worker its processor
    /// has nothing to do. On two processors two at a time were measured to reach 0.86 of what plain
    /// threads do, four 0.96.
    pub(super) fn new() -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Self::with_max((processors * 3 / 4).max(4))
    }

    const fn with_max(running_max: usize) -> Self {
        Self {
            running: 0,
            running_max,
            waiting: VecDeque::new(),
        }
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Gives it back where it may run now; [`ended`](Self::ended) is owed then.
    pub(super) fn admit(&mut self, one: T) -> Option<T> {
        if self.running == self.running_max {
            self.waiting.push_back(one);
            return None;
        }
        self.running += 1;
        Some(one)
    }

    /// One that ran has ended. Gives the one that may run in its place: for it `ended` is owed too.
    pub(super) fn ended(&mut self) -> Option<T> {
        let next = self.waiting.pop_front();
        if next.is_none() {
            self.running -= 1;
        }
        next
    }

    /// Takes out what waits, for a driver that cannot go on: no kernel knows of it.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.waiting.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_run_and_the_rest_follow_in_order() {
        let mut throttle = Throttle::with_max(2);
        assert_eq!((throttle.admit(1), throttle.admit(2)), (Some(1), Some(2)));
        assert_eq!((throttle.admit(3), throttle.admit(4)), (None, None));
        assert!(!throttle.is_empty());
        assert_eq!((throttle.ended(), throttle.ended()), (Some(3), Some(4)));
        assert_eq!(throttle.admit(5), None, "two run");
        assert_eq!(throttle.ended(), Some(5));
        assert_eq!((throttle.ended(), throttle.ended()), (None, None));
        assert_eq!((throttle.admit(6), throttle.is_empty()), (Some(6), true));
    }
}
