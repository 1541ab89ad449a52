//! The process's one libcufile: found, opened once, set once, and closed by who shuts down last.
#![allow(
    unsafe_code,
    reason = "the library is loaded by path and closed for all"
)]

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use nvidia_dl::Search;
use nvidia_dl::cufile::{
    BoolParameter, DriverProperties, Library, P2pFlags, SizeParameter, StatsLevel, StatusFlags,
    StringParameter, Version,
};

use super::effective::{self, CuFileInfo, Set};
use super::given::Given;
use super::pinned::Pinned;
use super::proof::Proof;
use super::{Absent, gate};
use crate::config::{CuFileConfig, CuFileStats};
use crate::cuda::{Device, open_driver};
use crate::error::Error;

/// The device whose context is current where no device's memory is named.
const DEVICE: u32 = 0;

/// From this version on the library counts.
const HAS_STATS: Version = Version(1150);

/// From this version on a process may exit with the library open and counting by GPU (measured).
const EXITS_WITH_STATS: Version = Version(1160);

/// What the first open fixes for the process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fixed {
    library: PathBuf,
    stats: CuFileStats,
}

/// What is known of libcufile in this process.
#[derive(Debug)]
struct Process {
    session: Weak<Session>,
    /// The library is open, set so: what was asked for, and what was done for that. It stays open
    /// where an engine ends without a shutdown.
    open: Option<(Fixed, Vec<Set>)>,
    /// A call has not returned: nobody calls it again.
    stuck: Option<Absent>,
}

static PROCESS: Mutex<Process> = Mutex::new(Process {
    session: Weak::new(),
    open: None,
    stuck: None,
});

/// The open library, as all engines of the process use it.
#[derive(Debug)]
pub(crate) struct Session {
    library: &'static Library,
    device: Arc<Device>,
    fixed: Fixed,
    facts: Facts,
    proof: Proof,
    pinned: Pinned,
}

/// What the open library says of itself.
#[derive(Clone, Debug)]
struct Facts {
    version: Option<Version>,
    properties: DriverProperties,
    compat_forced: bool,
    p2pdma: bool,
    stats: Result<(), String>,
    /// What this process has set.
    ours: Vec<Set>,
}

