//! `spawn_blocking` with `pread` or `pwrite`: what one writes without a library.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use measure::report::Sample;
use measure::usage::Window;
use tokio::runtime::Runtime;
use tokio_cufile::{Engine, HostBuffer, HostPart};

use super::source::Source;
use super::{nanos, sample, whole};
use crate::Result;
use crate::contest::{Entry, Runner};
use crate::job::{Access, Job};

pub(crate) fn entry() -> Entry {
    Entry::new("spawn_blocking pread", |job| {
        let allocator = super::allocator()?;
        let slots = super::memory(&allocator, job.block * job.depth)?;
        Ok(Box::new(Blocking {
            file: Arc::new(job.open()?),
            runtime: super::runtime()?,
            job: job.clone(),
            slots,
            _allocator: allocator,
        }))
    })
}

struct Blocking {
    job: Job,
    file: Arc<File>,
    runtime: Runtime,
    slots: HostBuffer,
    _allocator: Engine,
}

async fn lane(
    file: Arc<File>,
    source: Source,
    mut slot: HostPart,
    mut random: impl FnMut() -> u64,
) -> Result<Vec<u64>> {
    let mut latencies = Vec::new();
    let write = source.job().is_write();
    while let Some(offset) = source.next(&mut random) {
        let since = Instant::now();
        let file = Arc::clone(&file);
        let (back, result) = tokio::task::spawn_blocking(move || {
            let result = if write {
                file.write_at(slot.as_slice(), offset)
            } else {
                file.read_at(slot.as_mut_slice(), offset)
            };
            (slot, result)
        })
        .await?;
        latencies.push(nanos(since));
        whole(source.job(), result?)?;
        slot = back;
    }
    Ok(latencies)
}

impl Runner for Blocking {
    fn run(&mut self, round: u64) -> Result<Sample> {
        if matches!(self.job.access, Access::Write { new_file: true }) {
            self.file = Arc::new(self.job.open()?);
        }
        let block = self.job.block;
        let slots: Result<Vec<HostPart>> = (0..self.job.depth)
            .map(|slot| Ok(self.slots.part(slot * block..(slot + 1) * block)?))
            .collect();
        let (slots, job, file) = (slots?, self.job.clone(), Arc::clone(&self.file));
        let (usage, latencies) = self.runtime.block_on(async move {
            let window = Window::open();
            let source = Source::start(&job);
            let tasks: Vec<_> = slots
                .into_iter()
                .enumerate()
                .map(|(index, slot)| {
                    let random = job.random_offsets(index, round);
                    tokio::spawn(lane(Arc::clone(&file), source.clone(), slot, random))
                })
                .collect();
            let mut latencies = Vec::new();
            for task in tasks {
                latencies.extend(task.await??);
            }
            if job.is_write() {
                tokio::task::spawn_blocking(move || file.sync_data()).await??;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((window.close(), latencies))
        })?;
        Ok(sample(&self.job, latencies.len() as u64, usage, latencies))
    }
}
