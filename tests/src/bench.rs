//! The engines under test, as values, and a directory with an engine to try them in.
//!
//! A conformance test is written once against a [`Bench`] and runs for every engine, for settings
//! that cut requests in different ways, and on a disk and on tmpfs.
#![allow(
    clippy::disallowed_methods,
    reason = "variables say where files may be, and which library is meant"
)]

use std::env;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions as StdOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::OFlags;
use tempfile::TempDir;
use tokio_cufile::{
    AsyncCuFile, CacheMode, CompatMode, CuFileCalls, CuFileConfig, DataPath, Engine, EngineBuilder,
    IoEngine, OpenOptions, PathBytes,
};

use crate::sim;

/// An engine that has to behave as every other one.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// What failures are reported under.
    pub name: &'static str,
    /// Which settings select it.
    pub compat_mode: CompatMode,
    /// And the compat backend's engine.
    pub io: IoEngine,
    /// And cuFile's calls.
    pub calls: CuFileCalls,
    /// The path of bytes that go around the page cache.
    pub direct: DataPath,
    /// The path of bytes that go through it by choice.
    pub cached: DataPath,
}

/// The compat backend's.
#[must_use]
pub fn subjects() -> Vec<Subject> {
    let pool = Subject {
        name: "pool",
        compat_mode: CompatMode::On,
        io: IoEngine::Pool,
        calls: CuFileCalls::Sync,
        direct: DataPath::PoolDirect,
        cached: DataPath::PoolCached,
    };
    let uring = Subject {
        name: "uring",
        compat_mode: CompatMode::On,
        io: IoEngine::Uring,
        calls: CuFileCalls::Sync,
        direct: DataPath::UringDirect,
        cached: DataPath::PoolCached,
    };
    vec![pool, uring]
}

/// cuFile for whatever it takes, by each kind of its calls, where it is simulated or
/// [`LIBRARY_VARIABLE`] names a library of NVIDIA's: some versions of that take no files in memory.
#[must_use]
pub fn cufile(parent: &Path) -> Vec<Subject> {
    let by = |name, calls| Subject {
        name,
        compat_mode: CompatMode::Off,
        io: IoEngine::Pool,
        calls,
        direct: DataPath::CufileUnverified,
        cached: DataPath::CufileUnverified,
    };
    let all = [
        by("cufile", CuFileCalls::Sync),
        by("cufile in streams", CuFileCalls::Stream),
    ];
    let is_in_memory = Some(parent) == tmpfs();
    let is_named = env::var_os(LIBRARY_VARIABLE).is_some();
    let is_there = sim::is_asked_for() || (is_named && !is_in_memory);
    all.into_iter().filter(|_| is_there).collect()
}

impl Subject {
    /// The settings that select it.
    pub fn builder(&self) -> EngineBuilder {
        let mut cufile = cufile_here();
        cufile.calls = self.calls;
        let builder = Engine::builder().io(self.io).cufile(cufile);
        builder.compat_mode(self.compat_mode)
    }
}

/// One engine with one set of settings.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Engine and settings, for failure messages.
    pub name: String,
    /// The engine.
    pub subject: Subject,
    /// How the page cache is used.
    pub cache: CacheMode,
    /// Everything, ready to build.
    pub builder: EngineBuilder,
}

/// Every engine of the compat backend, with settings that cut and stage requests differently.
#[must_use]
pub fn setups() -> Vec<Setup> {
    setups_of(&subjects())
}

/// Every engine that takes files there.
#[must_use]
pub fn every_subject(parent: &Path) -> Vec<Subject> {
    [subjects(), cufile(parent)].concat()
}

fn setups_of(subjects: &[Subject]) -> Vec<Setup> {
    let mut setups = Vec::new();
    for &subject in subjects {
        let mut add = |name: &str, cache, change: fn(EngineBuilder) -> EngineBuilder| {
            let builder = subject.builder().cache(cache);
            setups.push(Setup {
                name: format!("{} {name}", subject.name),
                subject,
                cache,
                builder: change(builder),
            });
        };
        add("default", CacheMode::Auto, |builder| builder);
        add("one page a part", CacheMode::Auto, |builder| {
            let builder = builder.task_size(4096).bounce_buffer_size(4096);
            builder.budget(64 << 10).num_threads(2).copy_threads(true)
        });
        add("slots below parts", CacheMode::Direct, |builder| {
            builder
                .task_size(20 << 10)
                .bounce_buffer_size(8 << 10)
                .num_threads(3)
        });
        add("cached", CacheMode::Cached, |builder| {
            builder.task_size(12 << 10)
        });
    }
    setups
}