impl Session {
    /// The process's session, or the first. Blocks: for a fraction of a second as a rule, and no
    /// longer than the configured limit.
    ///
    /// # Errors
    ///
    /// Why the library cannot be used.
    pub(super) fn open(config: &CuFileConfig) -> Result<Arc<Self>, Absent> {
        let library = load(config.library.as_deref())?;
        let fixed = Fixed {
            library: library.path().to_owned(),
            stats: config.stats,
        };
        // Held throughout: whoever wants it too waits for it.
        let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reason) = &process.stuck {
            return Err(reason.clone());
        }
        let before = process.open.as_ref().map(|(before, _)| before);
        if let Some(before) = before.filter(|before| **before != fixed) {
            return Err(format!(
                "libcufile is set once for a process, and was set otherwise: {before:?}, not {fixed:?}"
            )
            .into());
        }
        if let Some(session) = process.session.upgrade() {
            return Ok(session);
        }
        let version = library.version().map_err(|error| error.to_string())?;
        gate::check(version, &config.proc_dir)?;
        let driver = open_driver().map_err(|error| error.to_string())?;
        let device = Device::open(driver, DEVICE).map_err(|error| error.to_string())?;
        let device = Arc::new(device);
        let open = process.open.as_ref().map(|(_, ours)| ours.clone());
        let opening = Opening {
            library,
            version,
            device: Arc::clone(&device),
            stats: config.stats,
            open,
        };
        let facts = match opening.run_watched(config) {
            Ok(facts) => facts?,
            Err(reason) => {
                process.stuck = Some(reason.clone());
                return Err(reason);
            }
        };
        let proof = Proof::new(library, facts.stats.is_ok(), &config.proc_dir, facts.p2pdma);
        let session = Arc::new(Self {
            library,
            device,
            fixed: fixed.clone(),
            facts,
            proof,
            pinned: Pinned::default(),
        });
        process.open = Some((fixed, session.facts.ours.clone()));
        process.session = Arc::downgrade(&session);
        tracing::info!(cufile = ?session.info(), "cuFile is open");
        Ok(session)
    }

    pub(super) const fn library(&self) -> &'static Library {
        self.library
    }

    pub(super) const fn proof(&self) -> &Proof {
        &self.proof
    }

    pub(super) const fn pinned(&self) -> &Pinned {
        &self.pinned
    }

    /// The most bytes of a device's memory that may be registered, and what says so.
    pub(super) fn pinning_limit(&self, device: u32) -> Option<(&'static str, u64)> {
        let kib = |kib: u64| (kib > 0).then(|| kib.saturating_mul(1024));
        let gpu = i32::try_from(device).ok();
        let bar = gpu.and_then(|gpu| self.library.bar_size_kb(gpu).ok());
        let bar = bar.and_then(|size| kib(size as u64));
        let setting = kib(self.facts.properties.max_device_pinned_mem_size.into());
        let limits = [
            ("the GPU's window to the bus", bar),
            ("cuFile's setting", setting),
        ];
        let known = limits
            .into_iter()
            .filter_map(|(what, limit)| Some((what, limit?)));
        known.min_by_key(|(_, limit)| *limit)
    }

    /// Makes a context current, for a call that names no device's memory.
    pub(super) fn bind(&self) -> Result<(), Error> {
        self.device.bind()
    }

    /// Whether anything speaks for GPUDirect Storage, now that the library is open.
    ///
    /// # Errors
    ///
    /// What does not.
    pub(crate) fn expects_direct(&self) -> Result<(), Absent> {
        if self.facts.compat_forced {
            return Err("cuFile is forced into its own compatibility mode".into());
        }
        if self.facts.properties.nvfs_major_version == 0 && !self.facts.p2pdma {
            return Err(
                "cuFile found neither nvidia-fs nor P2PDMA: it is in its own \
                        compatibility mode"
                    .into(),
            );
        }
        Ok(())
    }

    /// Whether the way of each request can be told afterwards.
    ///
    /// # Errors
    ///
    /// Why it cannot.
    pub(crate) fn tells_paths(&self) -> Result<(), Absent> {
        self.facts
            .stats
            .clone()
            .map_err(|reason| format!("cuFile does not tell which way bytes go: {reason}").into())
    }

    /// The library and its version, for people.
    pub(crate) fn describe(&self) -> String {
        let path = self.fixed.library.display();
        match self.facts.version {
            Some(version) => format!("libcufile {version} ({path})"),
            None => format!("a libcufile older than 1.8 ({path})"),
        }
    }

    /// What is in force, and why. Reads libcufile's file anew.
    pub(super) fn info(&self) -> CuFileInfo {
        let (facts, given) = (&self.facts, Given::read());
        let settings = effective::settings(self.library, &given, &facts.ours);
        let nvfs = (
            facts.properties.nvfs_major_version,
            facts.properties.nvfs_minor_version,
        );
        CuFileInfo {
            library: self.fixed.library.clone(),
            version: facts.version.map(|version| version.to_string()),
            nvidia_fs: (nvfs != (0, 0)).then(|| format!("{}.{}", nvfs.0, nvfs.1)),
            not_direct: self.expects_direct().err().map(Cow::into_owned),
            not_told: self.tells_paths().err().map(Cow::into_owned),
            notes: effective::contradictions(&given, &settings),
            config_file: given.file,
            settings,
        }
    }

    /// Closes the library if nobody else uses it: another engine, or a file that is still open. It
    /// stays open then, which is safe. Never from a destructor: at the exit of a process it crashes.
    pub(super) fn close(session: Arc<Self>) {
        // Nobody takes it up again meanwhile.
        let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(session) = Arc::into_inner(session) else {
            return;
        };
        drop(session.bind());
        // SAFETY: this was the last share: every registration has one, and what is in flight has its
        // file's. This is an engine's thread, in the course of a shutdown.
        let closed = unsafe { session.library.driver_close() };
        match closed {
            Ok(()) => process.open = None,
            Err(error) => tracing::warn!(%error, "libcufile did not close"),
        }
    }
}

fn load(library: Option<&Path>) -> Result<&'static Library, Absent> {
    let search = match library {
        // SAFETY: the setting says that this file is a libcufile.
        Some(path) => unsafe { Search::named([path]) },
        None => Search::libcufile(),
    };
    Library::load(&search).map_err(|error| error.to_string().into())
}

