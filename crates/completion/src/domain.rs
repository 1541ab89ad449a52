//! What the model needs to know of the world around it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::budget::Cost;
use crate::ledger::Doubt;
use crate::policy::ReleasePolicy;
use crate::ticket::IssuedPart;

/// The types that one engine works with.
pub trait Domain: Sized + Send + Sync + 'static {
    /// What a backend executes for one part. It may name memory of the payload by address: from
    /// [`IssuedPart::start`] to the part's end, or until it lets go, the payload is there (I1, I25). A task that was not started
    /// may outlive it, so its drop must not follow such an address.
    type Task: Send + 'static;
    /// Why a part failed.
    type Fault: Clone + fmt::Debug + Send + Sync + 'static;
    /// What a part did, summed over an operation.
    type Report: Report;
    /// When memory may be released. [`WhenQuiet`](crate::WhenQuiet) outside tests.
    type Policy: ReleasePolicy;
}

/// A sum of what parts did.
pub trait Report: Default + Send + 'static {
    /// Adds what one more part did.
    fn merge(&mut self, part: Self);
}

impl Report for () {
    fn merge(&mut self, (): Self) {}
}

/// What the model asks of the outside. Called without any lock held, except [`now`](Self::now).
pub trait Environment<D: Domain>: Send + Sync + 'static {
    /// Executes a part. Never blocks and never fails: an error arrives in the part's outcome.
    /// It may drop the part, but starts or finishes none before it returns: that grants more, and
    /// the calls would nest as deep as the queue is long.
    fn submit(&self, part: IssuedPart<D>);

    /// The engine's clock.
    fn now(&self) -> Tick;

    /// Asks for a call of [`Core::fire`](crate::Core::fire) at `at`, or earlier.
    fn set_alarm(&self, at: Tick);

    /// Call [`Core::dispose`](crate::Core::dispose), soon and on another thread: something waits
    /// in the disposer, or a drop left permits to grant. Also told after everything has ended, when a
    /// handle is dropped that outlived it.
    fn disposal_waits(&self);

    /// An orphaned write was lost and its file, of that path, is gone: nobody else will report it
    /// (I8).
    fn lost_write(&self, file: &Arc<Path>, doubt: Doubt<D::Fault>);

    /// The last admitted operation has settled after admission was closed. Called once.
    fn drained(&self);
}

/// Nanoseconds on the engine's clock, from an origin of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(pub u64);

impl Tick {
    /// The tick `duration` later, or the last one there is.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

/// How urgent an operation is. Classes share one budget; see `scheduler`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Granted first, and the only class that may use the reserve.
    Urgent,
    /// The default.
    #[default]
    Normal,
    /// Granted last, but never starved.
    Bulk,
}

impl Class {
    pub(crate) const ALL: [Self; 3] = [Self::Urgent, Self::Normal, Self::Bulk];

    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Urgent => 0,
            Self::Normal => 1,
            Self::Bulk => 2,
        }
    }
}

/// One piece of an operation, as the scheduler hands it to a backend.
#[derive(Debug)]
pub struct Part<D: Domain> {
    /// Where the part begins, in bytes from the operation's start. Parts come in this order.
    pub offset: u64,
    /// Bytes that the part is to move.
    pub len: u64,
    /// What it takes from the budget while in flight.
    pub cost: Cost,
    /// How many stages must be seen complete before its slot is free: at least 1.
    pub stages: u8,
    /// What the backend executes.
    pub task: D::Task,
}

/// How one part ended.
#[derive(Debug)]
pub struct PartOutcome<D: Domain> {
    /// Bytes moved, from the part's start. Fewer than asked without a fault means end of file.
    pub bytes: u64,
    /// Why it stopped early.
    pub fault: Option<D::Fault>,
    /// What it did.
    pub report: D::Report,
}
