//! What the bytes of a file may be, and which of them somebody is at.
//!
//! A file is cut into plots of random lengths. A write covers whole plots, and gives them a
//! generation that no other write has; a byte is made from the seed, the file, the generation and its
//! place, so that one that is stale, misplaced or somebody else's shows. Of a plot it is known which
//! generation it has for certain, and which ones it may have since: those of writes that failed or
//! that nobody awaited. An operation claims the plots that it touches, until it is known to be over.

use std::ops::Range;

use measure::data::{self, Draws};

/// The generation that a file begins with.
const FIRST: u64 = 0;

/// Tries to find plots that nobody is at.
const TRIES: usize = 8;

#[derive(Clone, Debug)]
struct Plot {
    /// In the file.
    range: Range<u64>,
    certain: u64,
    /// In the order of their writes.
    possible: Vec<Perhaps>,
    readers: u32,
    written: bool,
}

#[derive(Clone, Copy, Debug)]
struct Perhaps {
    generation: u64,
    /// Somebody was told that the write failed.
    told: bool,
}

/// One file.
#[derive(Clone, Debug)]
pub(super) struct Content {
    seed: u64,
    plots: Vec<Plot>,
    generation: u64,
}

/// Somebody's right to the plots that a range touches.
#[derive(Clone, Debug)]
#[must_use = "a claim that is not given back keeps others out for ever"]
pub(super) struct Claim {
    /// Bytes of the file. Of a write, whole plots.
    pub(super) range: Range<u64>,
    plots: Range<usize>,
    /// Of a write, what it writes.
    pub(super) generation: Option<u64>,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// It said that it was done.
    All,
    /// Any byte may have been written, as somebody was told.
    Failed,
    /// Any byte may have been written, and nobody was there to be told.
    Dropped,
    /// Nothing was issued.
    Nothing,
}

/// What a file's bytes say of the writes that nobody vouches for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Inspection {
    /// Bytes that nobody can have written there.
    pub(super) corrupt: Option<String>,
    /// Dropped writes of which a part is there and a part is not.
    pub(super) torn: u64,
}