/// Everything from the first call to the open library.
struct Opening {
    library: &'static Library,
    version: Option<Version>,
    device: Arc<Device>,
    stats: CuFileStats,
    /// What was set when it was opened, if it is open.
    open: Option<Vec<Set>>,
}

impl Opening {
    /// On a thread that may be lost. The outer error says that it is.
    fn run_watched(self, config: &CuFileConfig) -> Result<Result<Facts, Absent>, Absent> {
        let (answer, opened) = sync_channel(1);
        let run = move || {
            // Nobody waits any more: it was given up for being late.
            drop(answer.send(self.run()));
        };
        let spawned = thread::Builder::new()
            .name("cufile-open".to_owned())
            .spawn(run);
        if let Err(error) = spawned {
            return Ok(Err(
                format!("no thread to open libcufile on: {error}").into()
            ));
        }
        let limit = config.open_limit;
        match opened.recv_timeout(limit) {
            Ok(facts) => Ok(facts),
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("libcufile did not open within {limit:?}").into())
            }
            Err(RecvTimeoutError::Disconnected) => Err("opening libcufile panicked".into()),
        }
    }

    fn run(self) -> Result<Facts, Absent> {
        let library = self.library;
        self.device.bind().map_err(|error| error.to_string())?;
        let mut stats = Err("it was opened without".to_owned());
        let mut ours = self.open.clone().unwrap_or_default();
        if self.open.is_none() {
            ours.extend(keep_log_out_of_folder(library, &Given::read()));
            stats = self.ask_for_stats();
            library
                .driver_open()
                .map_err(|error| format!("libcufile does not open: {error}"))?;
            if stats.is_ok() {
                let level = StatsLevel::PER_GPU.0.to_string();
                ours.extend(SizeParameter::PROFILE_STATS.key().map(|key| (key, level)));
                stats = library.stats_start().map_err(|error| error.to_string());
            }
        } else if library.stats_l3().is_ok() {
            stats = Ok(());
        }
        let properties = match library.driver_properties() {
            Ok(properties) => properties,
            Err(error) => {
                self.close_again();
                return Err(error.to_string().into());
            }
        };
        let is = |parameter| library.bool_parameter(parameter).unwrap_or(false);
        let p2p = library.p2p_flags(StatusFlags::NVME);
        let is_p2p = p2p.is_ok_and(|flags| flags.0 & P2pFlags::P2PDMA.0 != 0);
        Ok(Facts {
            version: self.version,
            properties,
            compat_forced: is(BoolParameter::FORCE_COMPAT_MODE),
            p2pdma: is(BoolParameter::USE_PCIP2PDMA) && is_p2p,
            stats,
            ours,
        })
    }

    /// Nobody will use what was just opened.
    fn close_again(&self) {
        if self.open.is_none() {
            // SAFETY: this thread has opened it, and nobody else has been told: nothing is registered.
            let closed = unsafe { self.library.driver_close() };
            if let Err(error) = closed {
                tracing::warn!(%error, "libcufile did not close");
            }
        }
    }

    fn ask_for_stats(&self) -> Result<(), String> {
        // Before, there are none.
        let crashes =
            (self.version).is_some_and(|version| (HAS_STATS..EXITS_WITH_STATS).contains(&version));
        match self.stats {
            CuFileStats::Off => return Err("its statistics were not asked for".to_owned()),
            CuFileStats::On if crashes => {
                let reason = "with its statistics this version crashes at exit without a shutdown";
                return Err(reason.to_owned());
            }
            CuFileStats::On | CuFileStats::OnWithShutdown => {}
        }
        let set = self.library.set_stats_level(StatsLevel::PER_GPU);
        set.map_err(|error| error.to_string())
    }
}

/// By default the library writes its log into the current folder. Where neither environment nor file
/// says otherwise, it is told to write none. Before 1.14 it cannot be told.
fn keep_log_out_of_folder(library: &Library, given: &Given) -> Option<Set> {
    const NOWHERE: &str = "/dev/null";
    if given.names_a_log() {
        return None;
    }
    let parameter = StringParameter::LOG_FILE_PATH;
    match library.set_string_parameter(parameter, NOWHERE) {
        Ok(()) => parameter.key().map(|key| (key, NOWHERE.to_owned())),
        Err(error) => {
            tracing::info!(%error, "libcufile may write cufile.log into the current folder");
            None
        }
    }
}
