//! What operations work with: the files of a run, and the engine and memory of one epoch of it.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use measure::data::Draws;
use tempfile::TempDir;
use tokio_cufile::{
    AsyncCuFile, CacheMode, CompatMode, CuFileCalls, Engine, EngineBuilder, ErrorKind, HostBuffer,
    IoEngine, OpenOptions,
};

use super::acts::Act;
use super::arena::{self, Arena, InHost, Sizes};
use super::content::{Claim, Content, Written};
use super::counts::{Counts, Fault, Harm, add};
use super::cuda::{Cuda, Registered};
use super::devices::{Devices, Role};
use super::foreign;
use super::hardware::Hardware;
use super::slow::{self, Slow};
use super::threads::Threads;
use super::{Backend, Device, lock};
use crate::bench;

/// Files on the disk.
const FILES: u64 = 12;
const FILE_LEN: u64 = 1 << 20;

/// The files of a whole run, and what is known of them.
pub(super) struct Files {
    pub(super) all: Vec<Subject>,
    /// Serves the last of them, with faults.
    pub(super) slow: Option<Slow>,
    _folder: TempDir,
}

/// One file.
pub(super) struct Subject {
    pub(super) path: PathBuf,
    pub(super) content: Mutex<Content>,
    /// Requests to it may go wrong.
    pub(super) is_faulty: bool,
}

impl Files {
    /// Files on the disk that the program is on, and one with faults if they are wanted.
    pub(super) fn new(seed: u64, faults: &[Fault], counts: &Arc<Counts>) -> Result<Self, String> {
        let folder = tempfile::tempdir_in(bench::disk()).map_err(|error| error.to_string())?;
        let mut draws = Draws::new(seed ^ 0xf11e);
        let mut all = Vec::new();
        for index in 0..FILES {
            let path = folder.path().join(format!("file-{index}"));
            let seed = seed ^ ((index + 1) << 40);
            let content = Content::new(seed, &mut draws, FILE_LEN, plot_length);
            fs::write(&path, first_bytes(&content)).map_err(|error| error.to_string())?;
            all.push(Subject {
                path,
                content: Mutex::new(content),
                is_faulty: false,
            });
        }
        let mut slow = None;
        if faults.iter().any(|fault| slow::FAULTS.contains(fault)) {
            let content = Content::new(seed ^ (0xfa << 40), &mut draws, FILE_LEN / 2, plot_length);
            slow = Slow::mount(first_bytes(&content), faults, seed, counts);
            if let Some(slow) = &slow {
                all.push(Subject {
                    path: slow.path(),
                    content: Mutex::new(content),
                    is_faulty: true,
                });
            }
        }
        Ok(Self {
            all,
            slow,
            _folder: folder,
        })
    }

    /// One of them; every sixth time the one with faults.
    pub(super) fn draw(&self, draws: &mut Draws) -> usize {
        let last = self.all.len() - 1;
        if self.slow.is_some() && draws.below(6) == 0 {
            return last;
        }
        usize::try_from(draws.below(self.all.len() as u64)).unwrap_or(last)
    }

    /// All bytes of a file, not by way of the engine.
    pub(super) fn bytes_of(&self, index: usize) -> Result<Vec<u8>, String> {
        match &self.slow {
            Some(slow) if self.all[index].is_faulty => Ok(slow.content()),
            _ => fs::read(&self.all[index].path).map_err(|error| error.to_string()),
        }
    }
}

fn first_bytes(content: &Content) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(content.len()).unwrap_or(0)];
    content.fill(0, 0, &mut bytes);
    bytes
}

/// From a few bytes to a few blocks; some are whole blocks.
fn plot_length(draws: &mut Draws) -> u64 {
    match draws.below(8) {
        0..2 => 8 + draws.below(500),
        2..5 => 500 + draws.below(8 << 10),
        5..7 => (1 + draws.below(8)) << 12,
        _ => (32 << 10) + draws.below(64 << 10),
    }
}

/// Settings of an engine that makes operations wait, and cuts most of them.
pub(super) fn engine(backend: Backend, device: Device, quiet_limit: Duration) -> EngineBuilder {
    let builder = match (backend, device) {
        (Backend::Cufile, _) => by_cufile(CuFileCalls::Sync),
        (Backend::CufileStreams, _) => by_cufile(CuFileCalls::Stream),
        // Where bytes may go directly, cuFile would be chosen.
        (_, Device::Cuda) => Engine::builder().compat_mode(CompatMode::On),
        _ => Engine::builder(),
    };
    builder
        .io(match backend {
            Backend::Pool => IoEngine::Pool,
            _ => IoEngine::Auto,
        })
        // A part that is lost on a device may cost a thread.
        .num_threads(32)
        .queue_depth(12)
        .task_size(64 << 10)
        .bounce_buffer_size(64 << 10)
        .budget(4 << 20)
        .quiet_limit(quiet_limit)
}

