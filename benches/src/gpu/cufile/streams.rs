//! `cuFileReadAsync` in CUDA streams, each with a thread that submits: the call may block.
#![allow(
    unsafe_code,
    reason = "cuFile has addresses of memory and of numbers until a stream has passed"
)]

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use measure::report::Sample;
use measure::usage::{Usage, Window};
use nvidia_dl::cuda::{Driver, Event, EventFlags, Stream, StreamFlags};
use nvidia_dl::cufile::{Cells, Library, StreamRegisterFlags, decode_done};

use super::target::{Target, Way};
use crate::Result;
use crate::contest::Runner;
use crate::engines::whole;

/// How many streams, and whether cuFile knows them. They share the job's depth.
#[derive(Clone, Copy, Debug)]
pub(super) struct Streams {
    pub(super) count: usize,
    pub(super) registered: bool,
}

impl Way for Streams {
    fn ready(&self, target: Target) -> Result<Box<dyn Runner>> {
        let depth = (target.job.depth / self.count).max(1);
        let mut field = Field {
            lanes: Vec::new(),
            target,
        };
        for _ in 0..self.count {
            let lane = Lane::new(&field.target.session, depth, self.registered)?;
            field.lanes.push(lane);
        }
        // All of it once: what goes wrong only under load keeps the contestant out as well.
        field.move_all()?;
        Ok(Box::new(field))
    }
}

struct Field {
    /// Before the target: they are gone before the file is.
    lanes: Vec<Lane>,
    target: Target,
}

/// A stream, and as many operations as may be in it.
struct Lane {
    driver: &'static Driver,
    library: &'static Library,
    stream: Stream,
    registered: bool,
    slots: Vec<Slot>,
    /// It is not known whether the stream has passed everything.
    in_doubt: bool,
}

/// One operation in the stream. The cells stay at their place until the stream has passed it.
struct Slot {
    cells: Option<Box<Cells>>,
    /// Recorded behind it.
    event: Event,
}

impl Field {
    fn move_all(&mut self) -> Result<Usage> {
        let (next, start) = (AtomicUsize::new(0), Barrier::new(self.lanes.len() + 1));
        let (target, lanes) = (&self.target, &mut self.lanes);
        thread::scope(|scope| {
            let threads: Vec<_> = lanes
                .iter_mut()
                .map(|lane| scope.spawn(|| lane.work(target, &next, &start)))
                .collect();
            let window = Window::open();
            start.wait();
            let ends: Vec<Result<()>> = threads
                .into_iter()
                .map(|thread| thread.join().map_err(|_| "a thread panicked")?)
                .collect();
            ends.into_iter().collect::<Result<()>>()?;
            Ok(window.close())
        })
    }
}

impl Drop for Field {
    fn drop(&mut self) {
        if self.lanes.iter().any(|lane| lane.in_doubt) {
            self.target.leave();
        }
    }
}

impl Lane {
    fn new(session: &super::session::Session, depth: usize, registered: bool) -> Result<Self> {
        let (driver, library) = (session.driver, session.library);
        let flags = EventFlags(EventFlags::BLOCKING_SYNC.0 | EventFlags::DISABLE_TIMING.0);
        let mut lane = Self {
            driver,
            library,
            stream: driver.stream_create(StreamFlags::NON_BLOCKING)?,
            registered: false,
            slots: Vec::new(),
            in_doubt: false,
        };
        for _ in 0..depth {
            let event = driver.event_create(flags)?;
            lane.slots.push(Slot { cells: None, event });
        }
        if registered {
            // SAFETY: the stream is alive, and is deregistered before it is destroyed.
            unsafe { library.stream_register(lane.stream, StreamRegisterFlags::ALL) }?;
            lane.registered = true;
        }
        Ok(lane)
    }

    fn work(&mut self, target: &Target, next: &AtomicUsize, start: &Barrier) -> Result<()> {
        let bound = target.session.bind();
        start.wait();
        bound?;
        // Also where this thread panics.
        self.in_doubt = true;
        let done = self.pass(target, next);
        self.in_doubt = done.is_err() && !self.is_quiet();
        done
    }

    /// Puts block after block into the stream, and waits for all.
    fn pass(&mut self, target: &Target, next: &AtomicUsize) -> Result<()> {
        for slot in (0..self.slots.len()).cycle() {
            self.settle(slot, target)?;
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= target.blocks() {
                break;
            }
            self.put(slot, index, target)?;
        }
        (0..self.slots.len()).try_for_each(|slot| self.settle(slot, target))
    }

    fn put(&mut self, slot: usize, index: usize, target: &Target) -> Result<()> {
        let what = target.transfer(index)?;
        let cells = Cells::new(what.len, what.file_offset, what.buf_offset)?;
        let slot = &mut self.slots[slot];
        let cells: *mut Cells = &raw mut **slot.cells.insert(Box::new(cells));
        // SAFETY: the target keeps registration, descriptor and memory, and the counter has given
        // the block to this operation alone; the slot keeps the cells, and nobody touches them,
        // before the stream has passed: `settle` waits for that, or `is_quiet`, or all is left as
        // it is. The stream is alive, in the context that is current here.
        unsafe { (self.library).read_async(target.handle(), what.base, cells, self.stream) }?;
        // SAFETY: both are alive.
        Ok(unsafe { self.driver.event_record(slot.event, self.stream) }?)
    }

    /// Waits for the slot's operation, if there is one.
    fn settle(&mut self, slot: usize, target: &Target) -> Result<()> {
        let slot = &mut self.slots[slot];
        let Some(cells) = &slot.cells else {
            return Ok(());
        };
        // SAFETY: the event is alive.
        unsafe { self.driver.event_synchronize(slot.event) }?;
        // SAFETY: the cells live.
        let done = unsafe { Cells::done(&raw const **cells) };
        slot.cells = None;
        if done == Cells::NOT_DONE {
            return Err("the stream has passed a read that says nothing".into());
        }
        let moved = decode_done(done, target.job.block);
        whole(&target.job, moved.map_err(|failure| failure.to_string())?)
    }

    /// After an error: until the stream has passed everything, cells and memory stay.
    fn is_quiet(&mut self) -> bool {
        // SAFETY: the stream is alive.
        let passed = unsafe { self.driver.stream_synchronize(self.stream) };
        match passed {
            Ok(()) => self.slots.iter_mut().for_each(|slot| slot.cells = None),
            Err(error) => eprintln!("benches: a stream is left as it is: {error}"),
        }
        passed.is_ok()
    }

    fn release(&mut self) -> Result<()> {
        if self.registered {
            // SAFETY: alive, and past everything.
            unsafe { self.library.stream_deregister(self.stream) }?;
        }
        for slot in self.slots.drain(..) {
            // SAFETY: not used after this.
            unsafe { self.driver.event_destroy(slot.event) }?;
        }
        // SAFETY: not used after this.
        Ok(unsafe { self.driver.stream_destroy(self.stream) }?)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if self.in_doubt {
            // The stream may still read and write the cells.
            std::mem::take(&mut self.slots).leak();
        } else if let Err(error) = self.release() {
            eprintln!("benches: a stream is left: {error}");
        }
    }
}

impl Runner for Field {
    fn run(&mut self, _round: u64) -> Result<Sample> {
        let usage = self.move_all()?;
        Ok(self.target.sample(usage))
    }

    fn check(&mut self) -> Result<()> {
        self.target.check()
    }
}
