//! Settings of the cuFile backend.

use std::path::PathBuf;
use std::time::Duration;

/// Whether libcufile counts by which way bytes go: the only proof of the path that it has.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CuFileStats {
    /// It does not. Receipts say `cufile-unverified`, unless nvidia-fs itself counts.
    #[default]
    Off,
    /// It does (level 3), from 1.16 on: 1.15 crashes at the exit of a process that has not called
    /// [`Engine::shutdown`](crate::Engine::shutdown) with that level (measured).
    On,
    /// On 1.15 too. For programs that shut their engine down before they end. A process that has that
    /// version open and counting when it exits, because it did not or because an operation was quarantined,
    /// is ended before the library's destructors, with the status that it was leaving with: exit handlers
    /// that were registered before the library was last used in a new way do not run, and what C's streams
    /// hold is not written.
    OnWithShutdown,
}

/// By which of libcufile's calls parts of device memory are moved.
///
/// Either way every byte is where it belongs, errors are the same, and a read is short only at the end
/// of its file. Parts of host memory, and those that have to prove their path
/// ([`require`](crate::Transfer::require)), go by synchronous calls whatever this says.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CuFileCalls {
    /// `cuFileRead` and `cuFileWrite`, in which a thread of the engine waits for each part:
    /// [`num_threads`](crate::Config::num_threads) are in flight at once, beside those that are
    /// kept for urgent operations. The default, since it was the faster one where both were measured, from
    /// the page cache in cuFile's compatibility mode, and tells paths.
    #[default]
    Sync,
    /// `cuFileReadAsync` and `cuFileWriteAsync`, in a few CUDA streams of the engine's own. A thread waits
    /// only while a stream is full, so with a ring as many parts are in flight as `num_threads` and
    /// [`queue_depth`](crate::Config::queue_depth) together say: 128 at most in the streams of a process;
    /// those beyond go by synchronous calls.
    ///
    /// - Parts in one stream come one after the other: an urgent one waits for those before it. In one that
    ///   is stuck they wait for ever; once an operation in it was given up, nothing more is put there.
    /// - What a stream leaves undone, a short result or an interrupted call, is done by synchronous calls.
    /// - Receipts say `cufile-unverified`: which way the bytes in a stream went cannot be told.
    /// - A libcufile before 1.7 has no such calls: the synchronous ones are used then, and
    ///   [`CuFileInfo::not_streamed`](crate::CuFileInfo::not_streamed) says why.
    Stream,
}

/// How the engine uses libcufile.
///
/// It needs a CUDA context for calls that concern no device's memory, and takes the primary context of
/// the first device that CUDA shows: `CUDA_VISIBLE_DEVICES` chooses which that is.
///
/// There is one libcufile in a process. The first engine that opens it fixes what `library` and
/// `stats` say: to an engine that asks for something else, cuFile is not available, with that reason.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CuFileConfig {
    /// A file to load libcufile from, instead of looking for it. Default: none. What is looked for
    /// is `libcufile.so.0`, `libcufile.so` and `libcufile.so.1` on the loader's path, and then in
    /// `/usr/local/cuda/lib64`.
    pub library: Option<PathBuf>,
    /// The least bytes of an operation on device memory that go by cuFile in a file whose
    /// [`compat_mode`](crate::Config::compat_mode) is `Auto`; smaller ones take the compat backend.
    /// Default: 16 KiB, KvikIO's.
    pub gds_threshold: usize,
    /// The same for single file systems, by the name that `/proc/mounts` has for them (`lustre`,
    /// `ext4`): what `posix_gds_min_kb` is to cuFile. Default: none.
    pub gds_threshold_of: Vec<(String, usize)>,
    /// By which calls parts of device memory are moved. Default: [`CuFileCalls::Sync`].
    pub calls: CuFileCalls,
    /// Default: [`CuFileStats::Off`].
    pub stats: CuFileStats,
    /// How long libcufile may take to open. Some versions never return; their thread is lost then,
    /// and cuFile is not available. Default: 20 s.
    pub open_limit: Duration,
    /// Where the process file system is mounted, in which nvidia-fs and the list of kernel modules
    /// are looked for. libcufile looks into `/proc` whatever this says. Default: `/proc`.
    pub proc_dir: PathBuf,
}

impl Default for CuFileConfig {
    fn default() -> Self {
        Self {
            library: None,
            gds_threshold: 16 << 10,
            gds_threshold_of: Vec::new(),
            calls: CuFileCalls::Sync,
            stats: CuFileStats::Off,
            open_limit: Duration::from_secs(20),
            proc_dir: PathBuf::from("/proc"),
        }
    }
}

impl CuFileConfig {
    /// The threshold of a file system of that name.
    pub(crate) fn threshold(&self, file_system: Option<&str>) -> usize {
        let own = self
            .gds_threshold_of
            .iter()
            .find(|(name, _)| Some(name.as_str()) == file_system);
        own.map_or(self.gds_threshold, |(_, bytes)| *bytes)
    }
}
