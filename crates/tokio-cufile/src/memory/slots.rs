//! Staging slots: equal pieces of one mapping, for bytes that cannot go straight to their place.
//!
//! A slot holds whatever passed last, perhaps for another file or another caller. So only the
//! valid length of a slot is ever copied out of it, padding is zeroed before it is written to a
//! file, and neither a child process nor a core dump gets the mapping.
#![allow(
    unsafe_code,
    reason = "zeroing acts on slot bytes by address; who holds which slot is known to the pool only"
)]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;

use super::mapping::{Mapping, PAGE_SIZE_MIN, Prefault, Purpose};
use super::range::MemoryRange;
use crate::error::{Error, ErrorKind, Operation, Result};

/// All slots of one engine, in one mapping: one registration covers them.
///
/// Says where slots lie, not who holds them: that is the pool's business.
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

    /// How many slots.
    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// The length of each in bytes.
    pub(crate) const fn slot_size(&self) -> usize {
        self.slot_size
    }

    /// All slots as one range, for registration.
    pub(crate) fn range(&self) -> MemoryRange {
        self.mapping.range()
    }

    /// Where a slot lies.
    ///
    /// # Panics
    ///
    /// When there is no such slot: a bug in the pool.
    pub(crate) fn slot(&self, index: usize) -> MemoryRange {
        assert!(index < self.count, "slot {index} of {}", self.count);
        // No overflow: index < count, and count slots fit.
        let slot = self
            .mapping
            .range()
            .sub(index * self.slot_size, self.slot_size);
        slot.expect("count slots fill the mapping exactly")
    }

    /// Clears a slot, before it passes to another security domain.
    ///
    /// # Panics
    ///
    /// As [`slot`](Self::slot).
    ///
    /// # Safety
    ///
    /// The caller holds the slot, and nothing is in flight into or out of it.
    pub(crate) unsafe fn zero(&self, index: usize) {
        // SAFETY: the arena lives and its mapping is writable; the caller has the slot alone.
        unsafe { self.slot(index).zero() }
    }

    /// How many bytes of the arena are on huge pages now, as the kernel counts; `None` where it
    /// does not say. Untouched memory counts as 0. Reads a file in `/proc`: for reports only.
    pub(crate) fn huge_page_bytes(&self) -> Option<u64> {
        let smaps = File::open("/proc/self/smaps").ok()?;
        let start = self.mapping.range().address();
        let range = to_u64(start)?..to_u64(start + self.mapping.range().len())?;
        anonymous_huge_bytes(BufReader::new(smaps), &range)
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

fn to_u64(value: usize) -> Option<u64> {
    u64::try_from(value).ok()
}

/// The sum of `AnonHugePages` over the areas that meet `range`; `None` when no area does, or none
/// of them tells. An area may be larger than `range`, as the kernel joins neighbours: the sum is
/// capped by its length.
fn anonymous_huge_bytes(smaps: impl BufRead, range: &Range<u64>) -> Option<u64> {
    let mut in_range = false;
    let mut sum: Option<u64> = None;
    // By bytes: the names of mapped files need not be text.
    for line in smaps.split(b'\n') {
        let line = line.ok()?;
        let line = String::from_utf8_lossy(&line);
        if let Some(area) = area_of_header(&line) {
            in_range = area.start < range.end && range.start < area.end;
        } else if in_range && let Some(kilobytes) = line.strip_prefix("AnonHugePages:") {
            let kilobytes: u64 = kilobytes.trim().strip_suffix("kB")?.trim().parse().ok()?;
            let bytes = kilobytes.checked_mul(1024)?;
            sum = Some(sum.unwrap_or(0).saturating_add(bytes));
        }
    }
    sum.map(|bytes| bytes.min(range.end.saturating_sub(range.start)))
}

/// The addresses of a line such as `7f00-7f80 rw-p 00000000 00:00 0 [heap]`.
fn area_of_header(line: &str) -> Option<Range<u64>> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    let parse = |text| u64::from_str_radix(text, 16).ok();
    Some(parse(start)?..parse(end)?)
}

#[cfg(test)]
mod tests {
    use super::super::mapping::HUGE_PAGE_SIZE;
    use super::*;

