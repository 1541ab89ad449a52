//! Random operations by cuFile, most of which somebody loses interest in.
//!
//! Failure: a byte outside of what was read into, a byte of an earlier operation, a write that touches
//! more than its range, memory that is never given back; a call into CUDA or cuFile on a task's thread.
//! Mechanism: futures are dropped, cancelled and awaited in any order, while calls are slow, short or
//! fail.
//! Method: each slot has device memory of its own and a cell of a file. Bytes around a part are a
//! canary; a cell holds what its model says, or, byte by byte, what an unlucky write would have put
//! there. A failure prints the seed: `PROPTEST_RNG_SEED=… cargo xtask sim -- …` repeats it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;

use proptest::prelude::any;
use tokio_cufile::{
    AsyncCuFile, CompatMode, CuFileCalls, DeviceBuffer, DevicePart, EngineBuilder, ErrorKind,
    FileRange, RegisteredStream, Transfer,
};
use tokio_cufile_tests::bench::{self, block_on};
use tokio_cufile_tests::cufile::{self, by_streams, enqueue};
use tokio_cufile_tests::life::{poll_once, until};
use tokio_cufile_tests::random::{self, Draws};
use tokio_cufile_tests::{Bed, Sim, World, gpu, pattern};

const PAGE: usize = 4096;
/// Of the file that is written, for each slot.
const CELL: usize = 12 * PAGE;
/// Around a part, at least.
const FENCE: usize = 100;
const CANARY: u8 = 0xee;
const SLOTS: usize = 6;
const STEPS: usize = 150;
const CONTENT: usize = 200_003;

const FAULTS: &str = "cuFileRead:slow=200,chance=1/3;cuFileWrite:slow=200,chance=1/3;\
                      @*:slow=100,chance=1/3;\
                      cuFileRead:short=5000,chance=1/8;cuFileWrite:short=8192,chance=1/8;\
                      cuFileRead:fail=5,chance=1/16;cuFileWrite:fail=5,chance=1/16;\
                      cuFileRead:fail=4,chance=1/16;@*:fail=5030,chance=1/16";

type Outcome = Result<usize, ErrorKind>;
type Flying = Pin<Box<dyn Future<Output = Outcome>>>;

/// What an operation that is under way will have done.
struct Doing {
    flying: Option<Flying>,
    place: usize,
    len: usize,
    /// From where in the file that is read, with how many bytes between the ranges that were read.
    read: Option<usize>,
    /// Where in the cell.
    wrote: Option<(usize, Vec<u8>)>,
}

struct Slot {
    buffer: DeviceBuffer,
    /// What is in the cell.
    model: Vec<u8>,
    doing: Option<Doing>,
}

struct Storm {
    bed: Bed,
    draws: Draws,
    content: Vec<u8>,
    source: AsyncCuFile,
    target: AsyncCuFile,
    stream: usize,
    registered: RegisteredStream,
    slots: Vec<Slot>,
}

/// Of a transfer, what is wanted of its end.
fn flying(transfer: Transfer<DevicePart>) -> Flying {
    Box::pin(async {
        let done = transfer.await;
        done.map(|done| done.bytes)
            .map_err(|failed| failed.error().kind())
    })
}

fn in_stream(transfer: Transfer<DevicePart>, stream: usize) -> Flying {
    let enqueue = enqueue(transfer, stream);
    Box::pin(async {
        let done = match enqueue.await {
            Ok(enqueued) => enqueued.await,
            Err(failed) => Err(failed),
        };
        done.map(|done| done.bytes)
            .map_err(|failed| failed.error().kind())
    })
}

impl Storm {
    fn new(bed: Bed, seed: u64) -> Self {
        let content = pattern::bytes(seed, CONTENT);
        let slot = |_| Slot {
            buffer: bed.buffer(&vec![CANARY; CELL + 2 * FENCE]),
            model: vec![0; CELL],
            doing: None,
        };
        let slots: Vec<_> = (0..SLOTS).map(slot).collect();
        // Half of them.
        for slot in slots.iter().step_by(2) {
            block_on(slot.buffer.register(&bed.engine)).unwrap();
        }
        let stream = bed.device.user().stream();
        Self {
            source: bed.file("source", &content),
            target: bed.file("target", &vec![0; SLOTS * CELL]),
            registered: block_on(bed.register(stream)).unwrap(),
            stream,
            content,
            slots,
            draws: Draws::new(seed),
            bed,
        }
    }

