//! The memory that operations work on: fenced, and watched for a while after it was given back.
//!
//! An arena is one buffer of the library's, cut into cells. An operation gets a part in the middle of
//! a cell; the harness has the rest of the cell, filled with a pattern that no other use of any cell
//! has. When the operation is over, its part is filled with another pattern, and the whole cell is
//! held for longer than the slowest delay that is injected before it is used again. A store outside
//! the part, or after the part was given back, is found by its bytes.
//!
//! When a future is dropped, its part comes back on a thread of the engine's, and the harness learns
//! of it by lending the same bytes again: the library refuses while the part lives. A part that never
//! comes back is one that the engine must have counted as quarantined.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use measure::data::{self, Draws};
use tokio_cufile::{DeviceBuffer, DevicePart, HostBuffer, HostPart};

use super::lock;

/// What is left of a cell before and behind a part at least.
const FENCE: usize = 64;

/// Cells of each size, and how many of them, the smallest first.
pub(super) type Sizes = &'static [(usize, usize)];

/// For long epochs.
pub(super) const MANY: Sizes = &[(8 << 10, 320), (64 << 10, 128), (512 << 10, 24)];
/// For short ones, whose memory may be leaked as a whole.
pub(super) const FEW: Sizes = &[(8 << 10, 288), (40 << 10, 32)];

/// A buffer in which parts are lent, and how the harness looks at it.
pub(super) trait Ground: Send + 'static {
    type Part: Send + 'static;

    /// `None` while somebody has any of the bytes.
    fn lend(&mut self, range: Range<usize>) -> Option<Self::Part>;
    fn split(part: &mut Self::Part, at: usize) -> Self::Part;
    fn range(part: &Self::Part) -> Range<usize>;
    fn address(part: &mut Self::Part) -> u64;
}

/// How the bytes of a part are reached.
pub(super) trait Access<P>: Send + Sync + 'static {
    fn fill(&self, part: &mut P, fill: impl FnOnce(&mut [u8]));
    fn look<T>(&self, part: &P, look: impl FnOnce(&[u8]) -> T) -> T;
}

impl Ground for HostBuffer {
    type Part = HostPart;

    fn lend(&mut self, range: Range<usize>) -> Option<HostPart> {
        self.part(range).ok()
    }

    fn split(part: &mut HostPart, at: usize) -> HostPart {
        part.split_off(at).expect("inside the part")
    }

    fn range(part: &HostPart) -> Range<usize> {
        part.range()
    }

    fn address(part: &mut HostPart) -> u64 {
        part.as_mut_slice().as_mut_ptr().expose_provenance() as u64
    }
}

impl Ground for DeviceBuffer {
    type Part = DevicePart;

    fn lend(&mut self, range: Range<usize>) -> Option<DevicePart> {
        self.part(range).ok()
    }

    fn split(part: &mut DevicePart, at: usize) -> DevicePart {
        part.split_off(at).expect("inside the part")
    }

    fn range(part: &DevicePart) -> Range<usize> {
        part.range()
    }

    fn address(part: &mut DevicePart) -> u64 {
        part.address()
    }
}

/// Host memory is there for everybody. With what has to live as long, if anything has.
#[derive(Debug)]
pub(super) struct InHost<K>(pub(super) K);

impl<K: Send + Sync + 'static> Access<HostPart> for InHost<K> {
    fn fill(&self, part: &mut HostPart, fill: impl FnOnce(&mut [u8])) {
        fill(part.as_mut_slice());
    }

    fn look<T>(&self, part: &HostPart, look: impl FnOnce(&[u8]) -> T) -> T {
        look(part.as_slice())
    }
}

/// The harness's side of a part that an operation has.
#[derive(Debug)]
#[must_use = "a cell that is not given back is never used again"]
pub(super) struct Held<P> {
    cell: usize,
    before: P,
    behind: P,
    range: Range<usize>,
    pattern: u64,
}

struct Resting<P> {
    held: Held<P>,
    middle: P,
    /// Of the middle.
    pattern: u64,
    until: Instant,
}

/// What the harness has seen stores do that nobody should have made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Harm {
    /// Outside of a part while it was lent.
    pub(super) outside: u64,
    /// Anywhere in a cell after its part was given back.
    pub(super) late: u64,
}

/// One buffer in cells.
pub(super) struct Arena<G: Ground, A> {
    /// Before the buffer in order of drops: it may be what the driver knows of that.
    access: A,
    sizes: Sizes,
    cells: Vec<Range<usize>>,
    rest: Duration,
    inside: Mutex<Inside<G>>,
}

struct Inside<G: Ground> {
    ground: G,
    /// Of each size.
    free: Vec<Vec<usize>>,
    resting: VecDeque<Resting<G::Part>>,
    uses: u64,
    harm: Harm,
}

/// The length of the buffer that an arena is made of.
pub(super) fn length(sizes: Sizes) -> usize {
    sizes.iter().map(|(size, count)| size * count).sum()
}

impl<G: Ground, A: Access<G::Part>> Arena<G, A> {
    /// Cells rest for `rest`.
    pub(super) fn new(ground: G, access: A, sizes: Sizes, rest: Duration) -> Self {
        let mut cells = Vec::new();
        let mut free = vec![Vec::new(); sizes.len()];
        let mut start = 0;
        for (free, &(size, count)) in free.iter_mut().zip(sizes) {
            for _ in 0..count {
                free.push(cells.len());
                cells.push(start..start + size);
                start += size;
            }
        }
        let inside = Inside {
            ground,
            free,
            resting: VecDeque::new(),
            uses: 0,
            harm: Harm::default(),
        };
        Self {
            access,
            sizes,
            cells,
            rest,
            inside: Mutex::new(inside),
        }
    }

