//! tokio-cufile into and out of device memory, through its public API, with its default settings but
//! for those that a name says.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use measure::report::Sample;
use measure::usage::{Usage, Window};
use tokio::runtime::Runtime;
use tokio_cufile::{
    AsyncCuFile, CacheMode, DeviceBuffer, DevicePart, Engine, EngineBuilder, ErrorKind, FileRange,
    OpenOptions,
};

use super::bytes;
use crate::Result;
use crate::contest::{Entry, Runner};
use crate::engines::{self, nanos, sample, whole};
use crate::job::{Access, Job};

/// How the job becomes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One task for each request in flight, each asking for block after block.
    Requests,
    /// One request for everything, split by the engine as it sees fit.
    Whole,
    /// One request for so many blocks at random offsets, each at its place in the buffer.
    Ranges(usize),
}

/// What is set for one contestant; all else is the default.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) builder: EngineBuilder,
    pub(super) shape: Shape,
    pub(super) cache: CacheMode,
    /// The buffer is registered with cuFile.
    pub(super) registered: bool,
}

impl Settings {
    pub(super) const fn new(builder: EngineBuilder, shape: Shape) -> Self {
        Self {
            builder,
            shape,
            cache: CacheMode::Auto,
            registered: false,
        }
    }

    pub(super) fn entry(self, name: &str, device: u32) -> Entry {
        let of = name.to_owned();
        Entry::new(name, move |job| Ours::prepare(job, &of, device, &self))
    }
}

/// Each contestant that writes has bytes of its own, so that a check does not find another's.
pub(super) static WRITERS: AtomicU64 = AtomicU64::new(1 << 32);

pub(super) fn entry(name: &str, device: u32, builder: EngineBuilder, shape: Shape) -> Entry {
    Settings::new(builder, shape).entry(name, device)
}

/// Requests of a block that do not ask whether the page cache has it.
pub(super) fn direct(name: &str, device: u32, builder: EngineBuilder) -> Entry {
    let settings = Settings {
        cache: CacheMode::Direct,
        ..Settings::new(builder, Shape::Requests)
    };
    settings.entry(name, device)
}

/// Blocks that nobody has taken yet, last first: they are taken from the end.
type Parts = Arc<Mutex<Vec<(u64, DevicePart)>>>;

struct Ours {
    name: String,
    job: Job,
    shape: Shape,
    runtime: Runtime,
    engine: Engine,
    file: Arc<AsyncCuFile>,
    /// All of the file, or a block for each random read in flight. Gone after an error.
    buffer: Option<DeviceBuffer>,
    /// Which block of the file each block of the buffer has, after random reads and ranges.
    last: Vec<u64>,
}