    fn begin(&mut self, index: usize) {
        let len = 1 + self.draws.near_pages(CELL - 1);
        let at = self.draws.below(CELL - len + 1);
        let action = self.draws.below(5);
        // Whole pages, for a write in a stream.
        let whole = action == 3;
        let (len, at) = match whole {
            true => (len.next_multiple_of(PAGE), at / PAGE * PAGE),
            false => (len, at),
        };
        let at = at.min(CELL - len);
        let slot = &mut self.slots[index];
        let part = slot.buffer.part(FENCE..FENCE + len).unwrap();
        let mut doing = Doing {
            flying: None,
            place: FENCE,
            len,
            read: None,
            wrote: None,
        };
        if matches!(action, 1 | 3) {
            let bytes = pattern::bytes(self.draws.seed(), len);
            self.bed.device.poke(part.address(), &bytes);
            let write = self.target.write_all_at(part, (index * CELL + at) as u64);
            doing.wrote = Some((at, bytes));
            doing.flying = Some(match whole {
                true => in_stream(write, self.stream),
                false => flying(write),
            });
        } else {
            let from = self.draws.near_pages(CONTENT - len);
            doing.read = Some(from);
            doing.flying = Some(match action {
                2 => in_stream(self.source.read_exact_at(part, from as u64), self.stream),
                4 => flying(self.source.read_ranges(part, halves(from, len))),
                _ => flying(self.source.read_exact_at(part, from as u64)),
            });
        }
        slot.doing = Some(doing);
    }

    /// Drops it, or awaits it, and looks at what it has done.
    fn settle(&mut self, index: usize) {
        let drops = self.draws.below(2) == 0;
        let slot = &mut self.slots[index];
        let Some(mut doing) = slot.doing.take() else {
            return;
        };
        let flying = doing.flying.take().unwrap();
        let outcome = match drops {
            true => {
                drop(flying);
                None
            }
            false => Some(block_on(flying)),
        };
        // It is back when the engine is done with it.
        until(|| slot.buffer.parts_out() == 0);
        let address = slot.buffer.address();
        let found = self.bed.device.peek(address, slot.buffer.len());
        let inside = doing.place..doing.place + doing.len;
        let around = found[..inside.start].iter().chain(&found[inside.end..]);
        assert!(around.into_iter().all(|&byte| byte == CANARY), "{index}");
        if let (Some(from), Some(Ok(bytes))) = (doing.read, &outcome) {
            assert_eq!(*bytes, doing.len);
            let expected = &self.content[from..from + doing.len];
            pattern::assert_same(&found[inside], expected);
        }
        let canary = vec![CANARY; slot.buffer.len()];
        self.bed.device.poke(address, &canary);
        if let Some((at, bytes)) = doing.wrote {
            let file = fs::read(self.target.path()).unwrap();
            let cell = &file[index * CELL..][..CELL];
            let mut new = slot.model.clone();
            new[at..at + bytes.len()].copy_from_slice(&bytes);
            if outcome == Some(Ok(bytes.len())) {
                pattern::assert_same(cell, &new);
            }
            pattern::assert_either(cell, &slot.model, &new);
            slot.model = cell.to_vec();
        }
    }

    fn step(&mut self) {
        let index = self.draws.below(SLOTS);
        if self.slots[index].doing.is_some() {
            return self.settle(index);
        }
        self.begin(index);
        // Some are dropped before their first poll.
        if self.draws.below(4) > 0
            && let Some(doing) = &mut self.slots[index].doing
            && let Some(mut flying) = doing.flying.take()
        {
            match poll_once(&mut flying) {
                std::task::Poll::Pending => doing.flying = Some(flying),
                std::task::Poll::Ready(outcome) => {
                    doing.flying = Some(Box::pin(std::future::ready(outcome)));
                }
            }
        }
    }

    fn end(mut self) {
        for index in 0..SLOTS {
            self.settle(index);
        }
        let written = fs::read(self.target.path()).unwrap();
        let models: Vec<u8> = self
            .slots
            .iter()
            .flat_map(|slot| slot.model.clone())
            .collect();
        pattern::assert_same(&written, &models);
        let user = self.bed.device.user();
        block_on(self.registered.deregister()).unwrap();
        user.destroy(self.stream);
        assert!(self.bed.fired() > 0, "nothing went wrong");
        // Lost writes were meant to be.
        let _lost = block_on(self.target.close());
        drop((self.slots, self.source));
        self.bed.end();
    }
}

