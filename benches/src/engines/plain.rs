//! Threads with `pread` into the whole destination: the limit of reading from the page cache.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;

use measure::report::Sample;
use measure::usage::Window;
use tokio_cufile::{Engine, HostBuffer, HostPart};

use super::ours::check_bytes;
use super::{sample, whole};
use crate::Result;
use crate::contest::{Entry, Runner};
use crate::job::Job;

pub(crate) fn entry(threads: usize) -> Entry {
    Entry::new(format!("pread, {threads} threads"), move |job| {
        let allocator = super::allocator()?;
        Ok(Box::new(Plain {
            file: job.open()?,
            memory: super::memory(&allocator, job.length_in_memory())?,
            job: job.clone(),
            threads,
            _allocator: allocator,
        }))
    })
}

struct Plain {
    job: Job,
    threads: usize,
    file: File,
    memory: HostBuffer,
    _allocator: Engine,
}

impl Plain {
    fn work(&self, parts: &[Mutex<HostPart>], next: &AtomicUsize, start: &Barrier) -> Result<()> {
        start.wait();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(part) = parts.get(index) else {
                return Ok(());
            };
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            let offset = part.range().start as u64;
            whole(&self.job, self.file.read_at(part.as_mut_slice(), offset)?)?;
        }
    }
}

impl Runner for Plain {
    fn run(&mut self, _round: u64) -> Result<Sample> {
        let mut parts = Vec::new();
        for offset in self.job.offsets() {
            let at = usize::try_from(offset)?;
            parts.push(Mutex::new(self.memory.part(at..at + self.job.block)?));
        }
        let (next, start) = (
            AtomicUsize::new(0),
            Arc::new(Barrier::new(self.threads + 1)),
        );
        let plain = &*self;
        let usage = thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|_| scope.spawn(|| plain.work(&parts, &next, &start)))
                .collect();
            let window = Window::open();
            start.wait();
            for thread in threads {
                thread.join().map_err(|_| "a thread panicked")??;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(window.close())
        })?;
        Ok(sample(&self.job, self.job.blocks(), usage, Vec::new()))
    }

    fn check(&mut self) -> Result<()> {
        check_bytes(&self.job, self.memory.as_slice()?)
    }
}
