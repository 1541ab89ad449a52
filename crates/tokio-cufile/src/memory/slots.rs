//! Staging slots: equal pieces of one mapping, for bytes that cannot go straight to their place.
//!
//! A slot holds whatever passed last, perhaps for another file or another caller. So only what the
//! part itself has put there is copied out of it or written to a file, and neither a child process
//! nor a core dump gets the mapping.

use completion::SlotSize;

use super::mapping::{Mapping, PAGE_SIZE_MIN, Prefault, Purpose};
use super::range::MemoryRange;
use crate::error::{Error, ErrorKind, Operation, Result};

/// How an engine's slots are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotLayout {
    /// Large slots, which come first.
    pub(crate) large: usize,
    pub(crate) large_size: usize,
    /// Small ones: none where the large ones are small themselves.
    pub(crate) small: usize,
}

impl SlotLayout {
    /// Bytes in a small slot: what the ring copies itself is no longer.
    pub(crate) const SMALL_SIZE: usize = 64 << 10;

    /// One in so many of the bytes is for small slots.
    const SMALL_SHARE: usize = 8;

    /// As many as `budget` bytes hold, and no more of one size than `parts_max` can use at once.
    pub(crate) fn new(budget: usize, large_size: usize, parts_max: usize) -> Self {
        let small = if large_size > Self::SMALL_SIZE {
            (budget / Self::SMALL_SHARE / Self::SMALL_SIZE).min(parts_max)
        } else {
            0
        };
        let left = budget - small * Self::SMALL_SIZE;
        // Where there is no room for both, every part takes a large one.
        let small = if left < large_size { 0 } else { small };
        let left = budget - small * Self::SMALL_SIZE;
        Self {
            large: (left / large_size).min(parts_max).max(1),
            large_size,
            small,
        }
    }

    /// The smaller slot that holds `len` bytes.
    pub(crate) const fn size_for(self, len: u64) -> SlotSize {
        if self.small > 0 && len <= Self::SMALL_SIZE as u64 {
            SlotSize::Small
        } else {
            SlotSize::Large
        }
    }

    fn total(self) -> Option<usize> {
        let valid =
            self.large > 0 && self.large_size > 0 && self.large_size.is_multiple_of(PAGE_SIZE_MIN);
        let large = self.large.checked_mul(self.large_size).filter(|_| valid)?;
        large.checked_add(self.small.checked_mul(Self::SMALL_SIZE)?)
    }
}

/// All slots of one engine, in one mapping: one registration covers them.
///
/// Says where slots lie, not who holds them: that is the scheduler's business.
#[derive(Debug)]
pub(crate) struct SlotArena {
    mapping: Mapping,
    layout: SlotLayout,
}

impl SlotArena {
    /// Zeroed slots, each aligned to 4096 bytes, the first to 2 MiB if all together reach that size.
    ///
    /// # Errors
    ///
    /// `InvalidInput` when there is no large slot, when its size is not a positive multiple of 4096,
    /// or when all are beyond any address space; `OutOfMemory` when it cannot be had.
    pub(crate) fn new(layout: SlotLayout, prefault: Prefault) -> Result<Self> {
        let total = layout.total().ok_or_else(|| {
            let reason = format!("{layout:?}: at least one, of a multiple of {PAGE_SIZE_MIN}");
            Error::new(ErrorKind::InvalidInput, reason).with_operation(Operation::Build)
        })?;
        let mapping = Mapping::new(total, Purpose::Engine, prefault)
            .map_err(|error| error.with_operation(Operation::Build))?;
        Ok(Self { mapping, layout })
    }

    /// All of them: one mapping.
    pub(crate) fn memory(&self) -> MemoryRange {
        self.mapping.range()
    }

    /// How many slots.
    pub(crate) const fn count(&self) -> usize {
        self.layout.large + self.layout.small
    }

    /// Where a slot lies: the large ones come first.
    ///
    /// # Panics
    ///
    /// When there is no such slot: a bug in the scheduler.
    pub(crate) fn slot(&self, index: usize) -> MemoryRange {
        assert!(index < self.count(), "slot {index} of {}", self.count());
        let SlotLayout {
            large, large_size, ..
        } = self.layout;
        // No overflow: the index is of a slot, and all slots fit.
        let (start, size) = match index.checked_sub(large) {
            None => (index * large_size, large_size),
            Some(small) => (
                large * large_size + small * SlotLayout::SMALL_SIZE,
                SlotLayout::SMALL_SIZE,
            ),
        };
        let slot = self.mapping.range().sub(start, size);
        slot.expect("the slots fill the mapping exactly")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(large: usize, large_size: usize, small: usize) -> SlotLayout {
        SlotLayout {
            large,
            large_size,
            small,
        }
    }

    #[test]
    fn slots_are_disjoint_aligned_and_fill_the_mapping() {
        let arena = SlotArena::new(layout(5, 3 * 4096, 2), Prefault::OnTouch).unwrap();
        let whole = arena.mapping.range();
        let sizes = [[3 * 4096; 5].as_slice(), &[SlotLayout::SMALL_SIZE; 2]].concat();
        assert_eq!(whole.len(), sizes.iter().sum::<usize>());
        let mut next = whole.address();
        for (index, size) in sizes.into_iter().enumerate() {
            let slot = arena.slot(index);
            assert_eq!((slot.address(), slot.len()), (next, size));
            assert_eq!(slot.address() % 4096, 0);
            next += size;
        }
    }

    #[test]
    #[should_panic(expected = "slot 3 of 3")]
    fn a_slot_that_is_not_there_is_a_bug() {
        let arena = SlotArena::new(layout(2, 4096, 1), Prefault::OnTouch).unwrap();
        arena.slot(3);
    }

    #[test]
    fn sizes_that_cannot_be_are_invalid() {
        for (count, size) in [(0, 4096), (1, 0), (1, 4095), (2, 6000), (usize::MAX, 4096)] {
            let error = SlotArena::new(layout(count, size, 0), Prefault::OnTouch).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{count} x {size}");
        }
    }

    #[test]
    fn a_layout_stays_within_its_budget_and_has_room_for_a_part_of_any_size() {
        for large_size in [4096, 8192, 64 << 10, 128 << 10, 4 << 20] {
            for budget in [1, 2, 3, 9, 16, 100].map(|slots| slots * large_size) {
                for parts_max in [1, 8, 136] {
                    let layout = SlotLayout::new(budget, large_size, parts_max);
                    assert!(
                        layout.total().is_some_and(|total| total <= budget),
                        "{layout:?}"
                    );
                    assert!(layout.large > 0 && layout.large.max(layout.small) <= parts_max);
                    let whole = layout.size_for(large_size as u64);
                    assert!(whole == SlotSize::Large || large_size <= SlotLayout::SMALL_SIZE);
                    assert_eq!(layout.size_for(1) == SlotSize::Small, layout.small > 0);
                }
            }
        }
        let default = SlotLayout::new(128 << 20, 4 << 20, 136);
        assert_eq!((default.large, default.small), (29, 136));
    }
}
