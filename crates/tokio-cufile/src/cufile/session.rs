//! The process's one libcufile: found, opened once, set once, and closed by who shuts down last.
#![allow(
    unsafe_code,
    reason = "the library is loaded by path and closed for all"
)]

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use nvidia_dl::Search;
use nvidia_dl::cufile::Library;

use super::Absent;
use super::effective::{self, CuFileInfo, Set};
use super::given::Given;
use super::leaving::{Guarded, Purpose};
use super::opening::{self, Facts, Opened, Opening};
use super::pinned::Pinned;
use super::places::Places;
use super::proof::Proof;
use super::watched::watched;
use crate::config::{CuFileConfig, CuFileStats};
use crate::cuda::Device;
use crate::error::Error;

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
    /// Somebody is closing it.
    closing: bool,
    /// A call has not returned: nobody calls it again.
    stuck: Option<Absent>,
}

static PROCESS: Mutex<Process> = Mutex::new(Process {
    session: Weak::new(),
    open: None,
    closing: false,
    stuck: None,
});

/// Somebody has closed it.
static CLOSED: Condvar = Condvar::new();

/// The process that has used it, or 0: in a child of that one it is not to be used.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Before every lock, also that of loading: in a child it may be held for ever.
fn check_owner() -> Result<(), Absent> {
    let (owner, own) = (OWNER.load(Ordering::Relaxed), std::process::id());
    if owner != 0 && owner != own {
        return Err("libcufile belongs to the process that this one was forked from".into());
    }
    OWNER.store(own, Ordering::Relaxed);
    Ok(())
}

/// What is known, when nobody is closing the library any more.
fn process(limit: Duration) -> Result<MutexGuard<'static, Process>, Absent> {
    let process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = CLOSED.wait_timeout_while(process, limit, |process| process.closing);
    let (process, _) = waited.unwrap_or_else(PoisonError::into_inner);
    match (process.closing, &process.stuck) {
        (true, _) => Err("libcufile is being closed".into()),
        (false, Some(reason)) => Err(reason.clone()),
        (false, None) => Ok(process),
    }
}

/// The open library, as all engines of the process use it.
#[derive(Debug)]
pub(crate) struct Session {
    library: Guarded,
    device: Arc<Device>,
    fixed: Fixed,
    facts: Facts,
    proof: Proof,
    pinned: Pinned,
    places: Arc<Places>,
}

impl Session {
    /// The process's session, or the first. Blocks: for a fraction of a second as a rule, and no
    /// longer than the configured limit.
    ///
    /// # Errors
    ///
    /// Why the library cannot be used.
    pub(super) fn open(config: &CuFileConfig) -> Result<Arc<Self>, Absent> {
        check_owner()?;
        let library = load(config.library.as_deref())?;
        let fixed = Fixed {
            library: library.path().to_owned(),
            stats: config.stats,
        };
        // Held throughout: whoever wants it too waits for it.
        let mut process = process(config.open_limit)?;
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
        let opening = Opening {
            library,
            stats: config.stats,
            proc_dir: config.proc_dir.clone(),
            open: process.open.as_ref().map(|(_, ours)| ours.clone()),
        };
        let clear_up = |late: Result<Opened, Absent>| drop(late.map(Opened::close_again));
        let run = move || opening.run();
        let opened = watched(("cufile-open", "open"), config.open_limit, run, clear_up);
        let Opened { device, facts, .. } = match opened {
            Ok(opened) => opened?,
            Err((reason, may_run)) => {
                process.stuck = may_run.then(|| reason.clone());
                return Err(reason);
            }
        };
        let proof = Proof::new(library, facts.stats.clone(), &config.proc_dir, facts.p2pdma);
        let session = Arc::new(Self {
            library,
            device,
            fixed: fixed.clone(),
            facts,
            proof,
            pinned: Pinned::default(),
            places: Arc::default(),
        });
        process.open = Some((fixed, session.facts.ours.clone()));
        process.session = Arc::downgrade(&session);
        Ok(session)
    }

    pub(super) const fn library(&self) -> Guarded {
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
        let ask = |gpu| self.library.call(Purpose::Ask).bar_size_kb(gpu);
        let bar = gpu.and_then(|gpu| ask(gpu).ok());
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
        if self.facts.properties.nvfs_major_version == 0 && self.facts.p2pdma != Some(true) {
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

    /// Whether operations can be put into streams.
    ///
    /// # Errors
    ///
    /// Why they cannot.
    pub(super) fn takes_streams(&self) -> Result<(), &str> {
        self.facts.streams.as_ref().copied().map_err(String::as_str)
    }

    /// What cuFile has in streams.
    pub(super) const fn places(&self) -> &Arc<Places> {
        &self.places
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
        let library = self.library.call(Purpose::Ask);
        let settings = effective::settings(&library, &given, &facts.ours);
        drop(library);
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
            not_streamed: facts.streams.clone().err(),
            notes: [
                facts.notes.clone(),
                effective::contradictions(&given, &settings),
            ]
            .concat(),
            config_file: given.file,
            settings,
        }
    }

    /// Closes the library if nobody else uses it: another engine, or a file that is still open. It
    /// stays open then, which is safe. Never from a destructor: at the exit of a process it crashes.
    pub(super) fn close(session: Arc<Self>) {
        let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(session) = Arc::into_inner(session) else {
            return;
        };
        process.closing = true;
        drop(process);
        drop(session.bind());
        let library = session.library.call(Purpose::Open);
        // SAFETY: this was the last share: every registration has one, and what is in flight has its
        // file's; nobody gets another while it is being closed. This is a thread of an engine that has
        // no use for it, and no destructor.
        let is_closed = unsafe { opening::close(&library) };
        drop(library);
        let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        process.closing = false;
        CLOSED.notify_all();
        if is_closed {
            process.open = None;
        }
    }
}

fn load(library: Option<&Path>) -> Result<Guarded, Absent> {
    let search = match library {
        // SAFETY: the setting says that this file is a libcufile.
        Some(path) => unsafe { Search::named([path]) },
        None => Search::libcufile(),
    };
    let loaded = Library::load(&search).map(Guarded::new);
    loaded.map_err(|error| error.to_string().into())
}
