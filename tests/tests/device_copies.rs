//! Copies that fail.
//!
//! Failure: memory or a slot that is used again while a copy may touch it; an error that is lost,
//! or that ends more than its own operation; permits that do not come back.
//! Mechanism: a call that fails may have queued its copy all the same, and only the event behind it
//! tells when that is over.
//! Method: the simulator fails calls before and after it has acted, and holds the queued copy.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tokio_cufile::{DeviceBuffer, Engine, EngineBuilder, ErrorKind};
use tokio_cufile_tests::bench::block_on;
use tokio_cufile_tests::life::{engine_threads, poll_once, until};
use tokio_cufile_tests::rig::{CANARY, Rig, each_way};
use tokio_cufile_tests::{Sim, pattern};

const BLOCK: usize = 4096;
const LEN: usize = 4 * BLOCK;

/// Four parts of a block.
fn engine() -> EngineBuilder {
    let builder = Engine::builder().num_threads(5).task_size(BLOCK);
    builder.bounce_buffer_size(BLOCK).budget(1 << 20)
}

#[test]
fn a_copy_that_is_refused_ends_its_read_and_no_other() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), LEN, |_, rig| {
        let buffer = rig.buffer(LEN);
        rig.device
            .fault("cuMemcpyHtoDAsync_v2:fail=INVALID_VALUE,nth=1");
        let failed = block_on(rig.file.read_at(buffer, 0)).unwrap_err();
        let error = failed.error();
        assert_eq!(error.kind(), ErrorKind::DeviceFailed, "{error}");
        assert_eq!(error.device(), Some(rig.device.ordinal));
        assert!(failed.bytes_done() < LEN && failed.bytes_done().is_multiple_of(BLOCK));
        assert_eq!(rig.device.stats().faults_fired, 1);
        rig.assert_idle();
        let buffer = failed.into_parts().1.expect("the buffer comes back");
        let done = block_on(rig.file.read_exact_at(buffer, 0)).unwrap();
        pattern::assert_same(&rig.content_of(done.buf), &rig.content);
        rig.end();
    });
}

#[test]
fn a_call_that_fails_but_queued_its_copy_keeps_slot_and_memory_until_the_event() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        let buffer = rig.buffer(BLOCK);
        let address = buffer.address();
        rig.device
            .fault("cuMemcpyHtoDAsync_v2:act-fail=INVALID_VALUE;@htod:never");
        let mut read = rig.file.read_at(buffer, 0).start();
        until(|| rig.device.stats().faults_fired == 2);
        // The call has failed, and the copy has yet to begin.
        assert!(poll_once(&mut read).is_pending());
        assert_eq!(rig.engine.stats().slots.in_flight, 1);
        pattern::assert_same(&rig.device.peek(address, BLOCK), &[CANARY; BLOCK]);
        rig.device.clear();
        let failed = block_on(read).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::DeviceFailed);
        assert_eq!(failed.bytes_done(), 0);
        // It was queued, and has copied before the memory came back.
        pattern::assert_same(&rig.device.peek(address, BLOCK), &rig.content);
        rig.assert_idle();
        drop(failed);
        rig.end();
    });
}

#[test]
fn a_write_whose_copy_fails_writes_nothing_of_that_part_and_the_source_comes_back() {
    let Some(sim) = Sim::need() else {
        return;
    };
    for action in ["fail", "act-fail"] {
        each_way(sim, &engine(), BLOCK, |_, rig| {
            let buffer = rig.buffer(BLOCK);
            let fault = format!("cuMemcpyDtoHAsync_v2:{action}=INVALID_VALUE,nth=1");
            rig.device.fault(&fault);
            let failed = block_on(rig.file.write_at(buffer, 0)).unwrap_err();
            assert_eq!(failed.error().kind(), ErrorKind::DeviceFailed);
            assert_eq!(failed.bytes_done(), 0);
            pattern::assert_same(&std::fs::read(rig.path()).unwrap(), &rig.content);
            rig.assert_idle();
            let buffer = failed.into_parts().1.expect("it comes back");
            let done = block_on(rig.file.write_at(buffer, 0)).unwrap();
            assert_eq!(std::fs::read(rig.path()).unwrap(), [CANARY; BLOCK]);
            // It was awaited: the next sync has nothing to tell.
            block_on(rig.file.sync_data()).unwrap();
            drop(done);
            rig.end();
        });
    }
}

#[test]
fn device_memory_that_is_not_to_be_had_is_a_typed_error_and_later_there_is_some() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        let make = |len| DeviceBuffer::new(&rig.engine, rig.device.ordinal, len);
        drop(block_on(make(BLOCK)).unwrap());
        rig.device.fault("cuMemAlloc_v2:fail=OUT_OF_MEMORY,nth=1");
        let error = block_on(make(BLOCK)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        // More than the device has.
        let error = block_on(make(1 << 45)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        let done = block_on(rig.file.read_exact_at(rig.buffer(BLOCK), 0)).unwrap();
        pattern::assert_same(&rig.content_of(done.buf), &rig.content);
        rig.end();
    });
}

/// Each call of readying a device and of a read fails once, the first time and the second.
#[test]
fn whichever_call_fails_it_is_an_error_and_nothing_is_left() {
    let Some(sim) = Sim::need() else {
        return;
    };
    for call in [
        "cuDevicePrimaryCtxRetain",
        "cuDeviceGetName",
        "cuCtxSetCurrent",
        "cuMemHostRegister_v2",
        "cuStreamCreate",
        "cuEventCreate",
        "cuEventRecord",
        "cuMemAlloc_v2",
        "cuMemcpyHtoD_v2",
        "cuMemcpyHtoDAsync_v2",
    ] {
        for nth in [1, 2, 3] {
            each_way(sim, &engine(), LEN, |way, rig| {
                rig.device
                    .fault(&format!("{call}:fail=OPERATING_SYSTEM,nth={nth}"));
                let attempt = || {
                    let made = DeviceBuffer::new(&rig.engine, rig.device.ordinal, LEN);
                    let buffer = block_on(made)?;
                    let filled = buffer.copy_from_host(&rig.engine, 0, vec![CANARY; LEN]);
                    let buffer = block_on(filled)?;
                    let done = block_on(rig.file.read_exact_at(buffer, 0));
                    done.map_err(|failed| failed.into_parts().0)
                };
                let failed = attempt().err();
                if let Some(error) = &failed {
                    let kinds = [ErrorKind::DeviceFailed, ErrorKind::Quarantined];
                    assert!(
                        kinds.contains(&error.kind()),
                        "{call} {nth} {way:?}: {error}"
                    );
                }
                rig.device.clear();
                let report = block_on(rig.engine.shutdown());
                let Rig {
                    device,
                    engine,
                    file,
                    ..
                } = rig;
                drop((engine, file));
                until(|| engine_threads() == 0);
                device.assert_no_harm();
                if report.quarantined == 0 {
                    device.assert_all_gone();
                }
            });
        }
    }
}
