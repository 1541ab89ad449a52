//! The part that touches the library: one engine, files, requests into and out of its memory.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio_cufile::{
    AsyncCuFile, Config, Engine, Error, ErrorKind, IoBuf, OpenOptions, PathClass, Receipt, Request,
    Transfer,
};

use crate::failure::Failure;
use crate::place::Place;
use crate::resolved::Settings;

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

    pub(crate) async fn settle<B: IoBuf>(
        self,
        mut transfer: Transfer<B>,
    ) -> Result<Settled, Error> {
        if let Some(class) = self.require {
            transfer = transfer.require(class);
        }
        if let Some(instant) = self.deadline {
            transfer = transfer.deadline(instant);
        }
        let done = transfer.await?;
        Ok(Settled {
            bytes: done.bytes,
            receipt: done.receipt,
        })
    }

    /// The same deadline for an open, a sync or a close.
    pub(crate) fn bound_request<T>(&self, request: Request<T>) -> Request<T> {
        match self.deadline {
            Some(instant) => request.deadline(instant),
            None => request,
        }
    }
}

/// An engine with the environment's settings and over them what was typed, and the memory that
/// was asked for. `path` and `offset` are what it is for.
pub(crate) async fn build_engine(
    settings: &Settings,
    path: &Path,
    offset: u64,
) -> Result<(Engine, Place), Failure> {
    let failure = |error: &Error| Failure::of_engine(error, path, offset);
    let config = Config::from_env().map_err(|error| failure(&error))?;
    let config = settings.over(config);
    let engine = Engine::builder().config(config).build().await;
    let engine = engine.map_err(|error| failure(&error))?;
    let place = Place::find(&engine, settings.device).await;
    let place = place.map_err(|reason| Failure::new(path, offset, reason))?;
    Ok((engine, place))
}

/// A piece's length. A length that memory cannot have is left to the allocation to refuse.
pub(crate) fn length_in_memory(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
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
    let options = OpenOptions::new().write(true);
    let new = options.clone().create_new(true).open(engine, path);
    match limits.bound_request(new).await {
        Ok(file) => Ok((file, true)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let file = limits.bound_request(options.open(engine, path)).await?;
            Ok((file, false))
        }
        Err(error) => Err(error),
    }
}

/// Evicts the file's pages from the page cache, dirty ones too: those are written back first,
/// since they stay otherwise. So do the pages that a process maps, and those of a tmpfs.
pub(crate) async fn drop_cache(file: &AsyncCuFile) -> Result<(), Error> {
    file.sync_data().await?;
    file.drop_cache().await
}
