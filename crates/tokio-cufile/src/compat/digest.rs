//! Digests of a part's bytes: made where they lie in host memory, when they are quiet there.
//!
//! Here is the seam for memory that the host cannot read: its parts have their bytes in a staging
//! slot before they are copied on, so they are to be digested there, before the slot's last stage.
//! A slot holds one part and no chunk's rest. So parts of such an operation are to be cut where
//! chunks are, and a chunk of several slots needs a state that its slots go through in file order;
//! or a checksum that combines.
#![allow(unsafe_code, reason = "reads the memory of an operation by address")]

use std::sync::Arc;

use completion::Next;

use crate::digest::DigestState;
use crate::memory::MemoryRange;

/// Bytes digested before the model is asked whether anybody still waits: some milliseconds.
const BLOCK: usize = 8 << 20;

/// One part's place in the digests of its operation.
#[derive(Debug)]
pub(crate) struct PartDigest {
    pub(crate) state: Arc<DigestState>,
    /// All of the operation's bytes.
    pub(crate) memory: MemoryRange,
    /// Where the part begins among them.
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl PartDigest {
    /// The part has its first `moved` bytes in memory, or has `failed`: digests the chunks that are
    /// complete by that, for as long as somebody waits.
    ///
    /// # Safety
    ///
    /// The payload that owns the memory lives until the call returns: the part's ticket is neither
    /// finished nor dropped. The part's bytes are initialised and no request for them is under way,
    /// nor will be; and so it was with each part of the operation that this was called for before.
    pub(super) unsafe fn part_ended(
        self,
        moved: u64,
        failed: bool,
        mut wait: impl FnMut() -> Next,
    ) {
        if failed {
            return self.state.give_up();
        }
        let mut until_asked = 0;
        for chunk in self.state.part_ended(self.offset, self.len, moved) {
            let bytes = self.state.bytes_of(chunk);
            let mut hasher = self.state.hasher();
            for start in bytes.clone().step_by(BLOCK) {
                let len = BLOCK.min(bytes.end - start);
                if until_asked < len {
                    if wait() == Next::Skip {
                        return;
                    }
                    until_asked = BLOCK;
                }
                until_asked -= len;
                let block = self.memory.sub(start, len);
                let block = block.expect("chunks lie in the operation's memory");
                // SAFETY: by the caller's word the owner lives; every part with bytes of a complete
                // chunk has ended, so they are initialised, and nobody writes them.
                hasher.update(unsafe { block.bytes() });
            }
            self.state.put(chunk, hasher.finish());
        }
    }
}
