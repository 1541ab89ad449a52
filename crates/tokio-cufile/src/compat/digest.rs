//! Digests of a part's bytes: made where they lie in host memory, when they are quiet there.
//!
//! Memory that the host cannot read has its bytes in a slot on their way, which holds one part and
//! no chunk's rest: such parts hand them over in file order.
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
    /// All of the operation's bytes; `None` where the host cannot read them.
    pub(crate) memory: Option<MemoryRange>,
    /// Where the part begins among them.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) handed_over: bool,
}

impl Drop for PartDigest {
    /// Also of a part that is never executed: those behind it must not wait.
    fn drop(&mut self) {
        if self.memory.is_none() && !self.handed_over {
            self.state.pass_over(self.offset);
        }
    }
}

impl PartDigest {
    /// The part has these bytes, its first, in a slot.
    ///
    /// # Safety
    ///
    /// They are initialised, and nobody writes them until the call returns.
    pub(super) unsafe fn in_slot(mut self, pieces: impl Iterator<Item = MemoryRange>) {
        if self.memory.is_some() {
            return;
        }
        let pieces: Vec<&[u8]> = pieces
            // SAFETY: by the caller's word.
            .map(|piece| unsafe { piece.bytes() })
            .collect();
        let moved: usize = pieces.iter().map(|piece| piece.len()).sum();
        let is_short = (moved as u64) < self.len;
        self.state
            .hand_over(self.offset, pieces.into_iter(), is_short);
        // After it: should it panic, those behind this part must not wait.
        self.handed_over = true;
    }

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
        let Some(memory) = self.memory else {
            return; // Handed over, or passed over when this value goes.
        };
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
                let block = memory.sub(start, len);
                let block = block.expect("chunks lie in the operation's memory");
                // SAFETY: by the caller's word the owner lives; every part with bytes of a complete
                // chunk has ended, so they are initialised, and nobody writes them.
                hasher.update(unsafe { block.bytes() });
            }
            self.state.put(chunk, hasher.finish());
        }
    }
}