/// For whatever it takes.
fn by_cufile(calls: CuFileCalls) -> EngineBuilder {
    let mut config = bench::cufile_here();
    config.calls = calls;
    let builder = Engine::builder().compat_mode(CompatMode::Off);
    builder.cufile(config)
}

/// A dropped operation, whose memory is to come back.
pub(super) trait Orphan: Send {
    /// Looks whether it has; if so, takes it and ends the claim.
    fn is_back(&mut self) -> bool;

    /// It never will.
    fn late(self: Box<Self>) -> Late;
}

/// A claim that ends with its epoch: nobody tells when the operation is over.
pub(super) struct Late {
    pub(super) subject: usize,
    pub(super) claim: Claim,
    pub(super) written: Option<Written>,
}

/// One engine's life, and all that works with it.
pub(super) struct Epoch {
    pub(super) engine: Engine,
    /// Before anything of it was.
    pub(super) since: Instant,
    pub(super) backend: Backend,
    pub(super) threads: Arc<Threads>,
    pub(super) files: Arc<Files>,
    /// Of each file, opened in several ways.
    handles: Vec<Mutex<Arc<Vec<AsyncCuFile>>>>,
    pub(super) host: Arc<Arena<HostBuffer, InHost<()>>>,
    /// Host memory that the driver knows, where there is one.
    pub(super) pinned: Option<Arc<Arena<HostBuffer, InHost<Registered>>>>,
    pub(super) devices: Devices,
    pub(super) counts: Arc<Counts>,
    pub(super) orphans: Mutex<Vec<Box<dyn Orphan>>>,
    pub(super) late: Mutex<Vec<Late>>,
    /// Operations of ours that the engine must have counted as quarantined, as their tasks saw it.
    pub(super) quarantined: AtomicU64,
    /// Its hardware does not answer.
    pub(super) is_stuck: bool,
    /// Its shutdown has begun.
    pub(super) ending: AtomicBool,
    /// Of the next operation, and where the epoch ends.
    pub(super) next: AtomicUsize,
    pub(super) end: usize,
    pub(super) seed: u64,
    pub(super) faults: Vec<Fault>,
    pub(super) until: Option<Instant>,
    /// What each task is at, for who finds them stuck.
    pub(super) flying: Vec<Mutex<String>>,
}

/// What an epoch is made of.
pub(super) struct Plan {
    pub(super) builder: EngineBuilder,
    /// By which the builder's engine is.
    pub(super) backend: Backend,
    pub(super) threads: Arc<Threads>,
    pub(super) files: Arc<Files>,
    pub(super) counts: Arc<Counts>,
    pub(super) seed: u64,
    pub(super) faults: Vec<Fault>,
    pub(super) operations: std::ops::Range<usize>,
    pub(super) until: Option<Instant>,
    pub(super) tasks: usize,
    pub(super) is_stuck: bool,
    pub(super) sizes: Sizes,
    pub(super) rest: Duration,
    pub(super) cuda: Option<Arc<Cuda>>,
}

impl Epoch {
    pub(super) async fn new(plan: Plan, leases: Vec<(Role, Hardware)>) -> Result<Self, String> {
        let since = Instant::now();
        let engine = plan.builder.build().await.map_err(text)?;
        let ground = HostBuffer::new(&engine, arena::length(plan.sizes)).map_err(text)?;
        let mut handles = Vec::new();
        for subject in &plan.files.all {
            let opened = open(&engine, subject).await?;
            handles.push(Mutex::new(Arc::new(opened)));
        }
        let pinned = match &plan.cuda {
            Some(cuda) => Some(Arc::new(pinned(&engine, cuda, plan.rest)?)),
            None => None,
        };
        let memory = (plan.sizes, plan.rest);
        let devices = Devices::new(&engine, leases, &plan.faults, memory).await?;
        Ok(Self {
            engine,
            since,
            backend: plan.backend,
            threads: plan.threads,
            files: plan.files,
            handles,
            host: Arc::new(Arena::new(ground, InHost(()), plan.sizes, plan.rest)),
            pinned,
            devices,
            counts: plan.counts,
            orphans: Mutex::default(),
            late: Mutex::default(),
            quarantined: AtomicU64::new(0),
            is_stuck: plan.is_stuck,
            ending: AtomicBool::new(false),
            next: AtomicUsize::new(plan.operations.start),
            end: plan.operations.end,
            seed: plan.seed,
            faults: plan.faults,
            until: plan.until,
            flying: (0..plan.tasks).map(|_| Mutex::default()).collect(),
        })
    }

    pub(super) fn subject(&self, index: usize) -> &Subject {
        &self.files.all[index]
    }

    /// The ways in which a file is open.
    pub(super) fn handles(&self, index: usize) -> Arc<Vec<AsyncCuFile>> {
        Arc::clone(&lock(&self.handles[index]))
    }

