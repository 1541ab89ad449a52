//! Devices that do not answer.
//!
//! Failure: an operation, a shutdown or another device's work that waits for ever; memory or a slot
//! that is freed or used again while a copy that never ended may yet touch it.
//! Mechanism: nothing stops a copy, and no event comes; only the quiet limit ends the wait, and what
//! it gives up on must stay where it is.
//! Method: the simulator holds copies, records and calls for as long as the test wants; what was
//! given up on is let go afterwards, and must find its memory.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use tokio_cufile::{DeviceBuffer, Engine, EngineBuilder, ErrorKind};
use tokio_cufile_tests::bench::block_on;
use tokio_cufile_tests::life::{IN_FLIGHT_BY, poll_once, until};
use tokio_cufile_tests::rig::{CANARY, Rig, Way, each_way};
use tokio_cufile_tests::{Sim, pattern};

const BLOCK: usize = 4096;
/// Short, for what never answers: tests wait this long.
const LIMIT: Duration = Duration::from_millis(20);

fn engine() -> EngineBuilder {
    let builder = Engine::builder().num_threads(5).task_size(BLOCK);
    let builder = builder.bounce_buffer_size(BLOCK).budget(1 << 20);
    builder.quiet_limit(LIMIT)
}

/// How a read is given up.
#[derive(Clone, Copy, Debug)]
enum Stop {
    Cancel,
    Deadline,
    Shutdown,
}

/// A read of one block whose copy never ends, stopped. Its buffer's address.
fn give_up_on_a_copy(rig: &Rig, stop: Stop, fault: &str) -> u64 {
    let buffer = rig.buffer(BLOCK);
    let address = buffer.address();
    rig.device.fault(fault);
    let read = rig.file.read_at(buffer, 0);
    let read = match stop {
        Stop::Deadline => read.deadline(Instant::now() + IN_FLIGHT_BY),
        _ => read,
    };
    let mut read = read.start();
    until(|| rig.device.stats().faults_fired > 0);
    assert!(poll_once(&mut read).is_pending());
    match stop {
        Stop::Cancel => read.cancel_handle().cancel(),
        Stop::Deadline => {}
        Stop::Shutdown => {
            let report = block_on(rig.engine.shutdown());
            assert_eq!((report.quarantined, report.drained), (1, 0));
        }
    }
    let failed = block_on(read).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::Quarantined, "{stop:?}");
    assert!(failed.into_parts().1.is_none(), "{stop:?}");
    address
}

#[test]
fn a_copy_that_never_ends_is_quarantined_with_slot_and_memory() {
    let Some(sim) = Sim::need() else {
        return;
    };
    // Each uses its device up.
    for (stop, way) in [
        (Stop::Cancel, Way::Pool),
        (Stop::Cancel, Way::Ring),
        (Stop::Deadline, Way::Ring),
        (Stop::Shutdown, Way::Pool),
        (Stop::Shutdown, Way::RingAndThread),
    ] {
        let rig = Rig::new(sim, way, engine(), BLOCK);
        let address = give_up_on_a_copy(&rig, stop, "@htod:never");
        let stats = rig.engine.stats();
        assert_eq!(stats.operations_quarantined, 1);
        assert_eq!((stats.slots.quarantined, stats.parts.quarantined), (1, 1));
        let frees = rig.device.calls("cuMemFree_v2");
        // The copy happens in the end, and finds all that it needs.
        rig.device.clear();
        until(|| rig.device.peek(address, BLOCK) != [CANARY; BLOCK]);
        pattern::assert_same(&rig.device.peek(address, BLOCK), &rig.content);
        until(|| rig.engine.stats().stray_completions == 1);
        assert_eq!(rig.engine.stats().slots.quarantined, 1);
        assert_eq!(rig.device.calls("cuMemFree_v2"), frees);
        assert_eq!(rig.device.stats().live_allocations, 1);
        rig.device.assert_no_harm();
    }
}

#[test]
fn an_event_that_is_never_recorded_is_as_a_copy_that_never_ends() {
    let Some(sim) = Sim::need() else {
        return;
    };
    for way in [Way::Pool, Way::Ring] {
        let rig = Rig::new(sim, way, engine(), BLOCK);
        let address = give_up_on_a_copy(&rig, Stop::Cancel, "@record:never");
        // Nobody knows, but it was done.
        pattern::assert_same(&rig.device.peek(address, BLOCK), &rig.content);
        assert_eq!(rig.device.stats().live_allocations, 1);
        assert_eq!(rig.engine.stats().slots.quarantined, 1);
    }
}

#[test]
fn a_write_that_was_given_up_while_it_was_copied_does_not_write_later() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        let buffer = rig.buffer(BLOCK);
        rig.device.fault("@dtoh:never");
        let write = rig.file.write_at(buffer, 0).start();
        until(|| rig.device.stats().faults_fired == 1);
        write.cancel_handle().cancel();
        let failed = block_on(write).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::Quarantined);
        // The copy ends after all, and changes nothing that anybody sees.
        rig.device.clear();
        until(|| rig.engine.stats().stray_completions == 1);
        pattern::assert_same(&std::fs::read(rig.path()).unwrap(), &rig.content);
    });
}

#[test]
fn a_call_that_never_returns_stops_its_device_only_and_the_engine_ends() {
    let Some(sim) = Sim::need() else {
        return;
    };
    for way in [Way::Pool, Way::RingAndThread] {
        let rig = Rig::new(sim, way, engine(), BLOCK);
        let other = sim.lease();
        let buffer = rig.buffer(BLOCK);
        let made = DeviceBuffer::new(&rig.engine, other.ordinal, BLOCK);
        let elsewhere = block_on(made).unwrap();
        rig.device.fault("cuMemcpyHtoDAsync_v2:never");
        let mut stuck = rig.file.read_at(buffer, 0).start();
        until(|| rig.device.stats().faults_fired == 1);
        for _ in 0..20 {
            let host = block_on(rig.file.read_at(vec![0; BLOCK], 0)).unwrap();
            pattern::assert_same(&host.buf, &rig.content);
        }
        let done = block_on(rig.file.read_at(elsewhere, 0)).unwrap();
        pattern::assert_same(&rig.content_of(done.buf), &rig.content);
        assert!(poll_once(&mut stuck).is_pending());
        let report = block_on(rig.engine.shutdown());
        assert_eq!(report.quarantined, 1);
        let failed = block_on(stuck).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::Quarantined);
        rig.device.clear();
        rig.device.assert_no_harm();
    }
}

#[test]
fn a_device_that_is_never_ready_does_not_hold_up_the_shutdown() {
    let Some(sim) = Sim::need() else {
        return;
    };
    for call in ["cuDevicePrimaryCtxRetain", "cuStreamCreate"] {
        let rig = Rig::new(sim, Way::Pool, engine(), BLOCK);
        rig.device.fault(&format!("{call}:never"));
        let mut making = DeviceBuffer::new(&rig.engine, rig.device.ordinal, BLOCK).start();
        until(|| rig.device.stats().faults_fired == 1);
        assert!(poll_once(&mut making).is_pending());
        let host = block_on(rig.file.read_at(vec![0; BLOCK], 0)).unwrap();
        pattern::assert_same(&host.buf, &rig.content);
        let report = block_on(rig.engine.shutdown());
        assert_eq!(report.quarantined, 1, "{call}");
        let failed = block_on(making).unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Quarantined, "{call}");
        // The call goes on, after the test perhaps.
        rig.device.spoil();
    }
}