/// Settings by which a simulated libcufile is opened on any machine: this one's kernel may show no
/// list of modules, which some versions are not opened without.
///
/// # Panics
///
/// When the directory that shows one cannot be made.
#[must_use]
pub fn simulated_cufile() -> CuFileConfig {
    static PROC: OnceLock<TempDir> = OnceLock::new();
    let proc_dir = PROC.get_or_init(|| {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("modules"), "").expect("a file");
        directory
    });
    let mut config = CuFileConfig::default();
    config.proc_dir = proc_dir.path().to_owned();
    config
}

/// Settings for whatever libcufile the process has: a simulated one if it was asked for; otherwise the
/// one that [`LIBRARY_VARIABLE`] or the loader names, on the machine as it is.
///
/// # Panics
///
/// As [`simulated_cufile`].
#[must_use]
pub fn cufile_here() -> CuFileConfig {
    if sim::is_asked_for() {
        return simulated_cufile();
    }
    let mut config = CuFileConfig::default();
    config.library = env::var_os(LIBRARY_VARIABLE).map(PathBuf::from);
    config
}

/// The variable that names the libcufile, where the loader does not find it.
pub const LIBRARY_VARIABLE: &str = "TOKIO_CUFILE_LIBCUFILE";

/// The variable that names the folder where files are made.
pub const FOLDER_VARIABLE: &str = "TOKIO_CUFILE_TEST_FOLDER";

/// An engine and an empty directory.
#[derive(Debug)]
pub struct Bench {
    /// The settings.
    pub setup: Setup,
    /// The engine.
    pub engine: Engine,
    /// Whether files here take direct I/O, found out without the library.
    pub takes_direct: bool,
    directory: TempDir,
    files: AtomicU64,
}

impl Bench {
    /// A bench in a new directory inside `parent`.
    ///
    /// # Panics
    ///
    /// When the engine or the directory cannot be made.
    #[must_use]
    pub fn new(setup: &Setup, parent: &Path) -> Self {
        let directory = tempfile::tempdir_in(parent).expect("a directory to work in");
        let takes_direct = takes_direct(directory.path());
        let engine = setup.builder.clone().build_blocking().expect("an engine");
        Self {
            setup: setup.clone(),
            engine,
            takes_direct,
            directory,
            files: AtomicU64::new(0),
        }
    }

    /// Where `name` would lie in the directory.
    #[must_use]
    pub fn path(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.directory.path().join(Path::new(name.as_ref()))
    }

    /// A path that was not given out before.
    #[must_use]
    pub fn fresh_path(&self) -> PathBuf {
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        self.path(format!("file-{number}"))
    }

    /// Whether libcufile opens each file once more, by its path: where it is given a descriptor that
    /// goes around the page cache.
    #[must_use]
    pub fn opens_again(&self) -> bool {
        self.setup.subject.compat_mode == CompatMode::Off && self.goes_direct()
    }

    /// The path of bytes that nothing keeps from the settings' way.
    #[must_use]
    pub fn main_path(&self) -> DataPath {
        if self.goes_direct() {
            self.setup.subject.direct
        } else {
            self.setup.subject.cached
        }
    }

    /// Fails unless all of a read's bytes took a way that the settings allow. With `cache` auto,
    /// what is in the page cache may come from there; and the ring leaves large parts that need a
    /// copy to the pool.
    ///
    /// # Panics
    ///
    /// When a byte took another way.
    #[track_caller]
    pub fn assert_read_paths(&self, paths: PathBytes) {
        if self.setup.subject.compat_mode == CompatMode::Off {
            let by_cufile = paths.get(DataPath::CufileUnverified);
            return assert_eq!(by_cufile, paths.total(), "{paths:?}");
        }
        let (direct, cached) = (direct_bytes(paths), cached_bytes(paths));
        assert_eq!(direct + cached, paths.total(), "{paths:?}");
        if !self.goes_direct() {
            assert_eq!(direct, 0, "{paths:?}");
        } else if self.setup.cache == CacheMode::Direct {
            assert_eq!(cached, 0, "{paths:?}");
        }
    }

    /// The path of a write's bytes in pages that it fills in part only.
    #[must_use]
    pub fn edge_path(&self) -> DataPath {
        if self.goes_direct() {
            DataPath::Buffered
        } else {
            self.setup.subject.cached
        }
    }

    /// Whether bytes are to go around the page cache here.
    #[must_use]
    pub fn goes_direct(&self) -> bool {
        self.takes_direct && self.setup.cache != CacheMode::Cached
    }

    /// A new file with `content`, open for both. The content is not in the page cache any more
    /// where the file system can do without it.
    ///
    /// # Errors
    ///
    /// As opening gives.
    ///
    /// # Panics
    ///
    /// When the content cannot be written.
    pub async fn file(&self, content: &[u8]) -> tokio_cufile::Result<AsyncCuFile> {
        let path = self.fresh_path();
        fs::write(&path, content).expect("the content can be written");
        self.open(&path).await
    }

