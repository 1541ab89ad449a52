//! Engines on the simulated libcufile, and processes of their own to have them in.
//!
//! There is one libcufile in a process: what is open, set and counted is everybody's. So a test that
//! changes more than a fault runs again in a process with a [`World`] of its own; the others take
//! turns, as all tests on simulated devices do.
#![allow(
    unsafe_code,
    reason = "names streams by handle, and closes a descriptor by number"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "a child is given the loader's path with a folder more"
)]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr;

use tokio_cufile::{
    AsyncCuFile, CompatMode, CuFileCalls, CuFileConfig, DeviceBuffer, Engine, EngineBuilder,
    Enqueue, IoBuf, OpenOptions, RegisteredStream, Request, Transfer,
};
use xtask::simulator;

use crate::bench::{self, block_on};
use crate::child::{self, Child};
use crate::cufile_sim::CufileSim;
use crate::gpu;
use crate::sim::{self, Lease, Sim};
use crate::skip::skip;

/// The simulated library, in a process that has one.
///
/// # Panics
///
/// When it has none.
#[must_use]
pub fn sim() -> &'static CufileSim {
    CufileSim::here().expect("the simulator is asked for")
}

/// Settings that only a process of its own can have.
#[derive(Clone, Debug, Default)]
#[must_use = "a world is nothing until it is entered"]
pub struct World {
    version: Option<&'static str>,
    lacking: Option<&'static str>,
    path: Option<PathBuf>,
    variables: Vec<(&'static str, String)>,
    removed: Vec<&'static str>,
}

impl World {
    /// The latest library, with nothing wrong.
    pub fn new() -> Self {
        Self::default()
    }

    /// Another version of the library.
    pub const fn version(mut self, version: &'static str) -> Self {
        self.version = Some(version);
        self
    }

    /// A library without a function.
    pub const fn lacking(mut self, symbol: &'static str) -> Self {
        self.lacking = Some(symbol);
        self
    }

    /// The way that bytes of device memory go: `nvidia-fs`, `p2pdma`, `posix`.
    pub fn by(self, path: &str) -> Self {
        self.with("TOKIO_CUFILE_SIM_CUFILE_PATH", path)
    }

    /// A variable.
    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        self.variables.push((name, value.to_owned()));
        self
    }

    /// Without a variable.
    pub fn without(mut self, name: &'static str) -> Self {
        self.removed.push(name);
        self
    }

    /// Where the loader looks, instead of where the simulated libraries are.
    pub fn loaded_from(mut self, folder: &Path) -> Self {
        self.path = Some(folder.to_owned());
        self
    }

    /// Runs the calling test again in a process like that, to its end, and gives `None` when it has
    /// passed. In that process: the directory to work in.
    ///
    /// # Panics
    ///
    /// When the test fails there.
    #[must_use = "the process that is not it returns"]
    #[track_caller]
    pub fn enter(self) -> Option<PathBuf> {
        enter_each(&[self])
    }

    fn run(&self) {
        let home = tempfile::tempdir_in(bench::disk()).expect("a folder");
        // Some versions write a log there.
        let mut child = Child::new::<&str>(&[], home.path())
            .within(home.path())
            .without("TOKIO_CUFILE_SIM_CUFILE_FAULTS")
            .without("CUFILE_FORCE_COMPAT_MODE");
        if let Some(folder) = self.library() {
            child = child.with("LD_LIBRARY_PATH", folder);
        }
        for (name, value) in &self.variables {
            child = child.with(name, value);
        }
        for name in &self.removed {
            child = child.without(name);
        }
        // Shown when it fails.
        eprintln!("{self:?}");
        child.run();
    }

    fn library(&self) -> Option<String> {
        if let Some(path) = &self.path {
            return Some(path.display().to_string());
        }
        if self.version.is_none() && self.lacking.is_none() {
            return None;
        }
        let folder = simulator::cufile_of(self.version.unwrap_or("1.20"), self.lacking);
        let folder = folder.expect("the library can be made");
        let before = env::var("LD_LIBRARY_PATH").unwrap_or_default();
        Some(format!("{}:{before}", folder.display()))
    }
}

/// As [`World::enter`], for one process after the other.
///
/// # Panics
///
/// When the test fails in one.
#[must_use = "the process that is none of them returns"]
#[track_caller]
pub fn enter_each(worlds: &[World]) -> Option<PathBuf> {
    if let Some(directory) = child::directory() {
        return Some(directory);
    }
    if sim::is_asked_for() {
        worlds.iter().for_each(World::run);
    } else {
        skip("needs-simulator", "it was not asked for: `cargo xtask sim`");
    }
    None
}

/// Closes the standard input, as some daemons do. In a process of its own.
pub fn close_stdin() {
    // SAFETY: nobody in the process reads it, and who opens a file gets its number, as with a daemon.
    drop(unsafe { OwnedFd::from_raw_fd(0) });
}

/// A `/proc` with nvidia-fs, in a directory.
///
/// # Panics
///
/// When it cannot be made.
#[must_use]
pub fn with_nvidia_fs(directory: &Path) -> CuFileConfig {
    let proc_dir = directory.join("proc");
    fs::create_dir_all(proc_dir.join("driver/nvidia-fs")).expect("a folder");
    fs::write(proc_dir.join("modules"), "").expect("a file");
    let mut config = bench::simulated_cufile();
    config.proc_dir = proc_dir;
    config
}

