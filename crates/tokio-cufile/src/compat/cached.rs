//! Which bytes of a range are in the page cache: those are copied from there, and not read again
//! from the disk.

use std::os::fd::BorrowedFd;

use crate::os::{CachedPages, cached_pages};

/// A range that is cached in part is halved down to pieces of this many bytes at least. Smaller
/// requests would cost more than the disk saves.
const PIECE_LEN_MIN: usize = 256 << 10;

/// A part is cut into this many pieces at most.
const PIECES_MAX: usize = 16;

/// A run of bytes that are all taken from one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) cached: bool,
}

/// Where the bytes of a range are, in order and without gaps.
///
/// A range that is all in one place, as every small one is, needs no memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Residency {
    first: Piece,
    rest: Vec<Piece>,
}

impl Residency {
    /// All on the disk.
    pub(super) const fn none(len: usize) -> Self {
        let first = Piece {
            start: 0,
            end: len,
            cached: false,
        };
        Self {
            first,
            rest: Vec::new(),
        }
    }

    pub(super) fn pieces(&self) -> impl DoubleEndedIterator<Item = Piece> + '_ {
        std::iter::once(self.first).chain(self.rest.iter().copied())
    }

    pub(super) fn is_all_cached(&self) -> bool {
        self.pieces().all(|piece| piece.cached)
    }

    /// Adds the next piece, or lengthens the last one where both are in one place.
    fn push(&mut self, piece: Piece) {
        let last = self.rest.last_mut().unwrap_or(&mut self.first);
        // Nothing was found yet.
        if last.end == 0 {
            *last = piece;
        } else if last.cached == piece.cached {
            last.end = piece.end;
        } else {
            self.rest.push(piece);
        }
    }

    /// Asks the kernel about `len` bytes at `offset`. What is not known counts as not cached.
    pub(super) fn look(fd: BorrowedFd<'_>, offset: u64, len: usize, alignment: usize) -> Self {
        Self::find(len, alignment, |start, end| {
            cached_pages(fd, offset + start as u64, (end - start) as u64)
        })
    }

    /// Cuts `0..len` at multiples of `alignment`, asking `cached` about ranges.
    fn find(len: usize, alignment: usize, cached: impl Fn(usize, usize) -> CachedPages) -> Self {
        let mut found = Self::none(0);
        // Ranges yet to be judged after this one, the next one last.
        let mut open: Vec<(usize, usize)> = Vec::new();
        let mut next = Some((0, len));
        while let Some((start, end)) = next {
            let middle = start + ((end - start) / 2).next_multiple_of(alignment);
            let can_halve = end - start > PIECE_LEN_MIN
                && middle < end
                && found.pieces().count() + open.len() + 2 <= PIECES_MAX;
            let residency = cached(start, end);
            if residency == CachedPages::Some && can_halve {
                open.push((middle, end));
                next = Some((start, middle));
                continue;
            }
            found.push(Piece {
                start,
                end,
                cached: residency == CachedPages::All,
            });
            next = open.pop();
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 4 << 20;

    /// Residency of `0..LEN` where the bytes of `cached` are in the page cache.
    fn with(cached: std::ops::Range<usize>) -> Vec<Piece> {
        let residency = Residency::find(LEN, 4096, |start, end| {
            let overlap = end.min(cached.end).saturating_sub(start.max(cached.start));
            match overlap {
                0 => CachedPages::None,
                all if all == end - start => CachedPages::All,
                _ => CachedPages::Some,
            }
        });
        residency.pieces().collect()
    }

    #[test]
    fn a_cold_and_a_warm_range_stay_whole() {
        assert_eq!(
            with(0..0),
            [Piece {
                start: 0,
                end: LEN,
                cached: false
            }]
        );
        assert_eq!(
            with(0..LEN),
            [Piece {
                start: 0,
                end: LEN,
                cached: true
            }]
        );
    }

    #[test]
    fn a_half_cached_range_is_split_where_the_cache_ends() {
        let half = LEN / 2;
        let pieces = with(0..half);
        assert_eq!(
            pieces[0],
            Piece {
                start: 0,
                end: half,
                cached: true
            }
        );
        assert_eq!(
            pieces[1],
            Piece {
                start: half,
                end: LEN,
                cached: false
            }
        );
    }

    #[test]
    fn pieces_cover_the_range_aligned_and_call_nothing_cached_that_is_not() {
        for start in (0..LEN).step_by(333 * 4096) {
            let cached = start..(start + 77 * 4096).min(LEN);
            let pieces = with(cached.clone());
            assert!(pieces.len() <= PIECES_MAX);
            assert_eq!((pieces[0].start, pieces[pieces.len() - 1].end), (0, LEN));
            for pair in pieces.windows(2) {
                assert_eq!(pair[0].end, pair[1].start);
                assert_eq!(pair[0].end % 4096, 0);
            }
            for piece in pieces.iter().filter(|piece| piece.cached) {
                assert!(
                    piece.start >= cached.start && piece.end <= cached.end,
                    "{piece:?}"
                );
            }
        }
    }
}
