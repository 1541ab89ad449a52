//! `AsyncWrite` over buffers of the engine.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use super::writes::Writes;
use super::{COPY_MAX, PAGE_SIZE};
use crate::config::Priority;
use crate::error::Result;
use crate::file::Face;
use crate::memory::{HostBuffer, Span};

/// A file for code that writes through tokio's trait: see
/// [`AsyncCuFile::async_writer`](crate::AsyncCuFile::async_writer).
///
/// Copies into buffers of [`task_size`](crate::Config::task_size), since `AsyncWrite` lends memory
/// for the time of one poll only, and writes each when it is full, aligned in the file. At most
/// [`in_flight_max`](Self::in_flight_max) buffers exist; when all are being written, a write waits.
///
/// | call | when it is done |
/// |---|---|
/// | `flush` | the buffered bytes are written, and every write has ended |
/// | `shutdown` | so, and [`sync_data`](crate::AsyncCuFile::sync_data) says that the data is durable |
///
/// Errors are [`tokio_cufile::Error`](crate::Error)s inside `std::io::Error`s; the first is the
/// answer to every call after it.
///
/// # Cancellation
///
/// A call that is dropped has taken nothing. **Dropped without a flush, the writer forgets the bytes
/// that fill no buffer**, as `BufWriter` does; writes under way are dropped as a
/// [`Transfer`](crate::Transfer) is, and later syncs of the file say what was lost.
#[derive(Debug)]
#[must_use = "a writer writes what it is given"]
pub struct AsyncFileWriter {
    writes: Writes<Span>,
    filling: Option<Filling>,
    free: Vec<HostBuffer>,
    /// Buffers that exist.
    made: usize,
}

#[derive(Debug)]
struct Filling {
    /// From where its bytes begin to where they must end.
    span: Span,
    filled: usize,
}

impl AsyncFileWriter {
    pub(super) const fn new(file: Face, offset: u64) -> Self {
        Self {
            writes: Writes::new(file, offset),
            filling: None,
            free: Vec::new(),
            made: 0,
        }
    }

    /// Buffers, and so writes that may run at once; at least 1. Default: 4.
    pub fn in_flight_max(mut self, buffers: usize) -> Self {
        self.writes.in_flight_max = buffers.max(1);
        self
    }

    /// The class that the writes wait in. Default: [`Priority::Normal`].
    pub const fn priority(mut self, priority: Priority) -> Self {
        self.writes.priority = priority;
        self
    }

    /// The file offset of the next byte.
    #[must_use]
    pub fn position(&self) -> u64 {
        let filled = self.filling.as_ref().map_or(0, |filling| filling.filled);
        self.writes.position.saturating_add(filled as u64)
    }

    fn poll_filling(&mut self, cx: &mut Context<'_>) -> Poll<Result<&mut Filling>> {
        if self.filling.is_none() {
            let buffer = ready!(self.poll_buffer(cx))?;
            // Up to the next multiple of the buffer's size, from where memory and file agree in
            // alignment: so only the edges of what is written are not aligned.
            let size = buffer.len() as u64;
            let position = self.writes.position;
            let fits = |bytes: u64| usize::try_from(bytes).expect("no longer than the buffer");
            let (place, room) = (position % PAGE_SIZE as u64, size - position % size);
            self.filling = Some(Filling {
                span: Span::new(buffer, fits(place), fits(room)),
                filled: 0,
            });
        }
        let filling = self.filling.as_mut();
        Poll::Ready(Ok(filling.expect("there is one by now")))
    }

    fn poll_buffer(&mut self, cx: &mut Context<'_>) -> Poll<Result<HostBuffer>> {
        if let Some(buffer) = self.free.pop() {
            return Poll::Ready(Ok(buffer));
        }
        if self.made < self.writes.in_flight_max {
            let engine = self.writes.file.engine();
            // A multiple of the page size: the settings are checked.
            let buffer = HostBuffer::allocate(engine.id, engine.config.task_size)?;
            self.made += 1;
            return Poll::Ready(Ok(buffer));
        }
        let spent = ready!(self.writes.poll_oldest(cx))?;
        let spent = spent.expect("what is neither free nor being filled is in flight");
        Poll::Ready(Ok(spent.into_buffer()))
    }

    /// Starts the write of what was filled.
    fn start(&mut self) {
        if let Some(Filling { mut span, filled }) = self.filling.take() {
            span.truncate(filled);
            self.writes.write(span);
        }
    }

    fn poll_written(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.writes.check()?;
        self.start();
        let free = &mut self.free;
        self.writes
            .poll_all(cx, |span| free.push(span.into_buffer()))
    }
}

impl AsyncWrite for AsyncFileWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.writes.check()?;
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let filling = ready!(self.poll_filling(cx))?;
        let room = &mut filling.span.as_mut_slice()[filling.filled..];
        let len = bytes.len().min(room.len()).min(COPY_MAX);
        room[..len].copy_from_slice(&bytes[..len]);
        let is_full = len == room.len();
        filling.filled += len;
        if is_full {
            self.start();
        }
        Poll::Ready(Ok(len))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_written(cx))?;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_written(cx))?;
        ready!(self.writes.poll_sync(cx))?;
        Poll::Ready(Ok(()))
    }
}
