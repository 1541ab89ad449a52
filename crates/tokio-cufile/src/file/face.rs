//! A file as streams and writers hold it: its calls, without the user's say about lost writes.

use std::sync::Arc;

use completion::Role;

use super::shared::FileShared;
use crate::engine::Shared;
use crate::error::Operation;
use crate::memory::{IoBuf, IoBufMut};
use crate::op::{Request, Transfer};
use crate::os::FileHandle;
use crate::plan::Kind;

/// Outlives the [`AsyncCuFile`](super::AsyncCuFile) that it came from.
#[derive(Clone)]
pub(crate) struct Face {
    /// Before `engine`, whose disposer closes the file.
    shared: Arc<FileShared>,
    engine: Arc<Shared>,
}

impl Face {
    pub(super) fn new(shared: &Arc<FileShared>, engine: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            engine: Arc::clone(engine),
        }
    }

    pub(crate) fn file(&self) -> &FileShared {
        &self.shared
    }

    pub(crate) fn engine(&self) -> &Shared {
        &self.engine
    }

    pub(crate) fn read<B: IoBufMut>(&self, buf: B, offset: u64) -> Transfer<B> {
        Transfer::new(&self.engine, &self.shared, Kind::Read, buf, offset, false)
    }

    pub(crate) fn write<B: IoBuf>(&self, buf: B, offset: u64) -> Transfer<B> {
        Transfer::new(&self.engine, &self.shared, Kind::Write, buf, offset, true)
    }

    pub(crate) fn sync_data(&self) -> Request<()> {
        let file = Arc::clone(&self.shared);
        let path = Arc::clone(&file.path);
        let role = Role::Barrier(Arc::clone(&file.ledger));
        let sync = move || file.sync(FileHandle::sync_data);
        Request::new(&self.engine, Operation::Sync, path, role, sync)
    }

    pub(crate) fn len(&self) -> Request<u64> {
        let file = Arc::clone(&self.shared);
        let path = Arc::clone(&file.path);
        let len = move || file.handle.len();
        Request::new(&self.engine, Operation::Len, path, Role::None, len)
    }
}
