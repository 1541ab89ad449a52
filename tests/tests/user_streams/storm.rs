//! Random operations in two registered streams, half of which somebody loses interest in.
//!
//! Beside `cufile_drops.rs`, which has an operation at a time for each of a few slots, in one stream and by
//! every other call, with faults, and sets and looks at device memory as no real device lets anybody.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::task::Poll;

use nvidia_dl::cuda::Stream;
use proptest::prelude::{Strategy, any};
use tokio_cufile::{
    AsyncCuFile, CuFileCalls, DeviceBuffer, DevicePart, Done, Enqueue, Enqueued, OpError,
    RegisteredStream, Transfer,
};
use tokio_cufile_tests::bench::block_on;
use tokio_cufile_tests::life::{poll_once, until};
use tokio_cufile_tests::random::{self, Draws};
use tokio_cufile_tests::{gpu, pattern};

use super::rig::{CANARY, PAGE, Rig, put};

/// Of the file that is written, for each slot.
const CELL: usize = 12 * PAGE;
/// Around a part, at least.
const FENCE: usize = PAGE;
const BUFFER: usize = CELL + 4 * FENCE;
/// Operations in flight.
const SLOTS: usize = 32;
/// In each, every slot has an operation; most of them end.
const ROUNDS: usize = 40;
const CONTENT: usize = 400_009;

/// How far an operation has come.
enum Flying {
    /// Not polled, or polled and not known to be in its stream.
    Asked(Enqueue<DevicePart>),
    InStream(Box<Enqueued<DevicePart>>),
    /// In none of the user's: some are beside them.
    ByEngine(Transfer<DevicePart>),
    /// And whether it is done all the same.
    Dropped(bool),
}

enum What {
    /// From where in the file that is read.
    Read(usize),
    /// Where in the cell, and what.
    Write(usize, Vec<u8>),
}

struct Doing {
    flying: Flying,
    /// Where in the buffer.
    place: Range<usize>,
    what: What,
}

struct Slot {
    buffer: DeviceBuffer,
    /// What is in the cell.
    model: Vec<u8>,
    doing: Option<Doing>,
}

struct Storm {
    rig: Rig,
    draws: Draws,
    content: Vec<u8>,
    source: AsyncCuFile,
    target: AsyncCuFile,
    /// Where bytes to write come from: the content, on the device.
    stock: DeviceBuffer,
    streams: [Stream; 2],
    registered: [RegisteredStream; 2],
    /// In which the test readies memory.
    own: Stream,
    slots: Vec<Slot>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    live_max: usize,
    awaited: u32,
    dropped_before_known: u32,
    dropped_in_stream: u32,
    dropped_by_engine: u32,
}

impl Storm {
    fn new(rig: Rig, seed: u64) -> Self {
        let content = pattern::bytes(seed, CONTENT);
        let buffer = |content: &[u8]| block_on(gpu::buffer(&rig.engine, rig.ordinal, content));
        let slot = |_| Slot {
            buffer: buffer(&[CANARY; BUFFER]),
            model: vec![0; CELL],
            doing: None,
        };
        let slots: Vec<_> = (0..SLOTS).map(slot).collect();
        for slot in slots.iter().step_by(2) {
            block_on(slot.buffer.register(&rig.engine)).expect("cuFile takes the memory");
        }
        let streams = [rig.stream(), rig.stream()];
        Self {
            stock: buffer(&content),
            source: rig.file("source", &content),
            target: rig.file("target", &vec![0; SLOTS * CELL]),
            registered: streams.map(|stream| rig.register(stream)),
            streams,
            own: rig.stream(),
            content,
            slots,
            draws: Draws::new(seed),
            counts: Counts::default(),
            rig,
        }
    }

