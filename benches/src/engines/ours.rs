//! tokio-cufile through its public API, awaited by tasks of a multi-threaded runtime, with its
//! default settings but for the one that a name says.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use measure::data;
use measure::report::Sample;
use measure::usage::Window;
use tokio::runtime::Runtime;
use tokio_cufile::{
    AsyncCuFile, CacheMode, DigestKind, Engine, EngineBuilder, ErrorKind, HostBuffer, HostPart,
    IoEngine, OpenOptions, Transfer,
};

use super::{nanos, sample, whole};
use crate::Result;
use crate::contest::{Entry, Runner};
use crate::job::{Access, Job};

/// How the job becomes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One task for each request in flight, each asking for block after block.
    Requests,
    /// One request for everything, split by the engine as it sees fit.
    Whole,
    /// So, with a digest of each block.
    Digested(DigestKind),
}

/// The engines that a build may have, with their names.
pub(crate) const IO_ENGINES: [(IoEngine, &str); 2] = [
    (IoEngine::Uring, "ours uring"),
    (IoEngine::Pool, "ours pool"),
];

/// One entry for each engine of the library.
pub(crate) fn entries(shape: Shape, cache: CacheMode) -> impl Iterator<Item = Entry> {
    IO_ENGINES.into_iter().map(move |(io, name)| {
        let how = match shape {
            Shape::Requests => String::new(),
            Shape::Whole => ", one request".to_owned(),
            Shape::Digested(kind) => format!(", one request, {kind}"),
        };
        let how_cached = match cache {
            CacheMode::Cached => ", cached",
            CacheMode::Direct => ", direct",
            _ => "",
        };
        Entry::new(format!("{name}{how}{how_cached}"), move |job| {
            Ours::prepare(job, Engine::builder().io(io), shape, cache)
        })
    })
}

/// With as many threads in the pool as there are requests.
pub(crate) fn wide_pool() -> Entry {
    Entry::new("ours pool, a thread each", |job| {
        let settings = Engine::builder().io(IoEngine::Pool).num_threads(job.depth);
        Ours::prepare(job, settings, Shape::Requests, CacheMode::Direct)
    })
}

/// With a ring thread that looks for the next event for a while, where small parts come one at a
/// time.
pub(crate) fn spin() -> Entry {
    Entry::new("ours uring, 50 us spin", |job| {
        let settings = Engine::builder()
            .io(IoEngine::Uring)
            .spin_limit(Duration::from_micros(50));
        Ours::prepare(job, settings, Shape::Requests, CacheMode::Direct)
    })
}

/// Each contestant that writes has bytes of its own, so that a check does not find another's.
static WRITERS: AtomicU64 = AtomicU64::new(1);

type Parts = Arc<Mutex<Vec<(u64, HostPart)>>>;

struct Ours {
    job: Job,
    shape: Shape,
    cache: CacheMode,
    runtime: Runtime,
    engine: Engine,
    file: Arc<AsyncCuFile>,
    /// The whole destination or source; none for random reads.
    buffer: Option<HostBuffer>,
}