impl Ours {
    fn prepare(job: &Job, name: &str, device: u32, how: &Settings) -> Result<Box<dyn Runner>> {
        let engine = match how.builder.clone().build_blocking() {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                return Err(error.reason().into());
            }
            engine => engine?,
        };
        let mut job = job.clone();
        if job.is_write() {
            job.seed += WRITERS.fetch_add(1, Ordering::Relaxed);
        }
        let length = match (how.shape, job.access) {
            (Shape::Ranges(count), _) => job.block * count,
            (_, Access::Random { .. }) => job.block * job.depth,
            (_, Access::Read | Access::Write { .. }) => job.length_in_memory(),
        };
        let runtime = engines::runtime()?;
        let options = OpenOptions::new()
            .cache(how.cache)
            .read(!job.is_write())
            .write(job.is_write());
        let file = Arc::new(runtime.block_on(options.open(&engine, &job.path))?);
        let mut buffer = runtime.block_on(DeviceBuffer::new(&engine, device, length))?;
        if job.is_write() {
            buffer = runtime.block_on(bytes::fill(&engine, buffer, job.seed))?;
        }
        if how.registered {
            runtime.block_on(buffer.register(&engine))?;
        }
        Ok(Box::new(Self {
            name: name.to_owned(),
            job,
            shape: how.shape,
            runtime,
            engine,
            file,
            buffer: Some(buffer),
            last: Vec::new(),
        }))
    }

    fn take_buffer(&mut self) -> Result<DeviceBuffer> {
        let buffer = self.buffer.take();
        buffer.ok_or_else(|| "an earlier run lost the buffer".into())
    }

    fn one_request(&mut self) -> Result<Usage> {
        let buffer = self.take_buffer()?;
        let write = self.job.is_write();
        let file = Arc::clone(&self.file);
        let (buffer, usage) = self.runtime.block_on(async move {
            let window = Window::open();
            let done = if write {
                let done = file.write_all_at(buffer, 0).await?;
                file.sync_data().await?;
                done
            } else {
                file.read_exact_at(buffer, 0).await?
            };
            Ok::<_, tokio_cufile::Error>((done.buf, window.close()))
        })?;
        self.buffer = Some(buffer);
        Ok(usage)
    }

    fn requests(&mut self) -> Result<Usage> {
        let mut buffer = self.take_buffer()?;
        let mut parts = Vec::new();
        for offset in self.job.offsets() {
            let start = usize::try_from(offset)?;
            parts.push((offset, buffer.part(start..start + self.job.block)?));
        }
        parts.reverse();
        let parts: Parts = Arc::new(Mutex::new(parts));
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
        self.buffer = Some(buffer);
        Ok(usage)
    }

    fn random(&mut self, round: u64) -> Result<Sample> {
        let mut buffer = self.take_buffer()?;
        let block = self.job.block;
        let parts: Result<Vec<DevicePart>> = (0..self.job.depth)
            .map(|lane| Ok(buffer.part(lane * block..(lane + 1) * block)?))
            .collect();
        let (parts, job) = (parts?, self.job.clone());
        let file = &self.file;
        let (usage, latencies, last) = self.runtime.block_on(async move {
            let window = Window::open();
            let end = Instant::now() + job.duration();
            let lanes = parts.into_iter().enumerate().map(|(lane, part)| {
                let offsets = job.random_offsets(lane, round);
                tokio::spawn(random_lane(
                    Arc::clone(file),
                    job.clone(),
                    part,
                    offsets,
                    end,
                ))
            });
            let (mut latencies, mut last) = (Vec::new(), Vec::new());
            for task in lanes.collect::<Vec<_>>() {
                let (of_lane, at) = task.await??;
                latencies.extend(of_lane);
                last.push(at);
            }
            let usage = window.close();
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((usage, latencies, last))
        })?;
        self.buffer = Some(buffer);
        self.last = last;
        Ok(sample(&self.job, latencies.len() as u64, usage, latencies))
    }

    fn ranges(&mut self, count: usize) -> Result<Sample> {
        let offsets = self.job.drawn_offsets(count);
        let block = self.job.block;
        let range = |(index, &file_offset): (usize, &u64)| FileRange {
            file_offset,
            len: block,
            buf_offset: index * block,
        };
        let ranges: Vec<FileRange> = offsets.iter().enumerate().map(range).collect();
        let buffer = self.take_buffer()?;
        let file = Arc::clone(&self.file);
        let (buffer, usage) = self.runtime.block_on(async move {
            let window = Window::open();
            let done = file.read_ranges(buffer, ranges).await?;
            Ok::<_, tokio_cufile::Error>((done.buf, window.close()))
        })?;
        self.buffer = Some(buffer);
        self.last = offsets;
        Ok(sample(&self.job, count as u64, usage, Vec::new()))
    }

    /// Reads all of the buffer back, and wipes it: what the next runs do not write is found by the
    /// next check.
    fn check_buffer(&mut self, each: impl FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        let buffer = self.take_buffer()?;
        let checked = bytes::check_and_wipe(&self.engine, buffer, self.job.seed, each);
        self.buffer = Some(self.runtime.block_on(checked)?);
        Ok(())
    }
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

/// The latencies, and the offset of the last read.
async fn random_lane(
    file: Arc<AsyncCuFile>,
    job: Job,
    mut part: DevicePart,
    mut offsets: impl FnMut() -> u64,
    end: Instant,
) -> Result<(Vec<u64>, u64)> {
    let mut latencies = Vec::new();
    loop {
        let offset = offsets();
        let since = Instant::now();
        let done = file.read_at(part, offset).await?;
        latencies.push(nanos(since));
        whole(&job, done.bytes)?;
        part = done.buf;
        if Instant::now() >= end {
            return Ok((latencies, offset));
        }
    }
}

impl Runner for Ours {
    fn run(&mut self, round: u64) -> Result<Sample> {
        let usage = match (self.job.access, self.shape) {
            (_, Shape::Ranges(count)) => return self.ranges(count),
            (Access::Random { .. }, _) => return self.random(round),
            (_, Shape::Requests) => self.requests()?,
            (_, Shape::Whole) => self.one_request()?,
        };
        Ok(sample(&self.job, self.job.blocks(), usage, Vec::new()))
    }

    fn check(&mut self) -> Result<()> {
        let (seed, block) = (self.job.seed, self.job.block);
        let last = std::mem::take(&mut self.last);
        match (self.job.access, self.shape) {
            (Access::Random { .. }, _) | (_, Shape::Ranges(_)) => {
                self.check_buffer(|start, read| bytes::are_blocks(seed, block, &last, start, read))
            }
            (Access::Read, _) => self.check_buffer(|start, read| bytes::are(seed, start, read)),
            (Access::Write { .. }, _) => {
                let written = std::fs::read(&self.job.path)?;
                engines::ours::check_bytes(&self.job, &written)
            }
        }
    }

    fn about(&self) -> Option<(String, String)> {
        let route = self.file.route().resolved.to_string();
        Some((format!("\"{}\" by", self.name), route))
    }
}
