//! Device memory and operations on it, dropped in every state.
//!
//! Failure: memory that is freed, or a slot that is used again, while the disk or a copy may touch
//! it; memory that is never freed; a driver call on the thread of a task.
//! Mechanism: whoever drops last tears down, wherever that is.
//! Method: a file system and a simulator that hold each stage for as long as the test wants; canaries
//! around each range, and the simulator's counts of late accesses and of what is left. Where every
//! call hangs, a drop that returns has made none.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use futures::executor::block_on;
use tokio_cufile::{
    AsyncCuFile, DeviceBuffer, DevicePart, Engine, EngineBuilder, OpenOptions, Transfer,
};
use tokio_cufile_tests::life::{engine_threads, poll_once, until, until_idle};
use tokio_cufile_tests::rig::{CANARY, Rig, Way, each_way};
use tokio_cufile_tests::sim::Lease;
use tokio_cufile_tests::slow_fs::{Held, Kind, pattern as slow_pattern};
use tokio_cufile_tests::{Sim, SlowFs, gpu, pattern};

const BLOCK: usize = 4096;

fn engine() -> EngineBuilder {
    let builder = Engine::builder().num_threads(3).task_size(BLOCK);
    builder.bounce_buffer_size(BLOCK).budget(1 << 20)
}

/// Where a read is when it is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    BeforeThePoll,
    AtTheDisk,
    BeforeTheCopy,
    InTheCopy,
    Settled,
}

const STATES: [State; 5] = [
    State::BeforeThePoll,
    State::AtTheDisk,
    State::BeforeTheCopy,
    State::InTheCopy,
    State::Settled,
];

/// A file that the test holds, an engine, and a device.
struct Bed {
    device: Lease,
    engine: Engine,
    file: AsyncCuFile,
    fs: SlowFs,
}

impl Bed {
    fn new(sim: &'static Sim, way: Way) -> Option<Self> {
        let fs = SlowFs::mount(BLOCK)?;
        let engine = way.of(engine()).build_blocking().unwrap();
        let open = OpenOptions::new().read(true).write(true);
        let file = block_on(open.open(&engine, fs.path())).unwrap();
        Some(Self {
            device: sim.lease(),
            engine,
            file,
            fs,
        })
    }

    /// A buffer of three blocks of canaries, with a read into the middle one in that state.
    fn read(&self, state: State) -> (DeviceBuffer, Transfer<DevicePart>, Option<Held>) {
        let fill = [CANARY; 3 * BLOCK];
        let made = gpu::buffer(&self.engine, self.device.ordinal, &fill);
        let mut buffer = block_on(made);
        let read = self.file.read_at(buffer.part(BLOCK..2 * BLOCK).unwrap(), 0);
        match state {
            State::BeforeThePoll => return (buffer, read, None),
            State::AtTheDisk => {
                self.fs.hold(Kind::Read);
                let read = read.start();
                let held = self.fs.next_held();
                return (buffer, read, Some(held));
            }
            State::BeforeTheCopy => self.device.fault("cuMemcpyHtoDAsync_v2:never"),
            State::InTheCopy => self.device.fault("@htod:never"),
            State::Settled => {}
        }
        let read = read.start();
        match state {
            State::Settled => until_idle(&self.engine),
            _ => until(|| self.device.stats().faults_fired > 0),
        }
        (buffer, read, None)
    }

    /// Lets everything go on.
    fn release(&self, held: Option<Held>) {
        self.fs.pass(Kind::Read);
        drop(held);
        self.device.clear();
    }
}

fn each_state(test: impl Fn(Bed, State)) {
    let Some(sim) = Sim::need() else {
        return;
    };
    for way in Way::ALL {
        for state in STATES {
            eprintln!("{way:?}, {state:?}");
            let Some(bed) = Bed::new(sim, way) else {
                return;
            };
            test(bed, state);
        }
    }
}

#[test]
fn a_read_that_is_dropped_gives_its_part_back_when_it_is_quiet() {
    each_state(|bed, state| {
        let (mut buffer, mut read, held) = bed.read(state);
        let in_flight = !matches!(state, State::BeforeThePoll | State::Settled);
        if in_flight {
            assert!(poll_once(&mut read).is_pending());
        }
        drop(read);
        if in_flight {
            assert_eq!(buffer.parts_out(), 1, "{state:?}");
            assert!(buffer.part(BLOCK..BLOCK + 1).is_err());
        }
        bed.release(held);
        block_on(buffer.idle());
        until_idle(&bed.engine);
        let content = block_on(gpu::content(&bed.engine, buffer));
        for around in [&content[..BLOCK], &content[2 * BLOCK..]] {
            pattern::assert_same(around, &[CANARY; BLOCK]);
        }
        let middle = &content[BLOCK..2 * BLOCK];
        match state {
            State::BeforeThePoll => pattern::assert_same(middle, &[CANARY; BLOCK]),
            // Between disk and device the rest may be left out.
            State::AtTheDisk => {}
            _ => pattern::assert_same(middle, &slow_pattern(0, BLOCK)),
        }
        assert_eq!(block_on(bed.engine.shutdown()).quarantined, 0);
        drop((bed.engine, bed.file));
        bed.device.assert_all_gone();
    });
}

