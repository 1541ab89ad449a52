//! Reads ahead, chunks in order.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::{FusedStream, Stream};

use super::chunks::{Chunk, ChunkPool};
use super::{IN_FLIGHT_DEFAULT, PAGE_SIZE};
use crate::config::Priority;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::file::Face;
use crate::memory::Span;
use crate::op::{Done, OpError, Transfer};
use crate::receipt::PathClass;

/// A part of a file as a stream of [`Chunk`]s in order: see
/// [`AsyncCuFile::read_stream`](crate::AsyncCuFile::read_stream).
///
/// Reads run ahead of the user: [`read_ahead`](Self::read_ahead) of them, from the first poll on,
/// and more are started only when the stream is polled. So a user who stops polling is not read
/// ahead of any further.
///
/// At most [`chunks_max`](Self::chunks_max) chunks exist at once. **When the user holds all of
/// them, the stream waits until one is dropped**: collecting a long stream's chunks waits for ever.
///
/// The first error ends the stream. It comes after the chunks before it.
///
/// # Cancellation
///
/// Dropping the stream is safe at any instant, as dropping a [`Transfer`] is. Chunks may outlive it.
#[must_use = "streams do nothing unless polled"]
pub struct ReadStream {
    settings: Settings,
    /// Reads in flight or done, with their file offsets, in order.
    ahead: VecDeque<(u64, Transfer<Span>)>,
    /// Where the next read begins.
    next: u64,
    end: u64,
    over: bool,
    pool: Arc<ChunkPool>,
    file: Face,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    chunk_size: usize,
    read_ahead: usize,
    chunks_max: usize,
    priority: Priority,
    require: Option<PathClass>,
}

impl ReadStream {
    pub(super) fn new(file: Face, start: u64, end: u64) -> Self {
        let settings = Settings {
            chunk_size: file.engine().config.task_size,
            read_ahead: IN_FLIGHT_DEFAULT,
            chunks_max: 2 * IN_FLIGHT_DEFAULT,
            priority: Priority::Normal,
            require: None,
        };
        Self {
            settings,
            ahead: VecDeque::new(),
            next: start,
            end,
            over: false,
            pool: Arc::default(),
            file,
        }
    }

    /// Bytes of a chunk: those between two multiples of `bytes` in the file. Default: the engine's
    /// [`task_size`](crate::Config::task_size). To be set before the first poll. Zero makes the
    /// stream an error (`InvalidInput`).
    pub const fn chunk_size(mut self, bytes: usize) -> Self {
        self.settings.chunk_size = bytes;
        self
    }

    /// Reads that may be ahead of the user, done or not; at least 1. Default: 4.
    pub fn read_ahead(mut self, chunks: usize) -> Self {
        self.settings.read_ahead = chunks.max(1);
        self
    }

    /// Chunks that may exist at once, being read, waiting or held by the user; at least 1. Their
    /// memory is this many times the chunk size, allocated as it is needed. Default: 8.
    pub fn chunks_max(mut self, chunks: usize) -> Self {
        self.settings.chunks_max = chunks.max(1);
        self
    }

    /// The class that the reads wait in. Default: [`Priority::Normal`].
    pub const fn priority(mut self, priority: Priority) -> Self {
        self.settings.priority = priority;
        self
    }

    /// Insists on a way for the bytes, as [`Transfer::require`].
    pub const fn require(mut self, class: PathClass) -> Self {
        self.settings.require = Some(class);
        self
    }

    /// Where the next read begins.
    pub(super) const fn position(&self) -> u64 {
        self.next
    }

    /// The file, for other calls.
    pub(super) const fn file(&self) -> &Face {
        &self.file
    }

    /// The same with nothing read, from `start` to the same end.
    pub(super) fn restart(&mut self, start: u64) {
        let mut fresh = Self::new(self.file.clone(), start, self.end);
        fresh.settings = self.settings;
        *self = fresh;
    }

