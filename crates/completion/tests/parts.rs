//! Failure looked for: an operation in several parts that ends too early, twice, never, or with the
//! wrong bytes, whatever order and shape its parts' completions have (I3, I4, I5, I6, I18).

#![cfg(not(any(completion_loom, completion_shuttle)))]

mod support;

use support::hardware::outcome;
use support::wakers::Counter;
use support::{Tally, Want, World, limit, limits, scenarios};
use tokio_cufile_completion::{Ending, Limits, PartKey, StopReason, Wakers, WhenQuiet};

fn world() -> World<WhenQuiet> {
    World::new(limits())
}

#[test]
fn it_settles_after_its_last_part_in_any_order() {
    for last in 0..3 {
        let world = world();
        let mut job = world.submit(Want::read(&[5, 6, 7]));
        let mut parts = world.start_all();
        let kept = parts.remove(last);
        for part in parts {
            part.finish();
            job.assert_pending();
        }
        kept.finish();
        let outcome = job.outcome();
        assert_eq!(outcome.ending, Ending::Done);
        assert_eq!((outcome.bytes, outcome.parts), (18, 3));
        assert_eq!(outcome.report, Tally(3));
        world.assert_all_free(0);
    }
}

#[test]
fn an_operation_without_parts_is_done() {
    let world = world();
    let mut job = world.submit(Want::read(&[]));
    let outcome = job.outcome();
    assert_eq!(outcome.ending, Ending::Done);
    assert_eq!((outcome.bytes, outcome.parts), (0, 0));
    world.assert_all_free(0);
}

#[test]
fn after_a_failure_it_still_waits_for_every_part() {
    let world = world();
    let mut job = world.submit(Want::read(&[10, 10, 10]));
    let mut parts = world.start_all();
    parts.remove(0).fail(0, "EIO");
    job.assert_pending();
    job.memory.assert_held();
    parts.remove(0).finish();
    job.assert_pending();
    parts.remove(0).finish();
    let ending = job.outcome().ending;
    assert_eq!(
        ending,
        Ending::Failed {
            offset: 0,
            fault: "EIO"
        }
    );
}

#[test]
fn the_error_is_the_first_by_offset_and_the_bytes_before_it_count() {
    let world = world();
    let mut job = world.submit(Want::read(&[10, 10, 10]));
    let mut parts = world.start_all();
    parts.remove(2).fail(0, "late in the file, early in time");
    parts.remove(1).fail(4, "first in the file");
    parts.remove(0).finish();
    let outcome = job.outcome();
    let fault = "first in the file";
    assert_eq!(outcome.ending, Ending::Failed { offset: 14, fault });
    assert_eq!(outcome.bytes, 14);
    world.assert_all_free(0);
}

#[test]
fn after_a_failure_nothing_more_is_issued() {
    let world = World::<WhenQuiet>::new(Limits {
        parts: limit(1, 0),
        ..limits()
    });
    let mut job = world.submit(Want::read(&[10, 10, 10]));
    world.start().fail(3, "EIO");
    assert_eq!(world.waiting(), 0);
    let outcome = job.outcome();
    assert_eq!((outcome.bytes, outcome.parts), (3, 1));
    world.assert_all_free(0);
}

#[test]
fn the_end_of_the_file_stops_later_parts_and_is_no_error() {
    let world = World::<WhenQuiet>::new(Limits {
        parts: limit(2, 0),
        ..limits()
    });
    let mut job = world.submit(Want::read(&[10, 10, 10, 10]));
    let first = world.start();
    // The second was granted and not started: it is let go.
    first.finish_with(6, None);
    assert!(world.try_start().is_none());
    let outcome = job.outcome();
    assert_eq!(outcome.ending, Ending::Done);
    assert_eq!((outcome.bytes, outcome.parts), (6, 1));
    world.assert_all_free(0);
}

