//! Settings as values, with KvikIO's names where KvikIO has one.

use std::time::Duration;

/// Which backend serves a file.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CompatMode {
    /// cuFile where it is available and the better path, else compat.
    #[default]
    Auto,
    /// Compat only.
    On,
    /// cuFile only; every reason that prevents it is an error at open.
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
    /// The `preadv`/`pwritev` thread pool.
    Pool,
}

/// Whether bytes go around the page cache.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheMode {
    /// Around it where the file allows, through it otherwise.
    #[default]
    Auto,
    /// Around it; opening a file that does not allow that is an error.
    Direct,
    /// Through it.
    Cached,
}

/// The settings of one engine.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which backend serves a file. Default: [`CompatMode::Auto`].
    pub compat_mode: CompatMode,
    /// Which engine the compat backend runs on. Default: [`IoEngine::Auto`].
    pub io: IoEngine,
    /// Whether bytes go around the page cache. Default: [`CacheMode::Auto`].
    pub cache: CacheMode,
    /// Bytes in one part of a split operation. Default: 4 MiB, below which a copy to a GPU slows.
    pub task_size: usize,
    /// Threads of the pool, and parts in flight at once. Default: 8.
    pub num_threads: usize,
    /// Bytes in one staging slot. Default: 4 MiB, one part.
    pub bounce_buffer_size: usize,
    /// Bytes of all parts in flight, staging slots included. Default: 64 MiB.
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
            io: IoEngine::default(),
            cache: CacheMode::default(),
            task_size: 4 << 20,
            num_threads: 8,
            bounce_buffer_size: 4 << 20,
            budget: 64 << 20,
            queued_operations_max: 1 << 20,
            quiet_limit: Duration::from_secs(30),
        }
    }
}
