//! One thread and one ring, with nothing above: the limit of what an engine on io_uring can do.
//!
//! Slots of one block in one arena on large pages, registered; a request leaves as soon as a slot
//! is free; bytes are discarded.
#![allow(unsafe_code, reason = "a ring's entries name memory by address")]

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::Instant;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use measure::data;
use measure::report::Sample;
use measure::usage::Window;
use tokio_cufile::{Engine, HostBuffer};

use super::{nanos, sample, whole};
use crate::Result;
use crate::contest::{Entry, Runner};
use crate::job::{Access, Job};

pub(crate) fn entry() -> Entry {
    Entry::new("bare ring", |job| Ok(Box::new(Ring::new(job)?)))
}

/// Runs the job once, on this thread.
pub(crate) fn run(job: &Job) -> Result<Sample> {
    Ring::new(job)?.run(0)
}

struct Ring {
    /// Before the arena: it is gone before the memory is.
    ring: IoUring,
    arena: HostBuffer,
    _allocator: Engine,
    file: File,
    job: Job,
    free: VecDeque<usize>,
    issued: Vec<Instant>,
    latencies: Vec<u64>,
}

impl Ring {
    fn new(job: &Job) -> Result<Self> {
        let allocator = super::allocator()?;
        let mut arena = super::memory(&allocator, job.block * job.depth)?;
        data::fill(job.seed, 0, arena.as_mut_slice()?);
        // SAFETY: the arena outlives the ring and is not touched by us from here on.
        let ring = unsafe { build(job, arena.as_mut_slice()?.as_mut_ptr(), 0) }?;
        Ok(Self {
            ring,
            arena,
            _allocator: allocator,
            file: job.open()?,
            job: job.clone(),
            free: (0..job.depth).collect(),
            issued: vec![Instant::now(); job.depth],
            latencies: Vec::new(),
        })
    }

    fn entry(&mut self, slot: usize, offset: u64) -> Result<squeue::Entry> {
        let arena = self.arena.as_mut_slice()?.as_mut_ptr();
        transfer(&self.job, &self.file, arena, slot, offset)
    }

    /// Keeps all slots busy with `next` offsets until there are no more and all is done.
    fn drive(&mut self, mut next: impl FnMut() -> Option<u64>) -> Result<u64> {
        let mut done = 0;
        loop {
            while let Some(slot) = self.free.pop_front() {
                let Some(offset) = next() else {
                    self.free.push_front(slot);
                    break;
                };
                let entry = self.entry(slot, offset)?;
                self.issued[slot] = Instant::now();
                // SAFETY: the slot is free, so it is this entry's alone until its completion; the
                // arena and the file live longer than the ring.
                unsafe { self.ring.submission().push(&entry) }?;
            }
            if self.free.len() == self.job.depth {
                return Ok(done);
            }
            self.ring.submit_and_wait(1)?;
            done += self.reap()?;
        }
    }

    fn reap(&mut self) -> Result<u64> {
        let completions: Vec<cqueue::Entry> = self.ring.completion().collect();
        for completion in &completions {
            let bytes = usize::try_from(completion.result())
                .map_err(|_| std::io::Error::from_raw_os_error(-completion.result()))?;
            whole(&self.job, bytes)?;
            let slot = usize::try_from(completion.user_data())?;
            self.latencies.push(nanos(self.issued[slot]));
            self.free.push_back(slot);
        }
        Ok(completions.len() as u64)
    }
}

/// A ring with room for all slots and `more`, whose slots in the arena at `arena` are registered.
///
/// # Safety
///
/// The arena has room for the job's slots and outlives the ring.
pub(super) unsafe fn build(job: &Job, arena: *mut u8, more: usize) -> Result<IoUring> {
    let ring = IoUring::builder()
        .setup_single_issuer()
        .setup_coop_taskrun()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .build(u32::try_from((job.depth + more).next_power_of_two())?)?;
    let slots: Vec<libc::iovec> = (0..job.depth)
        .map(|slot| libc::iovec {
            iov_base: arena.wrapping_add(slot * job.block).cast(),
            iov_len: job.block,
        })
        .collect();
    // SAFETY: the caller's word.
    unsafe { ring.submitter().register_buffers(&slots) }?;
    Ok(ring)
}

/// The transfer of one block into or out of a slot; the slot names it.
pub(super) fn transfer(
    job: &Job,
    file: &File,
    arena: *mut u8,
    slot: usize,
    offset: u64,
) -> Result<squeue::Entry> {
    let fd = types::Fd(file.as_raw_fd());
    let memory = arena.wrapping_add(slot * job.block);
    let (length, index) = (u32::try_from(job.block)?, u16::try_from(slot)?);
    let entry = if job.is_write() {
        opcode::WriteFixed::new(fd, memory, length, index)
            .offset(offset)
            .build()
    } else {
        opcode::ReadFixed::new(fd, memory, length, index)
            .offset(offset)
            .build()
    };
    Ok(entry.user_data(slot as u64))
}

impl Runner for Ring {
    fn run(&mut self, round: u64) -> Result<Sample> {
        if matches!(self.job.access, Access::Write { new_file: true }) {
            self.file = self.job.open()?;
        }
        self.latencies.clear();
        let mut in_order = self.job.offsets();
        let mut random = self.job.random_offsets(0, round);
        let window = Window::open();
        let operations = match self.job.access {
            Access::Random { duration } => {
                let end = Instant::now() + duration;
                self.drive(|| (Instant::now() < end).then(&mut random))?
            }
            Access::Read => self.drive(|| in_order.next())?,
            Access::Write { .. } => {
                let operations = self.drive(|| in_order.next())?;
                self.file.sync_data()?;
                operations
            }
        };
        let usage = window.close();
        let latencies = std::mem::take(&mut self.latencies);
        Ok(sample(&self.job, operations, usage, latencies))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // After an error requests may be in flight, and a ring that is closed does not wait.
        while self.free.len() < self.job.depth {
            if self.ring.submit_and_wait(1).is_err() {
                std::process::abort();
            }
            let completions: Vec<cqueue::Entry> = self.ring.completion().collect();
            let slots = completions.iter().map(cqueue::Entry::user_data);
            self.free
                .extend(slots.filter_map(|slot| usize::try_from(slot).ok()));
        }
    }
}
