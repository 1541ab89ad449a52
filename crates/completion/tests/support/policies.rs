//! Engines that are broken on purpose: each takes the right answer everywhere but once.

use tokio_cufile_completion::{ReleasePolicy, StopReason};

/// Gives memory back when the operation is cancelled.
#[derive(Debug)]
pub(crate) struct FreeOnCancel;

impl ReleasePolicy for FreeOnCancel {
    fn releases_in_flight(why: StopReason) -> bool {
        why == StopReason::Cancelled
    }
}

/// Gives memory back when the deadline has passed.
#[derive(Debug)]
pub(crate) struct FreeOnDeadline;

impl ReleasePolicy for FreeOnDeadline {
    fn releases_in_flight(why: StopReason) -> bool {
        why == StopReason::Deadline
    }
}

/// Frees memory with the future.
#[derive(Debug)]
pub(crate) struct FreeOnDrop;

impl ReleasePolicy for FreeOnDrop {
    fn releases_in_flight(why: StopReason) -> bool {
        why == StopReason::Dropped
    }
}

/// Takes any completion for the part that holds its index now.
#[derive(Debug)]
pub(crate) struct IgnoreGeneration;

impl ReleasePolicy for IgnoreGeneration {
    fn accepts_generation(_current: u32, _seen: u32) -> bool {
        true
    }
}

/// Forgets the loss of a write that nobody awaits.
#[derive(Debug)]
pub(crate) struct DropLedger;

impl ReleasePolicy for DropLedger {
    fn records_orphans() -> bool {
        false
    }
}

/// Releases the slot after the first stage.
#[derive(Debug)]
pub(crate) struct FreeSlotEarly;

impl ReleasePolicy for FreeSlotEarly {
    fn slot_is_free_after(_stage: u8, _stages: u8) -> bool {
        true
    }
}

/// Wakes before the outcome is there.
#[derive(Debug)]
pub(crate) struct WakeBeforePublish;

impl ReleasePolicy for WakeBeforePublish {
    fn publishes_before_wake() -> bool {
        false
    }
}

/// Keeps the permits of parts that are quiet.
#[derive(Debug)]
pub(crate) struct ForgetPermit;

impl ReleasePolicy for ForgetPermit {
    fn returns_permits() -> bool {
        false
    }
}

/// Gives a payload back early, whoever may yet touch it.
#[derive(Debug)]
pub(crate) struct FreePayloadEarly;

impl ReleasePolicy for FreePayloadEarly {
    fn waits_for_holders() -> bool {
        false
    }
}
