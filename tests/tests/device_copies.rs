//! Copies that fail.
//!
//! Failure: memory or a slot that is used again while a copy may touch it; an error that is lost,
//! or that ends more than its own operation; permits that do not come back.
//! Mechanism: a call that fails may have queued its copy all the same, and only the event behind it
//! tells when that is over.
//! Method: the simulator fails calls before and after it has acted, and holds the queued copy.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tokio_cufile::{Engine, EngineBuilder, ErrorKind};
use tokio_cufile_tests::bench::block_on;
use tokio_cufile_tests::life::{poll_once, until};
use tokio_cufile_tests::rig::{CANARY, each_way};
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
