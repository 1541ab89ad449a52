//! Where a part's bytes go to or come from: one place, or the places of a run's ranges.
#![allow(unsafe_code, reason = "copies between a slot and the user's memory")]

use std::ops::Range;
use std::sync::Arc;

use crate::memory::{MemoryRange, Region};
use crate::plan::coalesce::FileRange;
use crate::plan::ranges::Runs;

/// The user's bytes of one part. The operation's payload owns them.
#[derive(Debug)]
pub(crate) enum Target {
    One(Region),
    /// The pieces of a run: bytes between them are read and dropped.
    Scatter {
        runs: Arc<Runs>,
        run: usize,
        /// The whole buffer.
        memory: Region,
    },
}

/// Bytes that lie together in the file and in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) file_offset: u64,
    pub(super) memory: Region,
}

impl Target {
    /// The pieces, in file order.
    pub(super) fn pieces(&self, file_offset: u64) -> impl DoubleEndedIterator<Item = Piece> + '_ {
        let (one, scattered): (Option<Piece>, &[FileRange]) = match self {
            Self::One(memory) => {
                let memory = *memory;
                (
                    Some(Piece {
                        file_offset,
                        memory,
                    }),
                    &[],
                )
            }
            Self::Scatter { runs, run, .. } => (None, runs.pieces(*run)),
        };
        let scattered = scattered.iter().map(|range| Piece {
            file_offset: range.file_offset,
            memory: self.memory_of(range),
        });
        one.into_iter().chain(scattered)
    }

    fn memory_of(&self, range: &FileRange) -> Region {
        let memory = self.memory();
        let place = usize::try_from(range.buf_offset).ok();
        let place = place.zip(usize::try_from(range.len).ok());
        let memory = place.and_then(|(start, len)| memory.sub(start, len));
        memory.expect("ranges were checked to lie in the buffer")
    }

    /// How many of the user's bytes lie in a stretch of the file.
    pub(super) fn wanted(&self, file_offset: u64, stretch: Range<u64>) -> usize {
        let inside = |piece: Piece| {
            let end = piece.file_offset + piece.memory.len() as u64;
            let (start, end) = (piece.file_offset.max(stretch.start), end.min(stretch.end));
            usize::try_from(end.saturating_sub(start)).unwrap_or(usize::MAX)
        };
        self.pieces(file_offset).map(inside).sum()
    }

    /// Where each of the user's bytes lies in `staged`, which holds those of the file from
    /// `file_offset` on: first there, then in the user's memory. Empty ones are left out.
    pub(super) fn staged(
        &self,
        file_offset: u64,
        staged: MemoryRange,
    ) -> impl Iterator<Item = (MemoryRange, Region)> + '_ {
        self.pieces(file_offset).filter_map(move |piece| {
            let before = usize::try_from(piece.file_offset - file_offset).unwrap_or(usize::MAX);
            let len = piece.memory.len().min(staged.len().saturating_sub(before));
            let in_slot = staged.sub(before, len).filter(|_| len > 0)?;
            Some((in_slot, piece.memory.sub(0, len)?))
        })
    }

    /// Copies the user's bytes out of `read`, which holds those of the file from `file_offset` on.
    /// Only what is to go to host memory.
    ///
    /// # Safety
    ///
    /// The bytes of `read` are initialised and nobody writes them; the payload that owns the
    /// user's memory lives, and nobody else touches the part's bytes of it; neither overlaps the
    /// other.
    pub(super) unsafe fn scatter(&self, file_offset: u64, read: MemoryRange) {
        for (from, to) in self.staged(file_offset, read) {
            if let Region::Host(to) = to {
                // SAFETY: the caller vouches for both; pieces do not overlap one another in
                // memory, and both have one length.
                unsafe { from.copy_to(to) };
            }
        }
    }

    /// Whether the user's memory is a device's.
    pub(crate) const fn is_device(&self) -> bool {
        matches!(self.memory(), Region::Device(_))
    }

    /// The part's place, or the whole buffer of a run.
    pub(crate) const fn memory(&self) -> Region {
        let (Self::One(memory) | Self::Scatter { memory, .. }) = self;
        *memory
    }
}
