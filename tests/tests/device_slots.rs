//! Slots between the disk and a device.
//!
//! Failure: a slot that is read into again while a copy still reads it: wrong bytes, seldom.
//! Mechanism: the call that queues a copy returns long before the copy; only its event says that the
//! slot is free.
//! Method: more reads and writes than slots, while the simulator draws copies out and shuffles them;
//! each range has its own bytes, and canaries around it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tokio_cufile::{DevicePart, Engine, EngineBuilder, HostBuffer};
use tokio_cufile_tests::bench::block_on;
use tokio_cufile_tests::life::until;
use tokio_cufile_tests::rig::{CANARY, Rig, Way, each_way};
use tokio_cufile_tests::{Sim, pattern};

const BLOCK: usize = 4096;
const READS: usize = 48;
/// Unaligned in memory and in length, so that no range is where a slot's neighbour would put it.
const LEN: usize = 3 * BLOCK + 5;
const STEP: usize = LEN + 64;

/// Few slots of a block: each is used many times.
fn engine() -> EngineBuilder {
    let builder = Engine::builder().num_threads(4).task_size(BLOCK);
    builder.bounce_buffer_size(BLOCK).budget(16 * BLOCK)
}

const SLOW: &str = "@htod:slow=400,chance=1/3;@dtoh:slow=400,chance=1/3";

#[test]
fn no_slot_is_used_again_before_its_copy_has_ended() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), READS * LEN, |_, rig| {
        let mut buffer = rig.buffer(READS * STEP);
        rig.device.fault(SLOW);
        let read = |index: usize| {
            let part = buffer.part(index * STEP..index * STEP + LEN).unwrap();
            rig.file.read_exact_at(part, (index * LEN) as u64).start()
        };
        let reads: Vec<_> = (0..READS).map(read).collect();
        for read in reads {
            let done = block_on(read).unwrap();
            assert_eq!(done.receipt.paths.total(), LEN as u64);
        }
        let found = rig.content_of(buffer);
        for (found, expected) in found.chunks(STEP).zip(rig.content.chunks(LEN)) {
            pattern::assert_same(&found[..LEN], expected);
            pattern::assert_same(&found[LEN..], &[CANARY; STEP - LEN]);
        }
        assert!(rig.device.stats().faults_fired > 0);
        rig.assert_idle();
        rig.end();
    });
}

#[test]
fn writes_and_reads_at_once_move_their_own_bytes() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), 2 * READS * LEN, |_, rig| {
        let (source, mut target) = (pattern::bytes(7, READS * LEN), rig.buffer(READS * STEP));
        let made = tokio_cufile_tests::gpu::buffer(&rig.engine, rig.device.ordinal, &source);
        let mut from = block_on(made);
        rig.device.fault(SLOW);
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for index in 0..READS {
            let part: DevicePart = from.part(index * LEN..(index + 1) * LEN).unwrap();
            let at = ((READS + index) * LEN) as u64;
            writes.push(rig.file.write_all_at(part, at).start());
            let part = target.part(index * STEP..index * STEP + LEN).unwrap();
            reads.push(rig.file.read_exact_at(part, (index * LEN) as u64).start());
        }
        for transfer in reads.into_iter().chain(writes) {
            drop(block_on(transfer).unwrap());
        }
        let found = rig.content_of(target);
        for (found, expected) in found.chunks(STEP).zip(rig.content.chunks(LEN)) {
            pattern::assert_same(&found[..LEN], expected);
        }
        let written = std::fs::read(rig.path()).unwrap();
        pattern::assert_same(&written[READS * LEN..], &source);
        pattern::assert_same(&rig.content_of(from), &source);
        rig.assert_idle();
        rig.end();
    });
}

#[test]
fn slots_of_one_engine_serve_two_devices_at_once() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), READS * LEN, |_, rig| {
        let other = sim.lease();
        let fill = vec![CANARY; READS * STEP];
        let made = tokio_cufile_tests::gpu::buffer(&rig.engine, other.ordinal, &fill);
        let mut buffers = [rig.buffer(READS * STEP), block_on(made)];
        rig.device.fault(SLOW);
        other.fault(SLOW);
        let read = |index: usize| {
            let range = index * STEP..index * STEP + LEN;
            let part = buffers[index % 2].part(range).unwrap();
            rig.file.read_exact_at(part, (index * LEN) as u64).start()
        };
        let reads: Vec<_> = (0..READS).map(read).collect();
        for read in reads {
            drop(block_on(read).unwrap());
        }
        for (which, buffer) in buffers.into_iter().enumerate() {
            let found = rig.content_of(buffer);
            for index in (which..READS).step_by(2) {
                let found = &found[index * STEP..index * STEP + LEN];
                pattern::assert_same(found, &rig.content[index * LEN..(index + 1) * LEN]);
            }
        }
        rig.end();
        other.assert_all_gone();
    });
}

#[test]
fn a_call_that_takes_long_does_not_hold_up_reads_of_host_memory() {
    let Some(sim) = Sim::need() else {
        return;
    };
    let rig = Rig::new(sim, Way::RingAndThread, engine(), BLOCK);
    let buffer = rig.buffer(BLOCK);
    rig.device.fault("cuMemcpyHtoDAsync_v2:never");
    let read = rig.file.read_at(buffer, 0).start();
    until(|| rig.device.stats().faults_fired == 1);
    for _ in 0..100 {
        let buffer = HostBuffer::new(&rig.engine, BLOCK).unwrap();
        drop(block_on(rig.file.read_exact_at(buffer, 0)).unwrap());
    }
    rig.device.clear();
    pattern::assert_same(&rig.content_of(block_on(read).unwrap().buf), &rig.content);
    rig.end();
}

/// The control: what the tests above would see if a slot were filled again too early.
#[test]
fn control_a_slot_that_is_filled_before_its_copy_ended_is_seen() {
    let Some(sim) = Sim::need() else {
        return;
    };
    let device = sim.lease();
    let user = device.user();
    let (stream, slot, memory) = (user.stream(), user.host_alloc(BLOCK), user.alloc(2 * BLOCK));
    device.fault("@htod:never");
    user.host_fill(slot, 1, BLOCK);
    user.copy(memory, slot, BLOCK, stream);
    user.host_fill(slot, 2, BLOCK);
    user.copy(memory + BLOCK as u64, slot, BLOCK, stream);
    device.clear();
    user.synchronize(stream);
    assert_eq!(user.content(memory, 2 * BLOCK), [2; 2 * BLOCK]);
    user.destroy(stream);
    user.host_free(slot);
    user.free(memory);
}
