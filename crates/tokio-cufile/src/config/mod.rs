//! Settings as values, with KvikIO's names where KvikIO has one.

mod cufile;
mod env;

use std::time::Duration;

pub use self::cufile::{CuFileCalls, CuFileConfig, CuFileStats};
use crate::error::{Error, ErrorKind, Result};

/// Which backend serves a file.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CompatMode {
    /// cuFile where GPUDirect Storage is possible, else compat. In its own compatibility mode
    /// libcufile moves the bytes through the host as well, and cannot be cancelled, nor say which way
    /// they went: then it is not used, nor even opened.
    #[default]
    Auto,
    /// Compat only.
    On,
    /// cuFile only, in its own compatibility mode too: see [`PathClass::Gds`](crate::PathClass::Gds)
    /// to insist on more. Every reason that prevents it is an error at open. Pages that a write fills
    /// only in part are written buffered all the same, and digests and their operations go by the
    /// pool.
    Off,
}

/// Which engine the compat backend runs on.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IoEngine {
    /// The best available.
    #[default]
    Auto,
    /// io_uring.
    Uring,
    /// The pool of blocking `pread` and `pwrite`.
    Pool,
}

/// Whether bytes go around the page cache.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheMode {
    /// Around it where the file allows, but for what a read finds there; through it otherwise.
    #[default]
    Auto,
    /// Around it, but for the unaligned edges of writes; opening a file that does not allow that is
    /// an error.
    Direct,
    /// Through it.
    Cached,
}

/// How urgent an operation is. All share one budget.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Priority {
    /// Before everything else, and with an eighth of the permits reserved for it: what fits into
    /// that waits for other urgent operations only. For what a person or a request waits for.
    Urgent,
    /// The default.
    #[default]
    Normal,
    /// After everything else, but never starved. For checkpoints and prefetching.
    Bulk,
}

impl From<Priority> for completion::Class {
    fn from(priority: Priority) -> Self {
        match priority {
            Priority::Urgent => Self::Urgent,
            Priority::Normal => Self::Normal,
            Priority::Bulk => Self::Bulk,
        }
    }
}

/// The settings of one engine.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which backend serves a file. Default: [`CompatMode::Auto`].
    pub compat_mode: CompatMode,
    /// How cuFile is used, where it is.
    pub cufile: CuFileConfig,
    /// Which engine the compat backend runs on. Default: [`IoEngine::Auto`].
    pub io: IoEngine,
    /// Whether bytes go around the page cache. Default: [`CacheMode::Auto`].
    pub cache: CacheMode,
    /// Bytes in one part of a split operation. Default: 4 MiB, below which a copy to a GPU slows.
    pub task_size: usize,
    /// Threads of the pool, each with one part or call in flight: what goes through the page cache
    /// by plan, staged parts above 64 KiB, files whose system may block a ring, opening, syncing and
    /// closing; without a ring, everything. cuFile has as many threads of its own, started when it
    /// is opened; the parts of both together are at most as many, without those in CUDA streams. An
    /// eighth more of them, but at least one from two on, is kept for urgent operations. Default: 8.
    pub num_threads: usize,
    /// Parts that the ring has in flight beside those of the threads. Default: 128.
    pub queue_depth: usize,
    /// How long the ring thread looks for the next event before it sleeps, where parts of at most
    /// 64 KiB come one at a time; zero for not at all. Default: zero. Measured with 50 microseconds
    /// on a disk that answers in 57: 7 % off the median of a lone 4 KiB read, which is within the
    /// noise, for 1.7 times the CPU time. A faster disk gains more.
    pub spin_limit: Duration,
    /// Whether the staging slots are touched at start and registered with the ring. Default: no,
    /// since for host memory no gain is to be had: what the ring stages is at most 64 KiB, where
    /// registration was measured to change nothing. Where the limit on locked memory refuses it,
    /// the ring goes on without and says so.
    pub registered_buffers: bool,
    /// Whether a thread for each device issues the copies between slots and device memory, so that a
    /// driver call that blocks cannot hold up the ring; else the ring thread issues those of its own
    /// parts. The pool's parts always go to such a thread.
    pub copy_threads: bool,
    /// Bytes in one staging slot. Default: 4 MiB, one part.
    pub bounce_buffer_size: usize,
    /// Bytes of all parts in flight. The staging slots have memory of their own, at most as much
    /// again, of which an eighth at most is in slots of 64 KiB for small parts. It is obtained when
    /// it is first used, and pinned when the first device is. Default: 128 MiB.
    pub budget: usize,
    /// Operations that may wait at once; one more fails with `QueueFull`. Default: 1,048,576.
    pub queued_operations_max: usize,
    /// How long nothing may be heard of an issued part, after a deadline, a cancel or a shutdown,
    /// before its memory is quarantined. Default: 30 s.
    pub quiet_limit: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            compat_mode: CompatMode::default(),
            cufile: CuFileConfig::default(),
            io: IoEngine::default(),
            cache: CacheMode::default(),
            task_size: 4 << 20,
            num_threads: 8,
            queue_depth: 128,
            spin_limit: Duration::ZERO,
            registered_buffers: false,
            copy_threads: false,
            bounce_buffer_size: 4 << 20,
            budget: 128 << 20,
            queued_operations_max: 1 << 20,
            quiet_limit: Duration::from_secs(30),
        }
    }
}

