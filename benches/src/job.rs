//! What every contestant of a workload is asked to do.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use measure::data::Draws;
use rustix::fs::{Mode, OFlags};

use crate::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// All blocks in order.
    Read,
    /// All blocks in order, then `fdatasync`.
    Write { new_file: bool },
    /// Blocks at random offsets until the time is over.
    Random { duration: Duration },
}

#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) access: Access,
    pub(crate) path: PathBuf,
    pub(crate) length: u64,
    pub(crate) block: usize,
    pub(crate) depth: usize,
    /// Around the page cache, for those contestants that can choose.
    pub(crate) direct: bool,
    /// What the data was made from.
    pub(crate) seed: u64,
}

impl Job {
    pub(crate) fn length_in_memory(&self) -> usize {
        usize::try_from(self.length).expect("the file fits into memory")
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.length / self.block as u64
    }

    /// For a sequential job: the offset of each block, in order.
    pub(crate) fn offsets(&self) -> impl Iterator<Item = u64> + use<> {
        let block = self.block as u64;
        (0..self.blocks()).map(move |index| index * block)
    }

    /// For a random job: offsets without an end, other ones for every `lane` and `round`.
    pub(crate) fn random_offsets(&self, lane: usize, round: u64) -> impl FnMut() -> u64 + use<> {
        let (block, blocks) = (self.block as u64, self.blocks());
        let mut draws = Draws::new(self.seed ^ (round << 32) ^ ((lane as u64 + 1) << 48));
        move || draws.below(blocks) * block
    }

    /// For a job of ranges: the offsets of `count` blocks, each another one, in any order.
    pub(crate) fn drawn_offsets(&self, count: usize) -> Vec<u64> {
        let blocks = self.blocks();
        let mut draws = Draws::new(self.seed);
        let mut offsets: Vec<u64> = self.offsets().collect();
        for (index, place) in (0..blocks).enumerate().take(count) {
            let other = usize::try_from(place + draws.below(blocks - place));
            offsets.swap(index, other.expect("below the count of the offsets"));
        }
        offsets.truncate(count);
        offsets
    }

    pub(crate) fn duration(&self) -> Duration {
        match self.access {
            Access::Random { duration } => duration,
            Access::Read | Access::Write { .. } => Duration::MAX,
        }
    }

    pub(crate) fn is_write(&self) -> bool {
        matches!(self.access, Access::Write { .. })
    }

    /// A descriptor of one's own, as the job wants it. A new file is made anew.
    pub(crate) fn open(&self) -> Result<File> {
        let mut flags = OFlags::CLOEXEC;
        if self.direct {
            flags |= OFlags::DIRECT;
        }
        match self.access {
            Access::Read | Access::Random { .. } => flags |= OFlags::RDONLY,
            Access::Write { new_file } => {
                flags |= OFlags::WRONLY;
                if new_file {
                    self.remove()?;
                    flags |= OFlags::CREATE;
                }
            }
        }
        Ok(rustix::fs::open(&self.path, flags, Mode::from_raw_mode(0o644))?.into())
    }

    pub(crate) fn remove(&self) -> Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_offsets_are_blocks_of_the_file_and_each_is_another() {
        let job = Job {
            access: Access::Read,
            path: PathBuf::new(),
            length: 64 << 12,
            block: 1 << 12,
            depth: 1,
            direct: false,
            seed: 1,
        };
        let some = job.drawn_offsets(16);
        assert_eq!(some, job.drawn_offsets(16), "the seed says which");
        let mut all = job.drawn_offsets(64);
        assert_eq!(some, all[..16]);
        assert_ne!(some, job.offsets().take(16).collect::<Vec<_>>());
        all.sort_unstable();
        assert_eq!(all, job.offsets().collect::<Vec<_>>());
    }
}
