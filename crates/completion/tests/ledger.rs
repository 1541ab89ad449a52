//! Failure looked for: a write that vanishes, because its future was dropped and nobody was told,
//! or because a sync did not wait for it (I7, I8).

#![cfg(not(any(completion_loom, completion_shuttle)))]

mod support;

use support::{Want, World, ledger, limit, limits, scenarios};
use tokio_cufile_completion::{Ending, Limits, Loss, StopReason, WhenQuiet};

fn world() -> World<WhenQuiet> {
    World::new(limits())
}

fn narrow() -> World<WhenQuiet> {
    World::new(Limits {
        parts: limit(1, 0),
        ..limits()
    })
}

#[test]
fn a_failed_orphan_is_recorded_before_the_sync_begins() {
    scenarios::a_lost_write_reaches_the_next_sync::<WhenQuiet>();
}

#[test]
fn a_dropped_write_that_succeeds_leaves_no_doubt() {
    let world = world();
    let ledger = ledger();
    let mut write = world.submit(Want::write(&ledger, 0, &[8]));
    let started = world.start();
    write.drop_future();
    assert_eq!(ledger.outstanding(), 1);
    started.finish();
    assert_eq!(ledger.outstanding(), 1, "its end is told after its loss");
    world.dispose();
    assert_eq!(ledger.outstanding(), 0);
    assert_eq!(ledger.doubt(), None);
}

#[test]
fn a_write_dropped_halfway_is_torn() {
    let world = narrow();
    let ledger = ledger();
    let mut write = world.submit(Want::write(&ledger, 100, &[8, 8]));
    let started = world.start();
    write.drop_future();
    started.finish();
    world.dispose();
    let doubt = ledger.doubt().expect("recorded");
    assert_eq!((doubt.first, doubt.offset), (Loss::Torn, 108));
}

#[test]
fn a_write_dropped_before_anything_was_issued_leaves_no_doubt() {
    let world = narrow();
    let ledger = ledger();
    let mut blocker = world.submit(Want::read(&[8]));
    let mut write = world.submit(Want::write(&ledger, 0, &[8]));
    write.drop_future();
    world.dispose();
    assert_eq!(ledger.doubt(), None);
    assert_eq!(ledger.outstanding(), 0);
    world.run();
    assert_eq!(blocker.outcome().ending, Ending::Done);
}

#[test]
fn an_orphan_that_wrote_less_than_it_was_given_is_torn() {
    let world = world();
    let ledger = ledger();
    let mut write = world.submit(Want::write(&ledger, 50, &[8]));
    let started = world.start();
    write.drop_future();
    started.finish_with(5, None);
    world.dispose();
    let doubt = ledger.doubt().expect("recorded");
    assert_eq!((doubt.first, doubt.offset), (Loss::Torn, 55));
}

#[test]
fn an_orphan_that_was_lost_is_recorded_as_quarantined() {
    let world = world();
    let ledger = ledger();
    let mut write = world.submit(Want::write(&ledger, 50, &[8]));
    let started = world.start();
    write.drop_future();
    drop(started);
    world.dispose();
    let doubt = ledger.doubt().expect("recorded");
    assert_eq!((doubt.first, doubt.offset), (Loss::Quarantined, 50));
}

#[test]
fn a_settled_failure_that_is_dropped_unread_is_recorded_at_once() {
    let world = world();
    let ledger = ledger();
    let mut write = world.submit(Want::write(&ledger, 50, &[8]));
    world.start().fail(1, "ENOSPC");
    write.drop_future();
    let doubt = ledger.doubt().expect("a sync may come before the disposer");
    assert_eq!((doubt.first, doubt.offset), (Loss::Failed("ENOSPC"), 51));
    world.dispose();
    assert_eq!(ledger.doubt().map(|doubt| doubt.writes), Some(1));
}

#[test]
fn a_failure_that_was_awaited_is_not_told_twice() {
    let world = world();
    let ledger = ledger();
    let mut write = world.submit(Want::write(&ledger, 50, &[8]));
    world.start().fail(1, "EIO");
    drop(write.outcome());
    write.drop_future();
    world.dispose();
    assert_eq!(ledger.doubt(), None);
}

