//! A read of many ranges as one plan.
//!
//! The operation's bytes, which the completion model counts, are those of its runs one after the
//! other, gaps included. Runs come in file order, so what is behind the end of the file is behind
//! everything else.

use std::sync::Arc;

use super::coalesce::{CoalesceError, FileRange, Run, coalesce};
use super::{
    IN_PLACE_LEN_MIN, Kind, Lane, OFFSET_MAX, Outline, Part, Place, Plan, PlanError, Request,
    align_down, align_up,
};

/// A run of several ranges is no longer than this, window included: it is copied out of its slot by
/// the thread that completes it.
const WINDOW_MAX: u64 = 64 << 10;

/// What all ranges of one operation have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Common {
    /// Kind, alignment and limits. Offsets, length and address are those of no range.
    pub(crate) request: Request,
    /// Where the buffer begins.
    pub(crate) place: Place,
}

impl Common {
    /// Of a range that is read by itself.
    fn alone(&self, range: FileRange) -> Request {
        let place = match self.place {
            Place::Host(address) => {
                let offset = usize::try_from(range.buf_offset).unwrap_or(usize::MAX);
                Place::Host(address.wrapping_add(offset))
            }
            place => place,
        };
        Request {
            kind: Kind::Read,
            file_offset: range.file_offset,
            len: range.len,
            place,
            ..self.request
        }
    }

    /// What offset and length of a direct read are multiples of; 1 where there is none.
    fn unit(&self) -> u64 {
        match self.request.direct {
            Some(direct) if !self.request.cached => direct.offset,
            _ => 1,
        }
    }

    fn window_max(&self) -> u64 {
        let limit = self.request.task_size.min(self.request.slot_size);
        WINDOW_MAX.min(limit as u64)
    }

    /// How long a run of several ranges may be, wherever it begins.
    fn run_len_max(&self) -> u64 {
        if matches!(self.place, Place::Cufile { .. }) {
            return 0; // Each range by itself: cuFile has no slot to scatter from.
        }
        self.window_max().saturating_sub(2 * (self.unit() - 1))
    }

    /// The way of a run of several ranges.
    fn lane(&self, run: &Run) -> Lane {
        let (unit, end) = (self.unit(), run.file_offset + run.len);
        // The kernel refuses a read whose aligned end is beyond the largest offset.
        if unit == 1 || end > align_down(OFFSET_MAX, unit) {
            return match self.place {
                Place::Host(_) | Place::Cufile { on_device: false } => Lane::Buffered,
                Place::Device | Place::Cufile { on_device: true } => Lane::BufferedViaSlot,
            };
        }
        let io_offset = align_down(run.file_offset, unit);
        Lane::DirectViaSlot {
            io_offset,
            io_len: align_up(end, unit) - io_offset,
            skip: run.file_offset - io_offset,
        }
    }
}

/// The runs of an operation, kept until its outcome is known.
#[derive(Debug)]
pub(crate) struct Runs {
    runs: Vec<Run>,
    total: u64,
}

impl Runs {
    /// Ranges at most `gap_max` bytes apart are read together.
    pub(crate) fn new(
        ranges: Vec<FileRange>,
        gap_max: u64,
        common: &Common,
    ) -> Result<Self, CoalesceError> {
        let limits = (gap_max, common.run_len_max());
        let runs = coalesce(ranges, limits, IN_PLACE_LEN_MIN)?;
        let total = runs.iter().map(|run| run.len).sum();
        Ok(Self { runs, total })
    }

    /// Bytes of the operation, gaps included.
    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    /// Where the first range begins in the file.
    pub(crate) fn file_offset(&self) -> u64 {
        self.runs.first().map_or(0, |run| run.file_offset)
    }

    /// The ranges that one part reads.
    pub(crate) fn pieces(&self, run: usize) -> &[FileRange] {
        self.runs.get(run).map_or(&[], |run| &run.pieces)
    }

