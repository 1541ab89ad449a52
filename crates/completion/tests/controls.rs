//! Positive controls. Failure looked for: a suite that finds nothing because it can find nothing.
//! Method: engines that are broken on purpose, one for each decision of the release policy; each
//! must be caught by the scenario that guards that decision, for the stated reason, while the
//! shipped policy passes the same scenario.

#![cfg(not(any(completion_loom, completion_shuttle)))]

mod support;

use support::assert_panics;
use support::policies::{
    DropLedger, ForgetPermit, FreeOnCancel, FreeOnDeadline, FreeOnDrop, FreePayloadEarly,
    FreeSlotEarly, IgnoreGeneration, WakeBeforePublish,
};
use support::scenarios;
use tokio_cufile_completion::WhenQuiet;

/// Asserts that `broken` is caught, and for the right reason, while `sound` passes.
fn assert_caught(sound: fn(), broken: fn(), reason: &str) {
    sound();
    assert_panics(&[reason], broken);
}

#[test]
fn free_on_cancel_is_caught() {
    assert_caught(
        scenarios::memory_outlives_a_cancel::<WhenQuiet>,
        scenarios::memory_outlives_a_cancel::<FreeOnCancel>,
        "memory was released in flight",
    );
}

#[test]
fn free_on_deadline_is_caught() {
    assert_caught(
        scenarios::memory_outlives_a_deadline::<WhenQuiet>,
        scenarios::memory_outlives_a_deadline::<FreeOnDeadline>,
        "memory was released in flight",
    );
}

#[test]
fn free_on_drop_is_caught() {
    assert_caught(
        scenarios::memory_outlives_its_future::<WhenQuiet>,
        scenarios::memory_outlives_its_future::<FreeOnDrop>,
        "memory was released in flight",
    );
}

#[test]
fn an_ignored_generation_is_caught() {
    assert_caught(
        scenarios::a_stale_completion_touches_nobody::<WhenQuiet>,
        scenarios::a_stale_completion_touches_nobody::<IgnoreGeneration>,
        "a stale completion ended another",
    );
}

#[test]
fn a_dropped_ledger_is_caught() {
    assert_caught(
        scenarios::a_lost_write_reaches_the_next_sync::<WhenQuiet>,
        scenarios::a_lost_write_reaches_the_next_sync::<DropLedger>,
        "a lost write left no trace",
    );
}

#[test]
fn a_slot_released_before_the_last_stage_is_caught() {
    assert_caught(
        scenarios::a_slot_is_held_to_the_last_stage::<WhenQuiet>,
        scenarios::a_slot_is_held_to_the_last_stage::<FreeSlotEarly>,
        "a slot was granted twice",
    );
}

#[test]
fn a_wake_before_the_outcome_is_caught() {
    assert_caught(
        scenarios::an_outcome_is_there_when_its_waker_is_called::<WhenQuiet>,
        scenarios::an_outcome_is_there_when_its_waker_is_called::<WakeBeforePublish>,
        "woken before the outcome was there",
    );
}

#[test]
fn a_payload_given_back_early_is_caught() {
    assert_caught(
        scenarios::a_payload_is_held_until_every_part_lets_go::<WhenQuiet>,
        scenarios::a_payload_is_held_until_every_part_lets_go::<FreePayloadEarly>,
        "given back while a part may touch it",
    );
}

#[test]
fn a_forgotten_permit_is_caught() {
    assert_caught(
        scenarios::permits_come_back::<WhenQuiet>,
        scenarios::permits_come_back::<ForgetPermit>,
        "permits did not come back",
    );
}