#[test]
fn everything_dropped_at_once_ends_in_the_background_and_leaves_nothing() {
    // A read that another test of this process forgot keeps its engine.
    let before = engine_threads();
    each_state(|bed, state| {
        let (buffer, read, held) = bed.read(state);
        let Bed {
            device,
            engine,
            file,
            fs,
        } = bed;
        drop((buffer, engine, file, read));
        if state != State::BeforeThePoll && state != State::Settled {
            assert!(device.stats().live_allocations > 0, "{state:?}");
        }
        fs.pass(Kind::Read);
        drop(held);
        device.clear();
        until(|| engine_threads() <= before);
        device.assert_all_gone();
    });
}

#[test]
fn a_shutdown_waits_for_the_copy() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        let buffer = rig.buffer(BLOCK);
        rig.device.fault("@htod:never");
        let read = rig.file.read_at(buffer, 0).start();
        until(|| rig.device.stats().faults_fired > 0);
        let mut shutdown = Box::pin(rig.engine.shutdown());
        assert!(poll_once(&mut shutdown).is_pending());
        rig.device.clear();
        let report = block_on(shutdown);
        assert_eq!((report.drained, report.quarantined), (1, 0));
        let address = block_on(read).unwrap().buf;
        let content = rig.device.peek(address.address(), BLOCK);
        pattern::assert_same(&content, &rig.content);
        drop(address);
        rig.end();
    });
}

#[test]
fn a_buffer_outlives_its_engine_and_is_freed_all_the_same() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        let mut buffer = rig.buffer(BLOCK);
        let part = buffer.part(0..BLOCK).unwrap();
        drop(block_on(rig.engine.shutdown()));
        let Rig {
            device,
            engine,
            file,
            ..
        } = rig;
        drop((engine, file));
        assert_eq!(device.stats().live_allocations, 1);
        drop(buffer);
        assert_eq!(device.stats().live_allocations, 1);
        drop(part);
        device.assert_all_gone();
    });
}

#[test]
fn a_forgotten_read_leaks_its_memory_and_nothing_else() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        let read = rig.file.read_at(rig.buffer(BLOCK), 0).start();
        #[expect(clippy::disallowed_methods, reason = "that is what is tested")]
        std::mem::forget(read);
        until_idle(&rig.engine);
        let report = block_on(rig.engine.shutdown());
        assert_eq!(report.quarantined, 0);
        let stats = rig.device.stats();
        assert_eq!(stats.live_allocations, 1);
        rig.device.assert_no_harm();
    });
}

#[test]
fn dropping_on_a_task_makes_no_call() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        let user = rig.device.user();
        let stream = user.stream();
        let event = user.record(&rig.engine, stream);
        let mut lent = rig.buffer(2 * BLOCK);
        let part = lent.part(0..BLOCK).unwrap();
        let lazy = rig.file.read_at(lent.part(BLOCK..2 * BLOCK).unwrap(), 0);
        let waiting = rig.file.read_at(rig.buffer(BLOCK), 0);
        let waiting = waiting.after(Arc::clone(&event)).start();
        let settled = rig.file.read_at(rig.buffer(BLOCK), 0).start();
        until_idle(&rig.engine);
        // From now on whoever calls the driver waits until the faults are cleared.
        rig.device.fault("*:never");
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            drop((part, lent, lazy, waiting, settled, event));
            let read = rig.file.read_at(vec![0; BLOCK], 0).await.unwrap();
            pattern::assert_same(&read.buf, &rig.content);
        });
        // Somebody else does it, and hangs.
        until(|| rig.device.stats().faults_fired > 0);
        rig.device.clear();
        user.destroy(stream);
        rig.end();
    });
}

#[test]
fn a_runtime_that_is_dropped_leaves_the_copies_to_the_engine() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        let mut buffer = rig.buffer(2 * BLOCK);
        let part = buffer.part(0..BLOCK).unwrap();
        rig.device.fault("@htod:never");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        drop(runtime.spawn(rig.file.read_at(part, 0).start()));
        until(|| rig.device.stats().faults_fired > 0);
        drop(runtime);
        assert_eq!(buffer.parts_out(), 1);
        rig.device.clear();
        block_on(buffer.idle());
        let content = rig.content_of(buffer);
        pattern::assert_same(&content[..BLOCK], &rig.content);
        pattern::assert_same(&content[BLOCK..], &[CANARY; BLOCK]);
        rig.end();
    });
}
