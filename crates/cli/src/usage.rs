//! What a transfer cost: wall clock and CPU time.
//!
//! The window of every figure is first submit to last settle. Where a range goes through several
//! windows of memory, the clock runs while at least one request is in flight, so that making or
//! hashing bytes between requests is not counted.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// CPU time of all threads of this process, user and system.
///
/// The clock that `getrusage` also reports, at a finer grain.
pub(crate) fn process_cpu() -> Duration {
    cpu(ClockId::ProcessCPUTime)
}

/// CPU time of the calling thread.
pub(crate) fn thread_cpu() -> Duration {
    cpu(ClockId::ThreadCPUTime)
}

fn cpu(clock: ClockId) -> Duration {
    // A CPU clock counts up from zero, so neither field can be negative.
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

/// Wall clock that runs while at least one request is in flight.
#[derive(Debug, Default)]
pub(crate) struct IoClock {
    in_flight: Cell<u32>,
    since: Cell<Option<Instant>>,
    total: Cell<Duration>,
}

impl IoClock {
    /// A request is in flight until the guard is dropped.
    pub(crate) fn enter(&self) -> InFlight<'_> {
        if self.in_flight.replace(self.in_flight.get() + 1) == 0 {
            self.since.set(Some(Instant::now()));
        }
        InFlight(self)
    }

    /// Time with at least one request in flight, those still in flight not counted.
    pub(crate) fn total(&self) -> Duration {
        self.total.get()
    }
}

#[derive(Debug)]
pub(crate) struct InFlight<'a>(&'a IoClock);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        if self.0.in_flight.get() == 0
            && let Some(since) = self.0.since.take()
        {
            self.0.total.set(self.0.total.get() + since.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_counts_overlapping_requests_once() {
        let start = Instant::now();
        let clock = IoClock::default();
        let first = clock.enter();
        let second = clock.enter();
        drop(first);
        assert_eq!(
            clock.total(),
            Duration::ZERO,
            "the second request is still in flight"
        );
        drop(second);
        let total = clock.total();
        assert!(total > Duration::ZERO);
        assert!(total <= start.elapsed());
    }

    #[test]
    fn the_clock_stands_still_between_requests() {
        let clock = IoClock::default();
        drop(clock.enter());
        let total = clock.total();
        assert_eq!(clock.total(), total);
        drop(clock.enter());
        assert!(clock.total() > total);
    }

    #[test]
    fn work_costs_cpu_time_of_its_thread_and_its_process() {
        let (thread, process) = (thread_cpu(), process_cpu());
        let mut sum = 0_u64;
        while thread_cpu() == thread {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(process_cpu() > process);
    }
}
