//! The completion model of tokio-cufile: who owns memory while hardware can touch it, who may
//! issue, when an operation has ended, and what happens to one that nobody waits for.
//!
//! This crate does no I/O and knows no file, GPU or runtime. It is plain safe code over `std`, so
//! that model checkers, Miri and sanitizers build it in seconds. What it needs from outside is one
//! trait, [`Environment`]: a backend that takes issued parts, a clock, an alarm.
//!
//! The life of an operation:
//!
//! ```text
//! Reserved ──► Queued ──► Issued ──► Settled ──► Consumed
//!     │           │          │
//!     │ dropped   │ dropped  │ dropped: Detached, the memory stays until every part is quiet
//!     ▼           ▼          ▼
//!   disposer   disposer   disposer after the last part, or Quarantined: leaked and counted
//! ```
//!
//! | module | concept |
//! |---|---|
//! | `operation` | the control block: owns the payload, counts parts, keeps the waker |
//! | `core` | admits, grants, settles; the one lock above all transitions |
//! | `scheduler` | which queued operation is granted next: class, age, urgent reserve |
//! | `budget` | permits: bytes, parts, slots and workers, conserved at every step |
//! | `table` | parts handed out, by index and generation |
//! | `ledger` | outcomes of writes that nobody awaited |
//! | `disposer` | where payloads go to be dropped, off every thread that must not block |
//! | `policy` | when memory may be released; one shipped value, broken ones in the tests |
//!
//! The invariants I1 to I25 named in comments and tests are listed in `docs/completion-model.md`.

#![forbid(unsafe_code)]

mod budget;
mod core;
mod disposer;
mod domain;
mod handle;
mod ledger;
mod operation;
mod policy;
mod scheduler;
mod sync;
mod table;
mod ticket;
mod timers;
mod wakers;

pub use crate::budget::{Account, Census, Cost, Limit, Limits, SlotSize};
pub use crate::core::{Core, Drained};
pub use crate::disposer::Disposal;
pub use crate::domain::{Class, Domain, Environment, Part, PartOutcome, Report, Tick};
pub use crate::handle::{Canceller, Gate, Handle, PayloadState, PayloadWatch};
pub use crate::ledger::{Doubt, Ledger, Loss};
pub use crate::operation::{Ending, Rejection, Role, Settlement, Spec, StopReason};
pub use crate::policy::{ReleasePolicy, WhenQuiet};
pub use crate::ticket::{IssuedPart, Next, PartKey, SlotId, Ticket};
pub use crate::wakers::Wakers;
