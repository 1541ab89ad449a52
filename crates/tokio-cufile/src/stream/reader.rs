//! `AsyncRead` over the chunks of a stream.

use std::fmt;
use std::future::Future;
use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncSeek, ReadBuf};

use super::COPY_MAX;
use super::chunks::Chunk;
use super::read_stream::ReadStream;
use crate::error::Error;
use crate::op::Request;

/// A file for code that reads through tokio's traits: see
/// [`AsyncCuFile::reader`](crate::AsyncCuFile::reader).
///
/// Reads ahead into memory of its own and copies from there: `AsyncRead` lends memory for the time
/// of one poll only, which no disk keeps to. Who can take chunks as they are, saves the copy:
/// [`fill_buf`](AsyncBufRead::poll_fill_buf) lends them, a [`ReadStream`] gives them away.
///
/// Errors are [`tokio_cufile::Error`](crate::Error)s inside `std::io::Error`s; each later read
/// gives the first one again, until a seek. The end of the file, once met, stays the end until a
/// seek, also if the file grows.
///
/// # Cancellation
///
/// A read that is dropped has read nothing. Dropping the reader is safe at any instant.
#[must_use = "a reader reads nothing until it is asked"]
pub struct FileReader {
    stream: ReadStream,
    current: Option<Chunk>,
    /// Bytes of the current chunk that the user has.
    consumed: usize,
    /// Where the user is in the file.
    position: u64,
    failed: Option<Error>,
    seek: Option<Seek>,
}

enum Seek {
    To(u64),
    /// So far from the end of the file, whose length is asked for.
    FromEnd(i64, Request<u64>),
}

impl FileReader {
    pub(super) const fn new(stream: ReadStream) -> Self {
        let position = stream.position();
        Self {
            stream,
            current: None,
            consumed: 0,
            position,
            failed: None,
            seek: None,
        }
    }

    /// Reads that may be ahead of the user; at least 1. Default: 4. To be set before the first read.
    pub fn read_ahead(mut self, chunks: usize) -> Self {
        self.stream = self.stream.read_ahead(chunks);
        self
    }

    /// Bytes of one read. Default: the engine's [`task_size`](crate::Config::task_size). To be set
    /// before the first read.
    pub fn chunk_size(mut self, bytes: usize) -> Self {
        self.stream = self.stream.chunk_size(bytes);
        self
    }

    /// The file offset of the next byte.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// The bytes at hand; empty at the end of the file.
    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        ready!(self.poll_seek(cx))?;
        let left = |chunk: &Chunk, consumed| chunk.len() > consumed;
        if !(self.current.as_ref()).is_some_and(|chunk| left(chunk, self.consumed)) {
            if let Some(error) = &self.failed {
                return Poll::Ready(Err(error.clone().into()));
            }
            // Its buffer goes back first: the stream may wait for it.
            self.current = None;
            self.consumed = 0;
            match ready!(Pin::new(&mut self.stream).poll_next(cx)) {
                Some(Ok(chunk)) => self.current = Some(chunk),
                Some(Err(error)) => {
                    self.failed = Some(error.clone());
                    return Poll::Ready(Err(error.into()));
                }
                None => {}
            }
        }
        let bytes = self.current.as_deref().unwrap_or_default();
        Poll::Ready(Ok(&bytes[self.consumed..]))
    }

    fn advance(&mut self, bytes: usize) {
        let at_hand = self.current.as_ref().map_or(0, |chunk| chunk.len());
        let consumed = bytes.min(at_hand - self.consumed);
        self.consumed += consumed;
        self.position += consumed as u64;
    }

    fn poll_seek(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let target = match &mut self.seek {
            None => return Poll::Ready(Ok(())),
            Some(Seek::To(target)) => Some(*target),
            Some(Seek::FromEnd(by, len)) => {
                let by = *by;
                match ready!(Pin::new(len).poll(cx)) {
                    Ok(len) => len.checked_add_signed(by),
                    Err(error) => {
                        self.seek = None;
                        return Poll::Ready(Err(error.into()));
                    }
                }
            }
        };
        self.seek = None;
        match target {
            Some(target) => self.go_to(target),
            None => return Poll::Ready(Err(before_the_start())),
        }
        Poll::Ready(Ok(()))
    }

    fn go_to(&mut self, target: u64) {
        self.failed = None;
        let within = self.current.as_ref().and_then(|chunk| {
            let into = usize::try_from(target.checked_sub(chunk.offset())?).ok()?;
            (into < chunk.len()).then_some(into)
        });
        if let Some(into) = within {
            self.consumed = into;
        } else {
            self.current = None;
            self.consumed = 0;
            self.stream.restart(target);
        }
        self.position = target;
    }
}

fn before_the_start() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "a seek to before the start of the file, or beyond the largest offset",
    )
}

impl AsyncRead for FileReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let bytes = ready!(self.poll_bytes(cx))?;
        let len = bytes.len().min(buf.remaining()).min(COPY_MAX);
        buf.put_slice(&bytes[..len]);
        self.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncBufRead for FileReader {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        self.get_mut().poll_bytes(cx)
    }

    fn consume(mut self: Pin<&mut Self>, bytes: usize) {
        self.advance(bytes);
    }
}

impl AsyncSeek for FileReader {
    fn start_seek(mut self: Pin<&mut Self>, to: SeekFrom) -> io::Result<()> {
        let seek = match to {
            SeekFrom::Start(target) => Some(Seek::To(target)),
            SeekFrom::Current(by) => self.position.checked_add_signed(by).map(Seek::To),
            SeekFrom::End(by) => Some(Seek::FromEnd(by, self.stream.file().len())),
        };
        self.seek = Some(seek.ok_or_else(before_the_start)?);
        Ok(())
    }

    fn poll_complete(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
        ready!(self.poll_seek(cx))?;
        Poll::Ready(Ok(self.position))
    }
}

impl fmt::Debug for FileReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileReader")
            .field("position", &self.position)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
