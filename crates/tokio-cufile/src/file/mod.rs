//! Files: opened, read, written, made durable and closed without blocking a task.

mod face;
mod opened;
mod options;
mod shared;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use completion::{Handle, Ledger, Role};

pub(crate) use self::face::Face;
use self::opened::OpenedFile;
pub use self::options::OpenOptions;
use self::shared::{Closer, Keeper};
pub(crate) use self::shared::{FileShared, lost_write};
use crate::engine::{Engine, Model, Shared};
use crate::error::{Operation, Result};
use crate::memory::{IoBuf, IoBufMut, leak_in_child};
use crate::op::{Ranges, Request, Transfer};
use crate::os::{FileHandle, path_of};
use crate::plan::Kind;
use crate::plan::route::{Asked, FileRoute};
use crate::receipt::Route;

/// A regular file whose bytes move to and from memory by `await`.
///
/// Positional calls take `&self`: any number of them can be in flight at once. They order nothing
/// among each other: a read beside a write of the same range sees some mixture. What has to follow
/// must be awaited; [`sync_data`](Self::sync_data) and [`close`](Self::close) wait for every write
/// that was started before them, also for those whose futures were dropped.
///
/// Dropping the file neither blocks nor disturbs what is in flight: its descriptors are closed by
/// the engine when the last operation is done.
pub struct AsyncCuFile {
    shared: Arc<FileShared>,
    /// Lets the engine's disposer close the descriptors: `close` may block. Before `engine`, which
    /// keeps the disposer alive.
    keeper: Option<Handle<Model, Keeper>>,
    engine: Arc<Shared>,
}

impl fmt::Debug for AsyncCuFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncCuFile")
            .field("path", &self.shared.path)
            .field("route", &self.shared.route.route)
            .finish_non_exhaustive()
    }
}

impl Drop for AsyncCuFile {
    fn drop(&mut self) {
        if self.engine.is_forked() {
            leak_in_child(self.keeper.take());
        }
    }
}

impl AsyncCuFile {
    /// Opens a file for reading.
    ///
    /// # Errors
    ///
    /// As [`OpenOptions::open`].
    pub fn open(engine: &Engine, path: impl AsRef<Path>) -> Request<Self> {
        OpenOptions::new().read(true).open(engine, path)
    }

    /// Opens a file for writing: creates it, or cuts what is there to length 0.
    ///
    /// # Errors
    ///
    /// As [`OpenOptions::open`].
    pub fn create(engine: &Engine, path: impl AsRef<Path>) -> Request<Self> {
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(engine, path)
    }

    /// Takes over an open file, with its access mode.
    ///
    /// For direct I/O the file is opened a second time through its descriptor, where the system
    /// allows that; otherwise it is read and written through the page cache, and
    /// [`route`](Self::route) says so. Closing either descriptor releases the record locks
    /// (`fcntl`) that the process holds on the file.
    ///
    /// # Errors
    ///
    /// `NotRegularFile`; `InvalidInput` for a file open for appending, whose writes would ignore
    /// their offsets, or opened with `O_PATH`; what the second opening gives.
    pub fn from_std(engine: &Engine, file: std::fs::File) -> Request<Self> {
        let asked = Asked {
            compat_mode: engine.config().compat_mode,
            io: engine.config().io,
            cache: engine.config().cache,
        };
        let path: Arc<Path> = path_of(&file).into();
        let shared = Arc::clone(&engine.shared);
        let opened_path = Arc::clone(&path);
        let open = move || {
            OpenedFile::check(&shared, asked)?;
            let handle = FileHandle::from_std(file, asked.wants_direct())?;
            let (opened, route) = OpenedFile::new(&shared, handle, asked)?;
            Ok(Self::assemble(&shared, opened_path, opened, route))
        };
        Request::new(&engine.shared, Operation::Open, path, Role::None, open)
    }

    fn assemble(
        engine: &Arc<Shared>,
        path: Arc<Path>,
        opened: OpenedFile,
        route: FileRoute,
    ) -> Self {
        tracing::debug!(path = %path.display(), route = %route.route, "file opened");
        let handle = Arc::new(opened);
        let shared = Arc::new(FileShared {
            ledger: Arc::new(Ledger::new(Arc::clone(&path))),
            path,
            closer: Closer::new(engine, &handle),
            handle,
            route,
            sync_failure: Mutex::new(None),
            lost_writes: Arc::clone(&engine.lost_writes),
        });
        let keeper = Handle::new(&engine.core, Keeper(Arc::clone(&shared)));
        Self {
            shared,
            keeper: Some(keeper),
            engine: Arc::clone(engine),
        }
    }

