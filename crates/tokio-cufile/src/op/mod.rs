//! Futures: a thin face over the completion model.

mod digested;
mod enqueued;
mod outcome;
mod parts;
mod planned;
mod ranges;
mod request;
mod staged;
mod submit;
mod transfer;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use completion::{Canceller, Class, Ending, Handle, Rejection, StopReason};

pub use self::enqueued::{Enqueue, Enqueued};
pub use self::outcome::{Done, OpError};
pub use self::ranges::{FileRange, Ranges};
pub use self::request::Request;
pub use self::staged::{Staged, Written};
pub use self::transfer::Transfer;

use crate::config::Priority;
use crate::engine::{Model, Shared};
use crate::error::{Error, ErrorKind};
use crate::memory::ProcessMark;

/// Cancels one operation from elsewhere. Cheap to clone; keeps neither file nor buffer alive.
///
/// A cancel is a request. What was not issued is never issued; what was is waited for, since
/// nothing stops a disk or a device. So the operation resolves to `Cancelled`, to its real
/// outcome if the request came too late, or to `Quarantined` if nothing is heard for the engine's
/// [`quiet_limit`](crate::Config::quiet_limit). The buffer comes back in the first two cases.
#[derive(Clone)]
pub struct CancelHandle {
    canceller: Canceller<Model>,
    mark: Arc<ProcessMark>,
}

impl CancelHandle {
    fn new<T>(handle: &Handle<Model, T>, mark: &Arc<ProcessMark>) -> Self {
        Self {
            canceller: handle.canceller(),
            mark: Arc::clone(mark),
        }
    }

    /// Asks the operation to stop. Without effect on one that has ended. Before the operation is
    /// started, it will resolve to `Cancelled` when it is.
    pub fn cancel(&self) {
        // A child of `fork` has neither the threads nor a say (I22).
        if !self.mark.is_forked() {
            self.canceller.cancel();
        }
    }
}

impl fmt::Debug for CancelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.canceller.fmt(f)
    }
}

/// What can be set before an operation starts.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    deadline: Option<Instant>,
    priority: Option<Priority>,
}

impl Options {
    fn class(self, default: Priority) -> Class {
        self.priority.unwrap_or(default).into()
    }

    fn deadline(self, engine: &Shared) -> Option<completion::Tick> {
        self.deadline.map(|at| engine.tick(at))
    }
}

/// The error that an ending means; `None` for success.
fn error_of(ending: Ending<Error>) -> Option<Error> {
    let (kind, reason) = match ending {
        Ending::Done => return None,
        Ending::Failed { fault, .. } => return Some(fault),
        Ending::Stopped(StopReason::Cancelled | StopReason::Dropped) => (
            ErrorKind::Cancelled,
            "by its handle; nothing more was issued, and what was has ended",
        ),
        Ending::Stopped(StopReason::Deadline) => (
            ErrorKind::DeadlineExceeded,
            "nothing more was issued, and what was has ended",
        ),
        Ending::Stopped(StopReason::Shutdown) | Ending::Rejected(Rejection::ShuttingDown) => (
            ErrorKind::ShuttingDown,
            "the engine admits and issues nothing more",
        ),
        Ending::Stopped(StopReason::HandedBack) => (
            ErrorKind::Io,
            "its executor was lost; nothing more was issued, and what was has ended",
        ),
        Ending::Rejected(Rejection::QueueFull) => (
            ErrorKind::QueueFull,
            "as many operations wait as queued_operations_max allows",
        ),
        Ending::Rejected(Rejection::NoCapacity) => (
            ErrorKind::NoCapacity,
            "what quarantine has left of the budget holds no part of it",
        ),
        Ending::Quarantined => (
            ErrorKind::Quarantined,
            "it could not be proved to have ended: its memory is leaked",
        ),
    };
    Some(Error::new(kind, reason))
}
