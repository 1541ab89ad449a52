//! Many small ranges of a file as few reads.
//!
//! Ranges that lie close together are read by one run, gap included, and scattered to their
//! places in memory.

use std::fmt;

use super::OFFSET_MAX;

/// A wanted range of the file and its place in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileRange {
    pub(crate) file_offset: u64,
    pub(crate) len: u64,
    pub(crate) buf_offset: u64,
}

/// A stretch of the file to read at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) file_offset: u64,
    pub(crate) len: u64,
    /// The wanted ranges inside, by file offset. Several may want the same bytes.
    pub(crate) pieces: Vec<FileRange>,
}

impl Run {
    fn new(range: FileRange) -> Self {
        Self {
            file_offset: range.file_offset,
            len: range.len,
            pieces: vec![range],
        }
    }

    /// The run's length if it took `next` in, which starts no earlier than the run.
    fn len_with(&self, next: FileRange) -> u64 {
        self.len.max(next.file_offset - self.file_offset + next.len)
    }

    /// Bytes of all pieces that lie before file offset `end`.
    pub(crate) fn wanted_before(&self, end: u64) -> u64 {
        let before = |piece: &FileRange| end.saturating_sub(piece.file_offset).min(piece.len);
        self.pieces.iter().map(before).sum()
    }

    fn gap_before(&self, next: FileRange) -> u64 {
        (next.file_offset - self.file_offset).saturating_sub(self.len)
    }
}

/// Why ranges cannot be read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CoalesceError {
    /// A range ends beyond the largest offset, in the file or in the buffer.
    RangeTooLarge(FileRange),
    /// Two ranges want the same bytes of the buffer.
    DestinationsOverlap(FileRange, FileRange),
}

impl fmt::Display for CoalesceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RangeTooLarge(range) => {
                write!(
                    f,
                    "a range is too large: offset {}, {} bytes",
                    range.file_offset, range.len
                )
            }
            Self::DestinationsOverlap(one, other) => write!(
                f,
                "ranges at file offsets {} and {} overlap in the buffer",
                one.file_offset, other.file_offset
            ),
        }
    }
}

impl std::error::Error for CoalesceError {}

/// Merges ranges at most `gap_max` bytes apart into runs of at most `run_len_max` bytes, in file
/// order. A range longer than that, or than `piece_len_max`, is a run of its own: it is worth a
/// read without a copy. Empty ranges vanish.
pub(crate) fn coalesce(
    mut ranges: Vec<FileRange>,
    (gap_max, run_len_max): (u64, u64),
    piece_len_max: u64,
) -> Result<Vec<Run>, CoalesceError> {
    ranges.retain(|range| range.len > 0);
    check(&mut ranges)?;
    ranges.sort_unstable_by_key(|range| (range.file_offset, range.len, range.buf_offset));

    let mut runs: Vec<Run> = Vec::new();
    for range in ranges {
        let joins = |run: &Run| {
            run.gap_before(range) <= gap_max
                && run.len_with(range) <= run_len_max
                && range.len <= piece_len_max
                && run.pieces[0].len <= piece_len_max
        };
        match runs.last_mut() {
            Some(run) if joins(run) => {
                run.len = run.len_with(range);
                run.pieces.push(range);
            }
            _ => runs.push(Run::new(range)),
        }
    }
    Ok(runs)
}

