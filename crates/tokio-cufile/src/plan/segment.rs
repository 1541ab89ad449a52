//! Stretches of a file that go by one lane, and where they are cut.

use super::IO_LEN_MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneClass {
    InPlace,
    Cufile,
    ViaSlot,
    Buffered,
}

/// A stretch of the file that goes by one lane, cut at `base + k * step`: a first part that
/// begins unaligned is short, and all later ones begin aligned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) class: LaneClass,
    pub(super) range: Range,
    pub(super) step: u64,
    pub(super) base: u64,
}

impl Segment {
    pub(super) const EMPTY: Self = Self {
        class: LaneClass::Buffered,
        range: Range { start: 0, end: 0 },
        step: 1,
        base: 0,
    };

    pub(super) fn buffered(range: Range, task_len_max: u64, page_size: u64) -> Self {
        let step = step(task_len_max, 1, page_size);
        let base = if is_aligned(step, page_size) {
            align_down(range.start, page_size)
        } else {
            range.start
        };
        Self {
            class: LaneClass::Buffered,
            range,
            step,
            base,
        }
    }

    /// Takes the first part off.
    pub(super) fn cut(&mut self) -> Range {
        let Range { start, end } = self.range;
        let into_step = (start - self.base) % self.step;
        let cut = end.min(start + (self.step - into_step));
        debug_assert!(start < cut && cut - start <= IO_LEN_MAX);
        self.range.start = cut;
        Range { start, end: cut }
    }

    pub(super) fn parts_total(&self) -> u64 {
        if self.range.is_empty() {
            return 0;
        }
        let before = (self.range.start - self.base) / self.step;
        (self.range.end - self.base).div_ceil(self.step) - before
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Range {
    pub(super) const fn is_empty(self) -> bool {
        self.start >= self.end
    }

    pub(super) const fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// The longest step within `len_max` that keeps parts aligned: to whole pages where that is
/// possible, since several writers of one page take turns, and at least to `unit`.
pub(super) fn step(len_max: u64, unit: u64, page_size: u64) -> u64 {
    let page_unit = unit.max(page_size);
    let unit = if len_max >= page_unit {
        page_unit
    } else {
        unit
    };
    align_down(len_max, unit)
}

pub(super) const fn align_down(value: u64, alignment: u64) -> u64 {
    value & !(alignment - 1)
}

pub(super) const fn align_up(value: u64, alignment: u64) -> u64 {
    align_down(value + (alignment - 1), alignment)
}

pub(super) const fn is_aligned(value: u64, alignment: u64) -> bool {
    value & (alignment - 1) == 0
}
