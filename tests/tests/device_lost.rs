//! Devices whose context is in error, which stays.
//!
//! Failure: memory that is freed or used again though nobody knows what the device still does with
//! it; operations that wait for ever; an error of one device that ends what has nothing to do with
//! it; a write of bytes that were never computed.
//! Mechanism: after such an error every call gives it, and no event completes.
//! Method: the simulator loses a context in each way; what was in flight is counted exactly.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use tokio_cufile::{DeviceBuffer, Engine, EngineBuilder, ErrorKind};
use tokio_cufile_tests::bench::block_on;
use tokio_cufile_tests::life::{poll_once, until};
use tokio_cufile_tests::rig::{Rig, Way, each_way};
use tokio_cufile_tests::{Sim, pattern};

const BLOCK: usize = 4096;
const READS: usize = 3;

fn engine() -> EngineBuilder {
    let builder = Engine::builder().num_threads(8).task_size(BLOCK);
    builder.bounce_buffer_size(BLOCK).budget(1 << 20)
}

#[test]
fn what_is_in_flight_is_quarantined_and_counted_and_the_rest_goes_on() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        let other = sim.lease();
        let elsewhere = DeviceBuffer::new(&rig.engine, other.ordinal, BLOCK);
        let elsewhere = block_on(elsewhere).unwrap();
        let idle = rig.buffer(BLOCK);
        let buffers = [(); READS].map(|()| rig.buffer(BLOCK));
        // The first copy waits until it is told, and takes the context with it.
        rig.device.fault("@htod:never");
        let reads = buffers.map(|buffer| rig.file.read_at(buffer, 0).start());
        let copies = || rig.device.calls("cuMemcpyHtoDAsync_v2");
        until(|| copies() == READS as u64);
        rig.device.fault("cuEventQuery:lose=ILLEGAL_ADDRESS,nth=1");
        for read in reads {
            let failed = block_on(read).unwrap_err();
            assert_eq!(failed.error().kind(), ErrorKind::Quarantined);
            assert!(failed.into_parts().1.is_none());
        }
        let stats = rig.engine.stats();
        assert_eq!(stats.operations_quarantined, READS as u64);
        assert_eq!(stats.slots.quarantined, READS as u64);
        // At once, and nothing of it is quarantined.
        let calls = copies();
        let failed = block_on(rig.file.read_at(idle, 0)).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::DeviceFailed);
        assert_eq!(failed.error().device(), Some(rig.device.ordinal));
        assert!(failed.into_parts().1.is_some());
        let made = DeviceBuffer::new(&rig.engine, rig.device.ordinal, BLOCK);
        assert_eq!(block_on(made).unwrap_err().kind(), ErrorKind::DeviceFailed);
        assert_eq!(copies(), calls);
        // Others have nothing to do with it.
        let done = block_on(rig.file.read_at(elsewhere, 0)).unwrap();
        pattern::assert_same(&rig.content_of(done.buf), &rig.content);
        let host = block_on(rig.file.read_at(vec![0; BLOCK], 0)).unwrap();
        pattern::assert_same(&host.buf, &rig.content);
        let report = block_on(rig.engine.shutdown());
        assert_eq!(report.quarantined, READS as u64);
        other.assert_no_harm();
        rig.device.assert_no_harm();
    });
}

#[test]
fn work_that_takes_the_context_with_it_ends_its_operation_as_quarantined() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        let (read, write) = (rig.buffer(BLOCK), rig.buffer(BLOCK));
        rig.device.fault("@htod:fail=ILLEGAL_ADDRESS");
        let failed = block_on(rig.file.read_at(read, 0)).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::Quarantined);
        let failed = block_on(rig.file.write_at(write, 0)).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::DeviceFailed);
        pattern::assert_same(&std::fs::read(rig.path()).unwrap(), &rig.content);
        rig.device.assert_no_harm();
    });
}

#[test]
fn a_copy_behind_which_no_event_can_be_recorded_is_never_known_to_have_ended() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        let buffer = rig.buffer(BLOCK);
        let address = buffer.address();
        let moved = rig.device.stats().bytes_to_device;
        rig.device
            .fault("@htod:never;cuEventRecord:fail=INVALID_VALUE");
        let failed = block_on(rig.file.read_at(buffer, 0)).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::Quarantined);
        let report = block_on(rig.engine.shutdown());
        assert_eq!(report.quarantined, 1);
        let Rig {
            device,
            engine,
            file,
            content,
            ..
        } = rig;
        drop((engine, file));
        until(|| tokio_cufile_tests::life::engine_threads() == 0);
        // The copy is still to come, and finds its slot pinned and its memory there.
        device.clear();
        until(|| device.stats().bytes_to_device == moved + BLOCK as u64);
        pattern::assert_same(&device.peek(address, BLOCK), &content);
        device.assert_no_harm();
    });
}

#[test]
fn whoever_waits_for_an_event_in_error_fails_and_does_nothing() {
    let Some(sim) = Sim::need() else {
        return;
    };
    for (fault, is_lost) in [
        ("cuEventQuery:lose=LAUNCH_FAILED", true),
        ("cuEventQuery:fail=INVALID_HANDLE", false),
    ] {
        let rig = Rig::new(sim, Way::Pool, engine(), BLOCK);
        let (user, buffer) = (rig.device.user(), rig.buffer(BLOCK));
        let stream = user.stream();
        let copies = rig.device.calls("cuMemcpyDtoHAsync_v2");
        rig.device.fault("@record:never");
        let event = user.record(&rig.engine, stream);
        let after = || Arc::clone(&event);
        let mut host_write = rig.file.write_at(vec![7; BLOCK], 0).after(after()).start();
        let mut device_write = rig.file.write_at(buffer, 0).after(after()).start();
        assert!(poll_once(&mut host_write).is_pending());
        assert!(poll_once(&mut device_write).is_pending());
        rig.device.fault(fault);
        let (error, source) = block_on(host_write).unwrap_err().into_parts();
        assert_eq!(error.kind(), ErrorKind::DeviceFailed, "{fault}");
        assert_eq!(source, Some(vec![7; BLOCK]));
        let failed = block_on(device_write).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::DeviceFailed, "{fault}");
        assert!(failed.into_parts().1.is_some());
        assert_eq!(rig.device.calls("cuMemcpyDtoHAsync_v2"), copies);
        pattern::assert_same(&std::fs::read(rig.path()).unwrap(), &rig.content);
        rig.assert_idle();
        rig.device.clear();
        let device = DeviceBuffer::new(&rig.engine, rig.device.ordinal, BLOCK);
        assert_eq!(block_on(device).is_err(), is_lost);
    }
}
