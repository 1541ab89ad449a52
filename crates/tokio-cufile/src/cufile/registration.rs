//! A file as cuFile knows it.
#![allow(unsafe_code, reason = "handles go by the number of a descriptor")]

use std::sync::Arc;

use nvidia_dl::cufile::FileHandle as Handle;

use super::Absent;
use super::session::Session;
use crate::os::FileHandle;

/// A registered descriptor. Whoever has it drops it before the descriptor: the handle goes by the
/// descriptor's number, and would read and write the next file of that number.
#[derive(Debug)]
pub(crate) struct Registration {
    session: Arc<Session>,
    handle: Handle,
}

impl Registration {
    /// Registers the direct descriptor of a file, or the other where it has none.
    ///
    /// # Errors
    ///
    /// Why cuFile does not take it.
    pub(super) fn new(session: &Arc<Session>, file: &FileHandle) -> Result<Self, Absent> {
        let fd = file.direct_fd().unwrap_or_else(|| file.buffered_fd());
        session.bind().map_err(|error| error.to_string())?;
        let registered = session.library().handle_register(fd);
        let handle = registered.map_err(|error| format!("cuFile does not take it: {error}"))?;
        Ok(Self {
            session: Arc::clone(session),
            handle,
        })
    }

    pub(super) const fn handle(&self) -> Handle {
        self.handle
    }

    pub(crate) const fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Nothing to be done without: the call has no result.
        drop(self.session.bind());
        // SAFETY: registered in `new`, and nobody else has the handle. What was in flight on it had
        // its file, and so this value. The descriptor is dropped after it.
        unsafe { self.session.library().handle_deregister(self.handle) };
    }
}