    /// An operation on `subject` is over, and nothing of it will still come.
    pub(super) fn end_claim(&self, subject: usize, claim: &Claim, written: Option<Written>) {
        let mut content = lock(&self.subject(subject).content);
        match written {
            Some(written) => content.wrote(claim, written),
            None => content.release(claim),
        }
    }

    /// Takes back what dropped operations have let go.
    pub(super) fn gather(&self) {
        let mut orphans = std::mem::take(&mut *lock(&self.orphans));
        orphans.retain_mut(|orphan| !orphan.is_back());
        lock(&self.orphans).append(&mut orphans);
    }

    /// Lost writes are to be heard of; a file whose bytes cannot be is to be noticed.
    pub(super) async fn inspect(&self, index: usize) -> Result<(), String> {
        let Some(claim) = lock(&self.subject(index).content).claim_all() else {
            return Ok(());
        };
        self.counts.acts.begun(Act::Inspect);
        let handles = self.handles(index);
        let mut told = false;
        for handle in handles.iter() {
            match handle.sync_data().await {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::OrphanedWrite => told = true,
                Err(error) => {
                    self.end_claim(index, &claim, None);
                    if self.is_ending() {
                        return Ok(());
                    }
                    return Err(format!("a sync failed: {error}"));
                }
            }
        }
        let found = self.files.bytes_of(index)?;
        let inspection = lock(&self.subject(index).content).inspect(&found);
        let path = &self.subject(index).path;
        if let Some(wrong) = inspection.corrupt {
            let message = || format!("{}: {wrong}", path.display());
            self.counts.harm(Harm::Corrupt, 1, message);
        }
        if !told {
            let message = || format!("{}: a torn write that no sync tells of", path.display());
            self.counts.harm(Harm::Lost, inspection.torn, message);
        } else {
            // From now on every sync says so: a new opening has a new ledger.
            match open(&self.engine, self.subject(index)).await {
                Ok(opened) => *lock(&self.handles[index]) = Arc::new(opened),
                Err(_) if self.is_ending() => {}
                Err(error) => {
                    self.end_claim(index, &claim, None);
                    return Err(error);
                }
            }
        }
        self.end_claim(index, &claim, None);
        self.counts.acts.ended_well(Act::Inspect);
        Ok(())
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// One line on what the tasks are at.
    pub(super) fn at(&self) -> String {
        let each: BTreeSet<String> = self.flying.iter().map(|one| lock(one).clone()).collect();
        each.into_iter().collect::<Vec<_>>().join("; ")
    }

    /// An operation ended as quarantined, as its task was told.
    pub(super) fn note_quarantined(&self, late: Late) {
        self.quarantined.fetch_add(1, Ordering::Relaxed);
        lock(&self.late).push(late);
    }

    pub(super) fn note_bytes(&self, bytes: usize) {
        add(&self.counts.bytes, bytes as u64);
    }
}

fn pinned(
    engine: &Engine,
    cuda: &Arc<Cuda>,
    rest: Duration,
) -> Result<Arena<HostBuffer, InHost<Registered>>, String> {
    let length = arena::length(foreign::SIZES);
    let mut ground = HostBuffer::new(engine, length).map_err(text)?;
    let pinned = InHost(Registered::new(cuda, &mut ground)?);
    Ok(Arena::new(ground, pinned, foreign::SIZES, rest))
}

async fn open(engine: &Engine, subject: &Subject) -> Result<Vec<AsyncCuFile>, String> {
    let modes: &[CacheMode] = if subject.is_faulty {
        &[CacheMode::Direct, CacheMode::Cached]
    } else {
        &[CacheMode::Auto, CacheMode::Direct, CacheMode::Cached]
    };
    let mut opened = Vec::new();
    for &mode in modes {
        let options = OpenOptions::new().read(true).write(true).cache(mode);
        opened.push(open_one(engine, &options, subject).await?);
    }
    Ok(opened)
}

async fn open_one(
    engine: &Engine,
    options: &OpenOptions,
    subject: &Subject,
) -> Result<AsyncCuFile, String> {
    let mut opened = options.open(engine, &subject.path).await;
    // A disk in memory takes no direct I/O.
    if is_unsupported(&opened) {
        let options = options.clone().cache(CacheMode::Auto);
        opened = options.open(engine, &subject.path).await;
    }
    // The real cuFile knows no FUSE.
    if is_unsupported(&opened) && subject.is_faulty {
        let options = options.clone().compat_mode(CompatMode::On);
        opened = options.open(engine, &subject.path).await;
    }
    opened.map_err(text)
}

fn is_unsupported<T>(outcome: &tokio_cufile::Result<T>) -> bool {
    let error = outcome.as_ref().err();
    error.is_some_and(|error| error.kind() == ErrorKind::Unsupported)
}

pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