    /// Opens what is there for both.
    ///
    /// # Errors
    ///
    /// As opening gives.
    pub async fn open(&self, path: &Path) -> tokio_cufile::Result<AsyncCuFile> {
        let options = OpenOptions::new().read(true).write(true);
        options.open(&self.engine, path).await
    }
}

/// Runs `test` for every setup, on a disk and on tmpfs, and looks for leaks after each.
///
/// # Panics
///
/// When the test does, or when the engine has not everything back afterwards.
pub fn each(test: impl AsyncFn(&Bench)) {
    each_of(&setups_of(&every_subject(&disk())), &disk(), &test);
    if let Some(tmpfs) = tmpfs() {
        each_of(&setups_of(&every_subject(tmpfs)), tmpfs, test);
    }
}

/// As [`each`], of the compat backend.
///
/// # Panics
///
/// As `each`.
pub fn each_compat(test: impl AsyncFn(&Bench)) {
    each_in(&disk(), &test);
    if let Some(tmpfs) = tmpfs() {
        each_in(tmpfs, test);
    }
}

/// Runs `test` for every setup of the compat backend in `parent`, and looks for leaks after each.
///
/// # Panics
///
/// When the test does, or when the engine has not everything back afterwards.
pub fn each_in(parent: &Path, test: impl AsyncFn(&Bench)) {
    each_of(&setups(), parent, test);
}

fn each_of(setups: &[Setup], parent: &Path, test: impl AsyncFn(&Bench)) {
    for setup in setups {
        if setup.cache == CacheMode::Direct && !takes_direct(parent) {
            continue;
        }
        // Shown when the test fails.
        eprintln!("{} in {}", setup.name, parent.display());
        block_on(async {
            let bench = Bench::new(setup, parent);
            test(&bench).await;
            assert_all_home(&bench.engine).await;
        });
    }
}

/// Runs a future on a runtime without any driver: the library needs none.
///
/// # Panics
///
/// When there is no runtime to be had.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime").block_on(future)
}

/// Shuts the engine down and checks that nothing is held any more.
///
/// # Panics
///
/// When something is.
pub async fn assert_all_home(engine: &Engine) {
    let report = engine.shutdown().await;
    assert_eq!(report.quarantined, 0);
    assert!(report.lost_writes.is_empty(), "{:?}", report.lost_writes);
    assert_eq!(engine.stats().operations_live, 0);
    // Parts that were let go before a thread came to them are given back when one does.
    let home = (0..YIELDS_MAX).any(|_| {
        let stats = engine.stats();
        let all = [stats.bytes, stats.parts, stats.slots, stats.small_slots];
        let home = all.iter().all(|permits| permits.free == permits.capacity);
        if !home {
            std::thread::yield_now();
        }
        home
    });
    assert!(home, "{:?}", engine.stats());
}

/// Seconds at least, on any machine.
const YIELDS_MAX: u32 = 20_000_000;

/// The directory that [`FOLDER_VARIABLE`] names; otherwise one on the disk that the tests were built
/// on.
///
/// # Panics
///
/// When the running program cannot be found.
#[must_use]
pub fn disk() -> PathBuf {
    if let Some(folder) = env::var_os(FOLDER_VARIABLE) {
        return folder.into();
    }
    let program = env::current_exe().expect("the test's own program");
    program.parent().expect("it lies in a folder").to_owned()
}

/// A directory in memory, where the machine has one.
#[must_use]
pub fn tmpfs() -> Option<&'static Path> {
    let path = Path::new("/dev/shm");
    tempfile::tempdir_in(path).is_ok().then_some(path)
}

/// Bytes that went around the page cache, whichever engine moved them.
#[must_use]
pub fn direct_bytes(paths: PathBytes) -> u64 {
    paths.get(DataPath::UringDirect) + paths.get(DataPath::PoolDirect)
}

/// Bytes that came through it by choice.
#[must_use]
pub fn cached_bytes(paths: PathBytes) -> u64 {
    paths.get(DataPath::UringCached) + paths.get(DataPath::PoolCached)
}

/// Whether files in `directory` take direct I/O. Those in memory do not, also where the kernel
/// pretends.
///
/// # Panics
///
/// When nothing can be created there.
#[must_use]
pub fn takes_direct(directory: &Path) -> bool {
    let probe = tempfile::NamedTempFile::new_in(directory).expect("a file can be made here");
    let system = rustix::fs::fstatfs(&probe).expect("the file system can be asked");
    let in_memory = [TMPFS_MAGIC, RAMFS_MAGIC].contains(&system.f_type);
    let flags = i32::try_from(OFlags::DIRECT.bits()).expect("the flag is a small number");
    let opened = StdOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(probe.path());
    opened.is_ok() && !in_memory
}

/// From `linux/magic.h`.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
const RAMFS_MAGIC: rustix::fs::FsWord = 0x8584_58f6;
