//! Bytes that simulated hardware stores into, and the harness watches.
//!
//! Bytes are atomic: a store that comes too late is a fault that is found, and no undefined
//! behaviour. The arena is as that of the engine's operations: cells with a fence on either side,
//! which rest after they were given back.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use measure::data;
use tokio_cufile_completion::SlotId;

use super::support::hardware::Bytes;
use crate::stress::counts::{Counts, Harm};
use crate::stress::lock;

const FENCE: usize = 16;
/// The most bytes that an operation moves.
pub(super) const LEN_MAX: usize = 512;
const CELL: usize = LEN_MAX + 2 * FENCE;
const CELLS: usize = 192;
/// Bytes of one staging slot, and how many there are.
pub(super) const SLOT: usize = LEN_MAX;
pub(super) const SLOTS: usize = 8;

/// Turns of the hardware that a cell rests: more than its slowest part takes.
pub(super) const REST: u64 = 256;

/// Memory of one world.
pub(super) struct Arena {
    bytes: Vec<AtomicU8>,
    slots: Vec<AtomicU8>,
    inside: Mutex<Inside>,
    /// Turns of the hardware so far.
    pub(super) turns: AtomicU64,
    counts: Arc<Counts>,
}

struct Inside {
    free: Vec<usize>,
    resting: VecDeque<Resting>,
    uses: u64,
}

struct Resting {
    cell: usize,
    pattern: u64,
    until: u64,
}

fn zeros(len: usize) -> Vec<AtomicU8> {
    (0..len).map(|_| AtomicU8::new(0)).collect()
}

pub(super) fn put(bytes: &[AtomicU8], from: &[u8]) {
    for (to, from) in bytes.iter().zip(from) {
        to.store(*from, Ordering::Relaxed);
    }
}

pub(super) fn get(bytes: &[AtomicU8]) -> Vec<u8> {
    bytes
        .iter()
        .map(|byte| byte.load(Ordering::Relaxed))
        .collect()
}

fn copy(to: &[AtomicU8], from: &[AtomicU8]) {
    for (to, from) in to.iter().zip(from) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Arena {
    pub(super) fn new(counts: &Arc<Counts>) -> Arc<Self> {
        Arc::new(Self {
            bytes: zeros(CELL * CELLS),
            slots: zeros(SLOT * SLOTS),
            inside: Mutex::new(Inside {
                free: (0..CELLS).collect(),
                resting: VecDeque::new(),
                uses: 0,
            }),
            turns: AtomicU64::new(0),
            counts: Arc::clone(counts),
        })
    }

    /// For the next world. No hardware of the last one is at work.
    pub(super) fn reset(&self) {
        self.sweep(true);
        let mut inside = lock(&self.inside);
        // What was leaked is known to the engine of the last world, which is gone.
        inside.free = (0..CELLS).collect();
    }

    fn cell(&self, cell: usize) -> &[AtomicU8] {
        &self.bytes[cell * CELL..(cell + 1) * CELL]
    }

    /// Fills all of a cell with a pattern of its own. Gives the pattern.
    fn paint(&self, cell: usize) -> u64 {
        let pattern = {
            let mut inside = lock(&self.inside);
            inside.uses += 1;
            inside.uses.wrapping_mul(0xa076_1d64_78bd_642f)
        };
        let mut bytes = [0; CELL];
        data::fill(pattern, 0, &mut bytes);
        put(self.cell(cell), &bytes);
        pattern
    }

    /// Looks at the cells that have rested long enough, and frees them.
    pub(super) fn sweep(&self, all: bool) {
        let now = self.turns.load(Ordering::Acquire);
        loop {
            let resting = {
                let mut inside = lock(&self.inside);
                match inside.resting.front() {
                    Some(oldest) if all || oldest.until <= now => inside.resting.pop_front(),
                    _ => None,
                }
            };
            let Some(resting) = resting else {
                return;
            };
            let found = get(self.cell(resting.cell));
            let wrong = data::first_difference(resting.pattern, 0, &found);
            let message = || {
                let at = wrong.unwrap_or(0);
                format!("byte {at} of a cell changed after it was given back")
            };
            self.counts
                .harm(Harm::LateWrite, u64::from(wrong.is_some()), message);
            lock(&self.inside).free.push(resting.cell);
        }
    }

    /// A cell for an operation of `len` bytes. `None` while all are in use or rest.
    pub(super) fn take(
        self: &Arc<Self>,
        disk: &Arc<Disk>,
        len: usize,
        way: Way,
    ) -> Option<Arc<Payload>> {
        self.sweep(false);
        let cell = lock(&self.inside).free.pop()?;
        let pattern = self.paint(cell);
        Some(Arc::new(Payload {
            arena: Arc::clone(self),
            disk: Arc::clone(disk),
            cell,
            len,
            pattern,
            way,
            between: AtomicBool::new(false),
            released: AtomicBool::new(false),
        }))
    }
}

/// A file of the simulated disk.
pub(super) struct Disk {
    pub(super) bytes: Vec<AtomicU8>,
}

impl Disk {
    pub(super) fn new(content: &[u8]) -> Arc<Self> {
        let bytes = zeros(content.len());
        put(&bytes, content);
        Arc::new(Self { bytes })
    }

    pub(super) fn look(&self) -> Vec<u8> {
        get(&self.bytes)
    }
}

/// Where an operation's bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    FromDisk(usize),
    ToDisk(usize),
}

