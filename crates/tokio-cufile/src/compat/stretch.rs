//! Bytes of a part that go one way, one request after the other.

use crate::memory::MemoryRange;

/// Which descriptor a request goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Direct,
    /// Bytes that are in the page cache, or a file that is read so.
    Cached,
    /// Through the page cache where the direct way was wanted.
    Buffered,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    pub(super) memory: MemoryRange,
    pub(super) offset: u64,
    pub(super) way: Way,
    /// The memory is the part's slot.
    pub(super) in_slot: bool,
    pub(super) done: usize,
}

impl Stretch {
    /// Where the next request begins. After a result that broke the alignment of direct I/O, the
    /// last block is moved again.
    pub(super) const fn resume_at(self, direct_step: usize) -> usize {
        match self.way {
            Way::Direct => self.done - self.done % direct_step,
            Way::Cached | Way::Buffered => self.done,
        }
    }

    /// The file offset behind what has been moved.
    pub(super) const fn end(self) -> u64 {
        self.offset + self.done as u64
    }

    pub(super) const fn is_done(self) -> bool {
        self.done == self.memory.len()
    }

    /// The same bytes through the page cache; what is done already stays done.
    pub(super) fn buffered(self) -> Self {
        let left = self.memory.len() - self.done;
        let rest = self.memory.sub(self.done, left);
        Self {
            memory: rest.expect("no more is done than there was"),
            offset: self.end(),
            way: Way::Buffered,
            done: 0,
            ..self
        }
    }
}
