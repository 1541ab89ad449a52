//! Which chunks have arrived: pure, whatever the order in which parts end.

use std::collections::BTreeMap;
use std::ops::Range;

/// What has ended of an operation, against the chunks that it is digested in.
///
/// Parts and chunks need not agree: the part whose end completes a chunk is told so, once.
#[derive(Debug)]
pub(super) struct Progress {
    chunk: u64,
    /// Where the operation's bytes end, as far as is known: a short part lowers it.
    end: u64,
    /// What arrived, from start to end, neighbours joined: at most one entry more than parts that
    /// are in flight.
    arrived: BTreeMap<u64, u64>,
}

impl Progress {
    pub(super) const fn new(total: u64, chunk: u64) -> Self {
        Self {
            chunk,
            end: total,
            arrived: BTreeMap::new(),
        }
    }

    /// A part of `len` bytes at `offset` has ended, with its first `moved` there. Gives the chunks
    /// that are complete by it.
    pub(super) fn part_ended(&mut self, offset: u64, len: u64, moved: u64) -> Range<u64> {
        if offset >= self.end {
            return 0..0;
        }
        if moved < len {
            self.end = self.end.min(offset + moved);
        }
        let (start, stop) = self.join(offset, offset + moved);
        let complete = if stop >= self.end {
            self.end.div_ceil(self.chunk)
        } else {
            stop / self.chunk
        };
        let first = start.div_ceil(self.chunk).max(offset / self.chunk);
        let behind = (offset + len).div_ceil(self.chunk);
        first..complete.min(behind).max(first)
    }

    /// A part failed: no chunk is wanted any more.
    pub(super) const fn give_up(&mut self) {
        self.end = 0;
    }

    /// The bytes of a complete chunk.
    pub(super) fn bytes_of(&self, chunk: u64) -> Range<u64> {
        let start = chunk * self.chunk;
        start..self.end.min(start.saturating_add(self.chunk))
    }

    /// Gives the stretch around the new one.
    fn join(&mut self, start: u64, stop: u64) -> (u64, u64) {
        let before = self.arrived.range(..=start).next_back();
        let start = match before {
            Some((&before, &end)) if end == start => before,
            _ => start,
        };
        let stop = self.arrived.remove(&stop).unwrap_or(stop);
        if start < stop {
            self.arrived.insert(start, stop);
        }
        (start, stop)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_chunk_of_many_parts_is_told_to_the_last_of_them() {
        let mut progress = Progress::new(10, 6);
        assert!(progress.part_ended(4, 4, 4).is_empty());
        assert_eq!(progress.part_ended(0, 4, 4), 0..1);
        assert_eq!(progress.part_ended(8, 2, 2), 1..2);
        assert_eq!(progress.bytes_of(1), 6..10);
    }

    #[test]
    fn a_part_of_many_chunks_is_told_all_that_it_completes() {
        let mut progress = Progress::new(100, 7);
        assert_eq!(progress.part_ended(50, 50, 50), 8..15);
        assert_eq!(progress.part_ended(0, 50, 50), 0..8);
    }

    #[test]
    fn the_chunk_in_which_the_file_ends_is_told_whichever_part_ends_last() {
        for order in [[0, 1], [1, 0]] {
            let mut progress = Progress::new(8, 8);
            let mut told = Vec::new();
            for part in order {
                let (offset, moved) = [(0, 4), (4, 1)][part];
                told.extend(progress.part_ended(offset, 4, moved));
            }
            assert_eq!((told, progress.bytes_of(0)), (vec![0], 0..5));
        }
    }

    /// What must hold: at the end each chunk before the end of the bytes was told once, when all its
    /// bytes had arrived.
    fn check(
        chunk: u64,
        parts: &[(u64, u64)],
        order: &[usize],
        part_ended: impl Fn(&mut Progress, u64, u64, u64) -> Range<u64>,
    ) {
        let total = parts.iter().map(|part| part.0).sum();
        let mut progress = Progress::new(total, chunk);
        let mut told = BTreeMap::new();
        let mut arrived = vec![false; usize::try_from(total).unwrap()];
        let mut end = total;
        for &part in order {
            let offset: u64 = parts[..part].iter().map(|part| part.0).sum();
            let (len, moved) = parts[part];
            let slice = usize::try_from(offset).unwrap()..usize::try_from(offset + moved).unwrap();
            arrived[slice].fill(true);
            if moved < len {
                end = end.min(offset + moved);
            }
            for chunk in part_ended(&mut progress, offset, len, moved) {
                let bytes = progress.bytes_of(chunk);
                let mut places = bytes.clone().map(|at| usize::try_from(at).unwrap());
                assert!(places.all(|at| arrived[at]), "told before it is there");
                assert_eq!(told.insert(chunk, bytes), None, "told twice");
            }
        }
        for index in 0..end.div_ceil(chunk) {
            let bytes = index * chunk..end.min((index + 1) * chunk);
            assert_eq!(told.get(&index), Some(&bytes));
        }
    }

    /// The control: each part takes the chunks that it touches for complete.
    #[test]
    #[should_panic(expected = "told before it is there")]
    fn a_chunk_that_is_told_too_early_is_caught() {
        let too_early = |progress: &mut Progress, offset, len, moved| {
            progress.part_ended(offset, len, moved);
            offset / progress.chunk..(offset + len).div_ceil(progress.chunk)
        };
        check(6, &[(4, 4), (4, 4)], &[0, 1], too_early);
    }

    proptest! {
        #[test]
        fn every_chunk_is_told_once_and_when_it_is_there(
            chunk in 1_u64..40,
            parts in prop::collection::vec((1_u64..30, 0_u64..60), 1..8)
                .prop_map(|parts| parts.into_iter().map(|(len, moved)| (len, moved.min(len))).collect::<Vec<_>>())
                .prop_flat_map(|parts| {
                    let order = (0..parts.len()).collect::<Vec<_>>();
                    (Just(parts), Just(order).prop_shuffle())
                }),
        ) {
            let (parts, order) = parts;
            check(chunk, &parts, &order, Progress::part_ended);
        }
    }
}