    fn round(&mut self) {
        let free = (0..SLOTS).filter(|&index| self.slots[index].doing.is_none());
        let free: Vec<_> = free.collect();
        let made: Vec<_> = free.iter().map(|&index| self.make(index)).collect();
        self.rig.wait(self.own);
        for stream in self.streams {
            self.rig.hold_up(stream);
        }
        for (index, (transfer, place, what)) in free.into_iter().zip(made) {
            let flying = self.begin(transfer);
            self.slots[index].doing = Some(Doing {
                flying,
                place,
                what,
            });
        }
        let live = self.rig.engine.stats().operations_live;
        self.counts.live_max = self.counts.live_max.max(live);
        // The others are looked at when they have ended long ago.
        let chosen = (0..SLOTS).filter(|_| self.draws.below(4) > 0);
        let chosen: Vec<_> = chosen.collect();
        self.settle_all(&chosen);
    }

    /// First those that are dropped, before anything is waited for.
    fn settle_all(&mut self, chosen: &[usize]) {
        for &index in chosen {
            let is_dropped = self.draws.below(2) == 0;
            let doing = self.slots[index].doing.take();
            self.slots[index].doing = doing.map(|doing| Doing {
                flying: match is_dropped {
                    true => self.drop_flying(doing.flying),
                    false => doing.flying,
                },
                ..doing
            });
        }
        for &index in chosen {
            if let Some(doing) = self.slots[index].doing.take() {
                self.settle(index, doing);
            }
        }
    }

    /// An operation that nobody has begun.
    fn make(&mut self, index: usize) -> (Transfer<DevicePart>, Range<usize>, What) {
        let writes = self.draws.below(2) == 0;
        let mut len = 1 + self.draws.near_pages(CELL - 1);
        let mut at = self.draws.below(CELL);
        if writes {
            (len, at) = (len.next_multiple_of(PAGE), at / PAGE * PAGE);
        }
        let at = at.min(CELL - len);
        let place = FENCE + self.draws.near_pages(2 * FENCE);
        let from = self.draws.near_pages(CONTENT - len);

        let slot = &mut self.slots[index];
        let part = slot.buffer.part(place..place + len).expect("none is out");
        let address = slot.buffer.address();
        self.rig.fill(address, CANARY, BUFFER, self.own);
        let (transfer, what) = if writes {
            let (to, from_stock) = (part.address(), self.stock.address() + from as u64);
            self.rig.copy(to, from_stock, len, self.own);
            let bytes = self.content[from..from + len].to_vec();
            let write = self.target.write_all_at(part, (index * CELL + at) as u64);
            (write, What::Write(at, bytes))
        } else {
            let read = self.source.read_exact_at(part, from as u64);
            (read, What::Read(from))
        };
        (transfer, place..place + len, what)
    }

    /// To one of the stages in which it may be dropped.
    fn begin(&mut self, transfer: Transfer<DevicePart>) -> Flying {
        if self.draws.below(8) == 0 {
            return Flying::ByEngine(transfer.start());
        }
        let mut enqueue = put(transfer, self.streams[self.draws.below(2)]);
        let put = match self.draws.below(4) {
            0 => return Flying::Asked(enqueue),
            1 => match poll_once(&mut enqueue) {
                Poll::Pending => return Flying::Asked(enqueue),
                Poll::Ready(put) => put,
            },
            _ => block_on(enqueue),
        };
        Flying::InStream(Box::new(put.expect("it is put there")))
    }

