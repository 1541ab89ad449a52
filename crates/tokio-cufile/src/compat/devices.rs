//! The devices that an engine moves bytes to and from: readied when first used.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};

use completion::Ticket;
use nvidia_dl::cuda::Driver;
use rustix::io::Errno;

use super::Executors;
use super::run::{Run, Step};
use crate::cuda::{
    Copier, CopyJob, CopyLane, Device, DeviceInfo, Direction, Finish, Pinned, Watched, open_driver,
};
use crate::engine::Model;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{DeviceRange, MemoryRange, SlotArena};
use crate::plan::Kind;
use crate::stats::Counters;

/// All devices of one engine.
#[derive(Debug)]
pub(crate) struct Devices {
    executors: Arc<Executors>,
    slots: Arc<SlotArena>,
    counters: Arc<Counters>,
    table: Mutex<Table>,
    /// Beside the table, which is locked for as long as a driver takes to ready a device.
    stopped: AtomicBool,
}

#[derive(Debug, Default)]
struct Table {
    driver: Option<&'static Driver>,
    /// The lanes keep it, so that a thread of the engine's unpins.
    pinned: Weak<Pinned>,
    ready: BTreeMap<u32, Arc<DeviceSide>>,
}

/// One device, and the threads' ways to it. `pub` since the sealed trait of the buffers names it.
#[derive(Debug)]
pub struct DeviceSide {
    device: Arc<Device>,
    pinned: Weak<Pinned>,
    copier: Copier<Box<Staged>>,
}

impl Devices {
    pub(crate) fn new(
        executors: &Arc<Executors>,
        slots: &Arc<SlotArena>,
        counters: &Arc<Counters>,
    ) -> Self {
        Self {
            executors: Arc::clone(executors),
            slots: Arc::clone(slots),
            counters: Arc::clone(counters),
            table: Mutex::default(),
            stopped: AtomicBool::new(false),
        }
    }

    /// The device with that CUDA ordinal, readied if need be: context, pinned slots, copy thread.
    /// Blocks; call it on an engine thread.
    ///
    /// # Errors
    ///
    /// `Unsupported` where there is no CUDA; `DeviceNotFound`; `DeviceFailed`.
    pub(crate) fn get(&self, ordinal: u32) -> Result<Arc<DeviceSide>> {
        // Held throughout: who asks for the same device waits for it.
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let side = self.ready(&mut table, ordinal);
        drop(table);
        if self.stopped.load(Ordering::SeqCst) {
            // The engine has ended meanwhile, and may not have been let at the table.
            self.stop();
        }
        side
    }

    fn ready(&self, table: &mut Table, ordinal: u32) -> Result<Arc<DeviceSide>> {
        if let Some(side) = table.ready.get(&ordinal) {
            side.device.check()?;
            return Ok(Arc::clone(side));
        }
        if self.stopped.load(Ordering::SeqCst) {
            let reason = "the engine readies no more devices";
            return Err(Error::new(ErrorKind::ShuttingDown, reason));
        }
        let driver = match table.driver {
            Some(driver) => driver,
            None => *table.driver.insert(open_driver()?),
        };
        let device = Arc::new(Device::open(driver, ordinal)?);
        let pinned = match table.pinned.upgrade() {
            Some(pinned) => pinned,
            None => Arc::new(Pinned::new(&self.slots, &device)?),
        };
        table.pinned = Arc::downgrade(&pinned);
        let copier = Copier::start(&device, &pinned, self.finish())?;
        tracing::info!(device = ordinal, name = device.name(), "device ready");
        let side = Arc::new(DeviceSide {
            device,
            pinned: Arc::downgrade(&pinned),
            copier,
        });
        table.ready.insert(ordinal, Arc::clone(&side));
        Ok(side)
    }

