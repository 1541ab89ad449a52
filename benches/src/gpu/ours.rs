//! tokio-cufile into and out of device memory, through its public API, with its default settings but
//! for those that a name says.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use measure::data;
use measure::report::Sample;
use measure::usage::{Usage, Window};
use tokio::runtime::Runtime;
use tokio_cufile::{
    AsyncCuFile, CacheMode, DeviceBuffer, DevicePart, Engine, EngineBuilder, ErrorKind, OpenOptions,
};

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
}

/// What is read back at once to be checked.
const CHECKED: usize = 64 << 20;

/// Each contestant that writes has bytes of its own, so that a check does not find another's.
static WRITERS: AtomicU64 = AtomicU64::new(1 << 32);

pub(super) fn entry(name: &str, device: u32, builder: EngineBuilder, shape: Shape) -> Entry {
    Entry::new(name, move |job| {
        Ours::prepare(job, device, builder.clone(), shape, CacheMode::Auto)
    })
}

/// Requests of a block that do not ask whether the page cache has it.
pub(super) fn direct(name: &str, device: u32, builder: EngineBuilder) -> Entry {
    Entry::new(name, move |job| {
        Ours::prepare(
            job,
            device,
            builder.clone(),
            Shape::Requests,
            CacheMode::Direct,
        )
    })
}

/// Blocks that nobody has taken yet, last first: they are taken from the end.
type Parts = Arc<Mutex<Vec<(u64, DevicePart)>>>;

struct Ours {
    job: Job,
    shape: Shape,
    runtime: Runtime,
    engine: Engine,
    file: Arc<AsyncCuFile>,
    /// All of the file, or a block for each random read in flight. Gone after an error.
    buffer: Option<DeviceBuffer>,
    /// Which block of the file each block of the buffer has, after random reads.
    last: Vec<u64>,
}

impl Ours {
    fn prepare(
        job: &Job,
        device: u32,
        builder: EngineBuilder,
        shape: Shape,
        cache: CacheMode,
    ) -> Result<Box<dyn Runner>> {
        let engine = match builder.build_blocking() {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                return Err(error.reason().into());
            }
            engine => engine?,
        };
        let mut job = job.clone();
        if job.is_write() {
            job.seed += WRITERS.fetch_add(1, Ordering::Relaxed);
        }
        let length = match job.access {
            Access::Random { .. } => job.block * job.depth,
            Access::Read | Access::Write { .. } => job.length_in_memory(),
        };
        let runtime = engines::runtime()?;
        let options = OpenOptions::new()
            .cache(cache)
            .read(!job.is_write())
            .write(job.is_write());
        let file = Arc::new(runtime.block_on(options.open(&engine, &job.path))?);
        let mut buffer = runtime.block_on(DeviceBuffer::new(&engine, device, length))?;
        if job.is_write() {
            buffer = runtime.block_on(fill(&engine, buffer, job.seed))?;
        }
        Ok(Box::new(Self {
            job,
            shape,
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

    /// Reads all of the buffer back and gives it piece by piece, with where each piece begins.
    fn read_back(&mut self, mut each: impl FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        let mut buffer = self.take_buffer()?;
        for start in (0..buffer.len()).step_by(CHECKED) {
            let end = buffer.len().min(start + CHECKED);
            let copied = buffer.copy_to_host(&self.engine, start..end);
            let (back, bytes) = self.runtime.block_on(copied)?;
            buffer = back;
            each(start, &bytes)?;
        }
        self.buffer = Some(buffer);
        Ok(())
    }

    fn check_read(&mut self) -> Result<()> {
        let seed = self.job.seed;
        self.read_back(|start, bytes| {
            let difference = data::first_difference(seed, start as u64, bytes);
            difference.map_or(Ok(()), |at| {
                Err(format!("byte {at} in device memory is not the file's").into())
            })
        })?;
        // What the next runs do not write is found by the next check.
        let buffer = self.take_buffer()?;
        let wiped = fill(&self.engine, buffer, !seed);
        self.buffer = Some(self.runtime.block_on(wiped)?);
        Ok(())
    }

    fn check_random(&mut self) -> Result<()> {
        let (seed, block) = (self.job.seed, self.job.block);
        let last = std::mem::take(&mut self.last);
        self.read_back(|start, bytes| {
            for (bytes, offset) in bytes.chunks(block).zip(&last[start / block..]) {
                if data::first_difference(seed, *offset, bytes).is_some() {
                    return Err(format!("a block is not the file's at {offset}").into());
                }
            }
            Ok(())
        })
    }
}

/// Random bytes into all of a device's buffer.
async fn fill(
    engine: &Engine,
    mut buffer: DeviceBuffer,
    seed: u64,
) -> tokio_cufile::Result<DeviceBuffer> {
    for start in (0..buffer.len()).step_by(CHECKED) {
        let mut bytes = vec![0; CHECKED.min(buffer.len() - start)];
        data::fill(seed, start as u64, &mut bytes);
        buffer = buffer.copy_from_host(engine, start, bytes).await?;
    }
    Ok(buffer)
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
            (Access::Random { .. }, _) => return self.random(round),
            (_, Shape::Requests) => self.requests()?,
            (_, Shape::Whole) => self.one_request()?,
        };
        Ok(sample(&self.job, self.job.blocks(), usage, Vec::new()))
    }

    fn check(&mut self) -> Result<()> {
        match self.job.access {
            Access::Read => self.check_read(),
            Access::Random { .. } => self.check_random(),
            Access::Write { .. } => {
                let bytes = std::fs::read(&self.job.path)?;
                engines::ours::check_bytes(&self.job, &bytes)
            }
        }
    }
}