fn check(ranges: &mut [FileRange]) -> Result<(), CoalesceError> {
    let fits = |offset: u64, len| offset.checked_add(len).is_some_and(|end| end <= OFFSET_MAX);
    let too_large = |range: &&FileRange| {
        !fits(range.file_offset, range.len) || !fits(range.buf_offset, range.len)
    };
    if let Some(range) = ranges.iter().find(too_large) {
        return Err(CoalesceError::RangeTooLarge(*range));
    }
    ranges.sort_unstable_by_key(|range| (range.buf_offset, range.file_offset));
    let overlap = |pair: &&[FileRange]| pair[0].buf_offset + pair[0].len > pair[1].buf_offset;
    match ranges.windows(2).find(overlap) {
        Some(pair) => Err(CoalesceError::DestinationsOverlap(pair[0], pair[1])),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(file_offset: u64, len: u64, buf_offset: u64) -> FileRange {
        FileRange {
            file_offset,
            len,
            buf_offset,
        }
    }

    #[test]
    fn ranges_within_the_gap_are_one_run_and_others_are_not() {
        let near = [range(0, 10, 0), range(15, 10, 10)];
        let far = range(100, 10, 20);
        let runs = coalesce(vec![far, near[1], near[0]], (5, 1000), 1000);
        assert_eq!(
            runs,
            Ok(vec![
                Run {
                    file_offset: 0,
                    len: 25,
                    pieces: near.to_vec()
                },
                Run {
                    file_offset: 100,
                    len: 10,
                    pieces: vec![far]
                },
            ])
        );
    }

    #[test]
    fn a_run_stops_at_the_limit_and_a_longer_range_stands_alone() {
        let ranges = vec![range(0, 60, 0), range(60, 60, 60), range(120, 500, 120)];
        let runs = coalesce(ranges, (0, 100), 100).expect("valid");
        assert_eq!(
            runs.iter().map(|run| run.len).collect::<Vec<_>>(),
            [60, 60, 500]
        );
    }

    #[test]
    fn the_same_bytes_may_go_to_two_places() {
        let runs = coalesce(vec![range(0, 10, 0), range(0, 4, 50)], (0, 100), 100).expect("valid");
        assert_eq!(runs.len(), 1);
        assert_eq!((runs[0].len, runs[0].pieces.len()), (10, 2));
    }

    #[test]
    fn two_ranges_for_one_place_are_refused() {
        let refused = coalesce(vec![range(0, 10, 0), range(50, 10, 9)], (0, 100), 100);
        let expected = CoalesceError::DestinationsOverlap(range(0, 10, 0), range(50, 10, 9));
        assert_eq!(refused, Err(expected));
    }

    #[test]
    fn a_range_beyond_the_largest_offset_is_refused_and_an_empty_one_vanishes() {
        let beyond = range(u64::MAX, 2, 0);
        assert_eq!(
            coalesce(vec![beyond], (0, 100), 100),
            Err(CoalesceError::RangeTooLarge(beyond))
        );
        assert_eq!(coalesce(vec![range(5, 0, 0)], (0, 100), 100), Ok(vec![]));
    }

    proptest! {
        #[test]
        fn every_range_is_in_one_run_and_runs_keep_the_limits(
            places in prop::collection::vec((0u64..2000, 0u64..80), 0..60),
            gap_max in 0u64..50,
            run_len_max in 0u64..400,
            piece_len_max in 0u64..100,
        ) {
            let mut buf_offset = 0;
            let mut wanted = Vec::new();
            for (file_offset, len) in places {
                wanted.push(range(file_offset, len, buf_offset));
                buf_offset += len;
            }
            let runs = coalesce(wanted.clone(), (gap_max, run_len_max), piece_len_max).expect("valid");
            wanted.retain(|range| range.len > 0);
            let mut found: Vec<_> = runs.iter().flat_map(|run| run.pieces.clone()).collect();
            found.sort_unstable_by_key(|range| range.buf_offset);
            prop_assert_eq!(found, wanted);
            for run in &runs {
                let longest = run.pieces.iter().map(|piece| piece.len).max();
                let keeps = run.len <= run_len_max && longest <= Some(piece_len_max);
                prop_assert!(run.pieces.len() == 1 || keeps);
                let mut end = run.file_offset;
                for piece in &run.pieces {
                    prop_assert!(run.file_offset <= piece.file_offset);
                    prop_assert!(piece.file_offset <= end + gap_max);
                    end = end.max(piece.file_offset + piece.len);
                }
                prop_assert_eq!(end, run.file_offset + run.len);
            }
        }
    }
}
