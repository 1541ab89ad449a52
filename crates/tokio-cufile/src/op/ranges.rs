//! Many ranges of a file in one read.

use std::sync::Arc;

use super::parts::Cut;
use super::planned::request;
use crate::engine::Shared;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Region;
use crate::plan::ranges::{Common, RangesPlan, Runs};
use crate::plan::route::FileRoute;
use crate::plan::{Kind, Outline, coalesce};

/// A range of a file, and its place in the buffer that it is read into.
///
/// A plain struct on purpose: these three numbers say all there is to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "made by users, by the thousand")]
pub struct FileRange {
    /// Where it begins in the file, in bytes.
    pub file_offset: u64,
    /// Its length in bytes. An empty range reads nothing.
    pub len: usize,
    /// Where its first byte goes, counted from the buffer's start.
    pub buf_offset: usize,
}

/// Ranges to read together: see [`AsyncCuFile::read_ranges`](crate::AsyncCuFile::read_ranges).
#[derive(Clone, Debug)]
#[must_use = "ranges do nothing until they are read"]
pub struct Ranges {
    ranges: Vec<FileRange>,
    gap_max: u64,
}

impl Ranges {
    /// The most ranges that one operation takes. Sorting and checking that many costs a few
    /// milliseconds of the calling thread (an estimate).
    pub const MAX: usize = 1 << 16;

    /// What [`gap_max`](Self::gap_max) is by default: about what a disk reads in the time that one
    /// more request costs (an estimate, for 3 GB/s and 5 microseconds).
    pub const GAP_MAX_DEFAULT: u64 = 16 << 10;

    /// These ranges, in any order.
    pub const fn new(ranges: Vec<FileRange>) -> Self {
        Self {
            ranges,
            gap_max: Self::GAP_MAX_DEFAULT,
        }
    }

    /// Ranges at most `bytes` apart in the file are read by one request, and what lies between them
    /// is read and dropped.
    pub const fn gap_max(mut self, bytes: u64) -> Self {
        self.gap_max = bytes;
        self
    }

    /// The lowest file offset, and how many bytes are asked for.
    pub(super) fn extent(&self) -> (u64, usize) {
        let wanted = self.ranges.iter().filter(|range| range.len > 0);
        let first = wanted.clone().map(|range| range.file_offset).min();
        let len = wanted.fold(0_usize, |sum, range| sum.saturating_add(range.len));
        (first.unwrap_or(0), len)
    }

    /// How they are cut, and what that consists of.
    pub(super) fn plan(
        self,
        engine: &Shared,
        memory: Region,
        route: &FileRoute,
    ) -> Result<(Cut, Outline)> {
        if self.ranges.len() > Self::MAX {
            let (count, max) = (self.ranges.len(), Self::MAX);
            let reason = format!("{count} ranges, at most {max} are taken at once");
            return Err(Error::new(ErrorKind::InvalidInput, reason));
        }
        let inside = |range: &FileRange| {
            let end = range.buf_offset.checked_add(range.len);
            end.is_some_and(|end| end <= memory.len())
        };
        if let Some(range) = self.ranges.iter().find(|range| !inside(range)) {
            let reason = format!("{range:?} lies outside a buffer of {} bytes", memory.len());
            return Err(Error::new(ErrorKind::InvalidInput, reason));
        }
        let wanted = self.ranges.iter().map(|range| range.len);
        let smallest = wanted.filter(|&len| len > 0).min().unwrap_or(0);
        let request = request(engine, (Kind::Read, 0), memory, route, smallest);
        let common = Common {
            place: request.place,
            request,
        };
        let ranges = self.ranges.into_iter().map(planned).collect();
        let runs = Runs::new(ranges, self.gap_max, &common).map_err(|error| {
            Error::new(ErrorKind::InvalidInput, error.to_string()).with_source(error)
        })?;
        let runs = Arc::new(runs);
        let (plan, outline) = RangesPlan::new(Arc::clone(&runs), common)?;
        Ok((Cut::Many(plan, runs), outline))
    }
}

const fn planned(range: FileRange) -> coalesce::FileRange {
    coalesce::FileRange {
        file_offset: range.file_offset,
        len: range.len as u64,
        buf_offset: range.buf_offset as u64,
    }
}

impl From<Vec<FileRange>> for Ranges {
    fn from(ranges: Vec<FileRange>) -> Self {
        Self::new(ranges)
    }
}
