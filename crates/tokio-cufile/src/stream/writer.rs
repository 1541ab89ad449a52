//! A `Sink` of buffers.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_sink::Sink;

use super::writes::Writes;
use crate::config::Priority;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::file::Face;
use crate::memory::IoBuf;

/// Writes buffers one behind the other: see [`AsyncCuFile::writer`](crate::AsyncCuFile::writer).
///
/// A [`Sink`] over every kind of buffer that a write takes. At most
/// [`in_flight_max`](Self::in_flight_max) writes run at once; when they do, the sink is not ready.
/// Buffers are written from where they lie and dropped by whoever polls.
///
/// | call | when it is done |
/// |---|---|
/// | `flush` | every write has ended |
/// | `close` | so, and [`sync_data`](crate::AsyncCuFile::sync_data) says that the data is durable |
///
/// The first error, in the order of the writes, is the answer to every call after it. Writes behind
/// the one that failed may have happened.
///
/// # Cancellation
///
/// Dropped, what it was sent is dropped as a [`Transfer`](crate::Transfer) is: a write of which
/// something was issued is ended or reported as torn by later syncs of the file, one that still
/// waited for its turn leaves no trace. Only closing tells that all is well.
#[derive(Debug)]
#[must_use = "a sink writes what it is sent"]
pub struct FileWriter<B> {
    writes: Writes<B>,
    closed: bool,
}

impl<B: IoBuf> FileWriter<B> {
    pub(super) const fn new(file: Face, offset: u64) -> Self {
        Self {
            writes: Writes::new(file, offset),
            closed: false,
        }
    }

    /// Writes that may run at once; at least 1. Default: 4.
    pub fn in_flight_max(mut self, writes: usize) -> Self {
        self.writes.in_flight_max = writes.max(1);
        self
    }

    /// The class that the writes wait in. Default: [`Priority::Normal`].
    pub const fn priority(mut self, priority: Priority) -> Self {
        self.writes.priority = priority;
        self
    }

    /// The file offset that the next buffer is written at.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.writes.position
    }
}

/// Nothing in it is pinned: writes own their buffers on the heap.
impl<B> Unpin for FileWriter<B> {}

impl<B: IoBuf> Sink<B> for FileWriter<B> {
    type Error = Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.writes.poll_room(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, buf: B) -> Result<()> {
        self.writes.check()?;
        if self.closed {
            let error = Error::new(ErrorKind::InvalidInput, "the writer was closed");
            return Err(error
                .with_operation(Operation::Write)
                .with_path(&self.writes.file.file().path));
        }
        self.writes.write(buf);
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.writes.poll_all(cx, drop)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(self.writes.poll_all(cx, drop))?;
        if !self.closed {
            ready!(self.writes.poll_sync(cx))?;
            self.closed = true;
        }
        Poll::Ready(Ok(()))
    }
}
