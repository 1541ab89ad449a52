//! Calls that move no bytes of a file: open, sync, length, close.

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use completion::{Cost, Handle, Part, Role, Spec};

use super::{CancelHandle, Options, error_of};
use crate::config::Priority;
use crate::engine::{Call, Model, Shared, Task};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::memory::{ProcessMark, leak_in_child};

/// A call on its way through the engine; resolves to its result.
///
/// Lazy: nothing happens before the first poll, or [`start`](Self::start).
///
/// # Cancellation
///
/// Dropped before it was issued, the call is never made. Dropped afterwards, it is made to its
/// end in the background, and what it returns (an open file, say) is disposed of.
///
/// Leaked (`std::mem::forget`) once it has begun, it leaks itself and what the call returns. Before that it
/// counts as a leaked file: [`Engine`](crate::Engine).
#[must_use = "futures do nothing unless polled, or started"]
pub struct Request<T> {
    handle: Option<Handle<Model, Outcome<T>>>,
    /// What is left to do before it is submitted.
    pending: Option<Pending<T>>,
    options: Options,
    operation: Operation,
    path: Option<Arc<Path>>,
    mark: Arc<ProcessMark>,
}

type Job<T> = Box<dyn FnOnce() -> Result<T> + Send>;

/// What the call returned, owned by the operation.
type Outcome<T> = Arc<Mutex<Option<T>>>;

struct Pending<T> {
    cell: Arc<Cell<T>>,
    role: Role<Error>,
    /// As a transfer's: gone once the call was submitted. What the call needs of it, it has itself.
    engine: Arc<Shared>,
}

/// The call, owned by its only part: gone when it was made, or never will be.
struct Cell<T> {
    /// An operation that is never submitted: dropped, it has the engine's disposer drop the call. That
    /// may own anything, a file or the engine, and the part goes on whatever thread withdraws it.
    job: Mutex<Option<Handle<Model, Job<T>>>>,
    outcome: Outcome<T>,
}

impl<T: Send + 'static> Call for Cell<T> {
    fn run(&self) -> Result<()> {
        let job = take(&self.job).and_then(|mut job| job.take_back());
        let job = job.ok_or_else(|| Error::new(ErrorKind::Io, "the call was made twice"))?;
        let result = job()?;
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        Ok(())
    }
}

fn take<T>(slot: &Mutex<Option<T>>) -> Option<T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl<T> Request<T> {
    /// Nothing is issued after `at`; what was issued is waited for. Resolves to
    /// `DeadlineExceeded` then, or to the result if the call had been made.
    pub fn deadline(mut self, at: Instant) -> Self {
        self.options.deadline = Some(at);
        self
    }

    /// The class that the call waits in. Default: [`Priority::Urgent`], since it moves no bytes.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.options.priority = Some(priority);
        self
    }

    /// What can cancel the call from elsewhere.
    ///
    /// # Panics
    ///
    /// After the future has completed.
    #[must_use]
    pub fn cancel_handle(&self) -> CancelHandle {
        let handle = self.handle.as_ref().expect("the future has not completed");
        CancelHandle::new(handle, &self.mark)
    }
}

impl<T: Send + 'static> Request<T> {
    pub(crate) fn new(
        engine: &Arc<Shared>,
        operation: Operation,
        path: Arc<Path>,
        role: Role<Error>,
        job: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Self {
        Self::about(engine, operation, Some(path), role, job)
    }

    /// A call that concerns no file.
    pub(crate) fn detached(
        engine: &Arc<Shared>,
        operation: Operation,
        job: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Self {
        Self::about(engine, operation, None, Role::None, job)
    }

    fn about(
        engine: &Arc<Shared>,
        operation: Operation,
        path: Option<Arc<Path>>,
        role: Role<Error>,
        job: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Self {
        let outcome = Outcome::default();
        let handle = Handle::new(&engine.core, Arc::clone(&outcome));
        let job = Handle::new(&engine.core, Box::new(job) as Job<T>);
        let cell = Cell {
            job: Mutex::new(Some(job)),
            outcome,
        };
        let pending = Pending {
            cell: Arc::new(cell),
            role,
            engine: Arc::clone(engine),
        };
        Self {
            handle: Some(handle),
            pending: Some(pending),
            options: Options::default(),
            operation,
            path,
            mark: Arc::clone(&engine.mark),
        }
    }

    /// Starts the call now instead of at the first poll.
    pub fn start(mut self) -> Self {
        self.submit();
        self
    }

    fn submit(&mut self) {
        if self.mark.is_forked() {
            return;
        }
        let (Some(handle), Some(pending)) = (&self.handle, self.pending.take()) else {
            return;
        };
        let Pending { cell, role, engine } = pending;
        let part = Part {
            offset: 0,
            len: 0,
            cost: Cost {
                worker: true,
                ..Cost::default()
            },
            stages: 1,
            task: Task::Call(cell as Arc<dyn Call>),
        };
        handle.submit(Spec {
            class: self.options.class(Priority::Urgent),
            deadline: self.options.deadline(&engine),
            total: 0,
            parts: Box::new(std::iter::once(part)),
            ledger: role,
            gated: false,
        });
    }

    fn describe(&self, error: Error) -> Error {
        let error = error.with_operation(self.operation);
        match &self.path {
            Some(path) => error.with_path(path),
            None => error,
        }
    }
}

impl<T: Send + 'static> Future for Request<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // At each poll: the process may have forked since the future was made.
        if let Err(error) = self.mark.check() {
            return Poll::Ready(Err(self.describe(error)));
        }
        self.submit();
        let handle = self.handle.as_mut().expect("polled after completion");
        let settlement = ready!(handle.poll_settled(cx));
        self.handle = None;
        if let Some(error) = error_of(settlement.ending) {
            return Poll::Ready(Err(self.describe(error)));
        }
        let result = settlement.payload.and_then(|outcome| take(&outcome));
        let result = result.ok_or_else(|| {
            self.describe(Error::new(
                ErrorKind::Quarantined,
                "the call left no result",
            ))
        });
        Poll::Ready(result)
    }
}

impl<T> Drop for Request<T> {
    fn drop(&mut self) {
        if self.handle.is_some() && self.mark.is_forked() {
            leak_in_child((self.handle.take(), self.pending.take()));
        }
    }
}

impl<T> fmt::Debug for Request<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("operation", &self.operation)
            .field("path", &self.path)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
