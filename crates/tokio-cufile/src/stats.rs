//! Engine-wide counters.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::PartReport;
use crate::receipt::{DataPath, PathBytes};

/// What an engine has done since it was built, and what it holds now.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Bytes moved, by the path they took, dropped and failed operations included.
    pub paths: PathBytes,
    /// System calls that were repeated.
    pub retries: u64,
    /// Operations submitted and not settled.
    pub operations_live: usize,
    /// Of these, operations that wait for permits.
    pub operations_queued: usize,
    /// Operations whose memory was leaked, because it could not be proved that the hardware was
    /// done with it.
    pub operations_quarantined: u64,
    /// Completions that named no part in flight: late, doubled or unknown. Counted and dropped.
    pub stray_completions: u64,
    /// Bytes in flight, against [`Config::budget`](crate::Config::budget).
    pub bytes: Permits,
    /// Parts in flight.
    pub parts: Permits,
    /// Worker threads of the pool: [`Config::num_threads`](crate::Config::num_threads), and those that are
    /// kept for urgent operations.
    pub workers: Permits,
    /// Staging slots of [`Config::bounce_buffer_size`](crate::Config::bounce_buffer_size).
    pub slots: Permits,
    /// Staging slots of 64 KiB, for small parts.
    pub small_slots: Permits,
}

/// How one bounded resource is spread. The four parts add up to the capacity, always.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permits {
    /// All there is.
    pub capacity: u64,
    /// To be granted.
    pub free: u64,
    /// Granted, and in the kernel's hands or on the way there.
    pub in_flight: u64,
    /// Lost for good, with quarantined memory.
    pub quarantined: u64,
}

impl From<completion::Account> for Permits {
    fn from(account: completion::Account) -> Self {
        Self {
            capacity: account.capacity,
            free: account.free,
            in_flight: account.reserved + account.issued,
            quarantined: account.quarantined,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    paths: [AtomicU64; DataPath::ALL.len()],
    retries: AtomicU64,
    stray_completions: AtomicU64,
}

impl Counters {
    pub(crate) fn add(&self, report: &PartReport) {
        for (path, bytes) in report.paths.iter() {
            self.paths[path as usize].fetch_add(bytes, Ordering::Relaxed);
        }
        self.retries.fetch_add(report.retries, Ordering::Relaxed);
    }

    /// The ring saw a completion that named none of its entries.
    pub(crate) fn stray_completion(&self) {
        self.stray_completions.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self, census: &completion::Census) -> Stats {
        let mut paths = PathBytes::default();
        for path in DataPath::ALL {
            paths.add(path, self.paths[path as usize].load(Ordering::Relaxed));
        }
        Stats {
            paths,
            retries: self.retries.load(Ordering::Relaxed),
            operations_live: census.live,
            operations_queued: census.queued,
            operations_quarantined: census.quarantined_operations,
            stray_completions: self.stray_completions.load(Ordering::Relaxed)
                + census.stray_completions,
            bytes: census.bytes.into(),
            parts: census.parts.into(),
            workers: census.workers.into(),
            slots: census.slots.into(),
            small_slots: census.small_slots.into(),
        }
    }
}
