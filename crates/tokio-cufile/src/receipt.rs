//! What an operation did: bytes by path, why that path, and where the time went.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// The engine that served an operation.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// The compat backend's ring.
    CompatUring,
    /// The compat backend's pool of blocking `pread` and `pwrite`.
    CompatPool,
    /// libcufile.
    CuFile,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CompatUring => "compat-uring",
            Self::CompatPool => "compat-pool",
            Self::CuFile => "cufile",
        })
    }
}

/// The way that bytes took between the file and the memory.
///
/// A path is named only when it was observed.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DataPath {
    /// GPUDirect Storage through the nvidia-fs kernel module.
    NvidiaFs,
    /// GPUDirect Storage through the kernel's PCI peer-to-peer DMA.
    P2pDma,
    /// libcufile's own compatibility mode: POSIX I/O through host memory.
    CufilePosix,
    /// libcufile moved the bytes and cannot say which way.
    CufileUnverified,
    /// io_uring with `O_DIRECT`.
    UringDirect,
    /// io_uring through the page cache.
    UringCached,
    /// The thread pool with `O_DIRECT`: where there is no ring, and beside one for what its threads
    /// have to copy or to digest.
    PoolDirect,
    /// The thread pool through the page cache: by choice, because the file takes nothing else, or
    /// because the bytes were found there by a part that the pool has.
    PoolCached,
    /// Through the page cache where the direct way was wanted: unaligned edges of a write, and
    /// direct requests that the file system refused.
    Buffered,
}

impl DataPath {
    /// Every path, in the order of this documentation.
    pub const ALL: [Self; 9] = [
        Self::NvidiaFs,
        Self::P2pDma,
        Self::CufilePosix,
        Self::CufileUnverified,
        Self::UringDirect,
        Self::UringCached,
        Self::PoolDirect,
        Self::PoolCached,
        Self::Buffered,
    ];

    /// The name used in receipts, JSON and `--require`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NvidiaFs => "nvidia-fs",
            Self::P2pDma => "p2pdma",
            Self::CufilePosix => "cufile-posix",
            Self::CufileUnverified => "cufile-unverified",
            Self::UringDirect => "uring-direct",
            Self::UringCached => "uring-cached",
            Self::PoolDirect => "pool-direct",
            Self::PoolCached => "pool-cached",
            Self::Buffered => "buffered",
        }
    }
}

impl fmt::Display for DataPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of paths that an operation insists on: see `.require(…)`.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathClass {
    /// GPUDirect Storage: `nvidia-fs` or `p2pdma`.
    Gds,
    /// No byte through the page cache, but for the unaligned edges of a write, which the receipt
    /// states as `buffered`.
    DirectIo,
    /// One path and no other.
    Exactly(DataPath),
}

impl PathClass {
    /// Whether bytes that took `path` satisfy the class.
    #[must_use]
    pub fn admits(self, path: DataPath) -> bool {
        match self {
            Self::Gds => matches!(path, DataPath::NvidiaFs | DataPath::P2pDma),
            Self::DirectIo => matches!(
                path,
                DataPath::NvidiaFs
                    | DataPath::P2pDma
                    | DataPath::UringDirect
                    | DataPath::PoolDirect
            ),
            Self::Exactly(one) => one == path,
        }
    }
}

impl fmt::Display for PathClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gds => f.write_str("gds"),
            Self::DirectIo => f.write_str("direct-io"),
            Self::Exactly(path) => path.fmt(f),
        }
    }
}

/// The text names no path class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsePathClassError(String);

impl fmt::Display for ParsePathClassError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown path '{}': use gds, direct-io", self.0)?;
        DataPath::ALL
            .iter()
            .try_for_each(|path| write!(f, ", {path}"))
    }
}

impl std::error::Error for ParsePathClassError {}

impl FromStr for PathClass {
    type Err = ParsePathClassError;

    /// Takes `gds`, `direct-io` or the name of a path.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "gds" => Ok(Self::Gds),
            "direct-io" => Ok(Self::DirectIo),
            name => DataPath::ALL
                .into_iter()
                .find(|path| path.name() == name)
                .map(Self::Exactly)
                .ok_or_else(|| ParsePathClassError(name.to_owned())),
        }
    }
}

/// Bytes counted by the path they took.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct PathBytes([u64; DataPath::ALL.len()]);

impl PathBytes {
    pub(crate) fn add(&mut self, path: DataPath, bytes: u64) {
        self.0[path as usize] += bytes;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum += more;
        }
    }

    /// Bytes that took `path`.
    #[must_use]
    pub fn get(&self, path: DataPath) -> u64 {
        self.0[path as usize]
    }

    /// The paths that carried bytes, and how many.
    pub fn iter(&self) -> impl Iterator<Item = (DataPath, u64)> + '_ {
        DataPath::ALL
            .into_iter()
            .map(|path| (path, self.get(path)))
            .filter(|&(_, bytes)| bytes > 0)
    }

    /// All bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl fmt::Debug for PathBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(path, bytes)| (path.name(), bytes)))
            .finish()
    }
}

/// A decision about a way to do I/O: what was asked, what it became, and why.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// What the settings asked for.
    pub asked: Cow<'static, str>,
    /// What is in force.
    pub resolved: Cow<'static, str>,
    /// Why, for people.
    pub reason: Cow<'static, str>,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (asked {}): {}",
            self.resolved, self.asked, self.reason
        )
    }
}

/// What one operation did.
///
/// `paths` counts what reached the user's memory or the file; an over-read that was discarded is
/// not counted.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub struct Receipt {
    /// Bytes by the path they took.
    pub paths: PathBytes,
    /// The file's route, and why: shared by all receipts of the file.
    pub route: Arc<Route>,
    /// What differed from the route for some bytes of this operation, and why; empty when nothing did.
    pub notes: Vec<Cow<'static, str>>,
    /// Parts that the operation was split into and that were issued.
    pub parts: u64,
    /// System calls that were repeated: short, `EINTR`, `EAGAIN`, or buffered after `EINVAL`.
    pub retries: u64,
    /// From submission to the first part's start.
    pub queue_time: Duration,
    /// Time in system calls, summed over parts that ran in parallel.
    pub io_time: Duration,
    /// Time spent copying between slots and the destination, summed over parts.
    pub copy_time: Duration,
}