impl Content {
    /// Plots of lengths that `length` draws, until `total` is reached.
    pub(super) fn new(
        seed: u64,
        draws: &mut Draws,
        total: u64,
        length: impl Fn(&mut Draws) -> u64,
    ) -> Self {
        let mut plots = Vec::new();
        let mut start = 0;
        while start < total {
            let end = start + length(draws);
            plots.push(Plot {
                range: start..end,
                certain: FIRST,
                possible: Vec::new(),
                readers: 0,
                written: false,
            });
            start = end;
        }
        Self {
            seed,
            plots,
            generation: FIRST,
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.plots.last().map_or(0, |plot| plot.range.end)
    }

    /// The bytes that `generation` has from `offset` of the file on.
    pub(super) fn fill(&self, generation: u64, offset: u64, bytes: &mut [u8]) {
        data::fill(self.stream_of(generation), offset, bytes);
    }

    /// The seed of the bytes of `generation`.
    pub(super) const fn stream_of(&self, generation: u64) -> u64 {
        self.seed ^ generation.wrapping_mul(0xd605_1a7d_4f2b_9c41)
    }

    /// Bytes to read, at most `len_max`. `None` where somebody writes.
    pub(super) fn claim_read(&mut self, draws: &mut Draws, len_max: u64) -> Option<Claim> {
        for _ in 0..TRIES {
            let len = 1 + draws.below(len_max.min(self.len()));
            let mut start = draws.below(self.len() - len + 1);
            if draws.below(2) == 0 {
                start &= !0xfff;
            }
            let claim = self.touching(start..start + len, None);
            let plots = &mut self.plots[claim.plots.clone()];
            if plots.iter().all(|plot| !plot.written) {
                plots.iter_mut().for_each(|plot| plot.readers += 1);
                return Some(claim);
            }
        }
        None
    }

    /// Whole plots to write, at most `len_max` bytes where one plot alone is not more. `None` where
    /// others are everywhere.
    pub(super) fn claim_write(&mut self, draws: &mut Draws, len_max: u64) -> Option<Claim> {
        for _ in 0..TRIES {
            let first = usize::try_from(draws.below(self.plots.len() as u64)).unwrap_or(0);
            let start = self.plots[first].range.start;
            let most = start + 1 + draws.below(len_max);
            let behind = self.plots[first + 1..].iter();
            let count = behind.take_while(|plot| plot.range.end <= most).count();
            let plots = first..first + 1 + count;
            let end = self.plots[plots.end - 1].range.end;
            if end - start <= len_max && self.plots[plots.clone()].iter().all(Plot::is_free) {
                self.generation += 1;
                let claim = Claim {
                    range: start..end,
                    plots,
                    generation: Some(self.generation),
                };
                for plot in &mut self.plots[claim.plots.clone()] {
                    plot.written = true;
                }
                return Some(claim);
            }
        }
        None
    }

    /// Everything, if nobody is anywhere.
    pub(super) fn claim_all(&mut self) -> Option<Claim> {
        if !self.plots.iter().all(Plot::is_free) {
            return None;
        }
        self.plots.iter_mut().for_each(|plot| plot.written = true);
        Some(self.touching(0..self.len(), None))
    }

    fn touching(&self, range: Range<u64>, generation: Option<u64>) -> Claim {
        let first = self
            .plots
            .partition_point(|plot| plot.range.end <= range.start);
        let end = self
            .plots
            .partition_point(|plot| plot.range.start < range.end);
        Claim {
            range,
            plots: first..end,
            generation,
        }
    }

    /// A read is over.
    pub(super) fn release(&mut self, claim: &Claim) {
        for plot in &mut self.plots[claim.plots.clone()] {
            if claim.generation.is_some() || plot.written {
                plot.written = false;
            } else {
                plot.readers -= 1;
            }
        }
    }

    /// A write is over, and nothing of it will still come.
    pub(super) fn wrote(&mut self, claim: &Claim, what: Written) {
        let Some(generation) = claim.generation else {
            unreachable!("a claim to write has a generation")
        };
        for plot in &mut self.plots[claim.plots.clone()] {
            match what {
                Written::All => {
                    plot.certain = generation;
                    plot.possible.clear();
                }
                Written::Failed | Written::Dropped => {
                    let told = what == Written::Failed;
                    plot.possible.push(Perhaps { generation, told });
                }
                Written::Nothing => {}
            }
        }
        self.release(claim);
    }

    /// The first byte of `found`, which was read from `offset` on under a claim, that is none of what
    /// it may be.
    pub(super) fn first_wrong(&self, offset: u64, found: &[u8]) -> Option<u64> {
        let claim = self.touching(offset..offset + found.len() as u64, None);
        let mut plots = self.plots[claim.plots].iter();
        plots.find_map(|plot| {
            let start = plot.range.start.max(offset);
            let end = plot.range.end.min(offset + found.len() as u64);
            let found = &found[index(start - offset)..index(end - offset)];
            self.wrong_in(plot, start, found)
        })
    }

    fn wrong_in(&self, plot: &Plot, start: u64, found: &[u8]) -> Option<u64> {
        let certain = self.stream_of(plot.certain);
        let first = data::first_difference(certain, start, found)?;
        let mut wrong = vec![true; found.len()];
        for generation in plot.candidates() {
            let mut expected = vec![0; found.len()];
            self.fill(generation, start, &mut expected);
            let pairs = expected.iter().zip(found).zip(&mut wrong);
            pairs.for_each(|((expected, found), wrong)| *wrong &= expected != found);
        }
        let wrong = wrong.iter().position(|&wrong| wrong)?;
        Some((start + wrong as u64).max(first))
    }

    /// Looks at all bytes of the file, which nobody is at. What they say for certain is kept; what
    /// is in pieces was told of, or is counted, and is not counted again.
    pub(super) fn inspect(&mut self, found: &[u8]) -> Inspection {
        let mut inspection = Inspection::default();
        if found.len() as u64 != self.len() {
            let len = found.len();
            inspection.corrupt = Some(format!("{len} bytes instead of {}", self.len()));
            return inspection;
        }
        if let Some(at) = self.first_wrong(0, found) {
            inspection.corrupt = Some(format!("byte {at} of the file"));
        }
        inspection.torn = self.torn(found);
        for index in 0..self.plots.len() {
            let seen = self.generation_in(index, found);
            let plot = &mut self.plots[index];
            if let Some(seen) = seen {
                plot.certain = seen;
                plot.possible.clear();
            }
        }
        self.close_accounts();
        inspection
    }

    /// Nobody will be told of what was dropped before: its engine has ended.
    fn close_accounts(&mut self) {
        let possible = self.plots.iter_mut().flat_map(|plot| &mut plot.possible);
        possible.for_each(|perhaps| perhaps.told = true);
    }

    /// As [`inspect`](Self::inspect), when nobody can be told of torn writes any more.
    pub(super) fn inspect_alone(&mut self, found: &[u8]) -> Inspection {
        self.close_accounts();
        self.inspect(found)
    }

    /// Dropped writes of which some plots are there and others, that nobody wrote after it, are not.
    fn torn(&self, found: &[u8]) -> u64 {
        let mut seen = std::collections::BTreeMap::<u64, (bool, bool)>::new();
        for (index, plot) in self.plots.iter().enumerate() {
            let Some(last) = plot.possible.last() else {
                continue;
            };
            // What somebody was told of may be in any state, and hides what came before.
            if plot.possible.iter().any(|perhaps| perhaps.told) {
                continue;
            }
            let entry = seen.entry(last.generation).or_default();
            match self.generation_in(index, found) {
                Some(generation) if generation == last.generation => entry.0 = true,
                Some(_) => entry.1 = true,
                None => *entry = (true, true),
            }
        }
        let torn = seen.values().filter(|(there, missing)| *there && *missing);
        torn.count() as u64
    }

    /// The generation of a plot, if it has one as a whole.
    fn generation_in(&self, index_of: usize, found: &[u8]) -> Option<u64> {
        let plot = &self.plots[index_of];
        let bytes = &found[index(plot.range.start)..index(plot.range.end)];
        let is = |generation: &u64| {
            let stream = self.stream_of(*generation);
            data::first_difference(stream, plot.range.start, bytes).is_none()
        };
        plot.candidates().find(is)
    }
}

impl Plot {
    const fn is_free(&self) -> bool {
        self.readers == 0 && !self.written
    }