    /// The file for what reads or writes it on and on.
    pub(crate) fn face(&self) -> Face {
        Face::new(&self.shared, &self.engine)
    }

    /// The path that the file was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Which way the file's bytes go: what was asked, what is in force, and why.
    #[must_use]
    pub fn route(&self) -> &Route {
        &self.shared.route.route
    }

    /// Reads from `offset` (bytes) until `buf` is full or the file ends.
    ///
    /// [`Done::bytes`](crate::Done::bytes) is less than the length of `buf` only at the end of the
    /// file, and 0 at or behind it; what `buf` holds behind them is unspecified then, since direct
    /// I/O moves whole blocks. A hole reads as zeros.
    ///
    /// # Errors
    ///
    /// `NotReadable`, `InvalidInput` for a range beyond 2^63 - 1, `Busy`, `WrongEngine`,
    /// `PathRefused`, and what the file system gives. The error hands the buffer back and says how
    /// many bytes were read before it without a gap.
    ///
    /// # Cancellation
    ///
    /// See [`Transfer`].
    pub fn read_at<B: IoBufMut>(&self, buf: B, offset: u64) -> Transfer<B> {
        Transfer::new(&self.engine, &self.shared, Kind::Read, buf, offset, false)
    }

    /// As [`read_at`](Self::read_at), but an end of file before `buf` is full is an error.
    ///
    /// # Errors
    ///
    /// Also `UnexpectedEof`.
    pub fn read_exact_at<B: IoBufMut>(&self, buf: B, offset: u64) -> Transfer<B> {
        Transfer::new(&self.engine, &self.shared, Kind::Read, buf, offset, true)
    }

    /// Reads many ranges of the file into their places in `buf`, as one operation: one deadline, one
    /// receipt, one place in the queue.
    ///
    /// Ranges that lie close together in the file are read by one request and copied to their
    /// places ([`Ranges::gap_max`]); large ones are read in place, as by
    /// [`read_at`](Self::read_at). Order does not matter, and several ranges may want the same
    /// bytes of the file. What no range covers of `buf` stays as it is, with one exception: after
    /// an error, the destinations of ranges may hold bytes that do not count.
    ///
    /// Succeeds when every range is full. `bytes` is then the sum of their lengths.
    ///
    /// # Errors
    ///
    /// As [`read_exact_at`](Self::read_exact_at): `UnexpectedEof` names the offset at which the
    /// file ends, or the beginning of the first range behind its end. `InvalidInput` for ranges
    /// outside `buf`, ranges that overlap in `buf`, and more than [`Ranges::MAX`]. The first
    /// error by file offset wins, and the bytes done are those asked for before it.
    ///
    /// # Cancellation
    ///
    /// See [`Transfer`].
    pub fn read_ranges<B: IoBufMut>(&self, buf: B, ranges: impl Into<Ranges>) -> Transfer<B> {
        Transfer::ranges(&self.engine, &self.shared, buf, ranges.into())
    }

    /// Writes `buf` at `offset` (bytes), extending the file where needed.
    ///
    /// A write that succeeds has written all of `buf`: short results are continued. It is durable
    /// after [`sync_data`](Self::sync_data) only. Where the file takes direct I/O, pages that the
    /// write fills go around the page cache, and the edges that it fills in part go through it.
    ///
    /// # Errors
    ///
    /// `NotWritable`, `InvalidInput`, `Busy`, `WrongEngine`, `PathRefused`, `StorageFull`,
    /// `WriteZero`, and what else the file system gives. The error hands the buffer back and says
    /// how many bytes were written before it without a gap.
    ///
    /// # Cancellation
    ///
    /// See [`Transfer`]. A write whose future is dropped is not forgotten: if it fails, or if only
    /// part of it was issued, every later sync and close of this file says so.
    pub fn write_at<B: IoBuf>(&self, buf: B, offset: u64) -> Transfer<B> {
        Transfer::new(&self.engine, &self.shared, Kind::Write, buf, offset, false)
    }

