//! When a resource may be released: the rule that everything else rests on, as a type parameter.

use crate::operation::StopReason;

/// The decisions that keep hardware from writing into memory that someone else owns.
///
/// The provided methods are the right answers; [`WhenQuiet`] takes them all. A type that overrides
/// one is a deliberately broken engine: the tests hold one of each and must catch it.
#[doc(hidden)]
pub trait ReleasePolicy: Send + Sync + 'static {
    /// Whether an operation that is asked to stop may give its memory back with parts in flight.
    /// Never: a cancel or a deadline stops no hardware (I3).
    #[must_use]
    fn releases_in_flight(_why: StopReason) -> bool {
        false
    }

    /// Whether a completion that names generation `seen` belongs to the entry at `current` (I6).
    #[must_use]
    fn accepts_generation(current: u32, seen: u32) -> bool {
        current == seen
    }

    /// Whether the loss of a write that nobody awaits is kept for its file's next sync (I8).
    #[must_use]
    fn records_orphans() -> bool {
        true
    }

    /// Whether the slot is free after `stage` of `stages`: only after the last (I3, I17).
    #[must_use]
    fn slot_is_free_after(stage: u8, stages: u8) -> bool {
        stage >= stages
    }

    /// Whether an outcome is visible before its waker is called (I13).
    #[must_use]
    fn publishes_before_wake() -> bool {
        true
    }

    /// Whether a payload that is given back before its operation has ended waits for every part
    /// that may yet touch it (I25).
    #[must_use]
    fn waits_for_holders() -> bool {
        true
    }

    /// Whether a part's permits go back when it is quiet (I10).
    #[must_use]
    fn returns_permits() -> bool {
        true
    }
}

/// The shipped policy: release when every stage has been seen complete, never before.
#[derive(Clone, Copy, Debug)]
pub struct WhenQuiet;

impl ReleasePolicy for WhenQuiet {}
