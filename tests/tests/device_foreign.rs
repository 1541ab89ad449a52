//! Memory that the engine did not allocate.
//!
//! Failure: bytes in the wrong place, or beside it; memory that its owner frees while a copy uses
//! it; an owner that is dropped on a task's thread; memory that is no device's taken for a device's.
//! Mechanism: an address says nothing by itself; the driver is asked what it is.
//! Method: memory of each kind that the simulator has, and addresses that are wrong in each way.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::mpsc::{Sender, channel};
use std::thread;

use tokio_cufile::{Engine, EngineBuilder, ErrorKind, PointerClass};
use tokio_cufile_tests::bench::block_on;
use tokio_cufile_tests::life::until;
use tokio_cufile_tests::rig::{CANARY, each_way};
use tokio_cufile_tests::{Sim, pattern};

const BLOCK: usize = 4096;
const LEN: usize = 5 * BLOCK + 77;
const MARGIN: usize = 300;

fn engine() -> EngineBuilder {
    let builder = Engine::builder().num_threads(4).task_size(BLOCK);
    builder.bounce_buffer_size(BLOCK).budget(1 << 20)
}

#[test]
fn memory_of_each_class_is_read_into_and_written_from_inside_its_range() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), LEN, |_, rig| {
        let user = rig.device.user();
        let stream = user.stream();
        let all = LEN + 2 * MARGIN;
        for class in [PointerClass::Device, PointerClass::Pool] {
            let start = match class {
                PointerClass::Device => user.alloc(all),
                _ => user.alloc_async(all, stream),
            };
            user.fill(start, CANARY, all, stream);
            let event = user.record(&rig.engine, stream);
            let inside = start + MARGIN as u64;
            let memory = user.lend(&rig.engine, inside, LEN, ()).unwrap();
            assert_eq!((memory.class(), memory.len()), (class, LEN));
            let done = block_on(rig.file.read_exact_at(memory.when(event), 0)).unwrap();
            let found = user.content(start, all);
            pattern::assert_same(&found[MARGIN..MARGIN + LEN], &rig.content);
            let around = found[..MARGIN].iter().chain(&found[MARGIN + LEN..]);
            assert!(around.copied().all(|byte| byte == CANARY));
            let done = block_on(rig.file.write_all_at(done.buf, 100)).unwrap();
            let written = std::fs::read(rig.path()).unwrap();
            pattern::assert_same(&written[100..], &rig.content);
            std::fs::write(rig.path(), &rig.content).unwrap();
            drop(done);
            user.free(start);
        }
        user.destroy(stream);
        rig.end();
    });
}

#[test]
fn pinned_host_memory_goes_without_a_device() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), LEN, |_, rig| {
        let user = rig.device.user();
        let start = user.host_alloc(LEN);
        let memory = user.lend(&rig.engine, start, LEN, ()).unwrap();
        assert_eq!(memory.class(), PointerClass::Host);
        let done = block_on(rig.file.read_exact_at(memory, 0)).unwrap();
        pattern::assert_same(&user.host_content(start, LEN), &rig.content);
        drop(block_on(rig.file.write_all_at(done.buf, 0)).unwrap());
        assert_eq!(rig.device.stats().bytes_to_device, 0);
        user.host_free(start);
        rig.end();
    });
}

#[test]
fn addresses_that_cannot_be_are_refused() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), LEN, |_, rig| {
        let other = sim.lease();
        let (user, elsewhere) = (rig.device.user(), other.user());
        let (start, there) = (user.alloc(BLOCK), elsewhere.alloc(BLOCK));
        let on_heap = Box::new([0_u8; 64]);
        let heap = std::ptr::from_ref(&*on_heap).addr() as u64;
        for (what, address, len) in [
            ("beyond the end", start + 1, BLOCK),
            ("around the address space", start, usize::MAX),
            ("ordinary memory", heap, 64),
            ("nothing", 4096, 64),
            ("another device's", there, BLOCK),
        ] {
            let error = user.lend(&rig.engine, address, len, ()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{what}: {error}");
        }
        // What was refused has harmed nobody.
        let memory = user.lend(&rig.engine, start, BLOCK, ()).unwrap();
        let second = Engine::builder().num_threads(1).build_blocking().unwrap();
        let open = tokio_cufile::AsyncCuFile::open(&second, rig.path());
        let file = block_on(open).unwrap();
        let failed = block_on(file.read_at(memory, 0)).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::WrongEngine);
        let memory = failed.into_parts().1.expect("it comes back");
        let done = block_on(rig.file.read_exact_at(memory, 0)).unwrap();
        pattern::assert_same(&user.content(start, BLOCK), &rig.content[..BLOCK]);
        drop((done, file, second));
        user.free(start);
        elsewhere.free(there);
        rig.end();
        other.assert_all_gone();
    });
}

#[test]
fn no_bytes_may_be_anywhere() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), LEN, |_, rig| {
        for address in [0, 4096] {
            let memory = rig.device.user().lend(&rig.engine, address, 0, ());
            let done = block_on(rig.file.read_at(memory.unwrap(), 0)).unwrap();
            assert_eq!(done.bytes, 0);
            let done = block_on(rig.file.write_at(done.buf, 0)).unwrap();
            assert_eq!(done.bytes, 0);
        }
        rig.end();
    });
}

/// Says on which thread it is dropped.
struct Owner(Sender<String>);

impl Drop for Owner {
    fn drop(&mut self) {
        let name = thread::current().name().unwrap_or_default().to_owned();
        self.0.send(name).unwrap();
    }
}

#[test]
fn an_owner_is_kept_until_the_copy_ended_and_dropped_by_the_engine() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        let user = rig.device.user();
        let (told, dropped) = channel();
        let start = user.alloc(BLOCK);
        let lent = user.lend(&rig.engine, start, BLOCK, Owner(told));
        rig.device.fault("@htod:never");
        let read = rig.file.read_at(lent.unwrap(), 0).start();
        until(|| rig.device.stats().faults_fired == 1);
        drop(read);
        assert!(dropped.try_recv().is_err());
        rig.device.clear();
        let thread = dropped.recv().unwrap();
        assert!(thread.starts_with("cufile-"), "{thread}");
        pattern::assert_same(&user.content(start, BLOCK), &rig.content);
        user.free(start);
        rig.assert_idle();
        rig.end();
    });
}
