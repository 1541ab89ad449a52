//! What a device counts.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::entry::Entry;

/// Whether the process ends where an untimely access is caught.
static ABORT: AtomicBool = AtomicBool::new(false);

#[derive(Debug)]
pub(crate) struct Counters {
    calls: Vec<AtomicU64>,
    pub(crate) bytes_to_device: AtomicU64,
    pub(crate) bytes_to_host: AtomicU64,
    pub(crate) bytes_on_device: AtomicU64,
    pub(crate) pageable_copies: AtomicU64,
    pub(crate) late_writes: AtomicU64,
    pub(crate) late_reads: AtomicU64,
    pub(crate) early_accesses: AtomicU64,
    pub(crate) unregistered_in_use: AtomicU64,
    pub(crate) work_abandoned: AtomicU64,
    pub(crate) stale_handles: AtomicU64,
}

impl Counters {
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            calls: Entry::ALL.iter().map(|_| zero()).collect(),
            bytes_to_device: zero(),
            bytes_to_host: zero(),
            bytes_on_device: zero(),
            pageable_copies: zero(),
            late_writes: zero(),
            late_reads: zero(),
            early_accesses: zero(),
            unregistered_in_use: zero(),
            work_abandoned: zero(),
            stale_handles: zero(),
        }
    }

    pub(crate) fn called(&self, entry: Entry) {
        add(&self.calls[entry.index()], 1);
    }

    pub(crate) fn calls(&self, entry: Entry) -> u64 {
        read(&self.calls[entry.index()])
    }

    pub(crate) fn all_calls(&self) -> u64 {
        self.calls.iter().map(read).sum()
    }
}

pub(crate) fn add(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}

pub(crate) fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

pub(crate) fn abort_when_late(abort: bool) {
    ABORT.store(abort, Ordering::Relaxed);
}

/// Names an access that came too late or too early: a real device would have done harm.
pub(crate) fn late(counter: &AtomicU64, what: &str) {
    add(counter, 1);
    eprintln!("sim_cuda: SIMULATED: caught: {what}");
    if ABORT.load(Ordering::Relaxed) {
        std::process::abort();
    }
}
