//! A file as cuFile knows it.
#![allow(unsafe_code, reason = "handles go by the number of a descriptor")]

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nvidia_dl::cufile::FileHandle as Handle;

use super::Absent;
use super::leaving::Purpose;
use super::session::Session;
use crate::os::FileHandle;

/// A registered descriptor. Whoever has it drops it before the descriptor: the handle goes by the
/// descriptor's number, and would read and write the next file of that number.
#[derive(Debug)]
pub(crate) struct Registration {
    session: Arc<Session>,
    handle: Handle,
}

/// What is registered for its owner, until the owner goes or its engine ends: at the exit of a
/// process whose libcufile was left open it may crash. Owners drop it before what was registered.
#[derive(Debug)]
pub(crate) struct Registered<T>(Arc<Slot<T>>);

#[derive(Debug)]
struct Slot<T> {
    registration: Mutex<Option<Arc<T>>>,
    /// For tasks, which wait for no lock that is held across calls of cuFile's.
    is_there: AtomicBool,
}

impl<T> Default for Registered<T> {
    fn default() -> Self {
        Self(Arc::new(Slot {
            registration: Mutex::new(None),
            is_there: AtomicBool::new(false),
        }))
    }
}

impl<T> Registered<T> {
    /// `None` where nothing is registered, or nothing any more.
    pub(crate) fn get(&self) -> Option<Arc<T>> {
        self.0.lock().clone()
    }

    /// Whether something is registered. For tasks: neither waits nor keeps it.
    pub(crate) fn is_there(&self) -> bool {
        self.0.is_there.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, registration: T) {
        *self.0.lock() = Some(Arc::new(registration));
        self.0.is_there.store(true, Ordering::Relaxed);
    }
}

impl<T> Drop for Registered<T> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl<T> Slot<T> {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<T>>> {
        // Every change is one step.
        self.registration
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        let mut registration = self.lock();
        self.is_there.store(false, Ordering::Relaxed);
        // With the lock: whoever finds it ended may free what was registered, since nothing of it is
        // in flight any more, and so nobody else has a share.
        drop(registration.take());
    }
}

trait Ending: fmt::Debug + Send + Sync {
    fn end(&self);
}

impl<T: fmt::Debug + Send + Sync> Ending for Slot<T> {
    fn end(&self) {
        Self::end(self);
    }
}

/// What an engine has registered, to be ended with it.
#[derive(Debug, Default)]
pub(super) struct All(Mutex<Vec<Weak<dyn Ending>>>);

impl All {
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<dyn Ending>>> {
        // Every change is one step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add<T>(&self, registered: &Registered<T>)
    where
        T: fmt::Debug + Send + Sync + 'static,
    {
        let slot = Arc::downgrade(&registered.0);
        let mut all = self.lock();
        if all.len() == all.capacity() {
            all.retain(|one| one.strong_count() > 0);
        }
        all.push(slot);
    }

    /// Ends all, of which nothing may be in flight. Blocks.
    pub(super) fn end(&self) {
        let all = std::mem::take(&mut *self.lock());
        for one in all.iter().filter_map(Weak::upgrade) {
            one.end();
        }
    }
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
        let library = session.library().call(Purpose::Register);
        let registered = library.handle_register(fd);
        drop(library);
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
        let library = self.session.library();
        let Some(library) = library.call_unless_leaving(Purpose::Register) else {
            return; // No call is made on it any more.
        };
        // Nothing to be done without: the call has no result.
        drop(self.session.bind());
        // SAFETY: registered in `new`, and nobody else has the handle. What is in flight on it has a
        // share of this value, or its operation is quarantined, and then it is not ended. The
        // descriptor is dropped after it.
        unsafe { library.handle_deregister(self.handle) };
    }
}
