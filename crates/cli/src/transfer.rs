//! The part that touches the library: one engine, files, requests into and out of its memory.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio_cufile::{
    AsyncCuFile, Engine, Error, HostBuffer, OpenOptions, PathClass, Receipt, Request, Transfer,
};

use crate::failure::Failure;
use crate::resolved::{Settings, Windows};

/// What one request did.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) bytes: usize,
    pub(crate) receipt: Receipt,
}

/// What bounds every request of one transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    require: Option<PathClass>,
    deadline: Option<Instant>,
}

impl Limits {
    /// The deadline's time runs from now.
    pub(crate) fn from_now(settings: &Settings) -> Self {
        Self {
            require: settings.require,
            deadline: settings
                .deadline
                // Further away than the clock reaches is no deadline.
                .and_then(|span: Duration| Instant::now().checked_add(span)),
        }
    }

    fn bound<B>(&self, mut transfer: Transfer<B>) -> Transfer<B> {
        if let Some(class) = self.require {
            transfer = transfer.require(class);
        }
        if let Some(instant) = self.deadline {
            transfer = transfer.deadline(instant);
        }
        transfer
    }

    /// The same deadline for an open, a sync or a close.
    pub(crate) fn bound_request<T>(&self, request: Request<T>) -> Request<T> {
        match self.deadline {
            Some(instant) => request.deadline(instant),
            None => request,
        }
    }
}

/// The environment's settings, and over them what was typed.
pub(crate) async fn build_engine(settings: &Settings) -> Result<Engine, Failure> {
    let mut builder = Engine::from_env().map_err(|error| Failure::of_engine(&error))?;
    if let Some(mode) = settings.compat_mode {
        builder = builder.compat_mode(mode);
    }
    if let Some(io) = settings.io {
        builder = builder.io(io);
    }
    if let Some(cache) = settings.cache {
        builder = builder.cache(cache);
    }
    if let Some(bytes) = settings.task_size {
        builder = builder.task_size(bytes);
    }
    builder
        .build()
        .await
        .map_err(|error| Failure::of_engine(&error))
}

/// The buffers of `windows`, their pages in place: page faults belong to no figure.
pub(crate) fn allocate(engine: &Engine, windows: &Windows) -> Result<Vec<HostBuffer>, Error> {
    let size = length_in_memory(windows.buffer_size);
    (0..windows.buffers)
        .map(|_| {
            let mut buffer = HostBuffer::new(engine, size)?;
            buffer.prefault()?;
            Ok(buffer)
        })
        .collect()
}

/// A piece's length. A length that memory cannot have is left to the allocation to refuse.
pub(crate) fn length_in_memory(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Reads up to `length` bytes into the front of `buffer`; fewer only at the end of the file.
pub(crate) async fn read(
    file: &AsyncCuFile,
    buffer: &mut HostBuffer,
    length: usize,
    offset: u64,
    limits: Limits,
) -> Result<Settled, Error> {
    let part = buffer.part(0..length)?;
    let done = limits.bound(file.read_at(part, offset)).await?;
    Ok(Settled {
        bytes: done.bytes,
        receipt: done.receipt,
    })
}

/// Writes all `length` bytes at the front of `buffer`.
pub(crate) async fn write(
    file: &AsyncCuFile,
    buffer: &mut HostBuffer,
    length: usize,
    offset: u64,
    limits: Limits,
) -> Result<Settled, Error> {
    let part = buffer.part(0..length)?;
    let done = limits.bound(file.write_all_at(part, offset)).await?;
    Ok(Settled {
        bytes: done.bytes,
        receipt: done.receipt,
    })
}

/// Opens for reading.
pub(crate) async fn open_source(
    engine: &Engine,
    path: &Path,
    limits: Limits,
) -> Result<AsyncCuFile, Error> {
    limits.bound_request(AsyncCuFile::open(engine, path)).await
}

/// Opens for writing without touching what is there; `true` where the file is new.
pub(crate) async fn open_destination(
    engine: &Engine,
    path: &Path,
    limits: Limits,
) -> Result<(AsyncCuFile, bool), Error> {
    let mut new = OpenOptions::new();
    new.write(true).create_new(true);
    match limits.bound_request(new.open(engine, path)).await {
        Ok(file) => Ok((file, true)),
        Err(error) if error.kind() == tokio_cufile::ErrorKind::AlreadyExists => {
            let mut existing = OpenOptions::new();
            existing.write(true);
            let file = limits.bound_request(existing.open(engine, path)).await?;
            Ok((file, false))
        }
        Err(error) => Err(error),
    }
}
