//! Writes in flight, in order, with the first error kept.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::IN_FLIGHT_DEFAULT;
use crate::config::Priority;
use crate::error::{Error, Result};
use crate::file::Face;
use crate::memory::IoBuf;
use crate::op::{Request, Transfer};

pub(super) struct Writes<B> {
    /// Oldest first.
    in_flight: VecDeque<Transfer<B>>,
    pub(super) in_flight_max: usize,
    pub(super) priority: Priority,
    /// Where the next write begins in the file.
    pub(super) position: u64,
    failed: Option<Error>,
    /// A sync that is under way.
    sync: Option<Request<()>>,
    pub(super) file: Face,
}

impl<B: IoBuf> Writes<B> {
    pub(super) const fn new(file: Face, position: u64) -> Self {
        Self {
            in_flight: VecDeque::new(),
            in_flight_max: IN_FLIGHT_DEFAULT,
            priority: Priority::Normal,
            position,
            failed: None,
            sync: None,
            file,
        }
    }

    /// The first error, at every call from then on.
    pub(super) fn check(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Starts a write behind the last one.
    pub(super) fn write(&mut self, buf: B) {
        let write = self.file.write(buf, self.position);
        self.position = self.position.saturating_add(write.bytes_asked() as u64);
        let write = write.priority(self.priority).start();
        self.in_flight.push_back(write);
        // A sync that is under way says nothing of this write.
        self.sync = None;
    }

    /// Waits for the oldest write. `None`: there is none.
    pub(super) fn poll_oldest(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<B>>> {
        self.check()?;
        let Some(oldest) = self.in_flight.front_mut() else {
            return Poll::Ready(Ok(None));
        };
        let result = ready!(Pin::new(oldest).poll(cx));
        self.in_flight.pop_front();
        match result {
            Ok(done) => Poll::Ready(Ok(Some(done.buf))),
            Err(error) => {
                let error = Error::from(error);
                self.failed = Some(error.clone());
                Poll::Ready(Err(error))
            }
        }
    }

    /// Waits until one more write may be started.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.check()?;
        while self.in_flight.len() >= self.in_flight_max {
            ready!(self.poll_oldest(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Waits for all writes, handing each buffer to `spent`.
    pub(super) fn poll_all(
        &mut self,
        cx: &mut Context<'_>,
        mut spent: impl FnMut(B),
    ) -> Poll<Result<()>> {
        while let Some(buf) = ready!(self.poll_oldest(cx))? {
            spent(buf);
        }
        Poll::Ready(Ok(()))
    }

    /// Makes what was written durable. All writes have ended.
    pub(super) fn poll_sync(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.check()?;
        let file = &self.file;
        let sync = self.sync.get_or_insert_with(|| file.sync_data());
        let result = ready!(Pin::new(sync).poll(cx));
        self.sync = None;
        self.failed = result.as_ref().err().cloned();
        Poll::Ready(result)
    }
}

impl<B> fmt::Debug for Writes<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writes")
            .field("path", &self.file.file().path)
            .field("position", &self.position)
            .field("in_flight", &self.in_flight.len())
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}
