//! Of the driver by itself, with entries of the kernel's that no part has made.
#![allow(unsafe_code, reason = "entries of a ring are unsafe to push")]

use completion::Census;

use super::*;
use crate::memory::{Prefault, SlotLayout};

/// `None` where there is no ring: nothing can go wrong there.
fn driver(counters: &Arc<Counters>) -> Option<Driver> {
    let config = RingConfig {
        depth: 4,
        spin: Duration::ZERO,
        registered_buffers: false,
        copy_threads: false,
    };
    let inbox = Arc::new(Inbox::new(4).unwrap());
    let layout = SlotLayout::new(4096, 4096, 1);
    let slots = Arc::new(SlotArena::new(layout, Prefault::OnTouch).unwrap());
    let started = Driver::start(config, inbox, slots, Arc::clone(counters));
    started.ok().map(|(driver, _)| driver)
}

#[test]
fn a_completion_that_names_nothing_in_flight_is_counted_and_dropped() {
    let counters = Arc::new(Counters::default());
    let Some(mut driver) = driver(&counters) else {
        return;
    };
    let names = [0, 3, 4, 1 << 32, BELL - 1];
    for name in names {
        // SAFETY: it asks for nothing and names no memory.
        let pushed = unsafe {
            let entry = opcode::Nop::new().build().user_data(name);
            driver.ring.submission().push(&entry)
        };
        pushed.unwrap();
    }
    driver.enter(names.len());
    driver.reap();
    let stats = counters.stats(&Census::default());
    assert_eq!(stats.stray_completions, names.len() as u64);
    assert!(driver.table.is_empty() && !driver.bell_armed);
}

/// Also as kernels have it that know no poll for many rings.
fn with_each_bell(test: impl Fn(Driver)) {
    for multishot in [true, false] {
        let Some(mut driver) = driver(&Arc::default()) else {
            return;
        };
        driver.bell_is_multishot &= multishot;
        test(driver);
    }
}

#[test]
fn the_bell_ends_a_wait_each_time_it_is_rung_and_no_other_time() {
    with_each_bell(|mut driver| {
        for _ in 0..5 {
            driver.arm_bell();
            driver.enter(0);
            assert!(!driver.has_work(), "nobody has rung");
            assert!(driver.inbox.may_sleep(true));
            driver.inbox.close();
            driver.enter(1);
            assert!(driver.has_work());
            driver.reap();
            assert_eq!(driver.bell_armed, driver.bell_is_multishot);
        }
    });
}

#[test]
fn a_bell_that_was_rung_before_the_wait_ends_it() {
    with_each_bell(|mut driver| {
        assert!(driver.inbox.may_sleep(true));
        driver.inbox.close();
        driver.arm_bell();
        driver.enter(1);
        driver.reap();
        assert_eq!(driver.bell_armed, driver.bell_is_multishot);
    });
}
