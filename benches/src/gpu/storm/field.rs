//! Where the operations of a storm work, and what each byte there may be.
//!
//! Device buffers hold places with fences between them, a file to be written has regions with
//! fences between them, and both begin as random bytes of known seeds. An operation has a whole
//! place. Reads fill places with bytes of the data file; writes put the bytes of a place, which
//! stay what they were, into one of the regions that belong to it. So each byte has one value, or
//! one of a few where a future was dropped.

use std::ops::Range;

use measure::data::{self, Draws};

/// Regions of the written file for each place that is written from.
pub(super) const REGIONS: usize = 4;
const PLACES: usize = 64;
const FENCE_MAX: u64 = 300;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    /// Nobody touches it.
    Still,
}

/// What the bytes of a place or of a region may be. Each of them by itself: a read whose future was
/// dropped may have come to any part of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    /// Where it came from last, for certain; the first bytes there were if nothing.
    certain: Option<u64>,
    possible: Vec<u64>,
}

impl Content {
    /// All bytes are now those from `source` on.
    pub(super) fn became(&mut self, source: u64) {
        self.possible.clear();
        self.certain = Some(source);
    }

    /// Any byte may have become one of those from `source` on.
    pub(super) fn may_have_become(&mut self, source: u64) {
        self.possible.push(source);
    }

    /// The first byte that is none of what it may be. `first` are the bytes at the beginning of
    /// all, `moved(source, bytes)` gives those that come from a source.
    fn first_wrong(
        &self,
        found: &[u8],
        first: &[u8],
        moved: impl Fn(u64, &mut [u8]),
    ) -> Option<usize> {
        let mut wrong: Vec<usize> = match self.certain {
            None => differences(found, first).collect(),
            Some(source) => {
                let mut expected = vec![0; found.len()];
                moved(source, &mut expected);
                differences(found, &expected).collect()
            }
        };
        for source in &self.possible {
            if wrong.is_empty() {
                break;
            }
            let mut expected = vec![0; found.len()];
            moved(*source, &mut expected);
            wrong.retain(|&at| found[at] != expected[at]);
        }
        wrong.first().copied()
    }
}

fn differences(found: &[u8], expected: &[u8]) -> impl Iterator<Item = usize> {
    let pairs = found.iter().zip(expected).enumerate();
    pairs.filter(|(_, (a, b))| a != b).map(|(at, _)| at)
}

#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) kind: Kind,
    /// In its buffer.
    pub(super) range: Range<usize>,
    /// Of the place.
    pub(super) content: Content,
    /// In the written file, each as long as the place, with what is known of it.
    pub(super) regions: Vec<(u64, Content)>,
}

/// One buffer on a device.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) length: usize,
    pub(super) places: Vec<Place>,
    /// Of the bytes at the beginning.
    pub(super) seed: u64,
}

impl Layout {
    /// Lays a buffer out, and its regions in the file from `file_end` on, which is moved.
    pub(super) fn new(draws: &mut Draws, seed: u64, file_end: &mut u64) -> Self {
        let mut end = 0;
        let mut places = Vec::with_capacity(PLACES);
        for _ in 0..PLACES {
            let start = end + fence(draws);
            let length = place_length(draws);
            let kind = match draws.below(10) {
                0 => Kind::Still,
                1..=5 => Kind::Read,
                _ => Kind::Write,
            };
            let regions = if kind == Kind::Write { REGIONS } else { 0 };
            let region = |_| {
                let start = *file_end + fence(draws) as u64;
                *file_end = start + length as u64;
                (start, Content::default())
            };
            let regions = (0..regions).map(region).collect();
            end = start + length;
            places.push(Place {
                kind,
                range: start..end,
                content: Content::default(),
                regions,
            });
        }
        Self {
            length: end + fence(draws),
            places,
            seed,
        }
    }

    /// Says what is wrong with the bytes of the buffer, all of them. `data_seed` is the data
    /// file's.
    pub(super) fn check(&self, found: &[u8], data_seed: u64) -> Result<(), String> {
        let mut first = vec![0; self.length];
        data::fill(self.seed, 0, &mut first);
        let mut fence_start = 0;
        for place in &self.places {
            let Range { start, end } = place.range.clone();
            check_fence(found, &first, fence_start..start)?;
            fence_start = end;
            let moved = |source: u64, bytes: &mut [u8]| data::fill(data_seed, source, bytes);
            let wrong = place
                .content
                .first_wrong(&found[start..end], &first[start..end], moved);
            if let Some(at) = wrong {
                let kind = place.kind;
                return Err(format!("byte {at} of the {kind:?} place {start}..{end}"));
            }
        }
        check_fence(found, &first, fence_start..self.length)
    }