    /// What it may have, the last written first.
    fn candidates(&self) -> impl Iterator<Item = u64> + '_ {
        let possible = self.possible.iter().rev();
        possible
            .map(|perhaps| perhaps.generation)
            .chain([self.certain])
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 1000;

    fn content() -> (Content, Draws, Vec<u8>) {
        let mut draws = Draws::new(9);
        let content = Content::new(5, &mut draws, LEN, |draws| 10 + draws.below(100));
        let mut bytes = vec![0; index(content.len())];
        content.fill(FIRST, 0, &mut bytes);
        (content, draws, bytes)
    }

    fn put(content: &Content, claim: &Claim, bytes: &mut [u8]) {
        let range = index(claim.range.start)..index(claim.range.end);
        let generation = claim.generation.expect("a write");
        content.fill(generation, claim.range.start, &mut bytes[range]);
    }

    #[test]
    fn a_byte_that_nobody_wrote_there_is_found() {
        let (content, _, mut bytes) = content();
        assert_eq!(content.first_wrong(0, &bytes), None);
        bytes[77] ^= 1;
        assert_eq!(content.first_wrong(3, &bytes[3..]), Some(77));
        assert_eq!(content.first_wrong(78, &bytes[78..]), None);
    }

    #[test]
    fn an_acknowledged_write_must_be_there_and_another_one_may() {
        let (mut content, mut draws, bytes) = content();
        let claim = content.claim_write(&mut draws, 300).unwrap();
        let mut written = bytes.clone();
        put(&content, &claim, &mut written);
        content.wrote(&claim, Written::Failed);
        assert_eq!(content.first_wrong(0, &bytes), None);
        assert_eq!(content.first_wrong(0, &written), None);
        content.wrote(&claim, Written::All);
        assert_eq!(content.first_wrong(0, &bytes), Some(claim.range.start));
        assert_eq!(content.first_wrong(0, &written), None);
    }

    #[test]
    fn nobody_else_is_where_somebody_writes() {
        let (mut content, mut draws, _) = content();
        let write = content.claim_write(&mut draws, LEN).unwrap();
        assert!(content.claim_all().is_none());
        for _ in 0..100 {
            if let Some(read) = content.claim_read(&mut draws, 100) {
                let apart =
                    read.plots.end <= write.plots.start || write.plots.end <= read.plots.start;
                assert!(apart, "{read:?} beside {write:?}");
                content.release(&read);
            }
        }
        content.wrote(&write, Written::Nothing);
        assert!(content.claim_all().is_some());
    }

    #[test]
    fn a_torn_write_is_told_from_a_whole_one_and_from_none() {
        let (mut content, mut draws, bytes) = content();
        let claim = loop {
            let claim = content.claim_write(&mut draws, LEN).unwrap();
            if claim.plots.len() > 1 {
                break claim;
            }
            content.wrote(&claim, Written::Nothing);
        };
        let mut whole = bytes.clone();
        put(&content, &claim, &mut whole);
        content.wrote(&claim, Written::Dropped);
        let mut torn = whole.clone();
        let at = index(claim.range.start);
        torn[at..at + 5].copy_from_slice(&bytes[at..at + 5]);
        for (found, count) in [(&bytes, 0), (&whole, 0), (&torn, 1)] {
            let inspection = content.clone().inspect(found);
            assert_eq!(inspection.corrupt, None);
            assert_eq!(inspection.torn, count);
        }
        // What was seen is certain from then on.
        content.inspect(&whole);
        assert_eq!(content.first_wrong(0, &bytes), Some(claim.range.start));
    }
}
