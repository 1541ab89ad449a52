//! Failure looked for: an urgent operation behind bulk, bulk that never comes, a large part that
//! small ones starve, a reserve that is not one. The length of a part tells its class.

#![cfg(not(any(completion_loom, completion_shuttle)))]

mod support;

use support::hardware::Started;
use support::{Job, Want, World, limit, limits};
use tokio_cufile_completion::{Class, Ending, Limits, WhenQuiet};

/// How many grants a waiting class sees pass, as `docs/completion-model.md` promises.
const PASSED_OVER_MAX: usize = 16;

const URGENT: u64 = 1;
const NORMAL: u64 = 2;
const BULK: u64 = 3;

type Sound = World<WhenQuiet>;

fn narrow() -> Sound {
    World::new(Limits {
        parts: limit(1, 0),
        ..limits()
    })
}

fn submit(world: &Sound, len: u64) -> Job<WhenQuiet> {
    let class = match len {
        URGENT => Class::Urgent,
        NORMAL => Class::Normal,
        _ => Class::Bulk,
    };
    world.submit(Want::read(&[len]).class(class))
}

/// The lengths of the parts in the order of their grants, one in flight at a time.
fn run_in_order(world: &Sound) -> Vec<u64> {
    let mut order = Vec::new();
    while let Some(started) = world.try_start() {
        order.push(started.task.len);
        started.finish();
    }
    order
}

#[test]
fn classes_come_in_order_and_the_oldest_first() {
    let world = narrow();
    let jobs: Vec<_> = [9, BULK, NORMAL, URGENT, 4, 5]
        .map(|len| submit(&world, len))
        .into();
    assert_eq!(run_in_order(&world), [9, URGENT, NORMAL, BULK, 4, 5]);
    drop(jobs);
}

#[test]
fn urgent_overtakes_queued_bulk_after_at_most_one_grant() {
    let world = narrow();
    let bulk: Vec<_> = (0..40).map(|_| submit(&world, BULK)).collect();
    let in_flight = world.start();
    let urgent = submit(&world, URGENT);
    in_flight.finish();
    let order = run_in_order(&world);
    let position = order.iter().position(|&len| len == URGENT);
    assert_eq!(position, Some(0), "{order:?}");
    drop((bulk, urgent));
}

#[test]
fn bulk_is_granted_once_in_every_seventeen_under_endless_urgent() {
    let world = narrow();
    let bulk: Vec<_> = (0..3).map(|_| submit(&world, BULK)).collect();
    let mut urgent = vec![submit(&world, URGENT)];
    let mut order = Vec::new();
    for _ in 0..=3 * (PASSED_OVER_MAX + 1) {
        urgent.push(submit(&world, URGENT));
        let started = world.start();
        order.push(started.task.len);
        started.finish();
    }
    let bulk_at: Vec<_> = (0..order.len()).filter(|&at| order[at] == BULK).collect();
    // The first bulk part was granted before anything urgent was there.
    let period = PASSED_OVER_MAX + 1;
    assert_eq!(bulk_at, [0, period, 2 * period], "{order:?}");
    drop((bulk, urgent));
}

#[test]
fn with_all_classes_waiting_none_starves() {
    let world = World::<WhenQuiet>::new(Limits {
        parts: limit(1, 0),
        queued_max: 1000,
        ..limits()
    });
    let mut jobs = Vec::new();
    let mut order = Vec::new();
    for _ in 0..200 {
        for len in [URGENT, NORMAL, BULK] {
            jobs.push(submit(&world, len));
        }
        let started = world.start();
        order.push(started.task.len);
        started.finish();
    }
    for class in [NORMAL, BULK] {
        let at: Vec<_> = (0..order.len()).filter(|&at| order[at] == class).collect();
        let widest = at.windows(2).map(|pair| pair[1] - pair[0]).max();
        // One more than its own bound: the other starving class may go first.
        assert!(widest <= Some(PASSED_OVER_MAX + 2), "{class}: {widest:?}");
        assert!(at.len() >= 200 / (PASSED_OVER_MAX + 2), "{class}: {at:?}");
    }
}

/// Keeps small parts of `class` coming, one finished for each new one, until `large` was granted.
fn grants_until_large(world: &Sound, class: u64, mut flying: Vec<Started<WhenQuiet>>) -> usize {
    let mut jobs = Vec::new();
    for grants in 0..1000 {
        jobs.push(submit(world, class));
        jobs.push(submit(world, class));
        if !flying.is_empty() {
            flying.remove(0).finish();
        }
        for started in world.start_all() {
            if started.task.len > 500 {
                return grants;
            }
            flying.push(started);
        }
    }
    panic!("the large part starves");
}