    /// Says what is wrong with the regions in the bytes of the written file; clears them in
    /// `fences`, which is to be left with what lies between.
    pub(super) fn check_regions(
        &self,
        file: &[u8],
        first: &[u8],
        fences: &mut [bool],
    ) -> Result<(), String> {
        for place in &self.places {
            let from = place.range.start as u64;
            let moved = |_, bytes: &mut [u8]| data::fill(self.seed, from, bytes);
            for (start, content) in &place.regions {
                let start = usize::try_from(*start).map_err(|error| error.to_string())?;
                let region = start..start + place.range.len();
                fences[region.clone()].fill(false);
                let (found, first) = (&file[region.clone()], &first[region]);
                if let Some(at) = content.first_wrong(found, first, moved) {
                    return Err(format!("byte {at} of the file's region from {start}"));
                }
            }
        }
        Ok(())
    }
}

fn check_fence(found: &[u8], first: &[u8], range: Range<usize>) -> Result<(), String> {
    let wrong = differences(&found[range.clone()], &first[range.clone()]).next();
    wrong.map_or(Ok(()), |at| {
        Err(format!("canary {} at {range:?}", range.start + at))
    })
}

fn draw(draws: &mut Draws, range: Range<u64>) -> usize {
    let drawn = range.start + draws.below(range.end - range.start);
    usize::try_from(drawn).unwrap_or(1)
}

fn fence(draws: &mut Draws) -> usize {
    draw(draws, 1..FENCE_MAX)
}

/// From a byte to more than one part of a split request; some are whole blocks.
fn place_length(draws: &mut Draws) -> usize {
    match draws.below(16) {
        0..4 => draw(draws, 1..512),
        4..8 => draw(draws, 512..16 << 10),
        8..12 => draw(draws, 1..17) << 12,
        12..15 => draw(draws, 16 << 10..512 << 10),
        _ => draw(draws, 512 << 10..6 << 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: u64 = 77;

    fn layout() -> (Layout, Vec<u8>, u64) {
        let mut file_end = 0;
        let layout = Layout::new(&mut Draws::new(3), 5, &mut file_end);
        let mut bytes = vec![0; layout.length];
        data::fill(5, 0, &mut bytes);
        (layout, bytes, file_end)
    }

    fn place(layout: &Layout, kind: Kind) -> usize {
        let mut places = layout.places.iter();
        let found = places.position(|place| place.kind == kind && place.range.len() > 8);
        found.expect("there are some of each")
    }

    #[test]
    fn places_and_regions_do_not_touch() {
        let (layout, _, file_end) = layout();
        let mut places = layout.places.iter().map(|place| place.range.clone());
        assert!(places.all(|range| range.end < layout.length && !range.is_empty()));
        let pairs = layout.places.windows(2);
        assert!(
            pairs
                .into_iter()
                .all(|two| two[0].range.end < two[1].range.start)
        );
        let mut regions: Vec<Range<u64>> = Vec::new();
        for place in &layout.places {
            for (start, _) in &place.regions {
                regions.push(*start..start + place.range.len() as u64);
            }
        }
        assert!(regions.windows(2).all(|two| two[0].end < two[1].start));
        assert_eq!(regions.last().map(|last| last.end), Some(file_end));
    }

    #[test]
    fn one_wrong_byte_is_found_wherever_it_is() {
        let (layout, bytes, _) = layout();
        assert_eq!(layout.check(&bytes, DATA), Ok(()));
        let still = layout.places[place(&layout, Kind::Still)].range.clone();
        for at in [
            0,
            still.start - 1,
            still.start,
            still.end,
            layout.length - 1,
        ] {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert!(layout.check(&bytes, DATA).is_err(), "{at}");
        }
    }

    #[test]
    fn a_finished_read_is_all_there_and_a_dropped_one_may_be() {
        let (mut layout, mut bytes, _) = layout();
        let index = place(&layout, Kind::Read);
        let range = layout.places[index].range.clone();
        data::fill(DATA, 4096, &mut bytes[range.clone()][..4]);
        assert!(layout.check(&bytes, DATA).is_err());
        layout.places[index].content.may_have_become(4096);
        assert_eq!(layout.check(&bytes, DATA), Ok(()));
        layout.places[index].content.became(4096);
        assert!(layout.check(&bytes, DATA).is_err(), "half of it is missing");
        data::fill(DATA, 4096, &mut bytes[range]);
        assert_eq!(layout.check(&bytes, DATA), Ok(()));
    }

    #[test]
    fn a_written_region_has_the_bytes_of_its_place() {
        let (mut layout, bytes, file_end) = layout();
        let index = place(&layout, Kind::Write);
        let range = layout.places[index].range.clone();
        let end = usize::try_from(file_end).unwrap();
        let first = vec![9; end];
        let mut file = first.clone();
        let check = |layout: &Layout, file: &[u8]| {
            let mut fences = vec![true; end];
            let checked = layout.check_regions(file, &first, &mut fences);
            assert!(checked.is_err() || fences.contains(&true));
            checked
        };
        assert_eq!(check(&layout, &file), Ok(()));
        let start = usize::try_from(layout.places[index].regions[1].0).unwrap();
        file[start..start + range.len()].copy_from_slice(&bytes[range]);
        assert!(check(&layout, &file).is_err());
        layout.places[index].regions[1].1.became(0);
        assert_eq!(check(&layout, &file), Ok(()));
    }
}
