//! Random bytes from a seed: any range of them can be made, and checked, by itself.
//!
//! Byte `b` of the stream is byte `b % 8`, lowest first, of word `b / 8`, and word `w` is the output
//! of SplitMix64 for the state `seed + (w + 1) · 0x9e3779b97f4a7c15`. Neither a disk nor a file
//! system can compress it.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

const WORD: usize = 8;
const CHUNK: usize = 1 << 20;

/// Fills `bytes` with the stream of `seed` from byte `offset` on.
pub fn fill(seed: u64, offset: u64, bytes: &mut [u8]) {
    let mut word = offset / WORD as u64;
    let skip = usize::try_from(offset % WORD as u64).expect("less than 8");
    let (head, rest) = bytes.split_at_mut(bytes.len().min((WORD - skip) % WORD));
    if !head.is_empty() {
        let end = skip + head.len();
        head.copy_from_slice(&word_at(seed, word).to_le_bytes()[skip..end]);
        word += 1;
    }
    for chunk in rest.chunks_mut(WORD) {
        chunk.copy_from_slice(&word_at(seed, word).to_le_bytes()[..chunk.len()]);
        word += 1;
    }
}

fn word_at(seed: u64, word: u64) -> u64 {
    let step = word.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = seed.wrapping_add(step);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The offset of the first byte that is not the stream's, for `bytes` read from `offset` on.
#[must_use]
pub fn first_difference(seed: u64, offset: u64, bytes: &[u8]) -> Option<u64> {
    let mut expected = vec![0; CHUNK.min(bytes.len())];
    let mut at = offset;
    for chunk in bytes.chunks(CHUNK) {
        let expected = &mut expected[..chunk.len()];
        fill(seed, at, expected);
        if chunk != expected {
            let same = chunk.iter().zip(&*expected).take_while(|(a, b)| a == b);
            return Some(at + same.count() as u64);
        }
        at += chunk.len() as u64;
    }
    None
}

/// A file of random bytes that stays, to be used again by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its length in bytes.
    pub length: u64,
    /// What its bytes were made from.
    pub seed: u64,
}

impl DataFile {
    /// The file of `length` bytes from `seed` in `directory`: what is there is checked to the last
    /// byte; what is not, or is not right, is written and made durable.
    ///
    /// # Errors
    ///
    /// What the file system gives.
    pub fn provide(directory: &Path, length: u64, seed: u64) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let path = directory.join(format!("random-{seed}-{length}.bin"));
        let file = Self { path, length, seed };
        match file.verify() {
            Ok(()) => return Ok(file),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::InvalidData
                ) => {}
            Err(error) => return Err(error),
        }
        // Under another name until it is whole: a killed run leaves nothing that looks right.
        let partial = file.path.with_extension("partial");
        file.write(&partial)?;
        fs::rename(&partial, &file.path)?;
        Ok(file)
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let mut out = File::create(path)?;
        let mut buffer = vec![0; CHUNK];
        let mut at = 0;
        while at < self.length {
            let left = usize::try_from(self.length - at).unwrap_or(CHUNK);
            let bytes = &mut buffer[..left.min(CHUNK)];
            fill(self.seed, at, bytes);
            out.write_all(bytes)?;
            at += bytes.len() as u64;
        }
        out.sync_all()
    }

    /// Whether the file is what its name says.
    ///
    /// # Errors
    ///
    /// `InvalidData`, saying where it differs; what reading it gives.
    pub fn verify(&self) -> io::Result<()> {
        let invalid = |reason| Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        let mut file = File::open(&self.path)?;
        let length = file.metadata()?.len();
        if length != self.length {
            return invalid(format!("{length} bytes instead of {}", self.length));
        }
        let mut buffer = vec![0; CHUNK];
        let mut at = 0;
        while at < self.length {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                return invalid(format!("ends at byte {at}"));
            }
            if let Some(at) = first_difference(self.seed, at, &buffer[..count]) {
                return invalid(format!("byte {at} is not that of seed {}", self.seed));
            }
            at += count as u64;
        }
        Ok(())
    }
}

/// A small generator for orders and offsets, repeatable from its seed.
#[derive(Clone, Debug)]
pub struct Draws {
    seed: u64,
    drawn: u64,
}

impl Draws {
    /// The same seed gives the same draws.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed, drawn: 0 }
    }

    /// A number from 0 to `bound` - 1. Biased by less than `bound` / 2^64.
    ///
    /// # Panics
    ///
    /// When `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below 0");
        let word = word_at(self.seed, self.drawn);
        self.drawn += 1;
        let scaled = (u128::from(word) * u128::from(bound)) >> 64;
        u64::try_from(scaled).expect("less than the bound")
    }

    /// Puts `items` into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1);
            items.swap(last, usize::try_from(other).unwrap_or(last));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_splitmix64() {
        // The reference implementation's first three outputs for the state 1234567.
        let first: Vec<u64> = (0..3).map(|word| word_at(1_234_567, word)).collect();
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn any_range_is_made_like_the_whole() {
        let mut whole = [0; 64];
        fill(7, 0, &mut whole);
        for start in 0..40 {
            for length in 0..24 {
                let mut part = vec![0; length];
                fill(7, start as u64, &mut part);
                assert_eq!(part, whole[start..start + length], "{length} from {start}");
            }
        }
    }

    #[test]
    fn the_first_wrong_byte_is_named() {
        let mut bytes = vec![0; 3 * CHUNK / 2];
        fill(7, 100, &mut bytes);
        assert_eq!(first_difference(7, 100, &bytes), None);
        bytes[CHUNK + 5] ^= 1;
        assert_eq!(
            first_difference(7, 100, &bytes),
            Some(100 + CHUNK as u64 + 5)
        );
    }

    #[test]
    fn a_file_is_written_once_checked_and_repaired() {
        let directory = tempfile::tempdir().unwrap();
        let length = CHUNK as u64 + 13;
        let file = DataFile::provide(directory.path(), length, 5).unwrap();
        file.verify().unwrap();
        let written = fs::metadata(&file.path).unwrap().modified().unwrap();
        assert_eq!(
            DataFile::provide(directory.path(), length, 5).unwrap(),
            file
        );
        assert_eq!(
            fs::metadata(&file.path).unwrap().modified().unwrap(),
            written
        );

        let mut bytes = fs::read(&file.path).unwrap();
        bytes[9] ^= 1;
        fs::write(&file.path, &bytes).unwrap();
        assert!(file.verify().unwrap_err().to_string().contains("byte 9"));
        DataFile::provide(directory.path(), length, 5)
            .unwrap()
            .verify()
            .unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_shuffle_keeps_every_item_and_repeats_with_its_seed() {
        let shuffled = |seed| {
            let mut items: Vec<u32> = (0..50).collect();
            Draws::new(seed).shuffle(&mut items);
            items
        };
        assert_eq!(shuffled(1), shuffled(1));
        assert_ne!(shuffled(1), shuffled(2));
        let mut items = shuffled(3);
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<u32>>());
    }
}