    fn bytes(slot: MemoryRange) -> Vec<u8> {
        let mut copy = vec![0xff; slot.len()];
        let to = std::ptr::NonNull::new(copy.as_mut_ptr()).expect("not null");
        // SAFETY: pointer and length are those of the Vec.
        let to = unsafe { MemoryRange::new(to, slot.len()) };
        // SAFETY: the arena lives, nothing is in flight, the Vec is apart from it.
        unsafe { slot.copy_to(to) };
        copy
    }

    fn write(slot: MemoryRange, byte: u8) {
        let mut content = vec![byte; slot.len()];
        let from = std::ptr::NonNull::new(content.as_mut_ptr()).expect("not null");
        // SAFETY: pointer and length are those of the Vec.
        let from = unsafe { MemoryRange::new(from, slot.len()) };
        // SAFETY: the arena lives, nothing is in flight, the Vec is apart from it.
        unsafe { from.copy_to(slot) };
    }

    #[test]
    fn slots_are_disjoint_aligned_and_fill_the_mapping() {
        let arena = SlotArena::new(5, 3 * 4096, Prefault::OnTouch).unwrap();
        let whole = arena.range();
        assert_eq!(whole.len(), arena.count() * arena.slot_size());
        for index in 0..arena.count() {
            let slot = arena.slot(index);
            assert_eq!(slot.address(), whole.address() + index * 3 * 4096);
            assert_eq!(slot.len(), 3 * 4096);
            assert_eq!(slot.address() % 4096, 0);
        }
    }

    #[test]
    fn zeroing_a_slot_leaves_its_neighbours() {
        let arena = SlotArena::new(3, 4096, Prefault::Now).unwrap();
        for index in 0..3 {
            assert_eq!(bytes(arena.slot(index)), [0; 4096]);
            write(arena.slot(index), 7);
        }
        // SAFETY: nothing is in flight.
        unsafe { arena.zero(1) };
        assert_eq!(bytes(arena.slot(0)), [7; 4096]);
        assert_eq!(bytes(arena.slot(1)), [0; 4096]);
        assert_eq!(bytes(arena.slot(2)), [7; 4096]);
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

    #[test]
    fn the_kernel_counts_huge_pages_of_a_large_arena() {
        let arena = SlotArena::new(4, HUGE_PAGE_SIZE, Prefault::Now).unwrap();
        assert_eq!(arena.range().address() % HUGE_PAGE_SIZE, 0);
        let total = u64::try_from(arena.range().len()).unwrap();
        // How many it grants is the system's choice; that it says so for this range is not.
        if let Some(bytes) = arena.huge_page_bytes() {
            assert!(bytes <= total && bytes % 1024 == 0, "{bytes}");
        } else {
            assert!(
                File::open("/proc/self/smaps").is_err(),
                "no count though smaps is there"
            );
        }
    }

    const SMAPS: &[u8] = b"1000-3000 rw-p 00000000 00:00 0 \n\
        Size:                  8 kB\n\
        AnonHugePages:         4 kB\n\
        VmFlags: rd wr\n\
        3000-5000 r--p 00000000 fe:00 247030      /lib/\xff\xfe.so\n\
        AnonHugePages:         8 kB\n\
        5000-6000 rw-p 00000000 00:00 0 [heap]\n\
        Size:                  4 kB\n";

    #[test]
    fn huge_bytes_are_summed_over_the_areas_that_meet_the_range() {
        assert_eq!(anonymous_huge_bytes(SMAPS, &(0x1000..0x3000)), Some(4096));
        assert_eq!(
            anonymous_huge_bytes(SMAPS, &(0x1000..0x5000)),
            Some(3 * 4096)
        );
        assert_eq!(anonymous_huge_bytes(SMAPS, &(0x2fff..0x3001)), Some(2));
    }

    #[test]
    fn huge_bytes_are_unknown_where_the_kernel_does_not_tell() {
        assert_eq!(anonymous_huge_bytes(SMAPS, &(0x5000..0x6000)), None);
        assert_eq!(anonymous_huge_bytes(SMAPS, &(0x6000..0x7000)), None);
        assert_eq!(anonymous_huge_bytes(&b""[..], &(0..u64::MAX)), None);
        let garbled = b"0-ffff rw-p\nAnonHugePages: many kB\n";
        assert_eq!(anonymous_huge_bytes(&garbled[..], &(0..1)), None);
    }
}
