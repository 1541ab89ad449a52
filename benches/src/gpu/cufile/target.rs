//! What plain calls move bytes between: a registered file, and memory of the device.
#![allow(
    unsafe_code,
    reason = "cuFile's calls name memory by address and files by number"
)]

use std::fs::File;
use std::os::fd::{AsFd, IntoRawFd};
use std::sync::Arc;

use measure::report::Sample;
use measure::usage::Usage;
use nvidia_dl::cuda::DevicePtr;
use nvidia_dl::cufile::{FileHandle, Transfer};
use tokio_cufile::DeviceBuffer;

use super::super::bytes;
use super::super::ours::WRITERS;
use super::session::Session;
use crate::Result;
use crate::contest::{Entry, Runner};
use crate::engines::{self, sample, whole};
use crate::job::Job;

/// The process's libcufile, or why there is none.
pub(super) type Shared = Result<Arc<Session>, String>;

/// Which blocks are moved, and between what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// So many blocks at random offsets, instead of all of the file in order.
    pub(super) ranges: Option<usize>,
    /// Around the page cache; `None` as the job says.
    pub(super) direct: Option<bool>,
    /// The memory is registered.
    pub(super) registered: bool,
}

/// How plain calls move what is to be moved.
pub(super) trait Way: 'static {
    /// Readies the way. Whatever fails here keeps the contestant out.
    fn ready(&self, target: Target) -> Result<Box<dyn Runner>>;
}

pub(super) struct Target {
    pub(super) job: Job,
    pub(super) session: Arc<Session>,
    /// Where each block is in the file. In the memory they lie one behind the other.
    offsets: Vec<u64>,
    registered: bool,
    handle: FileHandle,
    /// `None` once an error has left it in doubt whether calls still use it.
    file: Option<File>,
    /// As above, and after an error of a check.
    buffer: Option<DeviceBuffer>,
}

impl Settings {
    pub(super) fn entry(self, name: &str, session: &Shared, way: impl Way) -> Entry {
        let session = session.clone();
        Entry::new(name, move |job| {
            way.ready(Target::new(job, self, session.clone()?)?)
        })
    }
}

impl Target {
    fn new(job: &Job, settings: Settings, session: Arc<Session>) -> Result<Self> {
        let mut job = job.clone();
        job.direct = settings.direct.unwrap_or(job.direct);
        if job.is_write() {
            job.seed += WRITERS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        let offsets = match settings.ranges {
            Some(count) => job.drawn_offsets(count),
            None => job.offsets().collect(),
        };
        let length = offsets.len() * job.block;
        let buffer = DeviceBuffer::new(&session.engine, session.device, length);
        let buffer = session.runtime.block_on(buffer)?;
        let filled = bytes::fill(&session.engine, buffer, own_bytes(&job));
        let buffer = session.runtime.block_on(filled)?;
        if settings.registered {
            session.runtime.block_on(buffer.register(&session.engine))?;
        }
        session.bind()?;
        let file = job.open()?;
        let handle = session.library.handle_register(file.as_fd())?;
        Ok(Self {
            offsets,
            registered: settings.registered,
            handle,
            file: Some(file),
            buffer: Some(buffer),
            session,
            job,
        })
    }

    pub(super) const fn blocks(&self) -> usize {
        self.offsets.len()
    }

    pub(super) const fn handle(&self) -> FileHandle {
        self.handle
    }

    /// One block, as cuFile takes it: from the start of what is registered, or from its own.
    pub(super) fn transfer(&self, index: usize) -> Result<Transfer> {
        let (Some(buffer), Some(_)) = (&self.buffer, &self.file) else {
            return Err("an earlier run lost its memory".into());
        };
        let start = index * self.job.block;
        let (base, buf_offset) = if self.registered {
            (buffer.address(), start)
        } else {
            (buffer.address() + start as u64, 0)
        };
        Ok(Transfer {
            base: DevicePtr(base).as_void(),
            buf_offset,
            file_offset: self.offsets[index],
            len: self.job.block,
        })
    }

    /// Moves one block, by one call that blocks. The device's context is current in this thread.
    ///
    /// # Safety
    ///
    /// Nothing else moves that block before the call has returned.
    pub(super) unsafe fn call(&self, index: usize) -> Result<()> {
        let (library, what) = (self.session.library, self.transfer(index)?);
        let moved = if self.job.is_write() {
            // SAFETY: this keeps the registration, its descriptor and the memory, whose fill has
            // ended; the block is the call's alone.
            unsafe { library.write(self.handle, &what) }
        } else {
            // SAFETY: as above.
            unsafe { library.read(self.handle, &what) }
        };
        whole(&self.job, moved?)
    }

    /// Makes what was written durable.
    pub(super) fn sync(&self) -> Result<()> {
        match &self.file {
            Some(file) if self.job.is_write() => Ok(file.sync_data()?),
            _ => Ok(()),
        }
    }

    pub(super) fn sample(&self, usage: Usage) -> Sample {
        sample(&self.job, self.offsets.len() as u64, usage, Vec::new())
    }

    pub(super) fn check(&mut self) -> Result<()> {
        let (seed, block) = (self.job.seed, self.job.block);
        if self.job.is_write() {
            let written = std::fs::read(&self.job.path)?;
            return engines::ours::check_bytes(&self.job, &written);
        }
        let buffer = self.buffer.take();
        let buffer = buffer.ok_or("an earlier run lost its memory")?;
        let offsets = &self.offsets;
        let each = |start, read: &[u8]| bytes::are_blocks(seed, block, offsets, start, read);
        let session = &self.session;
        let checked = bytes::check_and_wipe(&session.engine, buffer, seed, each);
        self.buffer = Some(session.runtime.block_on(checked)?);
        Ok(())
    }

    /// It is not known whether calls still use file and memory: both stay to the end of the process.
    pub(super) fn leave(&mut self) {
        if let Some(file) = self.file.take() {
            let _stays_open = file.into_raw_fd();
        }
        if let Some(buffer) = self.buffer.take() {
            Box::leak(Box::new(buffer));
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.file.is_some() {
            // SAFETY: registered in `new`, its descriptor is open, and every call has ended: else
            // the file would have been left.
            unsafe { self.session.library.handle_deregister(self.handle) };
        }
    }
}

/// The seed of the bytes that are in the memory at first: those to be written, or none of the file's.
fn own_bytes(job: &Job) -> u64 {
    if job.is_write() { job.seed } else { !job.seed }
}
