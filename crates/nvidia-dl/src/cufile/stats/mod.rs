//! Statistics: what the library counts, and how bytes went.
//!
//! The library writes a structure of its own version's size, whatever the caller has room for. So
//! there is one place, larger than any, and the version chooses how it is [read](layout).
//!
//! Unsafe, because the calls answer through pointers.
#![allow(unsafe_code, reason = "foreign calls that answer through pointers")]

mod layout;

use std::ffi::{c_int, c_void};

use layout::{HISTOGRAM, Raw, WORDS};

use super::error::CufileError;
use super::library::{Library, check, present};
use super::symbols::Symbols;
use super::types::Status;
use super::version::Version;

/// How much is counted.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StatsLevel(pub c_int);

impl StatsLevel {
    /// Nothing.
    pub const OFF: Self = Self(0);
    /// Calls, bytes and times: [`StatsL1`].
    pub const BASIC: Self = Self(1);
    /// Also sizes: [`StatsL2`].
    pub const HISTOGRAMS: Self = Self(2);
    /// Also each GPU, by path: [`StatsL3`]. With it on, 1.15 crashes when the process exits with
    /// the library open.
    pub const PER_GPU: Self = Self(3);
}

/// How often something was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counter {
    /// Times that it succeeded.
    pub ok: u64,
    /// Times that it failed.
    pub err: u64,
}

/// Bytes and times in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Calls.
    pub ops: Counter,
    /// Bytes.
    pub bytes: u64,
    /// Bytes a second.
    pub bandwidth: u64,
    /// Mean latency, in microseconds.
    pub latency_us: u64,
    /// Calls a second.
    pub ops_per_second: u64,
    /// All latencies together, in microseconds.
    pub latency_sum_us: u64,
}

/// What batches did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchStats {
    /// Submissions.
    pub submits: Counter,
    /// Completions.
    pub completes: Counter,
    /// Submissions by nvidia-fs.
    pub nvidia_fs_submits: Counter,
    /// Submissions by P2PDMA.
    pub p2pdma_submits: Counter,
    /// Submissions by Linux AIO.
    pub aio_submits: Counter,
    /// Submissions by io_uring.
    pub io_uring_submits: Counter,
    /// Submissions of several kinds at once.
    pub mixed_submits: Counter,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

/// What vectored calls did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VectorStats {
    /// `cuFileReadv`.
    pub reads: Traffic,
    /// `cuFileWritev`.
    pub writes: Traffic,
}

/// Level 1: calls, bytes, times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatsL1 {
    /// Reads, but vectored ones.
    pub reads: Traffic,
    /// Writes, but vectored ones.
    pub writes: Traffic,
    /// Files registered.
    pub handle_registers: Counter,
    /// Files deregistered.
    pub handle_deregisters: Counter,
    /// Buffers registered.
    pub buf_registers: Counter,
    /// Buffers deregistered.
    pub buf_deregisters: Counter,
    /// Batches.
    pub batch: BatchStats,
    /// Vectored calls; none before 1.19.
    pub vectored: Option<VectorStats>,
}

/// Level 2: also sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatsL2 {
    /// Level 1.
    pub basic: StatsL1,
    /// Reads by size in KiB.
    pub read_sizes: [u64; HISTOGRAM],
    /// Writes by size in KiB.
    pub write_sizes: [u64; HISTOGRAM],
}

/// Level 3: also each GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatsL3 {
    /// Level 2.
    pub detailed: StatsL2,
    /// Each GPU that was used.
    pub gpus: Vec<GpuStats>,
}

/// How often each path was taken. Pieces are counted, not calls: one call may be several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathCounts {
    /// The kernel's P2PDMA: direct.
    pub p2pdma: u64,
    /// nvidia-fs: direct.
    pub nvidia_fs: u64,
    /// Through the host.
    pub posix: u64,
}

/// What the library did with one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuStats {
    /// The GPU's UUID.
    pub uuid: [u8; 16],
    /// Bytes read.
    pub read_bytes: u64,
    /// Pieces read, by whatever path.
    pub reads: u64,
    /// Pieces read by path.
    pub reads_by_path: PathCounts,
    /// Pieces read that were not aligned.
    pub reads_unaligned: u64,
    /// Pieces read over another GPU.
    pub reads_routed: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Pieces written, by whatever path.
    pub writes: u64,
    /// Pieces written by path.
    pub writes_by_path: PathCounts,
    /// Pieces written that were not aligned.
    pub writes_unaligned: u64,
    /// Pieces written over another GPU.
    pub writes_routed: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Buffers that were to be registered.
    pub buf_registers: Counter,
    /// Buffers deregistered.
    pub buf_deregisters: u64,
    /// Bytes registered.
    pub buf_registered_bytes: u64,
}

impl PathCounts {
    /// All paths together.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.p2pdma
            .wrapping_add(self.nvidia_fs)
            .wrapping_add(self.posix)
    }

    /// What has been added since `earlier`. Counts that were reset meanwhile are taken whole.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            p2pdma: grown(self.p2pdma, earlier.p2pdma),
            nvidia_fs: grown(self.nvidia_fs, earlier.nvidia_fs),
            posix: grown(self.posix, earlier.posix),
        }
    }

    const fn plus(self, other: Self) -> Self {
        Self {
            p2pdma: self.p2pdma.wrapping_add(other.p2pdma),
            nvidia_fs: self.nvidia_fs.wrapping_add(other.nvidia_fs),
            posix: self.posix.wrapping_add(other.posix),
        }
    }
}

