//! Operations in a user's CUDA stream.
#![allow(
    unsafe_code,
    reason = "takes the user's word for a stream that is known by address only"
)]

use std::ffi::c_void;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::sync::oneshot;

use super::parts::Cut;
use super::planned::in_one_piece;
use super::transfer::Pending;
use super::{CancelHandle, Done, OpError, Transfer};
use crate::cuda::{is_per_thread, stream_of};
use crate::cufile;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{DeviceRange, IoBuf, Region};
use crate::os;
use crate::plan::{IO_LEN_MAX, Kind, Plan};
use crate::receipt::DataPath;

impl<B: IoBuf> Transfer<B> {
    /// Puts the operation into a CUDA stream (`CUstream`, of the primary context of the memory's
    /// device; null is the legacy default stream): it begins when what was in the stream before has
    /// ended, and what is put there afterwards begins when it has ended. So a kernel can precede or
    /// follow it without the host in between.
    ///
    /// Set everything else before. Needs a file that cuFile serves, see
    /// [`CompatMode`](crate::CompatMode), and memory of a device. Takes at most 2 GiB less 4 KiB at a
    /// time; a write begins and ends at multiples of 4 KiB of the file, since the rest of a page would
    /// have to be written outside of the stream. The path of its bytes cannot be told: it has no
    /// window of its own, and the receipt says `cufile-unverified`.
    ///
    /// A stream that is not a [`RegisteredStream`](crate::RegisteredStream) takes one operation of cuFile's at a
    /// time, and refuses the next until that has ended: with two, libcufile corrupts the memory of the process
    /// (seen with 1.15 and 1.20).
    ///
    /// Until the stream has passed it, it takes a place among the parts that the engine has in flight
    /// ([`num_threads`](crate::Config::num_threads) and, with a ring,
    /// [`queue_depth`](crate::Config::queue_depth) together), and a thread as long as the stream is full.
    /// So streams that stand still, with many operations in them, hold up the rest of the engine.
    ///
    /// # Safety
    ///
    /// The stream belongs to the primary context of the memory's device, and is alive until the
    /// operation has ended: until [`Enqueued`] has resolved. Where that is dropped, until the stream has
    /// been synchronised; where [`Enqueue`] is dropped, until the engine has shut down, since nobody knows
    /// when the operation comes into the stream. After `Quarantined`, for ever.
    ///
    /// # Errors
    ///
    /// `Unsupported` where cuFile does not serve the file, with the reason; for host memory, many
    /// ranges, digests; and for a libcufile before 1.7. `InvalidInput` for the limits above and for the
    /// per-thread default stream (`CU_STREAM_PER_THREAD`). `PathRefused` where a path is required.
    /// `Busy` where cuFile has an operation in the stream and it is not registered, or is being registered or
    /// deregistered; `WrongEngine` where another engine has registered it.
    /// The error gives the buffer back. A transfer that stops before the end of the file, or a write
    /// that is short, is an `Io` error: what follows in the stream has run by then.
    ///
    /// A deadline, a cancel or a shutdown does not take it out of the stream, and nothing is heard of it
    /// while a long kernel is before it: it is `Quarantined` after
    /// [`quiet_limit`](crate::Config::quiet_limit) then.
    ///
    /// # Panics
    ///
    /// When the operation was started before, or has completed.
    pub unsafe fn enqueue_on(mut self, stream: *mut c_void) -> Enqueue<B> {
        let pending = self.pending.take();
        let pending = pending.expect("`enqueue_on` is called before the operation is started");
        let mut enqueued = None;
        let pending = pending.and_then(|mut pending| {
            if is_per_thread(stream) {
                let reason = "the per-thread default stream is another one on the engine's threads";
                return refuse(ErrorKind::InvalidInput, reason);
            }
            let plan = self.planned_for_stream(&pending)?;
            pending.outline = plan.outline();
            pending.parts.cut = Cut::One(plan);
            let (id, bytes_max) = (pending.engine.id, pending.engine.config.task_size);
            let (into, told) = cufile::InStream::new(stream_of(stream), id, bytes_max);
            pending.parts.into_stream = Some(into);
            enqueued = Some(told);
            Ok(pending)
        });
        let memory = pending.as_ref().ok();
        let memory = memory.and_then(|pending| pending.parts.memory.on_device());
        self.pending = Some(pending);
        Enqueue {
            transfer: Some(self),
            enqueued,
            // Of an operation that is refused, nobody will see it.
            memory: memory.unwrap_or(DeviceRange::new(0, 0, 0)),
        }
    }

