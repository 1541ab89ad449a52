//! Failure looked for: a slot that two parts have at once, one of the wrong size, or one that does
//! not come back; small parts that wait for large slots (I9).

#![cfg(not(any(completion_loom, completion_shuttle)))]

mod support;

use support::{Want, World, limit, limits};
use tokio_cufile_completion::{Ending, IssuedPart, Limits, WhenQuiet};

/// Two large slots and three small ones.
fn world() -> World<WhenQuiet> {
    World::new(Limits {
        parts: limit(8, 0),
        small_slots: limit(3, 0),
        ..limits()
    })
}

#[test]
fn slots_are_numbered_large_ones_first_and_given_to_one_part_each() {
    let world = world();
    let jobs: Vec<_> = (0..3)
        .map(|_| world.submit(Want::read(&[1]).through_small_slot(1)))
        .chain((0..2).map(|_| world.submit(Want::read(&[1]).through_slot(1))))
        .collect();
    let parts: Vec<IssuedPart<_>> = std::iter::from_fn(|| world.take_part()).collect();
    let tickets: Vec<_> = parts.into_iter().filter_map(IssuedPart::start).collect();
    let slots: Vec<_> = tickets
        .iter()
        .filter_map(|(ticket, _)| ticket.slot())
        .map(|slot| slot.0)
        .collect();
    assert_eq!(slots, [2, 3, 4, 0, 1]);
    drop((jobs, tickets));
}

#[test]
fn small_parts_do_not_wait_for_large_slots_nor_large_ones_for_small() {
    let world = world();
    let mut large = [(); 2].map(|()| world.submit(Want::read(&[1]).through_slot(1)));
    let held = world.start_all();
    let mut small = [(); 4].map(|()| world.submit(Want::read(&[1]).through_small_slot(1)));
    assert_eq!(world.waiting(), 3, "there are three small slots");
    world.run();
    for job in &mut small {
        assert_eq!(job.outcome().ending, Ending::Done);
    }
    let census = world.check();
    assert_eq!((census.slots.issued, census.small_slots.free), (2, 3));
    held.into_iter()
        .for_each(support::hardware::Started::finish);
    for job in &mut large {
        assert_eq!(job.outcome().ending, Ending::Done);
    }
    world.assert_all_free(0);
}

#[test]
fn a_lost_part_keeps_its_small_slot() {
    let world = world();
    let mut job = world.submit(Want::read(&[1]).through_small_slot(2));
    drop(world.start());
    assert_eq!(job.outcome().ending, Ending::Quarantined);
    let census = world.check();
    assert_eq!((census.small_slots.quarantined, census.slots.free), (1, 2));
    let mut others = [(); 3].map(|()| world.submit(Want::read(&[1]).through_small_slot(2)));
    world.run();
    for job in &mut others {
        assert_eq!(
            job.outcome().ending,
            Ending::Done,
            "two small slots are left"
        );
    }
    world.assert_all_free(1);
}