#[test]
fn a_part_that_meets_the_end_of_the_file_first_lets_the_parts_before_it_run() {
    for fault in [None, Some("EIO")] {
        let world = World::<WhenQuiet>::new(Limits {
            parts: limit(3, 0),
            ..limits()
        });
        let mut job = world.submit(Want::read(&[10, 10, 10, 10]));
        let slow = world.outside.seen().parts.pop_front().expect("granted");
        // The third and the fourth part are not needed any more, the first is.
        world.start().finish_with(4, fault);
        job.assert_pending();
        assert!(world.try_start().is_none(), "behind the end");
        world.outside.seen().parts.push_back(slow);
        world.start().finish();
        let outcome = job.outcome();
        let ending = fault.map_or(Ending::Done, |fault| Ending::Failed { offset: 14, fault });
        assert_eq!(outcome.ending, ending);
        assert_eq!((outcome.bytes, outcome.parts), (14, 2));
        world.assert_all_free(0);
    }
}

#[test]
fn bytes_behind_a_gap_do_not_count() {
    let world = world();
    let mut job = world.submit(Want::read(&[10, 10, 10]));
    let mut parts = world.start_all();
    parts.remove(1).finish_with(2, None);
    parts.remove(1).finish();
    parts.remove(0).finish();
    let outcome = job.outcome();
    assert_eq!((outcome.ending, outcome.bytes), (Ending::Done, 12));
}

#[test]
fn more_bytes_than_asked_for_quarantine_the_operation() {
    let world = world();
    let mut job = world.submit(Want::read(&[10, 10]));
    let mut parts = world.start_all();
    parts.remove(0).finish_with(11, None);
    let outcome = job.outcome();
    assert_eq!(outcome.ending, Ending::Quarantined);
    assert!(outcome.payload.is_none());
    parts.remove(0).finish();
    assert_eq!(
        world.check().parts.quarantined,
        1,
        "the sound part came back"
    );
    job.memory.assert_held();
    world.assert_all_free(1);
}

#[test]
fn parts_that_end_together_wake_when_the_backend_says_so() {
    let world = world();
    let mut job = world.submit(Want::read(&[10]));
    let (counter, waker) = Counter::new();
    assert!(job.poll_with(&waker).is_none());
    let part = world.take_part().expect("there is room");
    assert_eq!(part.task().map(|task| task.len), Some(10));
    let (ticket, _) = part.start().expect("nobody stopped it");
    let mut wakers = Wakers::new();
    ticket.finish_with(outcome(10, None), &mut wakers);
    assert_eq!(counter.wakes(), 0);
    wakers.wake();
    assert_eq!(counter.wakes(), 1);
    assert_eq!(job.outcome().ending, Ending::Done);
    world.assert_all_free(0);
}

#[test]
fn a_lost_ticket_quarantines_the_operation() {
    let world = world();
    let mut job = world.submit(Want::read(&[10]).through_slot(1));
    drop(world.start());
    assert_eq!(job.outcome().ending, Ending::Quarantined);
    job.memory.assert_held();
    assert_eq!(world.check().slots.quarantined, 1);
    world.assert_all_free(1);
}

#[test]
fn a_part_learns_that_its_operation_was_given_up() {
    let world = world();
    let mut job = world.submit(Want::read(&[10, 10]));
    let (lost, other) = (world.start(), world.start());
    assert!(!other.is_given_up());
    drop(lost);
    assert_eq!(job.outcome().ending, Ending::Quarantined);
    assert!(other.is_given_up());
    other.finish();
    world.assert_all_free(1);
}

#[test]
fn a_part_lost_by_name_quarantines_the_operation() {
    let world = world();
    let mut job = world.submit(Want::read(&[10]));
    let (key, _) = world.start().into_key();
    world.core.lose(key);
    world.core.lose(key);
    assert_eq!(job.outcome().ending, Ending::Quarantined);
    assert_eq!(world.check().stray_completions, 1);
    world.assert_all_free(1);
}

#[test]
fn a_part_that_does_not_start_any_more_makes_room_for_the_next() {
    let world = World::<WhenQuiet>::new(Limits {
        parts: limit(1, 0),
        ..limits()
    });
    let first = world.submit(Want::read(&[10]));
    let mut second = world.submit(Want::read(&[10]));
    let part = world.take_part().expect("there is room for one");
    first.cancel();
    assert_eq!(world.waiting(), 0);
    assert!(part.start().is_none());
    assert_eq!(world.waiting(), 1);
    world.run();
    assert_eq!(second.outcome().ending, Ending::Done);
    drop(first);
    world.dispose();
    world.assert_all_free(0);
}