#[test]
fn a_barrier_waits_for_every_earlier_write_and_for_no_later_one() {
    let world = world();
    let ledger = ledger();
    let mut first = world.submit(Want::write(&ledger, 0, &[8]));
    let mut second = world.submit(Want::write(&ledger, 8, &[8]));
    let mut sync = world.submit(Want::sync(&ledger));
    let mut later = world.submit(Want::write(&ledger, 16, &[8]));
    let mut parts = world.start_all();
    assert_eq!(parts.len(), 3, "the sync waits");
    parts.remove(1).finish();
    sync.assert_pending();
    assert_eq!(world.waiting(), 0);
    parts.remove(0).finish();
    assert_eq!(world.waiting(), 1, "the sync is next");
    world.run();
    assert_eq!(sync.outcome().ending, Ending::Done);
    later.assert_pending();
    parts.remove(0).finish();
    for job in [&mut first, &mut second, &mut later] {
        assert_eq!(job.outcome().ending, Ending::Done);
    }
    world.assert_all_free(0);
}

#[test]
fn a_barrier_of_another_file_does_not_wait() {
    let world = world();
    let mut write = world.submit(Want::write(&ledger(), 0, &[8]));
    let started = world.start();
    let mut sync = world.submit(Want::sync(&ledger()));
    world.run();
    assert_eq!(sync.outcome().ending, Ending::Done);
    started.finish();
    assert_eq!(write.outcome().ending, Ending::Done);
}

#[test]
fn a_barrier_waits_for_a_withdrawn_write_to_be_disposed_of() {
    let world = narrow();
    let ledger = ledger();
    let mut write = world.submit(Want::write(&ledger, 0, &[8, 8]));
    let started = world.start();
    let mut sync = world.submit(Want::sync(&ledger));
    write.drop_future();
    started.finish();
    assert_eq!(world.waiting(), 0, "the loss is not recorded yet");
    world.dispose();
    assert!(ledger.doubt().is_some());
    world.run();
    assert_eq!(sync.outcome().ending, Ending::Done);
}

#[test]
fn a_waiting_barrier_can_be_cancelled_and_dropped() {
    let world = world();
    let ledger = ledger();
    let mut write = world.submit(Want::write(&ledger, 0, &[8]));
    let started = world.start();
    let mut cancelled = world.submit(Want::sync(&ledger));
    let mut dropped = world.submit(Want::sync(&ledger));
    assert_eq!(world.check().queued, 2);
    cancelled.cancel();
    let ending = cancelled.outcome().ending;
    assert_eq!(ending, Ending::Stopped(StopReason::Cancelled));
    dropped.drop_future();
    world.dispose();
    dropped.memory.assert_released();
    started.finish();
    assert_eq!(world.waiting(), 0);
    assert_eq!(write.outcome().ending, Ending::Done);
    world.assert_all_free(0);
}

#[test]
fn a_cancelled_write_opens_the_barrier() {
    let world = narrow();
    let ledger = ledger();
    let mut blocker = world.submit(Want::read(&[8]));
    let mut write = world.submit(Want::write(&ledger, 0, &[8]));
    let mut sync = world.submit(Want::sync(&ledger));
    write.cancel();
    world.run();
    assert_eq!(sync.outcome().ending, Ending::Done);
    assert_eq!(blocker.outcome().ending, Ending::Done);
    assert_eq!(
        write.outcome().ending,
        Ending::Stopped(StopReason::Cancelled)
    );
}

#[test]
fn a_refused_write_is_not_outstanding() {
    let world = world();
    let ledger = ledger();
    let mut late = world.submit(Want::write(&ledger, 0, &[8]).deadline(1));
    assert_eq!(ledger.outstanding(), 0);
    assert_eq!(late.outcome().ending, Ending::Stopped(StopReason::Deadline));
}

#[test]
fn a_loss_after_the_file_is_gone_is_told_to_the_environment() {
    let world = world();
    let ledger = ledger();
    let mut write = world.submit(Want::write(&ledger, 0, &[8]));
    let mut settled = world.submit(Want::write(&ledger, 8, &[8]));
    let in_flight = world.start();
    world.start().fail(0, "EIO");
    assert_eq!(ledger.abandon(), None);
    settled.drop_future();
    write.drop_future();
    in_flight.fail(0, "ENOSPC");
    // Telling is foreign code, so the drops themselves tell nothing.
    assert!(world.outside.seen().lost.is_empty());
    world.dispose();
    let lost = world.outside.seen().lost.clone();
    let told: Vec<_> = lost
        .iter()
        .map(|(file, doubt)| (file.as_str(), doubt.writes))
        .collect();
    assert_eq!(told, [("file", 1), ("file", 2)]);
}

#[test]
fn an_unread_loss_is_given_out_when_the_file_goes() {
    let world = world();
    let ledger = ledger();
    let mut write = world.submit(Want::write(&ledger, 0, &[8]));
    world.start().fail(0, "EIO");
    write.drop_future();
    let doubt = ledger.abandon().expect("unread");
    assert_eq!(doubt.first, Loss::Failed("EIO"));
    world.dispose();
    assert!(world.outside.seen().lost.is_empty(), "told once");
}