impl Ours {
    fn prepare(
        job: &Job,
        settings: EngineBuilder,
        shape: Shape,
        cache: CacheMode,
    ) -> Result<Box<dyn Runner>> {
        let engine = match settings.build_blocking() {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                return Err(error.reason().into());
            }
            engine => engine?,
        };
        let mut job = job.clone();
        if job.is_write() {
            job.seed += WRITERS.fetch_add(1, Ordering::Relaxed);
        }
        let runtime = super::runtime()?;
        let buffer = match job.access {
            Access::Random { .. } => None,
            Access::Read => Some(super::memory(&engine, job.length_in_memory())?),
            Access::Write { .. } => {
                let mut buffer = super::memory(&engine, job.length_in_memory())?;
                data::fill(job.seed, 0, buffer.as_mut_slice()?);
                Some(buffer)
            }
        };
        let file = Arc::new(open(&runtime, &engine, &job, cache)?);
        Ok(Box::new(Self {
            job,
            shape,
            cache,
            runtime,
            engine,
            file,
            buffer,
        }))
    }

    /// Every block of the buffer, last first: they are taken from the end.
    fn parts(&mut self) -> Result<Parts> {
        let mut parts = Vec::new();
        if let Some(buffer) = &mut self.buffer {
            for offset in self.job.offsets() {
                let start = usize::try_from(offset)?;
                parts.push((offset, buffer.part(start..start + self.job.block)?));
            }
        }
        parts.reverse();
        Ok(Arc::new(Mutex::new(parts)))
    }

    fn sequential(&mut self) -> Result<Sample> {
        let parts = self.parts()?;
        let (file, depth) = (Arc::clone(&self.file), self.job.depth);
        let write = self.job.is_write();
        let usage = self.runtime.block_on(async move {
            let window = Window::open();
            let tasks: Vec<_> = (0..depth)
                .map(|_| tokio::spawn(lane(Arc::clone(&file), Arc::clone(&parts), write)))
                .collect();
            for task in tasks {
                task.await??;
            }
            if write {
                file.sync_data().await?;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(window.close())
        })?;
        Ok(sample(&self.job, self.job.blocks(), usage, Vec::new()))
    }

    fn one_request(&mut self) -> Result<Sample> {
        let buffer = self.buffer.take().ok_or("an earlier run lost the buffer")?;
        let write = self.job.is_write();
        let (file, shape, chunk) = (Arc::clone(&self.file), self.shape, self.job.block);
        let digested = |transfer: Transfer<HostBuffer>| match shape {
            Shape::Digested(kind) => transfer.digest(kind, chunk),
            Shape::Requests | Shape::Whole => transfer,
        };
        let (buffer, usage) = self.runtime.block_on(async move {
            let window = Window::open();
            let done = if write {
                let done = digested(file.write_all_at(buffer, 0)).await?;
                file.sync_data().await?;
                done
            } else {
                digested(file.read_exact_at(buffer, 0)).await?
            };
            Ok::<_, tokio_cufile::Error>((done.buf, window.close()))
        })?;
        self.buffer = Some(buffer);
        Ok(sample(&self.job, self.job.blocks(), usage, Vec::new()))
    }

    fn random(&self, round: u64) -> Result<Sample> {
        let buffers: Result<Vec<HostBuffer>> = (0..self.job.depth)
            .map(|_| super::memory(&self.engine, self.job.block))
            .collect();
        let (buffers, job) = (buffers?, self.job.clone());
        let file = &self.file;
        let (usage, latencies) = self.runtime.block_on(async move {
            let window = Window::open();
            let end = Instant::now() + job.duration();
            let lanes = buffers.into_iter().enumerate().map(|(lane, buffer)| {
                let offsets = job.random_offsets(lane, round);
                let block = job.clone();
                tokio::spawn(random_lane(Arc::clone(file), block, buffer, offsets, end))
            });
            let mut latencies = Vec::new();
            for task in lanes.collect::<Vec<_>>() {
                latencies.extend(task.await??);
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((window.close(), latencies))
        })?;
        Ok(sample(&self.job, latencies.len() as u64, usage, latencies))
    }
}

fn open(runtime: &Runtime, engine: &Engine, job: &Job, cache: CacheMode) -> Result<AsyncCuFile> {
    let options = OpenOptions::new().cache(cache);
    let options = match job.access {
        Access::Read | Access::Random { .. } => options.read(true),
        Access::Write { new_file: false } => options.write(true),
        Access::Write { new_file: true } => options.write(true).create(true),
    };
    Ok(runtime.block_on(options.open(engine, &job.path))?)
}

async fn lane(file: Arc<AsyncCuFile>, parts: Parts, write: bool) -> Result<()> {
    loop {
        let next = parts.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some((offset, part)) = next else {
            return Ok(());
        };
        if write {
            let _done = file.write_all_at(part, offset).await?;
        } else {
            let _done = file.read_exact_at(part, offset).await?;
        }
    }
}

async fn random_lane(
    file: Arc<AsyncCuFile>,
    job: Job,
    mut buffer: HostBuffer,
    mut offsets: impl FnMut() -> u64,
    end: Instant,
) -> Result<Vec<u64>> {
    let mut latencies = Vec::new();
    loop {
        let since = Instant::now();
        if since >= end {
            return Ok(latencies);
        }
        let done = file.read_at(buffer, offsets()).await?;
        latencies.push(nanos(since));
        whole(&job, done.bytes)?;
        buffer = done.buf;
    }
}

impl Runner for Ours {
    fn run(&mut self, round: u64) -> Result<Sample> {
        if matches!(self.job.access, Access::Write { new_file: true }) {
            self.job.remove()?;
            let file = Arc::new(open(&self.runtime, &self.engine, &self.job, self.cache)?);
            let old = Arc::into_inner(std::mem::replace(&mut self.file, file));
            // Its blocks are freed when it is closed, which a drop leaves to the engine's threads.
            let old = old.ok_or("a task of the last run has the file")?;
            self.runtime.block_on(old.close())?;
        }
        match (self.job.access, self.shape) {
            (Access::Random { .. }, _) => self.random(round),
            (_, Shape::Requests) => self.sequential(),
            (_, Shape::Whole | Shape::Digested(_)) => self.one_request(),
        }
    }

    fn check(&mut self) -> Result<()> {
        if let (Access::Read, Some(buffer)) = (self.job.access, &self.buffer) {
            check_bytes(&self.job, buffer.as_slice()?)?;
            // What the next run does not write is found by the next check.
            if let Some(buffer) = &mut self.buffer {
                buffer.as_mut_slice()?.fill(0);
            }
        }
        if self.job.is_write() {
            check_bytes(&self.job, &std::fs::read(&self.job.path)?)?;
        }
        Ok(())
    }
}

pub(crate) fn check_bytes(job: &Job, bytes: &[u8]) -> Result<()> {
    match data::first_difference(job.seed, 0, bytes) {
        None => Ok(()),
        Some(at) => Err(format!("byte {at} is wrong").into()),
    }
}