    /// How many bytes that were asked for lie in the operation's first `done` bytes, and the file
    /// offset of the byte after those.
    pub(crate) fn progress(&self, done: u64) -> (u64, u64) {
        let (mut left, mut wanted, mut end) = (done, 0, self.file_offset());
        for run in &self.runs {
            let moved = left.min(run.len);
            end = run.file_offset + moved;
            wanted += run.wanted_before(end);
            left -= moved;
            if moved < run.len {
                break;
            }
        }
        (wanted, end)
    }
}

/// One part of a read of many ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RangesPart {
    /// Where it begins, counted in the operation's bytes.
    pub(crate) offset: u64,
    /// `buf_offset` is its place in the buffer, if it has one place.
    pub(crate) part: Part,
    /// The run that it reads whole and scatters to its pieces.
    pub(crate) scatter: Option<usize>,
}

/// The parts of a read of many ranges, in file order, made as they are asked for.
#[derive(Debug)]
pub(crate) struct RangesPlan {
    runs: Arc<Runs>,
    common: Common,
    next_run: usize,
    /// Bytes of the operation before the next run.
    before: u64,
    parts_total: u64,
    /// What is left of a range that is read by itself: the parts, and where they begin in the
    /// operation and in the buffer.
    alone: Option<(Plan, u64, u64)>,
}

impl RangesPlan {
    /// The plan, and what it consists of.
    pub(crate) fn new(runs: Arc<Runs>, common: Common) -> Result<(Self, Outline), PlanError> {
        let (mut outline, mut parts_total) = (Outline::default(), 0);
        for run in &runs.runs {
            if let [range] = run.pieces[..] {
                let plan = Plan::new(common.alone(range))?;
                outline.add(&plan.outline());
                parts_total += plan.parts_total();
            } else {
                outline.add(&Self::outline_of(run, &common));
                parts_total += 1;
            }
        }
        let plan = Self {
            runs,
            common,
            next_run: 0,
            before: 0,
            parts_total,
            alone: None,
        };
        Ok((plan, outline))
    }

    /// How many parts there are in all.
    pub(crate) const fn parts_total(&self) -> u64 {
        self.parts_total
    }

    fn outline_of(run: &Run, common: &Common) -> Outline {
        let wanted = run.pieces.iter().map(|piece| piece.len).sum();
        let mut outline = Outline {
            on_device: common.place.is_on_device(),
            ..Outline::default()
        };
        if let Lane::DirectViaSlot { io_len, .. } = common.lane(run) {
            outline.via_slot = wanted;
            outline.slot_io_len_max = io_len;
        } else {
            outline.buffered = wanted;
        }
        outline
    }

    fn next_alone(&mut self) -> Option<RangesPart> {
        let (plan, offset, place) = self.alone.as_mut()?;
        let part = plan.next()?;
        Some(RangesPart {
            offset: *offset + part.buf_offset,
            part: Part {
                buf_offset: *place + part.buf_offset,
                ..part
            },
            scatter: None,
        })
    }
}

impl Iterator for RangesPlan {
    type Item = RangesPart;

    fn next(&mut self) -> Option<RangesPart> {
        loop {
            if let Some(part) = self.next_alone() {
                return Some(part);
            }
            let (index, offset) = (self.next_run, self.before);
            let run = self.runs.runs.get(index)?;
            self.next_run += 1;
            self.before += run.len;
            if let [range] = run.pieces[..] {
                let plan = Plan::new(self.common.alone(range));
                let plan = plan.expect("the same request was planned when the ranges were checked");
                self.alone = Some((plan, offset, range.buf_offset));
                continue;
            }
            let part = Part {
                buf_offset: 0,
                file_offset: run.file_offset,
                len: run.len,
                lane: self.common.lane(run),
            };
            return Some(RangesPart {
                offset,
                part,
                scatter: Some(index),
            });
        }
    }
}