    fn finish(&self) -> Finish<Box<Staged>> {
        let (executors, counters) = (Arc::clone(&self.executors), Arc::clone(&self.counters));
        Box::new(move |staged: Box<Staged>, result| {
            let staged = staged.copied(result);
            match staged.run.kind() {
                // What was staged is written now.
                Kind::Write => executors.resume(staged),
                Kind::Read => {
                    let Staged { ticket, run } = *staged;
                    let outcome = run.finish(|| ticket.advance());
                    counters.add(&outcome.report);
                    ticket.finish(outcome);
                }
            }
        })
    }

    /// Every device that CUDA sees. Blocks; call it on an engine thread.
    pub(crate) fn list(&self) -> Result<Vec<DeviceInfo>> {
        DeviceInfo::all(open_driver()?)
    }

    /// Lets the copy threads end after what is in flight. Does not wait for a device that is just
    /// being readied: a driver may never return from that.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        let table = match self.table.try_lock() {
            Ok(table) => table,
            Err(TryLockError::Poisoned(table)) => table.into_inner(),
            // Whoever has it looks afterwards.
            Err(TryLockError::WouldBlock) => return,
        };
        for side in table.ready.values() {
            side.copier.stop();
        }
    }
}

impl DeviceSide {
    pub(crate) const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Has the copy thread do the part's copies. Never blocks.
    pub(super) fn copy(&self, staged: Box<Staged>) {
        self.copier.submit(staged);
    }

    /// A lane for the calling thread.
    ///
    /// # Errors
    ///
    /// What the driver says; `ShuttingDown` when the slots are not pinned any more.
    pub(super) fn lane(&self) -> Result<CopyLane<Box<Staged>>> {
        let pinned = self.pinned.upgrade().ok_or_else(|| {
            let reason = "the slots are not pinned any more";
            Error::new(ErrorKind::ShuttingDown, reason)
        })?;
        CopyLane::new(&self.device, &pinned)
    }

    /// Has the copy thread look after something.
    pub(crate) fn watch(&self, watch: Box<dyn Watched>) {
        self.copier.watch(watch);
    }
}

/// A part between the disk and the device. The run holds the file; the ticket holds the permits and
/// the slot, and keeps the operation's payload, which owns the device memory. Dropped unfinished, it
/// quarantines the operation.
pub(crate) struct Staged {
    pub(super) ticket: Ticket<Model>,
    pub(super) run: Run,
}

impl Staged {
    /// The part's next step; `None` when it is over.
    pub(super) fn next(&mut self) -> Option<Step> {
        let Self { ticket, run } = self;
        run.next(|| ticket.advance())
    }

    /// Notes what became of the part's request, which is over.
    pub(super) fn completed(&mut self, result: std::result::Result<usize, Errno>) {
        self.run.complete(result);
        if self.run.is_write_unfinished() {
            self.respect_the_end("a request of it ended after its operation was given up");
        }
    }

    /// An operation whose end was told changes its file no more.
    fn respect_the_end(&mut self, reason: &'static str) {
        if self.ticket.is_given_up() {
            self.run
                .fail_with(Error::new(ErrorKind::Quarantined, reason));
        }
    }

    /// Notes what became of the copies, which are over: the source of a write is free then, whoever
    /// issued them.
    pub(super) fn copied(mut self: Box<Self>, result: Result<()>) -> Box<Self> {
        self.run.copied(result);
        if self.run.kind() == Kind::Write {
            // A sign of life.
            let _anybody = self.ticket.report();
            self.respect_the_end("the copy ended after its operation was given up");
            if self.run.lets_go() {
                self.ticket.let_go();
            }
        }
        self
    }
}

impl CopyJob for Box<Staged> {
    fn direction(&self) -> Direction {
        match self.run.kind() {
            Kind::Read => Direction::ToDevice,
            Kind::Write => Direction::FromDevice,
        }
    }

    fn copies(&self) -> impl Iterator<Item = (MemoryRange, DeviceRange)> + '_ {
        self.run.copies()
    }
}