/// The memory of one operation.
pub(super) struct Payload {
    arena: Arc<Arena>,
    disk: Arc<Disk>,
    cell: usize,
    len: usize,
    pattern: u64,
    way: Way,
    /// A part of it is in its slot, and not yet where it goes.
    between: AtomicBool,
    released: AtomicBool,
}

impl Payload {
    fn middle(&self) -> &[AtomicU8] {
        &self.arena.cell(self.cell)[FENCE..FENCE + self.len]
    }

    pub(super) fn fill(&self, from: &[u8]) {
        put(self.middle(), from);
    }

    /// Somebody uses the memory for something else.
    pub(super) fn scribble(&self) {
        put(self.middle(), &vec![0x5c; self.len]);
    }

    pub(super) fn look(&self) -> Vec<u8> {
        get(self.middle())
    }

    pub(super) fn is_between(&self) -> bool {
        self.between.load(Ordering::Acquire)
    }

    fn on_disk(&self, part: &Range<usize>) -> &[AtomicU8] {
        let (Way::FromDisk(at) | Way::ToDisk(at)) = self.way;
        &self.disk.bytes[at + part.start..at + part.end]
    }

    fn slot(&self, slot: SlotId, len: usize) -> &[AtomicU8] {
        let start = usize::try_from(slot.0).unwrap_or(usize::MAX) * SLOT;
        &self.arena.slots[start..start + len]
    }

    fn are_fences_whole(&self) -> bool {
        let cell = self.arena.cell(self.cell);
        let end = FENCE + self.len;
        [0..FENCE, end..CELL].into_iter().all(|fence| {
            let found = get(&cell[fence.clone()]);
            data::first_difference(self.pattern, fence.start as u64, &found).is_none()
        })
    }
}

fn range(part: &Range<u64>) -> Range<usize> {
    let index = |at| usize::try_from(at).unwrap_or(usize::MAX);
    index(part.start)..index(part.end)
}

/// As the model's memory has it.
pub(super) struct Owned(pub(super) Arc<Payload>);

impl Bytes for Owned {
    fn stage(&self, part: Range<u64>, slot: Option<SlotId>) -> bool {
        let (payload, part) = (&self.0, range(&part));
        if let Some(slot) = slot {
            let slot = payload.slot(slot, part.len());
            match payload.way {
                Way::FromDisk(_) => copy(slot, payload.on_disk(&part)),
                Way::ToDisk(_) => copy(slot, &payload.middle()[part]),
            }
        }
        payload.between.store(true, Ordering::Release);
        slot.is_some() && matches!(payload.way, Way::ToDisk(_))
    }

    fn store(&self, part: Range<u64>, staged: Option<SlotId>) {
        let (payload, part) = (&self.0, range(&part));
        payload.between.store(false, Ordering::Release);
        let (memory, disk) = (&payload.middle()[part.clone()], payload.on_disk(&part));
        let slot = staged.map(|slot| payload.slot(slot, part.len()));
        match payload.way {
            Way::FromDisk(_) => copy(memory, slot.unwrap_or(disk)),
            Way::ToDisk(_) => copy(disk, slot.unwrap_or(memory)),
        }
    }

    fn released(&self) {
        let (payload, arena) = (&self.0, &self.0.arena);
        if payload.released.swap(true, Ordering::AcqRel) {
            return;
        }
        let message = || "a store outside of a payload".to_owned();
        let outside = u64::from(!payload.are_fences_whole());
        arena.counts.harm(Harm::Corrupt, outside, message);
        let pattern = arena.paint(payload.cell);
        let until = arena.turns.load(Ordering::Acquire) + REST;
        lock(&arena.inside).resting.push_back(Resting {
            cell: payload.cell,
            pattern,
            until,
        });
    }
}
