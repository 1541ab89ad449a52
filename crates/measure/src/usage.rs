//! What work cost: wall clock, CPU time, memory.
//!
//! The window of every figure is first submit to last settle. Building engines, obtaining
//! destinations and hashing lie outside.

use std::cell::Cell;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::os;

/// CPU time of all threads of this process, user and system, kernel workers of its io_uring
/// included.
///
/// The clock that `getrusage` also reports, at a finer grain.
#[must_use]
pub fn process_cpu() -> Duration {
    cpu(ClockId::ProcessCPUTime)
}

/// CPU time of the calling thread.
#[must_use]
pub fn thread_cpu() -> Duration {
    cpu(ClockId::ThreadCPUTime)
}

fn cpu(clock: ClockId) -> Duration {
    // A CPU clock counts up from zero, so neither field can be negative.
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

/// A window of time over the whole process, open since it was made.
#[derive(Debug)]
pub struct Window {
    since: Instant,
    cpu: Duration,
    user: Duration,
    system: Duration,
}

impl Window {
    /// Opens a window: call it right before the first submit.
    #[must_use]
    pub fn open() -> Self {
        let (user, system) = user_system();
        Self {
            user,
            system,
            cpu: process_cpu(),
            since: Instant::now(),
        }
    }

    /// Closes it: call it right after the last settle.
    #[must_use]
    pub fn close(self) -> Usage {
        let wall = self.since.elapsed();
        let cpu = process_cpu().saturating_sub(self.cpu);
        let (user, system) = user_system();
        Usage {
            wall_s: wall.as_secs_f64(),
            cpu_s: cpu.as_secs_f64(),
            user_s: user.saturating_sub(self.user).as_secs_f64(),
            system_s: system.saturating_sub(self.system).as_secs_f64(),
        }
    }
}

fn user_system() -> (Duration, Duration) {
    // It fails for a bad pointer or an unknown subject, and neither is in the call.
    os::rusage().unwrap_or_default()
}

/// What a window saw, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Usage {
    /// Wall clock.
    pub wall_s: f64,
    /// CPU time, user and system together, of all threads.
    pub cpu_s: f64,
    /// CPU time in user mode, at the coarser grain of `getrusage`.
    pub user_s: f64,
    /// CPU time in the kernel, likewise.
    pub system_s: f64,
}

/// Wall clock that runs while at least one request is in flight.
///
/// For work that goes through several windows of memory, so that making or hashing bytes between
/// requests is not counted.
#[derive(Debug, Default)]
pub struct IoClock {
    in_flight: Cell<u32>,
    since: Cell<Option<Instant>>,
    total: Cell<Duration>,
}

impl IoClock {
    /// A request is in flight until the guard is dropped.
    pub fn enter(&self) -> InFlight<'_> {
        if self.in_flight.replace(self.in_flight.get() + 1) == 0 {
            self.since.set(Some(Instant::now()));
        }
        InFlight(self)
    }

    /// Time with at least one request in flight, those still in flight not counted.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.total.get()
    }
}

/// A request that is in flight until this is dropped.
#[derive(Debug)]
#[must_use = "the request ends when this is dropped"]
pub struct InFlight<'a>(&'a IoClock);

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

/// Resident bytes of this process: now, and at most since it started or
/// [`reset_peak_memory`] was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Now.
    pub resident: u64,
    /// At most.
    pub peak: u64,
}

/// What the process holds of the machine's memory.
///
/// # Errors
///
/// Where `/proc` is not there or not understood.
pub fn memory() -> io::Result<Memory> {
    memory_of(&fs::read_to_string("/proc/self/status")?)
        .ok_or_else(|| io::Error::other("/proc/self/status lacks VmRSS or VmHWM"))
}

/// Starts the peak anew at what is resident now.
///
/// # Errors
///
/// Where the kernel does not allow it.
pub fn reset_peak_memory() -> io::Result<()> {
    fs::write("/proc/self/clear_refs", "5")
}

fn memory_of(status: &str) -> Option<Memory> {
    let field = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    Some(Memory {
        resident: field("VmRSS:")?,
        peak: field("VmHWM:")?,
    })
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
        let window = Window::open();
        let (thread, process) = (thread_cpu(), process_cpu());
        let mut sum = 0_u64;
        while thread_cpu() == thread {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(process_cpu() > process);
        let usage = window.close();
        assert!(usage.cpu_s > 0.0 && usage.wall_s > 0.0, "{usage:?}");
    }

    #[test]
    fn the_kernels_words_about_memory_are_understood() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        let memory = memory_of(status).unwrap();
        assert_eq!((memory.peak, memory.resident), (2 << 20, 1 << 20));
        assert_eq!(memory_of("VmRSS:\t1 kB\n"), None);
    }

    #[test]
    fn touched_memory_is_resident_and_in_the_peak() {
        // The kernel counts per processor and adds up now and then.
        const SLACK: u64 = 8 << 20;
        let before = memory().unwrap();
        let bytes = std::hint::black_box(vec![1_u8; 64 << 20]);
        let with = memory().unwrap();
        let least = before.resident + (64 << 20) - SLACK;
        assert!(with.peak >= least, "{before:?} {with:?}");
        drop(bytes);
        let after = memory().unwrap();
        assert!(after.peak + SLACK >= with.resident, "{with:?} {after:?}");
    }
}
