//! An open file as its operations hold it: descriptors, and what cuFile knows them by.

use std::ops::Deref;
use std::sync::Arc;

use crate::config::CompatMode;
use crate::cufile::{Registered, Registration};
use crate::engine::Shared;
use crate::error::{Error, ErrorKind, Result};
use crate::os::FileHandle;
use crate::plan::route::{self, Asked, CufileFacts, FileRoute};

/// One owner of descriptors and registration: cuFile lets go of a descriptor before its number is
/// free.
#[derive(Debug)]
pub(crate) struct OpenedFile {
    /// Before `handle`, which is dropped after it.
    registration: Option<Registered<Registration>>,
    handle: FileHandle,
}

impl OpenedFile {
    /// Refuses what no file can change, before one is created or cut.
    ///
    /// # Errors
    ///
    /// `Unsupported`, with the reason.
    pub(super) fn check(engine: &Shared, asked: Asked) -> Result<()> {
        asked.check(&engine.ring)?;
        if asked.compat_mode == CompatMode::Off {
            let session = engine.executors.cufile.session();
            session.map_err(route::Refusal::NoCufile)?;
        }
        Ok(())
    }

    /// Chooses the way of a file that was just opened, and has cuFile know it where it goes that way.
    ///
    /// # Errors
    ///
    /// `Unsupported` where the settings cannot be followed.
    pub(super) fn new(
        engine: &Shared,
        handle: FileHandle,
        asked: Asked,
    ) -> Result<(Self, FileRoute)> {
        let registered = match asked.compat_mode {
            CompatMode::On => Err("compat_mode is on".into()),
            CompatMode::Auto => engine.executors.cufile.register_if_direct(&handle),
            CompatMode::Off => engine.executors.cufile.register(&handle),
        };
        let (registration, facts) = match registered {
            Ok(registered) => {
                let registration = registered.get();
                let registration = registration.ok_or_else(ended)?;
                let session = registration.session();
                let facts = CufileFacts::Registered {
                    library: session.describe().into(),
                    threshold: engine.executors.cufile.threshold(handle.file_system()),
                    not_direct: session.expects_direct().err(),
                    not_told: session.tells_paths().err(),
                };
                (Some(registered), facts)
            }
            Err(reason) => (None, CufileFacts::Unavailable(reason)),
        };
        let route = route::choose(asked, &engine.ring, &handle.direct_facts(), &facts);
        let opened = Self {
            registration,
            handle,
        };
        Ok((opened, route.map_err(Error::from)?))
    }

    /// What cuFile knows it by, for as long as the engine has it known.
    pub(crate) fn registration(&self) -> Option<Arc<Registration>> {
        self.registration.as_ref()?.get()
    }

    /// Ends the registration and closes the descriptors, with what `close(2)` says.
    pub(super) fn close(self) -> Result<()> {
        drop(self.registration);
        self.handle.close()
    }
}

/// The engine has ended while a file was opened, and with it what was registered.
fn ended() -> Error {
    Error::new(ErrorKind::ShuttingDown, "the engine has ended")
}

impl Deref for OpenedFile {
    type Target = FileHandle;

    fn deref(&self) -> &FileHandle {
        &self.handle
    }
}