/// An engine whose parts of device memory go by streams of its own.
pub fn by_streams(builder: EngineBuilder) -> EngineBuilder {
    let mut config = bench::simulated_cufile();
    config.calls = CuFileCalls::Stream;
    builder.cufile(config)
}

/// An engine that uses cuFile, a device, and a directory.
#[derive(Debug)]
pub struct Bed {
    /// The library.
    pub cufile: &'static CufileSim,
    /// The device.
    pub device: Lease,
    /// The engine.
    pub engine: Engine,
    directory: PathBuf,
    /// What other tests of the process have made of the counts.
    before: BTreeMap<&'static str, u64>,
}

/// What a bed counts from its beginning on.
const COUNTED: [&str; 12] = [
    FIRED,
    "cuFileDriverOpen",
    "cuFileDriverClose_v2",
    "cuFileHandleRegister",
    "cuFileBufRegister",
    "cuFileBufDeregister",
    "cuFileRead",
    "cuFileWrite",
    "cuFileReadAsync",
    "cuFileWriteAsync",
    "cuFileStreamRegister",
    "cuFileStreamDeregister",
];

const FIRED: &str = "faults fired";

fn count(cufile: &CufileSim, name: &str) -> u64 {
    match name {
        FIRED => cufile.report().faults_fired,
        name => cufile.calls(name),
    }
}

impl Bed {
    /// An engine of these settings, whose files cuFile alone serves unless they say otherwise.
    ///
    /// # Panics
    ///
    /// When it cannot be had, and where no simulator was asked for.
    #[must_use]
    pub fn new(directory: &Path, change: impl FnOnce(EngineBuilder) -> EngineBuilder) -> Self {
        let sim = Sim::need().expect("the simulator is asked for");
        Self::on(sim, directory, change)
    }

    /// The same, where the simulator is known to be there.
    ///
    /// # Panics
    ///
    /// When the engine cannot be had.
    #[must_use]
    pub fn on(
        sim: &'static Sim,
        directory: &Path,
        change: impl FnOnce(EngineBuilder) -> EngineBuilder,
    ) -> Self {
        let builder = Engine::builder()
            .compat_mode(CompatMode::Off)
            .cufile(bench::simulated_cufile());
        let cufile = self::sim();
        // A test before this one may have failed.
        cufile.clear();
        let before = COUNTED.map(|name| (name, count(cufile, name)));
        Self {
            cufile,
            before: before.into(),
            device: sim.lease(),
            engine: change(builder).build_blocking().expect("an engine"),
            directory: directory.to_owned(),
        }
    }

    /// How often an entry point was called since the engine was built.
    ///
    /// # Panics
    ///
    /// When nobody counts it.
    #[must_use]
    pub fn calls(&self, name: &str) -> u64 {
        count(self.cufile, name) - self.before[name]
    }

    /// How often any fault has fired since.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.calls(FIRED)
    }

    /// Where a file of that name lies.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// A new file with that content, open for both.
    ///
    /// # Panics
    ///
    /// When it cannot be had.
    #[must_use]
    pub fn file(&self, name: &str, content: &[u8]) -> AsyncCuFile {
        fs::write(self.path(name), content).expect("the content can be written");
        self.open(name).expect("the file opens")
    }

    /// Opens what is there for both.
    ///
    /// # Errors
    ///
    /// As opening gives.
    pub fn open(&self, name: &str) -> tokio_cufile::Result<AsyncCuFile> {
        let options = OpenOptions::new().read(true).write(true);
        block_on(options.open(&self.engine, self.path(name)))
    }

    /// Device memory with that content.
    #[must_use]
    pub fn buffer(&self, content: &[u8]) -> DeviceBuffer {
        block_on(gpu::buffer(&self.engine, self.device.ordinal, content))
    }

    /// All that is in a buffer.
    #[must_use]
    pub fn content(&self, buffer: DeviceBuffer) -> Vec<u8> {
        block_on(gpu::content(&self.engine, buffer))
    }

    /// Registers a stream that a test has made, and keeps until it is deregistered.
    pub fn register(&self, stream: usize) -> Request<RegisteredStream> {
        register(&self.engine, self.device.ordinal, stream)
    }

    /// Shuts the engine down, and checks that everything was given back in order: nothing is left
    /// on the device, nothing in the library, which is closed.
    ///
    /// # Panics
    ///
    /// When something is left, or harm was done.
    #[track_caller]
    pub fn end(self) {
        block_on(bench::assert_all_home(&self.engine));
        let stats = self.cufile.report();
        assert_eq!((stats.opens, stats.live()), (0, 0), "{stats:?}");
        drop(self.engine);
        self.cufile.assert_no_harm();
        self.device.assert_all_gone();
        self.cufile.clear();
    }
}

/// Registers a stream of a device that a test has made, and keeps until it is deregistered.
pub fn register(engine: &Engine, device: u32, stream: usize) -> Request<RegisteredStream> {
    // SAFETY: the stream is of that device, and the test keeps it.
    unsafe { RegisteredStream::new(engine, device, ptr::without_provenance_mut(stream)) }
}

/// Puts an operation into a stream that a test has made, and keeps until the operation has ended.
pub fn enqueue<B: IoBuf>(transfer: Transfer<B>, stream: usize) -> Enqueue<B> {
    // SAFETY: the stream is of the memory's device, and the test keeps it.
    unsafe { transfer.enqueue_on(ptr::without_provenance_mut(stream)) }
}