#[test]
fn a_stop_that_keeps_a_part_before_an_early_end_from_starting_is_told() {
    let world = world();
    let mut job = world.submit(Want::read(&[10, 10]));
    let unstarted = world.take_part().expect("there is room");
    // The later part meets the end of the file first.
    world.start().finish_with(4, None);
    job.cancel();
    let outcome = job.outcome();
    assert_eq!(outcome.ending, Ending::Stopped(StopReason::Cancelled));
    assert_eq!(outcome.bytes, 0);
    assert!(unstarted.start().is_none());
    world.assert_all_free(0);
}

#[test]
fn a_part_dropped_unstarted_stops_its_operation_without_a_trace() {
    let world = world();
    let mut job = world.submit(Want::read(&[10, 10]));
    drop(world.take_part());
    let outcome = job.outcome();
    assert_eq!(outcome.ending, Ending::Stopped(StopReason::HandedBack));
    assert_eq!((outcome.parts, outcome.bytes), (0, 0));
    assert!(world.try_start().is_none());
    world.assert_all_free(0);
}

#[test]
fn a_backend_that_drops_everything_drains_a_long_queue_without_nesting() {
    const QUEUED: usize = if cfg!(miri) { 100 } else { 20_000 };
    let world = World::<WhenQuiet>::new(Limits {
        queued_max: QUEUED,
        ..limits()
    });
    let mut jobs: Vec<_> = (0..QUEUED)
        .map(|_| world.submit(Want::read(&[10])))
        .collect();
    world.outside.seen().closed = true;
    drop(world.take_part());
    world.dispose();
    let held: Vec<_> = std::iter::from_fn(|| world.take_part()).collect();
    drop(held);
    world.dispose();
    for job in &mut jobs {
        let ending = job.outcome().ending;
        assert_eq!(ending, Ending::Stopped(StopReason::HandedBack));
    }
    world.assert_all_free(0);
}

#[test]
fn a_doubled_completion_is_counted_and_dropped() {
    let world = world();
    let mut job = world.submit(Want::read(&[10]));
    let (key, _) = world.start().into_key();
    world.core.finish(key, outcome(10, None));
    world.core.finish(key, outcome(3, Some("EIO")));
    let outcome = job.outcome();
    assert_eq!((outcome.ending, outcome.bytes), (Ending::Done, 10));
    assert_eq!(world.check().stray_completions, 1);
    world.assert_all_free(0);
}

#[test]
fn an_unknown_key_is_counted_and_dropped() {
    let world = world();
    for bits in [0, 1, u64::MAX, 1 << 32, 7 << 40] {
        let key = PartKey::from_bits(bits);
        assert_eq!(key.to_bits(), bits);
        world.core.finish(key, outcome(0, None));
        let _ = world.core.advance(key);
        world.core.lose(key);
    }
    assert_eq!(world.check().stray_completions, 10);
    world.assert_all_free(0);
}

#[test]
fn the_zero_word_names_no_part() {
    let world = world();
    let mut job = world.submit(Want::read(&[10]));
    let started = world.start();
    world.core.finish(PartKey::from_bits(0), outcome(0, None));
    job.assert_pending();
    started.finish();
    assert_eq!(job.outcome().bytes, 10);
}

#[test]
fn a_key_of_an_earlier_life_touches_nobody() {
    scenarios::a_stale_completion_touches_nobody::<WhenQuiet>();
}

#[test]
fn slots_of_parts_in_flight_are_all_different() {
    let world = world();
    let mut job = world.submit(Want::read(&[10, 10, 10]).through_slot(1));
    let parts = world.start_all();
    let slots: Vec<_> = parts.iter().filter_map(|part| part.ticket.slot()).collect();
    assert_eq!(slots.len(), 2);
    assert_ne!(slots[0], slots[1]);
    for part in parts {
        part.finish();
    }
    world.run();
    assert_eq!(job.outcome().bytes, 30);
    world.assert_all_free(0);
}