    /// Starts reads as far ahead as may be.
    fn read_on(&mut self) -> Result<()> {
        let Settings {
            chunk_size,
            read_ahead,
            chunks_max,
            ..
        } = self.settings;
        while self.next < self.end && self.ahead.len() < read_ahead {
            // Whatever offsets the chunks have, memory can agree with them in alignment.
            let slack = if chunk_size.is_multiple_of(PAGE_SIZE) {
                0
            } else {
                PAGE_SIZE
            };
            let Some(len) = chunk_size.checked_add(slack).filter(|_| chunk_size > 0) else {
                let reason = format!("a chunk size of {chunk_size}");
                return Err(Error::new(ErrorKind::InvalidInput, reason));
            };
            let engine = self.file.engine().id;
            let buffer = match self.pool.take(engine, len, chunks_max) {
                Ok(Some(buffer)) => buffer,
                Ok(None) => break,
                // What was read before comes first; then it is tried again.
                Err(_) if !self.ahead.is_empty() => break,
                Err(error) => return Err(error),
            };
            let (place, len) = self.next_place();
            let mut read = self.file.read(Span::new(buffer, place, len), self.next);
            read = read.priority(self.settings.priority);
            if let Some(class) = self.settings.require {
                read = read.require(class);
            }
            self.ahead.push_back((self.next, read.start()));
            self.next += len as u64;
        }
        Ok(())
    }

    /// Where the next chunk begins in its buffer, so that it can be read in place, and its length.
    fn next_place(&self) -> (usize, usize) {
        let chunk_size = self.settings.chunk_size as u64;
        let len = (chunk_size - self.next % chunk_size).min(self.end - self.next);
        let place = self.next % PAGE_SIZE as u64;
        let fits = |bytes: u64| usize::try_from(bytes).expect("no longer than a chunk or a page");
        (fits(place), fits(len))
    }

    fn finish(
        &mut self,
        offset: u64,
        result: Result<Done<Span>, OpError<Span>>,
    ) -> Option<Result<Chunk>> {
        let done = match result {
            Ok(done) => done,
            Err(error) => {
                self.stop();
                return Some(Err(error.into()));
            }
        };
        let mut span = done.buf;
        if done.bytes < span.len() {
            // The file ends here.
            self.stop();
        }
        span.truncate(done.bytes);
        if done.bytes == 0 {
            return None;
        }
        let chunk = Chunk::new(span, offset, done.receipt, Arc::clone(&self.pool));
        Some(Ok(chunk))
    }

    /// Reads that are under way are dropped: their memory goes when they end.
    fn stop(&mut self) {
        self.over = true;
        self.ahead.clear();
    }

    fn describe(&self, error: Error) -> Error {
        error
            .with_operation(Operation::Read)
            .with_path(&self.file.file().path)
            .with_offset(self.next)
    }
}

impl Stream for ReadStream {
    type Item = Result<Chunk>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if self.over {
                return Poll::Ready(None);
            }
            if let Err(error) = self.read_on() {
                self.stop();
                return Poll::Ready(Some(Err(self.describe(error))));
            }
            if let Some((offset, read)) = self.ahead.front_mut() {
                let offset = *offset;
                let result = ready!(Pin::new(read).poll(cx));
                self.ahead.pop_front();
                if let Some(item) = self.finish(offset, result) {
                    return Poll::Ready(Some(item));
                }
            } else if self.next >= self.end {
                self.stop();
            } else if self.pool.wait(cx.waker(), self.settings.chunks_max) {
                return Poll::Pending;
            }
        }
    }
}

impl FusedStream for ReadStream {
    fn is_terminated(&self) -> bool {
        self.over
    }
}

impl Drop for ReadStream {
    fn drop(&mut self) {
        self.pool.close();
    }
}

impl fmt::Debug for ReadStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadStream")
            .field("path", &self.file.file().path)
            .field("next", &self.next)
            .field("end", &self.end)
            .field("ahead", &self.ahead.len())
            .field("over", &self.over)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
