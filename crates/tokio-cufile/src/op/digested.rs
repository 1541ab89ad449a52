//! Asking for checksums.

use std::sync::Arc;

use super::Transfer;
use super::parts::Cut;
use super::planned::request;
use crate::digest::{DigestKind, DigestState};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Plan;

/// What a receipt says.
pub(super) const NOTE: &str = "what is digested goes by the pool, whose threads make the checksums";

impl<B> Transfer<B> {
    /// Has checksums made of the operation's bytes, one for each `chunk` bytes from its first byte
    /// on, in file order; the last chunk may be shorter. They come with
    /// [`Done::digests`](super::Done::digests), of exactly the bytes that were moved; an operation
    /// that fails has none.
    ///
    /// The thread that moves a chunk's last part makes its checksum from the memory that was read
    /// or written, beside the parts that are still under way. So chunks of about one part
    /// ([`Config::task_size`](crate::Config::task_size)) cost the least time; the checksum of a
    /// chunk that is as long as the operation begins when its last part is there. A thread of the
    /// pool does it, so all parts of such an operation go by the pool, and
    /// [`require`](Self::require) is judged by that.
    ///
    /// A cancel or a deadline keeps what was not issued from being issued, and waits for checksums
    /// as for the rest of what was. When the future is dropped, the engine stops making them.
    ///
    /// # Errors
    ///
    /// The operation fails with `InvalidInput`, and nothing is issued, when `chunk` is 0 or makes
    /// more than [`Digests::CHUNKS_MAX`](crate::Digests::CHUNKS_MAX) chunks of the bytes asked for;
    /// with `Unsupported` for a read of many ranges, whose bytes are of no one sequence.
    pub fn digest(mut self, kind: DigestKind, chunk: usize) -> Self {
        if let Some(Ok(_)) = &self.pending {
            match self.digest_state(kind, chunk) {
                Ok(state) => {
                    self.digest = Some(Arc::new(state));
                    self.leave_cufile();
                }
                Err(error) => self.pending = Some(Err(error)),
            }
        }
        self
    }

    /// cuFile's bytes do not pass through memory that the host can sum.
    fn leave_cufile(&mut self) {
        let Some(Ok(pending)) = &mut self.pending else {
            return;
        };
        if pending.outline.by_cufile == 0 {
            return;
        }
        pending.route.cufile = None;
        self.moved_by_pool = true;
        let (memory, place) = (pending.parts.memory, (self.kind, self.offset));
        let request = request(&pending.engine, place, memory, &pending.route, memory.len());
        match Plan::new(request) {
            Ok(plan) => {
                pending.outline = plan.outline();
                pending.parts.cut = Cut::One(plan);
            }
            Err(error) => self.pending = Some(Err(error.into())),
        }
    }

    fn digest_state(&self, kind: DigestKind, chunk: usize) -> Result<DigestState> {
        if self.runs.is_some() {
            let reason = "a read of many ranges is not digested: read them one by one";
            return Err(Error::new(ErrorKind::Unsupported, reason));
        }
        DigestState::new(kind, chunk, self.len)
    }
}
