//! Checksums of memory without any I/O: the limit of a digest, on one thread.

use measure::data;
use measure::report::Sample;
use measure::usage::Window;
use tokio_cufile::{DigestKind, Engine, HostBuffer};

use super::sample;
use crate::Result;
use crate::contest::{Entry, Runner};
use crate::job::Job;

pub(crate) fn entry(kind: DigestKind) -> Entry {
    Entry::new(kind.name(), move |job| {
        let allocator = super::allocator()?;
        let mut memory = super::memory(&allocator, job.length_in_memory())?;
        data::fill(job.seed, 0, memory.as_mut_slice()?);
        Ok(Box::new(Hash {
            kind,
            job: job.clone(),
            memory,
            _allocator: allocator,
        }))
    })
}

struct Hash {
    kind: DigestKind,
    job: Job,
    memory: HostBuffer,
    _allocator: Engine,
}

impl Runner for Hash {
    fn run(&mut self, _round: u64) -> Result<Sample> {
        let chunks = self.memory.as_slice()?.chunks(self.job.block);
        let window = Window::open();
        for chunk in chunks {
            std::hint::black_box(self.kind.of(chunk));
        }
        let usage = window.close();
        Ok(sample(&self.job, self.job.blocks(), usage, Vec::new()))
    }
}
