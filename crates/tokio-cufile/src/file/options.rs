//! How a file is opened.

use std::path::Path;
use std::sync::Arc;

use completion::Role;

use super::AsyncCuFile;
use super::opened::OpenedFile;
use crate::config::{CacheMode, CompatMode, IoEngine};
use crate::engine::Engine;
use crate::error::Operation;
use crate::op::Request;
use crate::os::{FileHandle, OpenHow};
use crate::plan::route::Asked;

/// How to open a file; names and meanings are those of [`std::fs::OpenOptions`].
#[derive(Clone, Debug)]
#[must_use = "options do nothing until a file is opened with them"]
pub struct OpenOptions {
    how: OpenHow,
    compat_mode: Option<CompatMode>,
    io: Option<IoEngine>,
    cache: Option<CacheMode>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// Everything off; the engine's settings for the route.
    pub const fn new() -> Self {
        let how = OpenHow {
            read: false,
            write: false,
            create: false,
            create_new: false,
            truncate: false,
            mode: 0o666,
            want_direct: true,
        };
        Self {
            how,
            compat_mode: None,
            io: None,
            cache: None,
        }
    }

    /// For reading.
    pub const fn read(mut self, read: bool) -> Self {
        self.how.read = read;
        self
    }

    /// For writing.
    pub const fn write(mut self, write: bool) -> Self {
        self.how.write = write;
        self
    }

    /// Creates the file if there is none; needs write access.
    pub const fn create(mut self, create: bool) -> Self {
        self.how.create = create;
        self
    }

    /// Creates the file, and fails with `AlreadyExists` if there is one; needs write access.
    pub const fn create_new(mut self, create_new: bool) -> Self {
        self.how.create_new = create_new;
        self
    }

    /// Cuts the file to length 0; needs write access.
    pub const fn truncate(mut self, truncate: bool) -> Self {
        self.how.truncate = truncate;
        self
    }

    /// Permissions of a file that is created, before the process's umask. Default: 0o666.
    pub const fn mode(mut self, mode: u32) -> Self {
        self.how.mode = mode;
        self
    }

    /// Instead of the engine's [`compat_mode`](crate::Config::compat_mode).
    pub const fn compat_mode(mut self, compat_mode: CompatMode) -> Self {
        self.compat_mode = Some(compat_mode);
        self
    }

    /// Instead of the engine's [`io`](crate::Config::io).
    pub const fn io(mut self, io: IoEngine) -> Self {
        self.io = Some(io);
        self
    }

    /// Instead of the engine's [`cache`](crate::Config::cache).
    pub const fn cache(mut self, cache: CacheMode) -> Self {
        self.cache = Some(cache);
        self
    }

    /// Opens the file on an engine thread.
    ///
    /// # Errors
    ///
    /// `NotFound`, `PermissionDenied`, `AlreadyExists`, `NotRegularFile` for a directory, FIFO,
    /// socket or device (none of which makes the call wait), `TooManyOpenFiles`, `InvalidInput` for
    /// options that exclude each other, `Unsupported` for a route that this file or this build
    /// does not have, and what else the file system gives. A file that is there is not cut then;
    /// one that `create` has made stays, empty.
    ///
    /// # Cancellation
    ///
    /// Dropped after it was issued, the file is opened and closed again in the background; with
    /// `create` or `truncate` that has its effect.
    pub fn open(&self, engine: &Engine, path: impl AsRef<Path>) -> Request<AsyncCuFile> {
        let config = engine.config();
        let asked = Asked {
            compat_mode: self.compat_mode.unwrap_or(config.compat_mode),
            io: self.io.unwrap_or(config.io),
            cache: self.cache.unwrap_or(config.cache),
        };
        let how = OpenHow {
            want_direct: asked.wants_direct(),
            ..self.how
        };
        let path: Arc<Path> = path.as_ref().into();
        let shared = Arc::clone(&engine.shared);
        let opened_path = Arc::clone(&path);
        let open = move || {
            OpenedFile::check(&shared, asked)?;
            let handle = FileHandle::open(&opened_path, how)?;
            let (opened, route) = OpenedFile::new(&shared, handle, asked)?;
            if how.truncates() {
                opened.truncate()?;
            }
            let file = AsyncCuFile::assemble(&shared, opened_path, opened, route);
            Ok(file)
        };
        Request::new(&engine.shared, Operation::Open, path, Role::None, open)
    }
}