    fn planned_for_stream(&self, pending: &Pending) -> Result<Plan> {
        let memory = pending.parts.memory;
        if !matches!(memory, Region::Device(_)) || self.runs.is_some() || self.digest.is_some() {
            let reason = "one range of a device's memory goes into a stream, without digests";
            return refuse(ErrorKind::Unsupported, reason);
        }
        if pending.route.cufile.is_none() {
            let why = &pending.route.route;
            return refuse(
                ErrorKind::Unsupported,
                format!(
                    "only cuFile puts operations into a stream, and it does not serve the file: {why}"
                ),
            );
        }
        if let Some(class) = self.require
            && !class.admits(DataPath::CufileUnverified)
        {
            let reason =
                format!("{class} is required, and of bytes in a stream no path can be told");
            return refuse(ErrorKind::PathRefused, reason);
        }
        if memory.len() as u64 > IO_LEN_MAX {
            let reason = format!("at most {IO_LEN_MAX} bytes go into a stream at once");
            return refuse(ErrorKind::InvalidInput, reason);
        }
        let page_size = os::page_size();
        let is_whole = |at: u64| at.is_multiple_of(page_size);
        if self.kind == Kind::Write && !(is_whole(self.offset) && is_whole(memory.len() as u64)) {
            let reason = format!("a write in a stream is of whole pages of {page_size} bytes");
            return refuse(ErrorKind::InvalidInput, reason);
        }
        Ok(Plan::new(in_one_piece(self.kind, self.offset, memory))?)
    }
}

fn refuse<T>(kind: ErrorKind, reason: impl Into<std::borrow::Cow<'static, str>>) -> Result<T> {
    Err(Error::new(kind, reason))
}

/// Resolves when an operation is in its stream. See [`Transfer::enqueue_on`].
///
/// # Cancellation
///
/// Dropped before it was issued, the operation is withdrawn; dropped afterwards, it stays in the stream,
/// and the engine keeps its buffer until the stream has passed it.
#[must_use = "futures do nothing unless polled"]
pub struct Enqueue<B> {
    transfer: Option<Transfer<B>>,
    /// `None` once it is known that nothing will be told.
    enqueued: Option<oneshot::Receiver<()>>,
    memory: DeviceRange,
}

impl<B> Unpin for Enqueue<B> {}

impl<B> Enqueue<B> {
    /// What can cancel the operation from elsewhere, as long as it is not in its stream.
    ///
    /// # Panics
    ///
    /// After the future has completed.
    #[must_use]
    pub fn cancel_handle(&self) -> CancelHandle {
        let transfer = self.transfer.as_ref();
        transfer
            .expect("the future has not completed")
            .cancel_handle()
    }
}

impl<B: Send + 'static> Future for Enqueue<B> {
    type Output = Result<Enqueued<B>, OpError<B>>;

    /// # Panics
    ///
    /// When polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let transfer = this.transfer.as_mut().expect("polled after completion");
        transfer.submit();
        let told = this.enqueued.as_mut().map(|told| Pin::new(told).poll(cx));
        let is_in_stream = matches!(told, Some(Poll::Ready(Ok(()))));
        if matches!(told, Some(Poll::Ready(Err(_)))) {
            this.enqueued = None; // Not to be asked again.
        }
        let ended = match is_in_stream {
            true => None,
            // Also while nothing was told: it had no bytes, or has ended otherwise, perhaps because
            // whoever was to tell is stuck.
            false => Some(ready!(Pin::new(transfer).poll(cx))?),
        };
        let transfer = this.transfer.take().filter(|_| ended.is_none());
        Poll::Ready(Ok(Enqueued {
            transfer,
            ended,
            memory: this.memory,
        }))
    }
}

impl<B> fmt::Debug for Enqueue<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Enqueue").field(&self.transfer).finish()
    }
}

/// An operation in a stream, which cannot be withdrawn: resolves to its outcome when the stream has
/// passed it. What is put into the stream meanwhile may use the memory, at the address that the buffer
/// had.
///
/// # Cancellation
///
/// Dropped, the engine keeps the buffer until the stream has passed the operation.
#[must_use = "dropped, it leaves the buffer to the engine"]
pub struct Enqueued<B> {
    transfer: Option<Transfer<B>>,
    ended: Option<Done<B>>,
    memory: DeviceRange,
}

impl<B> Enqueued<B> {
    /// Where the operation's memory begins in the device's address space (`CUdeviceptr`), for what is put
    /// into the stream behind it.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.memory.address()
    }

    /// The operation's bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether it has no byte.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<B> Unpin for Enqueued<B> {}

impl<B: Send + 'static> Future for Enqueued<B> {
    type Output = Result<Done<B>, OpError<B>>;

    /// # Panics
    ///
    /// When polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(done) = self.ended.take() {
            return Poll::Ready(Ok(done));
        }
        let transfer = self.transfer.as_mut().expect("polled after completion");
        let outcome = ready!(Pin::new(transfer).poll(cx));
        self.transfer = None;
        Poll::Ready(outcome)
    }
}

impl<B> fmt::Debug for Enqueued<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Enqueued").field(&self.transfer).finish()
    }
}
