//! What a device counts.

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::entry::Entry;
use crate::raw;

/// Whether the process ends where an untimely access is caught.
static ABORT: AtomicBool = AtomicBool::new(false);
static SEED: AtomicU64 = AtomicU64::new(0);

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
    pub(crate) elsewhere: AtomicU64,
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
            elsewhere: zero(),
        }
    }

    pub(crate) fn called(&self, entry: Entry) {
        add(&self.calls[entry.index()], 1);
        if !raw::thread_name().starts_with(b"cufile-") {
            add(&self.elsewhere, 1);
        }
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

/// What a late access is told with, and whether it ends the process.
pub(crate) fn judge_late(seed: u64, abort: bool) {
    SEED.store(seed, Ordering::Relaxed);
    ABORT.store(abort, Ordering::Relaxed);
}

/// A line on the error output, if there is one.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    // Unlike `eprintln`, which panics when nobody reads it any more.
    let _ = writeln!(std::io::stderr(), "sim_cuda: {line}");
}

/// Names an access that came too late or too early: a real device would have done harm.
pub(crate) fn late(counter: &AtomicU64, what: &str) {
    add(counter, 1);
    let seed = SEED.load(Ordering::Relaxed);
    say(format_args!("SIMULATED: caught, with seed {seed}: {what}"));
    if ABORT.load(Ordering::Relaxed) {
        std::process::abort();
    }
}