#[test]
fn a_large_part_is_not_starved_by_small_ones_of_its_class() {
    let world = World::<WhenQuiet>::new(Limits {
        queued_max: 3000,
        ..limits()
    });
    let small: Vec<_> = (0..2).map(|_| submit(&world, NORMAL)).collect();
    let flying = world.start_all();
    let large = world.submit(Want::read(&[1000]));
    assert!(grants_until_large(&world, NORMAL, flying) <= 2);
    drop((small, large));
}

#[test]
fn a_large_bulk_part_is_not_starved_by_endless_urgent_ones_within_the_reserve() {
    let world = World::<WhenQuiet>::new(Limits {
        bytes: limit(1000, 100),
        parts: limit(4, 3),
        queued_max: 3000,
        ..limits()
    });
    // Never fewer than two in flight, so that the reserve is never whole.
    let urgent: Vec<_> = (0..3).map(|_| submit(&world, URGENT)).collect();
    let flying = world.start_all();
    // All that bulk may ever have.
    let large = world.submit(Want::read(&[900]).class(Class::Bulk));
    let grants = grants_until_large(&world, URGENT, flying);
    assert!(grants <= 2 * PASSED_OVER_MAX, "{grants}");
    drop((urgent, large));
}

#[test]
fn urgent_has_a_reserve_that_nobody_else_can_take() {
    let world = World::<WhenQuiet>::new(Limits {
        bytes: limit(1000, 100),
        parts: limit(4, 1),
        slots: limit(2, 1),
        small_slots: limit(0, 0),
        ..limits()
    });
    let bulk: Vec<_> = (0..10)
        .map(|_| world.submit(Want::read(&[400]).class(Class::Bulk)))
        .collect();
    let flying = world.start_all();
    assert_eq!(flying.len(), 2, "900 bytes are for bulk");
    let mut urgent = world.submit(Want::read(&[100]).class(Class::Urgent).through_slot(1));
    world.start().finish();
    assert_eq!(urgent.outcome().ending, Ending::Done);
    drop((bulk, flying));
}

#[test]
fn while_a_starving_part_gathers_permits_urgent_ones_have_the_reserve_and_no_more() {
    let world = World::<WhenQuiet>::new(Limits {
        bytes: limit(1000, 100),
        parts: limit(4, 1),
        ..limits()
    });
    let holder = world.submit(Want::read(&[600]));
    let held = world.start();
    let large = world.submit(Want::read(&[900]).class(Class::Bulk));
    let urgent = |len| world.submit(Want::read(&[len]).class(Class::Urgent));
    // Until the large part is next.
    for _ in 0..PASSED_OVER_MAX {
        let small = urgent(1);
        world.start().finish();
        drop(small);
    }
    let beyond = urgent(101);
    assert_eq!(world.waiting(), 0, "it would set the large part back");
    drop(beyond);
    let within = urgent(100);
    world.start().finish();
    held.finish();
    assert_eq!(world.start().task.len, 900);
    drop((holder, large, within));
}

#[test]
fn slots_in_reserve_are_for_urgent_only() {
    let world = World::<WhenQuiet>::new(Limits {
        slots: limit(2, 1),
        small_slots: limit(0, 0),
        ..limits()
    });
    let normal: Vec<_> = (0..2)
        .map(|_| world.submit(Want::read(&[8]).through_slot(1)))
        .collect();
    let flying = world.start_all();
    assert_eq!(flying.len(), 1);
    let mut urgent = world.submit(Want::read(&[8]).class(Class::Urgent).through_slot(1));
    world.start().finish();
    assert_eq!(urgent.outcome().ending, Ending::Done);
    drop((normal, flying));
}

#[test]
#[should_panic(expected = "the reserve leaves nothing to others")]
fn a_reserve_that_leaves_nothing_is_refused() {
    let _ = Sound::new(Limits {
        bytes: limit(1000, 1000),
        ..limits()
    });
}

#[test]
fn an_operation_goes_on_with_its_parts_as_permits_come() {
    let world = narrow();
    let mut job = world.submit(Want::read(&[1, 2, 3, 4]));
    assert_eq!(run_in_order(&world), [1, 2, 3, 4]);
    assert_eq!(job.outcome().bytes, 10);
}
