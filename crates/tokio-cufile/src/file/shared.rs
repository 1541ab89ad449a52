//! What a file and its operations share, and what becomes of writes that nobody awaited.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use completion::{Doubt, Handle, Ledger, Loss};

use super::opened::OpenedFile;
use crate::engine::{LostWrites, Model, Shared};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::memory::{ProcessMark, leak_in_child};
use crate::os::FileHandle;
use crate::plan::route::FileRoute;
use crate::receipt::{DataPath, Route};

/// What a file and its operations share.
#[derive(Debug)]
pub(crate) struct FileShared {
    pub(crate) path: Arc<Path>,
    /// Before `closer`, whose share is then the last.
    pub(crate) handle: Arc<OpenedFile>,
    pub(super) closer: Closer,
    pub(crate) route: FileRoute,
    pub(crate) ledger: Arc<Ledger<Error>>,
    /// A failed sync is never repeated: the kernel may call the lost pages clean.
    pub(super) sync_failure: Mutex<Option<Error>>,
    pub(super) lost_writes: Arc<LostWrites>,
}

/// Closes the descriptors on the engine's disposer, whoever drops the file's last owner: `close`
/// may block, and the last owner may be a future that a task drops.
#[derive(Debug)]
pub(super) struct Closer {
    share: Option<Handle<Model, Arc<OpenedFile>>>,
    mark: Arc<ProcessMark>,
}

impl Closer {
    pub(super) fn new(engine: &Shared, handle: &Arc<OpenedFile>) -> Self {
        Self {
            share: Some(Handle::new(&engine.core, Arc::clone(handle))),
            mark: Arc::clone(&engine.mark),
        }
    }

    /// Has the caller close the descriptors.
    fn take_back(mut self) -> Option<Arc<OpenedFile>> {
        self.share.take().and_then(|mut share| share.take_back())
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        if self.share.is_some() && self.mark.is_forked() {
            leak_in_child(self.share.take());
        }
    }
}

/// The user's share of a file. When it goes, nobody will ask for lost writes any more.
pub(super) struct Keeper(pub(super) Arc<FileShared>);

impl Drop for Keeper {
    fn drop(&mut self) {
        let file = &self.0;
        if let Some(doubt) = file.ledger.abandon() {
            file.lost_writes.report(lost_write(&file.path, &doubt));
        }
    }
}

impl FileShared {
    /// What requests may plan with now: a file system that refused direct I/O is not asked again.
    pub(crate) fn route_now(&self) -> FileRoute {
        let mut route = self.route.clone();
        if route.direct.is_some() && self.handle.direct_alignment().is_none() {
            route.direct = None;
            route.cached = true;
            route.cached_path = DataPath::Buffered;
            route.route = Arc::new(Route {
                asked: route.route.asked.clone(),
                resolved: DataPath::Buffered.name().into(),
                reason: "the file system refused an aligned direct request".into(),
            });
        }
        route
    }

    /// Closes the descriptors on this thread, with what `close(2)` says.
    pub(super) fn close(self) -> Result<()> {
        let Self { handle, closer, .. } = self;
        drop(handle);
        let last = closer.take_back().and_then(Arc::into_inner);
        last.map_or(Ok(()), OpenedFile::close)
    }

    /// Whether every write so far is accounted for.
    pub(super) fn check_intact(&self) -> Result<()> {
        self.ledger
            .doubt()
            .map_or(Ok(()), |doubt| Err(lost_write(&self.path, &doubt)))
    }

    pub(super) fn sync(&self, call: impl FnOnce(&FileHandle) -> Result<()>) -> Result<()> {
        self.check_intact()?;
        let mut failure = self
            .sync_failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &*failure {
            return Err(error.clone());
        }
        call(&self.handle).inspect_err(|error| *failure = Some(error.clone()))
    }
}

/// The error of a write that nobody awaited.
pub(crate) fn lost_write(file: &Arc<Path>, doubt: &Doubt<Error>) -> Error {
    let how = match &doubt.first {
        Loss::Failed(error) => error.to_string(),
        Loss::Torn => "it was dropped when only part of it had been issued".to_owned(),
        Loss::Quarantined => "it could not be proved to have ended".to_owned(),
    };
    let reason = format!(
        "{} orphaned write(s) lost, content in doubt from offset {}; the first: {how}",
        doubt.writes, doubt.offset
    );
    let error = Error::new(ErrorKind::OrphanedWrite, reason)
        .with_operation(Operation::Write)
        .with_path(file)
        .with_offset(doubt.offset);
    match &doubt.first {
        Loss::Failed(source) => error.with_source(source.clone()),
        Loss::Torn | Loss::Quarantined => error,
    }
}