    /// Awaits it, and looks at what it has done.
    fn settle(&mut self, index: usize, doing: Doing) {
        let is_whole = match doing.flying {
            Flying::Dropped(is_whole) => is_whole,
            flying => {
                self.counts.awaited += 1;
                let done = block_on(ended(flying)).expect("nothing fails here");
                assert_eq!(done.bytes, doing.place.len());
                true
            }
        };
        let slot = &mut self.slots[index];
        // It is back when the engine is done with it; what was given up, never.
        until(|| {
            assert_eq!(self.rig.engine.stats().operations_quarantined, 0);
            slot.buffer.parts_out() == 0
        });
        let found = self.rig.peek(slot.buffer.address(), BUFFER);
        let inside = doing.place;
        let len = inside.len();
        let mut around = found[..inside.start].iter().chain(&found[inside.end..]);
        assert!(around.all(|&byte| byte == CANARY), "beside slot {index}");
        let found = &found[inside];
        match doing.what {
            What::Read(from) => {
                let new = &self.content[from..from + len];
                match is_whole {
                    true => pattern::assert_same(found, new),
                    false => pattern::assert_either(found, &vec![CANARY; len], new),
                }
            }
            What::Write(at, bytes) => {
                pattern::assert_same(found, &bytes);
                let cell = cell(&self.target, index);
                let mut new = slot.model.clone();
                new[at..at + bytes.len()].copy_from_slice(&bytes);
                match is_whole {
                    true => pattern::assert_same(&cell, &new),
                    false => pattern::assert_either(&cell, &slot.model, &new),
                }
                slot.model = cell;
            }
        }
    }

    /// Nothing takes an operation out of a stream: that is done, whoever has lost interest.
    fn drop_flying(&mut self, flying: Flying) -> Flying {
        let counted = match &flying {
            Flying::InStream(_) => &mut self.counts.dropped_in_stream,
            Flying::ByEngine(_) => &mut self.counts.dropped_by_engine,
            Flying::Asked(_) | Flying::Dropped(_) => &mut self.counts.dropped_before_known,
        };
        *counted += 1;
        Flying::Dropped(matches!(flying, Flying::InStream(_)))
    }

    fn end(mut self) {
        self.settle_all(&Vec::from_iter(0..SLOTS));
        let counts = &self.counts;
        println!("{counts:?}");
        let dropped = counts.dropped_before_known.min(counts.dropped_in_stream);
        assert!(counts.awaited.min(dropped) > 0, "{counts:?}");
        until(|| self.rig.engine.stats().operations_live == 0);
        let written = fs::read(self.target.path()).expect("the file is there");
        let models: Vec<u8> = self
            .slots
            .iter()
            .flat_map(|slot| slot.model.clone())
            .collect();
        pattern::assert_same(&written, &models);
        for registered in self.registered {
            block_on(registered.deregister()).expect("nothing is in it");
        }
        for stream in [self.own].into_iter().chain(self.streams) {
            self.rig.wait(stream);
            self.rig.destroy(stream);
        }
        for file in [self.source, self.target] {
            block_on(file.close()).expect("no write was lost");
        }
        drop((self.slots, self.stock));
        self.rig.end();
    }
}

/// Of one that was not dropped.
async fn ended(flying: Flying) -> Result<Done<DevicePart>, OpError<DevicePart>> {
    match flying {
        Flying::Asked(enqueue) => enqueue.await?.await,
        Flying::InStream(enqueued) => enqueued.await,
        Flying::ByEngine(transfer) => transfer.await,
        Flying::Dropped(_) => unreachable!("nobody awaits it"),
    }
}

fn cell(file: &AsyncCuFile, index: usize) -> Vec<u8> {
    let mut cell = vec![0; CELL];
    let file = File::open(file.path()).expect("the file is there");
    let read = file.read_exact_at(&mut cell, (index * CELL) as u64);
    read.expect("it has all cells");
    cell
}

#[test]
fn a_storm_of_drops_in_two_streams_touches_nobody_elses_bytes() {
    let all = [CuFileCalls::Sync, CuFileCalls::Stream];
    // One skip is noted, not one for each case.
    let Some(first) = Rig::open(all[0]) else {
        return;
    };
    first.end();
    // Another seed is no simpler one.
    random::check(4, &any::<u64>().no_shrink(), |seed| {
        for calls in all {
            let rig = Rig::open(calls).expect("it was there before");
            let mut storm = Storm::new(rig, seed);
            for _ in 0..ROUNDS {
                storm.round();
            }
            storm.end();
        }
    });
}