/// What sizes of slots and parts are multiples of: direct I/O on every usual disk can do with it. Not
/// the machine's page, which would make settings depend on the machine.
const SIZE_UNIT: usize = 4096;

/// A thread is a few tens of kilobytes; more of them than this help no disk.
const NUM_THREADS_MAX: usize = 1024;

/// What the kernel grants a ring without asking, and far more than one disk takes.
const QUEUE_DEPTH_MAX: usize = 4096;

/// Longer than any small read worth spinning for.
const SPIN_LIMIT_MAX: Duration = Duration::from_millis(1);

impl Config {
    /// Whether the settings go together.
    pub(crate) fn check(&self) -> Result<()> {
        let sizes = [
            ("task_size", self.task_size),
            ("bounce_buffer_size", self.bounce_buffer_size),
        ];
        for (name, bytes) in sizes {
            if bytes == 0 || !bytes.is_multiple_of(SIZE_UNIT) {
                return invalid(format!(
                    "{name} is {bytes}: it must be a multiple of {SIZE_UNIT}"
                ));
            }
            if bytes > self.budget {
                return invalid(format!(
                    "{name} is {bytes}, above the budget of {}",
                    self.budget
                ));
            }
        }
        if !(1..=NUM_THREADS_MAX).contains(&self.num_threads) {
            let threads = self.num_threads;
            return invalid(format!(
                "num_threads is {threads}: it must be 1 to {NUM_THREADS_MAX}"
            ));
        }
        if !(1..=QUEUE_DEPTH_MAX).contains(&self.queue_depth) {
            let depth = self.queue_depth;
            return invalid(format!(
                "queue_depth is {depth}: it must be 1 to {QUEUE_DEPTH_MAX}"
            ));
        }
        if self.spin_limit > SPIN_LIMIT_MAX {
            return invalid(format!("spin_limit is above {SPIN_LIMIT_MAX:?}"));
        }
        if self.cufile.open_limit.is_zero() {
            return invalid("cufile.open_limit is 0: cuFile would never be there".to_owned());
        }
        if self.queued_operations_max == 0 {
            return invalid("queued_operations_max is 0: nothing would be admitted".to_owned());
        }
        if self.quiet_limit.is_zero() {
            return invalid("quiet_limit is 0: every cancel would leak its memory".to_owned());
        }
        Ok(())
    }
}

fn invalid<T>(reason: String) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidInput, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_be_are_named() {
        type Change = fn(&mut Config);
        let cases: [(&str, Change); 9] = [
            ("task_size", |config| config.task_size = 0),
            ("task_size", |config| config.task_size = 4097),
            ("bounce_buffer_size", |config| {
                config.bounce_buffer_size = 1 << 30
            }),
            ("num_threads", |config| config.num_threads = 0),
            ("num_threads", |config| config.num_threads = 1 << 20),
            ("queue_depth", |config| config.queue_depth = 0),
            ("spin_limit", |config| {
                config.spin_limit = Duration::from_secs(1);
            }),
            ("queued_operations_max", |config| {
                config.queued_operations_max = 0
            }),
            ("quiet_limit", |config| config.quiet_limit = Duration::ZERO),
        ];
        for (name, change) in cases {
            let mut config = Config::default();
            change(&mut config);
            let error = config.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.reason().starts_with(name), "{error}");
        }
    }
}