const fn grown(now: u64, earlier: u64) -> u64 {
    match now.checked_sub(earlier) {
        Some(more) => more,
        None => now,
    }
}

impl StatsL3 {
    /// Reads by path, over all GPUs.
    #[must_use]
    pub fn reads_by_path(&self) -> PathCounts {
        let each = self.gpus.iter().map(|gpu| gpu.reads_by_path);
        each.fold(PathCounts::default(), PathCounts::plus)
    }

    /// Writes by path, over all GPUs.
    #[must_use]
    pub fn writes_by_path(&self) -> PathCounts {
        let each = self.gpus.iter().map(|gpu| gpu.writes_by_path);
        each.fold(PathCounts::default(), PathCounts::plus)
    }
}

/// Statistics: 1.15 and later. The order is: [level](Self::set_stats_level), open,
/// [start](Self::stats_start), and then asking. They are the whole process's.
impl Library {
    /// `cuFileSetStatsLevel`. Before the library is open.
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.15; what the library says.
    pub fn set_stats_level(&self, level: StatsLevel) -> Result<(), CufileError> {
        const CALL: &str = "cuFileSetStatsLevel";
        let set = present(self.symbols.set_stats_level, CALL)?;
        // SAFETY: takes a number only.
        let status = unsafe { set(level.0) };
        check(CALL, status)
    }

    /// `cuFileGetStatsLevel`.
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.15; what the library says.
    pub fn stats_level(&self) -> Result<StatsLevel, CufileError> {
        const CALL: &str = "cuFileGetStatsLevel";
        let get = present(self.symbols.get_stats_level, CALL)?;
        let mut level: c_int = 0;
        // SAFETY: writes one integer to a place that lives.
        let status = unsafe { get(&raw mut level) };
        check(CALL, status)?;
        Ok(StatsLevel(level))
    }

    /// `cuFileStatsStart`: counts from now on.
    ///
    /// # Errors
    ///
    /// [`DRIVER_NOT_INITIALIZED`](super::Code::DRIVER_NOT_INITIALIZED) before the library is open;
    /// [`CufileError::Unsupported`] before 1.15.
    pub fn stats_start(&self) -> Result<(), CufileError> {
        plain("cuFileStatsStart", self.symbols.stats_start)
    }

    /// `cuFileStatsStop`: counts no more.
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.15; what the library says.
    pub fn stats_stop(&self) -> Result<(), CufileError> {
        plain("cuFileStatsStop", self.symbols.stats_stop)
    }

    /// `cuFileStatsReset`: counts from 0. Others in the process may read the same counts.
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.15; what the library says.
    pub fn stats_reset(&self) -> Result<(), CufileError> {
        plain("cuFileStatsReset", self.symbols.stats_reset)
    }

    /// `cuFileGetStatsL1`.
    ///
    /// # Errors
    ///
    /// [`INVALID_VALUE`](super::Code::INVALID_VALUE) where nothing is counted, or not at this
    /// level; [`CufileError::Unsupported`] before 1.15; what the library says.
    pub fn stats_l1(&self) -> Result<StatsL1, CufileError> {
        let read = self.read_stats("cuFileGetStatsL1", |symbols| symbols.get_stats_l1)?;
        Ok(read.level1())
    }

    /// `cuFileGetStatsL2`.
    ///
    /// # Errors
    ///
    /// As for [`stats_l1`](Self::stats_l1).
    pub fn stats_l2(&self) -> Result<StatsL2, CufileError> {
        let read = self.read_stats("cuFileGetStatsL2", |symbols| symbols.get_stats_l2)?;
        Ok(read.level2())
    }

    /// `cuFileGetStatsL3`: the only call that tells which path bytes took.
    ///
    /// # Errors
    ///
    /// As for [`stats_l1`](Self::stats_l1).
    pub fn stats_l3(&self) -> Result<StatsL3, CufileError> {
        let read = self.read_stats("cuFileGetStatsL3", |symbols| symbols.get_stats_l3)?;
        Ok(read.level3())
    }

    fn read_stats(
        &self,
        call: &'static str,
        which: impl FnOnce(&Symbols) -> Option<GetStats>,
    ) -> Result<Raw, CufileError> {
        let get = present(which(&self.symbols), call)?;
        // Statistics came later than the version's call, so there is one.
        let version = self.version()?.unwrap_or(Version(0));
        let mut words = Box::new([0_u64; WORDS]);
        // SAFETY: no version's structure is as large, and this one is aligned to its fields.
        let status = unsafe { get(words.as_mut_ptr().cast()) };
        check(call, status)?;
        Ok(Raw::new(words, version))
    }
}

type GetStats = unsafe extern "C" fn(*mut c_void) -> Status;

fn plain(
    call: &'static str,
    function: Option<unsafe extern "C" fn() -> Status>,
) -> Result<(), CufileError> {
    let function = present(function, call)?;
    // SAFETY: takes nothing.
    let status = unsafe { function() };
    check(call, status)
}
