//! Memory that hardware writes into, and the writing.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

#[cfg(completion_loom)]
use loom::sync::atomic::{AtomicUsize, Ordering};
#[cfg(completion_shuttle)]
use shuttle::sync::atomic::{AtomicUsize, Ordering};
#[cfg(not(any(completion_loom, completion_shuttle)))]
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio_cufile_completion::{Next, PartKey, PartOutcome, ReleasePolicy, SlotId, Ticket};

use super::{Fake, Tally};

/// Bytes behind a memory, for a test whose hardware stores any. What it does to memory that was
/// released is then seen by the bytes, and asserted nowhere.
pub(crate) trait Bytes: Send + Sync {
    /// A part moves into its slot, or as far as it comes without one. Whether it is done with the
    /// memory by that, and has let go of it.
    fn stage(&self, part: Range<u64>, slot: Option<SlotId>) -> bool;

    /// A part moves to where it goes: out of its slot, if it was staged.
    fn store(&self, part: Range<u64>, staged: Option<SlotId>);

    /// The payload is dropped.
    fn released(&self);
}

/// How often the memory was released: more than once is a double free, and a write after the first
/// time is a write into somebody else's memory.
#[derive(Clone)]
pub(crate) struct Memory(Arc<Record>);

struct Record {
    releases: AtomicUsize,
    /// Parts started and bytes moved without a fault: what a model of the outcome needs. Not for
    /// the model checkers to explore.
    started: AtomicU64,
    moved: AtomicU64,
    bytes: Option<Box<dyn Bytes>>,
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self::made_of(None)
    }

    pub(crate) fn of_bytes(bytes: impl Bytes + 'static) -> Self {
        Self::made_of(Some(Box::new(bytes)))
    }

    fn made_of(bytes: Option<Box<dyn Bytes>>) -> Self {
        Self(Arc::new(Record {
            releases: AtomicUsize::new(0),
            started: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            bytes,
        }))
    }

    pub(crate) fn releases(&self) -> usize {
        self.0.releases.load(Ordering::SeqCst)
    }

    pub(crate) fn was_started(&self) -> bool {
        self.0.started.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn moved(&self) -> u64 {
        self.0.moved.load(Ordering::SeqCst)
    }

    pub(crate) fn assert_held(&self) {
        assert_eq!(self.releases(), 0, "memory was released in flight");
    }

    pub(crate) fn assert_released(&self) {
        assert_eq!(self.releases(), 1, "memory is released exactly once");
    }
}

/// What an operation owns.
pub(crate) struct Buffer {
    memory: Memory,
    panics: bool,
}

impl Buffer {
    pub(crate) fn new(memory: &Memory, panics: bool) -> Self {
        Self {
            memory: memory.clone(),
            panics,
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.memory.0.releases.fetch_add(1, Ordering::SeqCst);
        if let Some(bytes) = &self.memory.0.bytes {
            bytes.released();
        }
        assert!(
            !self.panics || std::thread::panicking(),
            "a payload whose drop panics"
        );
    }
}

/// What hardware is to write.
pub(crate) struct Touch {
    memory: Memory,
    offset: u64,
    pub(crate) len: u64,
    staged: AtomicBool,
}

impl Touch {
    pub(crate) fn new(memory: &Memory, offset: u64, len: u64) -> Self {
        Self {
            memory: memory.clone(),
            offset,
            len,
            staged: AtomicBool::new(false),
        }
    }

    const fn part(&self) -> Range<u64> {
        self.offset..self.offset + self.len
    }

    /// A stage of the hardware's work that is not the last. Whether the memory is let go of.
    fn stage(&self, slot: Option<SlotId>) -> bool {
        let is_through = match &self.memory.0.bytes {
            Some(bytes) => bytes.stage(self.part(), slot),
            None => {
                self.memory.assert_held();
                false
            }
        };
        self.staged.store(true, Ordering::SeqCst);
        is_through
    }

    /// A store by hardware: no checker would see it, so the memory itself is asked (I3).
    pub(crate) fn hit(&self) {
        self.hit_by(None);
    }

    /// As [`hit`](Self::hit), out of the slot if the part was staged there.
    pub(crate) fn hit_by(&self, slot: Option<SlotId>) {
        let staged = slot.filter(|_| self.staged.load(Ordering::SeqCst));
        match &self.memory.0.bytes {
            Some(bytes) => bytes.store(self.part(), staged),
            None => self.memory.assert_held(),
        }
    }

    /// Notes what was moved, for a part that ends by name.
    pub(crate) fn count(&self, bytes: u64) {
        self.memory.0.moved.fetch_add(bytes, Ordering::SeqCst);
    }
}

/// A part that hardware works on.
pub(crate) struct Started<P: ReleasePolicy> {
    pub(crate) ticket: Ticket<Fake<P>>,
    pub(crate) task: Touch,
}

impl<P: ReleasePolicy> Started<P> {
    pub(crate) fn new(ticket: Ticket<Fake<P>>, task: Touch) -> Self {
        task.memory.0.started.fetch_add(1, Ordering::SeqCst);
        Self { ticket, task }
    }

    /// Moves everything and finishes.
    pub(crate) fn finish(self) {
        let len = self.task.len;
        self.finish_with(len, None);
    }

    pub(crate) fn fail(self, bytes: u64, fault: &'static str) {
        self.finish_with(bytes, Some(fault));
    }

    pub(crate) fn finish_with(self, bytes: u64, fault: Option<&'static str>) {
        self.task.hit_by(self.ticket.slot());
        if fault.is_none() && bytes <= self.task.len {
            self.task.memory.0.moved.fetch_add(bytes, Ordering::SeqCst);
        }
        self.ticket.finish(outcome(bytes, fault));
    }

    /// A stage that is not the last was seen complete.
    pub(crate) fn advance(&self) -> Next {
        if self.task.stage(self.ticket.slot()) {
            self.ticket.let_go();
        }
        self.ticket.advance()
    }

    /// From now on, completions come by name.
    pub(crate) fn free_worker(&self) {
        self.ticket.free_worker();
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.ticket.is_given_up()
    }

    pub(crate) fn into_key(self) -> (PartKey, Touch) {
        (self.ticket.into_key(), self.task)
    }
}

pub(crate) fn outcome<P: ReleasePolicy>(
    bytes: u64,
    fault: Option<&'static str>,
) -> PartOutcome<Fake<P>> {
    PartOutcome {
        bytes,
        fault,
        report: Tally(1),
    }
}
