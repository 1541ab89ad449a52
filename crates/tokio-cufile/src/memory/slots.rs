//! Staging slots: equal pieces of one mapping, for bytes that cannot go straight to their place.
//!
//! A slot holds whatever passed last, perhaps for another file or another caller. So only what the
//! part itself has put there is copied out of it or written to a file, and neither a child process
//! nor a core dump gets the mapping.

use super::mapping::{Mapping, PAGE_SIZE_MIN, Prefault, Purpose};
use super::range::MemoryRange;
use crate::error::{Error, ErrorKind, Operation, Result};

/// All slots of one engine, in one mapping: one registration covers them.
///
/// Says where slots lie, not who holds them: that is the scheduler's business.
#[derive(Debug)]
pub(crate) struct SlotArena {
    mapping: Mapping,
    count: usize,
    slot_size: usize,
}

impl SlotArena {
    /// `count` zeroed slots of `slot_size` bytes, each aligned to 4096 bytes, the first to 2 MiB
    /// if all together reach that size.
    ///
    /// # Errors
    ///
    /// `InvalidInput` when `count` is 0, when `slot_size` is not a positive multiple of 4096, or
    /// when the product is beyond any address space; `OutOfMemory` when it cannot be had.
    pub(crate) fn new(count: usize, slot_size: usize, prefault: Prefault) -> Result<Self> {
        let total = total_size(count, slot_size).ok_or_else(|| {
            let reason = format!(
                "{count} slots of {slot_size} bytes: at least one, of a multiple of {PAGE_SIZE_MIN}"
            );
            Error::new(ErrorKind::InvalidInput, reason).with_operation(Operation::Build)
        })?;
        let mapping = Mapping::new(total, Purpose::Engine, prefault)
            .map_err(|error| error.with_operation(Operation::Build))?;
        Ok(Self {
            mapping,
            count,
            slot_size,
        })
    }

    /// All of them: one mapping.
    pub(crate) fn memory(&self) -> MemoryRange {
        self.mapping.range()
    }

    /// How many slots.
    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// Where a slot lies.
    ///
    /// # Panics
    ///
    /// When there is no such slot: a bug in the scheduler.
    pub(crate) fn slot(&self, index: usize) -> MemoryRange {
        assert!(index < self.count, "slot {index} of {}", self.count);
        // No overflow: index < count, and count slots fit.
        let slot = self
            .mapping
            .range()
            .sub(index * self.slot_size, self.slot_size);
        slot.expect("count slots fill the mapping exactly")
    }
}

fn total_size(count: usize, slot_size: usize) -> Option<usize> {
    let valid = count > 0 && slot_size > 0 && slot_size.is_multiple_of(PAGE_SIZE_MIN);
    if valid {
        count.checked_mul(slot_size)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_disjoint_aligned_and_fill_the_mapping() {
        let arena = SlotArena::new(5, 3 * 4096, Prefault::OnTouch).unwrap();
        let whole = arena.mapping.range();
        assert_eq!(whole.len(), 5 * 3 * 4096);
        for index in 0..5 {
            let slot = arena.slot(index);
            assert_eq!(slot.address(), whole.address() + index * 3 * 4096);
            assert_eq!(slot.len(), 3 * 4096);
            assert_eq!(slot.address() % 4096, 0);
        }
    }

    #[test]
    #[should_panic(expected = "slot 2 of 2")]
    fn a_slot_that_is_not_there_is_a_bug() {
        let arena = SlotArena::new(2, 4096, Prefault::OnTouch).unwrap();
        arena.slot(2);
    }

    #[test]
    fn sizes_that_cannot_be_are_invalid() {
        for (count, size) in [(0, 4096), (1, 0), (1, 4095), (2, 6000), (usize::MAX, 4096)] {
            let error = SlotArena::new(count, size, Prefault::OnTouch).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{count} x {size}");
        }
    }
}