/// Two ranges that lie side by side in the file, and change places in memory with each other.
fn halves(from: usize, len: usize) -> Vec<FileRange> {
    let half = len / 2;
    [(0, half), (half, len - half)]
        .into_iter()
        .map(|(at, len)| FileRange {
            file_offset: (from + at) as u64,
            len,
            buf_offset: at,
        })
        .collect()
}

fn small(builder: EngineBuilder) -> EngineBuilder {
    builder
        .task_size(3 * PAGE)
        .bounce_buffer_size(PAGE)
        .num_threads(6)
        .budget(1 << 20)
}

fn run(bed: Bed, seed: u64) {
    bed.cufile.fault(FAULTS);
    let mut storm = Storm::new(bed, seed);
    for _ in 0..STEPS {
        storm.step();
    }
    storm.end();
}

#[test]
fn a_storm_of_drops_touches_nobody_elses_bytes() {
    let Some(sim) = Sim::need() else { return };
    let home = tempfile::tempdir_in(bench::disk()).unwrap();
    random::check(12, &any::<u64>(), |seed| {
        run(Bed::on(sim, home.path(), small), seed);
    });
}

#[test]
fn a_storm_in_the_engines_own_streams_touches_nobody_elses_bytes() {
    let Some(sim) = Sim::need() else { return };
    let home = tempfile::tempdir_in(bench::disk()).unwrap();
    random::check(12, &any::<u64>(), |seed| {
        let bed = Bed::on(sim, home.path(), |builder| by_streams(small(builder)));
        run(bed, seed);
    });
}

#[test]
fn a_storm_over_both_backends_touches_nobody_elses_bytes() {
    let Some(here) = World::new().by("nvidia-fs").enter() else {
        return;
    };
    let sim = Sim::need().unwrap();
    let automatic = |builder: EngineBuilder, here: &Path, calls: CuFileCalls| {
        let mut config = cufile::with_nvidia_fs(here);
        config.gds_threshold = 2 * PAGE;
        config.calls = calls;
        small(builder).compat_mode(CompatMode::Auto).cufile(config)
    };
    random::check(8, &any::<u64>(), |seed| {
        let calls = match seed % 2 {
            0 => CuFileCalls::Sync,
            _ => CuFileCalls::Stream,
        };
        let bed = Bed::on(sim, &here, |builder| automatic(builder, &here, calls));
        run(bed, seed);
    });
}

#[test]
fn no_task_calls_cuda_or_cufile() {
    let Some(sim) = Sim::need() else { return };
    let home = tempfile::tempdir_in(bench::disk()).unwrap();
    assert_no_task_calls(Bed::on(sim, home.path(), small));
}

#[test]
fn no_task_calls_them_for_streams_of_the_engines_own() {
    let Some(sim) = Sim::need() else { return };
    let home = tempfile::tempdir_in(bench::disk()).unwrap();
    let streamed = |builder| by_streams(small(builder));
    assert_no_task_calls(Bed::on(sim, home.path(), streamed));
}

/// Tasks of a runtime that do everything, and make none of the calls.
fn assert_no_task_calls(bed: Bed) {
    let content = pattern::bytes(1, CELL);
    fs::write(bed.path("file"), &content).unwrap();
    let registered = block_on(bed.register(0)).unwrap();
    let before = bed.device.stats().elsewhere;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let (engine, path, device) = (bed.engine.clone(), bed.path("file"), bed.device.ordinal);
    let tasks: Vec<_> = (0..8)
        .map(|index: usize| {
            let (engine, path, content) = (engine.clone(), path.clone(), content.clone());
            runtime.spawn(async move {
                let file = AsyncCuFile::open(&engine, path).await.unwrap();
                let buffer = gpu::buffer(&engine, device, &content).await;
                buffer.register(&engine).await.unwrap();
                let done = file.read_exact_at(buffer, 0).await.unwrap();
                let in_stream = enqueue(file.read_exact_at(done.buf, 0), 0);
                let done = in_stream.await.unwrap().await.unwrap();
                let mut read = file.read_at(done.buf, 0).start();
                if index.is_multiple_of(2) {
                    // Dropped by the task, in flight or not.
                    let _ = poll_once(&mut read);
                }
                drop(read);
                file.close().await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    until(|| bed.engine.stats().operations_live == 0);
    runtime.block_on(registered.deregister()).unwrap();
    assert_eq!(bed.device.stats().elsewhere, before);
    drop((runtime, engine));
    bed.end();
}