    /// As [`write_at`](Self::write_at), with the promise in its name.
    ///
    /// # Errors
    ///
    /// As `write_at`.
    pub fn write_all_at<B: IoBuf>(&self, buf: B, offset: u64) -> Transfer<B> {
        Transfer::new(&self.engine, &self.shared, Kind::Write, buf, offset, true)
    }

    /// Makes every write that was started before this call durable (`fdatasync`).
    ///
    /// Waits for those writes first, dropped ones included.
    ///
    /// # Errors
    ///
    /// `OrphanedWrite` when a dropped write failed or was torn: from then on every sync of this
    /// file gives it. The error of a failed sync likewise: a sync is never repeated, since the
    /// kernel may report the lost pages only once. Open the file anew and write again.
    pub fn sync_data(&self) -> Request<()> {
        let file = Arc::clone(&self.shared);
        self.barrier(Operation::Sync, move || file.sync(FileHandle::sync_data))
    }

    /// As [`sync_data`](Self::sync_data), and all metadata (`fsync`).
    ///
    /// # Errors
    ///
    /// As `sync_data`.
    pub fn sync_all(&self) -> Request<()> {
        let file = Arc::clone(&self.shared);
        self.barrier(Operation::Sync, move || file.sync(FileHandle::sync_all))
    }

    /// The file's length in bytes, now.
    ///
    /// # Errors
    ///
    /// What the file system gives.
    pub fn len(&self) -> Request<u64> {
        let file = Arc::clone(&self.shared);
        self.call(Operation::Len, move || file.handle.len())
    }

    /// Cuts the file to `len` bytes, or extends it with a hole. Waits for earlier writes.
    ///
    /// # Errors
    ///
    /// `NotWritable`, `InvalidInput` above 2^63 - 1, and what the file system gives.
    pub fn set_len(&self, len: u64) -> Request<()> {
        let file = Arc::clone(&self.shared);
        self.barrier(Operation::SetLen, move || file.handle.set_len(len))
    }

    /// Drops the file's clean pages from the page cache: what the next read finds there is gone.
    /// Dirty pages stay, so sync first. Waits for earlier writes.
    ///
    /// # Errors
    ///
    /// What the file system gives.
    pub fn drop_cache(&self) -> Request<()> {
        let file = Arc::clone(&self.shared);
        self.barrier(Operation::DropCache, move || {
            file.handle.drop_cache(0, None)
        })
    }

    /// Waits for every write that was started before, reports what became of dropped ones, and
    /// closes the file. Reads in flight keep it open until they are done.
    ///
    /// Makes nothing durable: sync before.
    ///
    /// # Errors
    ///
    /// `OrphanedWrite`, and what `close(2)` gives, which on network file systems can be a lost
    /// write. The file is closed in any case.
    ///
    /// # Cancellation
    ///
    /// Dropped, the file is closed in the background, as by dropping it.
    pub fn close(mut self) -> Request<()> {
        let keeper = self.keeper.take().and_then(|mut keeper| keeper.take_back());
        let file = Arc::clone(&self.shared);
        let request_of = Arc::clone(&self.engine);
        let (path, ledger) = (Arc::clone(&file.path), Arc::clone(&file.ledger));
        drop(self);
        let close = move || {
            let intact = file.check_intact();
            drop(keeper);
            // Somebody else's operation still has it: its end closes the file.
            let closed = Arc::into_inner(file).map_or(Ok(()), FileShared::close);
            intact.and(closed)
        };
        Request::new(
            &request_of,
            Operation::Close,
            path,
            Role::Barrier(ledger),
            close,
        )
    }

    fn call<T: Send + 'static>(
        &self,
        operation: Operation,
        call: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Request<T> {
        Request::new(
            &self.engine,
            operation,
            Arc::clone(&self.shared.path),
            Role::None,
            call,
        )
    }

    fn barrier(
        &self,
        operation: Operation,
        call: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Request<()> {
        let role = Role::Barrier(Arc::clone(&self.shared.ledger));
        Request::new(
            &self.engine,
            operation,
            Arc::clone(&self.shared.path),
            role,
            call,
        )
    }
}
