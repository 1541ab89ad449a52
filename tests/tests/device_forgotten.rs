//! Failure: a leaked future of an operation on device memory keeps the engine's threads, the pinned
//! slots or streams; or one that outlives its engine runs an owner's code on the thread that drops it.
//! Mechanism: what has begun keeps a share of the engine; nobody disposes after its end.
//! Method: futures are forgotten at each stage, every handle is dropped, and threads and the
//! simulator's counts are looked at until there is nothing left but the memory that was leaked.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "forgetting is what is tested")]

use std::mem::forget;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};

use futures::executor::block_on;
use tokio_cufile::{DeviceBuffer, Engine, EngineBuilder};
use tokio_cufile_tests::Sim;
use tokio_cufile_tests::life::{engine_threads, until, until_idle};
use tokio_cufile_tests::rig::{Rig, each_way};
use tokio_cufile_tests::sim::Lease;

const BLOCK: usize = 4096;

fn engine() -> EngineBuilder {
    let builder = Engine::builder().num_threads(3).task_size(BLOCK);
    builder.bounce_buffer_size(BLOCK).budget(1 << 20)
}

/// Drops what a user can reach of a rig but for the device.
fn let_go(rig: Rig) -> Lease {
    let Rig { device, .. } = rig;
    device
}

/// Only these allocations are left, and no harm was done.
fn until_gone_but(device: &Lease, allocations: u64) {
    until(|| engine_threads() == 0);
    until(|| device.stats().live() == allocations);
    assert_eq!(device.stats().live_allocations, allocations);
    device.assert_no_harm();
}

#[test]
fn a_forgotten_operation_leaks_its_memory_and_the_engine_ends() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        let buffer = rig.buffer(BLOCK);
        rig.device.fault("@htod:never");
        let in_flight = rig.file.read_at(buffer, 0).start();
        until(|| rig.device.stats().faults_fired > 0);
        forget(in_flight);
        rig.device.clear();
        let settled = rig.file.read_at(rig.buffer(BLOCK), 0).start();
        let write = rig.file.write_at(rig.buffer(BLOCK), 0).start();
        let (staged, written) = rig.file.write_at(rig.buffer(BLOCK), 0).staged();
        until_idle(&rig.engine);
        forget((settled, write, staged, written));
        let device = let_go(rig);
        until_gone_but(&device, 4);
    });
}

#[test]
fn a_forgotten_operation_behind_an_event_leaks_its_memory_and_the_engine_ends() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        let stream = rig.device.user().stream();
        let event = rig.device.user().record(&rig.engine, stream);
        let done = rig.file.read_at(rig.buffer(BLOCK), 0);
        forget(done.after(Arc::clone(&event)).start());
        let cancelled = rig.file.read_at(rig.buffer(BLOCK), 0).after(event).start();
        cancelled.cancel_handle().cancel();
        forget(cancelled);
        rig.device.user().destroy(stream);
        let device = let_go(rig);
        until_gone_but(&device, 2);
    });
}

#[test]
fn a_forgotten_call_about_a_device_keeps_nothing_but_its_result() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        let ordinal = rig.device.ordinal;
        let made = DeviceBuffer::new(&rig.engine, ordinal, BLOCK).start();
        let never = DeviceBuffer::new(&rig.engine, ordinal, BLOCK);
        never.cancel_handle().cancel();
        let never = never.start();
        until_idle(&rig.engine);
        forget((made, never));
        let device = let_go(rig);
        until_gone_but(&device, 1);
    });
}

/// Tells on which thread it is dropped.
struct Owner(Sender<ThreadId>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.send(thread::current().id()).unwrap();
    }
}

#[test]
fn memory_of_a_future_that_outlives_the_engine_is_not_dropped_on_the_thread_that_drops_it() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        let address = rig.device.user().alloc(2 * BLOCK);
        let (dropped, drops) = channel();
        let lend = |at: usize| {
            let owner = Owner(dropped.clone());
            let user = rig.device.user();
            user.lend(&rig.engine, address + at as u64, BLOCK, owner)
        };
        let read = rig.file.read_at(lend(0).unwrap(), 0).start();
        let (staged, written) = rig.file.write_at(lend(BLOCK).unwrap(), 0).staged();
        let device = let_go(rig);
        until(|| engine_threads() == 0);
        drop(read);
        assert_ne!(drops.recv().unwrap(), thread::current().id());
        drop(staged);
        block_on(written).unwrap();
        assert_ne!(drops.recv().unwrap(), thread::current().id());
        device.user().free(address);
        until_gone_but(&device, 0);
    });
}

/// Is dropped only when it may be, as an owner that waits for something.
struct SlowOwner(Owner, Arc<Gate>);

#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opens: Condvar,
}

impl Drop for SlowOwner {
    fn drop(&mut self) {
        let is_open = self.1.is_open.lock().unwrap();
        self.0.0.send(thread::current().id()).unwrap();
        drop(
            self.1
                .opens
                .wait_while(is_open, |is_open| !*is_open)
                .unwrap(),
        );
    }
}

#[test]
fn owners_that_hold_up_their_drop_do_so_to_one_thread_after_the_engine_has_ended() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        const MANY: usize = 32;
        let address = rig.device.user().alloc(MANY * BLOCK);
        let (dropped, drops) = channel();
        let gate = Arc::new(Gate::default());
        let read = |at: usize| {
            let owner = SlowOwner(Owner(dropped.clone()), Arc::clone(&gate));
            let address = address + (at * BLOCK) as u64;
            let lent = rig.device.user().lend(&rig.engine, address, BLOCK, owner);
            rig.file.read_at(lent.unwrap(), 0).start()
        };
        let mut reads: Vec<_> = (0..MANY).map(read).collect();
        let device = let_go(rig);
        until(|| engine_threads() == 0);
        drop(reads.pop());
        let first = drops.recv().unwrap();
        drop(reads);
        *gate.is_open.lock().unwrap() = true;
        gate.opens.notify_all();
        // Each tells twice: when it begins, and when what it has inside is dropped.
        for _ in 1..2 * MANY {
            assert_eq!(drops.recv().unwrap(), first, "another thread");
        }
        device.user().free(address);
        until_gone_but(&device, 0);
    });
}