    /// The most bytes that a part can have.
    pub(super) fn part_max(&self) -> usize {
        self.sizes.last().map_or(0, |(size, _)| size - 2 * FENCE)
    }

    /// A part of `len` bytes at a random place of a free cell. `None` while there is none.
    pub(super) fn take(&self, draws: &mut Draws, len: usize) -> Option<(Held<G::Part>, G::Part)> {
        self.sweep();
        let (cell, mut before, pattern) = {
            let mut inside = lock(&self.inside);
            let fits = |&(size, _): &(usize, usize)| size >= len + 2 * FENCE;
            let class = self.sizes.iter().position(fits)?;
            let cell = inside.free[class..].iter_mut().find_map(Vec::pop)?;
            let whole = inside.ground.lend(self.cells[cell].clone());
            inside.uses += 1;
            let whole = whole.expect("nobody has a free cell");
            (cell, whole, pattern_of(inside.uses))
        };
        self.access
            .fill(&mut before, |bytes| data::fill(pattern, 0, bytes));
        let room = self.cells[cell].len() - len - 2 * FENCE;
        let mut skip = FENCE + usize::try_from(draws.below(room as u64 + 1)).unwrap_or(0);
        // Half of them where a page begins, if one does there.
        if draws.below(2) == 0 && room >= 8192 {
            skip = (skip & !0xfff).max(4096);
        }
        let mut middle = G::split(&mut before, skip);
        let behind = G::split(&mut middle, len);
        let held = Held {
            cell,
            before,
            behind,
            range: G::range(&middle),
            pattern,
        };
        Some((held, middle))
    }

    /// Fills a part with what it is to write.
    pub(super) fn fill(&self, part: &mut G::Part, fill: impl FnOnce(&mut [u8])) {
        self.access.fill(part, fill);
    }

    /// Looks at the bytes of a part.
    pub(super) fn look<T>(&self, part: &G::Part, look: impl FnOnce(&[u8]) -> T) -> T {
        self.access.look(part, look)
    }

    /// The part of an operation that nobody awaits, if it has come back.
    pub(super) fn recover(&self, held: &Held<G::Part>) -> Option<G::Part> {
        lock(&self.inside).ground.lend(held.range.clone())
    }

    /// The operation is over: from now on nothing may be stored here. Says whether the fences held.
    pub(super) fn give_back(&self, held: Held<G::Part>, mut middle: G::Part) -> bool {
        let whole = self.are_fences_whole(&held);
        let pattern = {
            let mut inside = lock(&self.inside);
            inside.harm.outside += u64::from(!whole);
            inside.uses += 1;
            pattern_of(inside.uses)
        };
        self.access
            .fill(&mut middle, |bytes| data::fill(pattern, 0, bytes));
        let resting = Resting {
            held,
            middle,
            pattern,
            until: Instant::now() + self.rest,
        };
        lock(&self.inside).resting.push_back(resting);
        whole
    }

    fn are_fences_whole(&self, held: &Held<G::Part>) -> bool {
        let start = self.cells[held.cell].start;
        [&held.before, &held.behind].into_iter().all(|fence| {
            let offset = (G::range(fence).start - start) as u64;
            self.has(fence, held.pattern, offset)
        })
    }

    fn has(&self, part: &G::Part, pattern: u64, offset: u64) -> bool {
        let is = |bytes: &[u8]| data::first_difference(pattern, offset, bytes).is_none();
        self.access.look(part, is)
    }

    /// Looks at the cells that have rested long enough, and frees them.
    pub(super) fn sweep(&self) {
        self.sweep_until(Instant::now());
    }

    fn sweep_until(&self, now: Instant) {
        loop {
            let resting = {
                let mut inside = lock(&self.inside);
                match inside.resting.front() {
                    Some(oldest) if oldest.until <= now => inside.resting.pop_front(),
                    _ => None,
                }
            };
            let Some(resting) = resting else {
                return;
            };
            let whole = self.has(&resting.middle, resting.pattern, 0)
                && self.are_fences_whole(&resting.held);
            let cell = resting.held.cell;
            drop(resting);
            let mut inside = lock(&self.inside);
            inside.harm.late += u64::from(!whole);
            let size = self.cells[cell].len();
            let class = self.sizes.iter().position(|&(of, _)| of == size);
            inside.free[class.unwrap_or(0)].push(cell);
        }
    }

    /// Whether the oldest cell that rests is as it was left.
    pub(super) fn is_resting_whole(&self) -> bool {
        let inside = lock(&self.inside);
        inside.resting.front().is_none_or(|resting| {
            self.has(&resting.middle, resting.pattern, 0) && self.are_fences_whole(&resting.held)
        })
    }

    /// When the last cell that rests has rested long enough.
    pub(super) fn rested_at(&self) -> Option<Instant> {
        let inside = lock(&self.inside);
        inside.resting.back().map(|last| last.until)
    }

    /// What was seen so far.
    pub(super) fn harm(&self) -> Harm {
        lock(&self.inside).harm
    }

    /// How the harness reaches the memory.
    pub(super) const fn access(&self) -> &A {
        &self.access
    }
}

const fn pattern_of(uses: u64) -> u64 {
    uses.wrapping_mul(0xa076_1d64_78bd_642f) ^ 0xca9a_47ca_9a47_ca9a
}
