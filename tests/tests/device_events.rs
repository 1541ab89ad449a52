//! Operations that wait for a program's own work on a device.
//!
//! Failure: a write of bytes that are not computed yet, or a read over bytes that a kernel still
//! uses; permits that are held while nothing can be done; an operation that cannot be stopped.
//! Mechanism: the engine's streams are not ordered with the program's; only the event is.
//! Method: work that the simulator holds, and counts of permits while it does.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_cufile::{Engine, EngineBuilder, ErrorKind};
use tokio_cufile_tests::bench::block_on;
use tokio_cufile_tests::life::{poll_once, until};
use tokio_cufile_tests::rig::{CANARY, Rig, Way, each_way};
use tokio_cufile_tests::{Sim, pattern};

const BLOCK: usize = 4096;

fn engine() -> EngineBuilder {
    let builder = Engine::builder().num_threads(2).task_size(BLOCK);
    builder.bounce_buffer_size(BLOCK).budget(1 << 20)
}

#[track_caller]
fn assert_holds_nothing(rig: &Rig) {
    let stats = rig.engine.stats();
    for permits in [stats.bytes, stats.parts, stats.slots] {
        assert_eq!(permits.free, permits.capacity, "{stats:?}");
    }
}

#[test]
fn it_is_not_admitted_before_the_event_and_holds_no_permit() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        let (user, buffer) = (rig.device.user(), rig.buffer(BLOCK));
        let stream = user.stream();
        let copies = rig.device.calls("cuMemcpyDtoHAsync_v2");
        rig.device.fault("@fill:never");
        user.fill(buffer.address(), 7, BLOCK, stream);
        let event = user.record(&rig.engine, stream);
        let mut write = rig.file.write_at(buffer, 0).after(event).start();
        assert!(poll_once(&mut write).is_pending());
        assert_holds_nothing(&rig);
        // Others go on.
        let host = block_on(rig.file.read_at(vec![0; BLOCK], 0)).unwrap();
        pattern::assert_same(&host.buf, &rig.content);
        assert!(poll_once(&mut write).is_pending());
        assert_eq!(rig.device.calls("cuMemcpyDtoHAsync_v2"), copies);
        rig.device.clear();
        drop(block_on(write).unwrap());
        assert_eq!(std::fs::read(rig.path()).unwrap(), [7; BLOCK]);
        user.destroy(stream);
        rig.end();
    });
}

/// The control: without the event the write takes what is there.
#[test]
fn control_without_the_event_the_write_comes_first() {
    let Some(sim) = Sim::need() else {
        return;
    };
    let rig = Rig::new(sim, Way::Pool, engine(), BLOCK);
    let (user, buffer) = (rig.device.user(), rig.buffer(BLOCK));
    let stream = user.stream();
    rig.device.fault("@fill:never");
    user.fill(buffer.address(), 7, BLOCK, stream);
    let done = block_on(rig.file.write_at(buffer, 0)).unwrap();
    assert_eq!(std::fs::read(rig.path()).unwrap(), [CANARY; BLOCK]);
    rig.device.clear();
    user.synchronize(stream);
    user.destroy(stream);
    drop(done);
    rig.end();
}

#[test]
fn it_waits_for_all_events_on_whatever_devices() {
    let Some(sim) = Sim::need() else {
        return;
    };
    for order in [[0, 1], [1, 0]] {
        let rig = Rig::new(sim, Way::Ring, engine(), BLOCK);
        let other = sim.lease();
        let devices = [&rig.device, &other];
        let streams = devices.map(|device| device.user().stream());
        let memory = devices.map(|device| device.user().alloc(BLOCK));
        let events = [0, 1].map(|at| {
            devices[at].fault("@fill:never");
            devices[at].user().fill(memory[at], 7, BLOCK, streams[at]);
            devices[at].user().record(&rig.engine, streams[at])
        });
        let [first, second] = [0, 1].map(|at| Arc::clone(&events[at]));
        let read = rig.file.read_at(rig.buffer(BLOCK), 0);
        let mut read = read.after(first).after(second).start();
        for at in order {
            assert!(poll_once(&mut read).is_pending());
            assert_holds_nothing(&rig);
            devices[at].clear();
            devices[at].user().synchronize(streams[at]);
        }
        let done = block_on(read).unwrap();
        pattern::assert_same(&rig.content_of(done.buf), &rig.content);
        for at in order {
            devices[at].user().destroy(streams[at]);
            devices[at].user().free(memory[at]);
        }
        drop(events);
        rig.end();
        other.assert_all_gone();
    }
}

#[test]
fn while_it_waits_it_is_stopped_at_once_and_leaves_nothing() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        let user = rig.device.user();
        let stream = user.stream();
        let copies = rig.device.calls("cuMemcpyHtoDAsync_v2");
        rig.device.fault("@record:never");
        let event = user.record(&rig.engine, stream);
        let read = || {
            let read = rig.file.read_at(rig.buffer(BLOCK), 0);
            read.after(Arc::clone(&event))
        };
        let cancelled = read().start();
        let dropped = read().start();
        let shut_down = read().start();
        let late = read().deadline(Instant::now() + Duration::from_millis(5));
        let late = block_on(late).unwrap_err();
        assert_eq!(late.error().kind(), ErrorKind::DeadlineExceeded);
        cancelled.cancel_handle().cancel();
        let failed = block_on(cancelled).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::Cancelled);
        assert!(failed.into_parts().1.is_some() && late.into_parts().1.is_some());
        drop(dropped);
        until(|| rig.engine.stats().operations_live == 1);
        assert_holds_nothing(&rig);
        let report = block_on(rig.engine.shutdown());
        assert_eq!((report.withdrawn, report.quarantined), (1, 0));
        let failed = block_on(shut_down).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::ShuttingDown);
        assert_eq!(rig.device.calls("cuMemcpyHtoDAsync_v2"), copies);
        drop((event, failed));
        rig.device.clear();
        user.destroy(stream);
        rig.end();
    });
}
