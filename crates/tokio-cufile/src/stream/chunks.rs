//! A bounded set of buffers, and one of them in the user's hands.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::error::Result;
use crate::memory::{EngineId, HostBuffer, Span};
use crate::receipt::Receipt;

/// The buffers of one stream. What a user holds of them is no permit of the engine.
#[derive(Debug, Default)]
pub(super) struct ChunkPool {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<HostBuffer>,
    /// Buffers that exist: free, in flight, or held.
    made: usize,
    /// Whoever waits for one to come back.
    waker: Option<Waker>,
    /// The stream is gone: what comes back is freed.
    closed: bool,
}

impl ChunkPool {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is one step, and no foreign code runs in between.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of `len` bytes, unless `max` exist and none is free.
    pub(super) fn take(
        &self,
        engine: EngineId,
        len: usize,
        max: usize,
    ) -> Result<Option<HostBuffer>> {
        {
            let mut state = self.lock();
            if let Some(buffer) = state.free.pop() {
                return Ok(Some(buffer));
            }
            if state.made >= max {
                return Ok(None);
            }
            state.made += 1;
        }
        let buffer = HostBuffer::allocate(engine, len);
        buffer.map(Some).inspect_err(|_| self.lock().made -= 1)
    }

    /// Whether to wait for a buffer: `waker` is woken when one comes back.
    pub(super) fn wait(&self, waker: &Waker, max: usize) -> bool {
        // Cloned before and dropped after the lock is held: both may run any code.
        let fresh = waker.clone();
        let mut state = self.lock();
        let waits = state.free.is_empty() && state.made >= max;
        let stale = if waits {
            state.waker.replace(fresh)
        } else {
            Some(fresh)
        };
        drop(state);
        drop(stale);
        waits
    }

    pub(super) fn give_back(&self, buffer: HostBuffer) {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            return drop(buffer);
        }
        state.free.push(buffer);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The stream ends.
    pub(super) fn close(&self) {
        let (free, waker) = {
            let mut state = self.lock();
            state.closed = true;
            (std::mem::take(&mut state.free), state.waker.take())
        };
        drop((free, waker));
    }
}

/// A piece of a file, in memory of its stream. Derefs to its bytes.
///
/// Holds no permit of the engine, so others are not held up by a chunk that is kept; but its
/// stream has only so many buffers ([`chunks_max`](super::ReadStream::chunks_max)). Dropping the
/// chunk gives its buffer back to the stream. It can be written as it is. May outlive stream, file and engine.
pub struct Chunk {
    /// `None` while dropping.
    span: Option<Span>,
    offset: u64,
    receipt: Receipt,
    pool: Arc<ChunkPool>,
}

impl Chunk {
    pub(super) const fn new(
        span: Span,
        offset: u64,
        receipt: Receipt,
        pool: Arc<ChunkPool>,
    ) -> Self {
        Self {
            span: Some(span),
            offset,
            receipt,
            pool,
        }
    }

    pub(crate) fn span_mut(&mut self) -> &mut Span {
        self.span.as_mut().expect("there until it is dropped")
    }

    /// Where it begins in the file, in bytes.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// What happened on its way.
    #[must_use]
    pub const fn receipt(&self) -> &Receipt {
        &self.receipt
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.span.as_ref().map_or(&[], Span::as_slice)
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(span) = self.span.take() {
            self.pool.give_back(span.into_buffer());
        }
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk")
            .field("offset", &self.offset)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
