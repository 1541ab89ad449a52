//! A write in two awaits: the source is free again, and the bytes are written.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use completion::{Handle, PayloadState, PayloadWatch};

use super::{CancelHandle, Done, OpError, Transfer};
use crate::engine::{Core, Model};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::memory::{IoBuf, ProcessMark, leak_in_child};
use crate::plan::Kind;

/// The source of a write. The operation shares it with who waits for it: it is taken out when no
/// part touches its bytes any more, and not before.
type Source<B> = Mutex<Option<B>>;

fn take<B>(source: &Source<B>) -> Option<B> {
    source.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// A source whose type its write need not know.
trait AnySource: Send + Sync {
    fn is_taken(&self) -> bool;
}

impl<B: Send> AnySource for Source<B> {
    fn is_taken(&self) -> bool {
        let source = self.lock().unwrap_or_else(PoisonError::into_inner);
        source.is_none()
    }
}

impl<B: IoBuf> Transfer<B> {
    /// Starts a write and awaits it in two steps: [`Staged`] gives the source back as soon as its
    /// bytes are needed no more, [`Written`] tells what became of the write.
    ///
    /// How much earlier the source comes back depends on the way that its bytes take:
    ///
    /// | way | the source is free |
    /// |---|---|
    /// | around the page cache, in place | when the write has ended: the disk reads it until then |
    /// | around the page cache, from memory that direct I/O does not take | when the last part is copied to its staging slot |
    /// | through the page cache, edges included | when the system call has copied it |
    /// | with a [`digest`](Self::digest) | when the write has ended and the checksums are made |
    ///
    /// Nothing that can go in place is copied for the sake of an earlier return. A write that
    /// needs more slots than there are waits for slots, and so does its source.
    ///
    /// Set everything else before. Both futures belong to one write:
    ///
    /// | when | `Staged` | `Written` |
    /// |---|---|---|
    /// | the write fails, is cancelled or late | gives the source when no issued part reads it any more | the error |
    /// | it is refused before anything was issued | gives the source | the error |
    /// | quarantined while a part may read the source | `Quarantined`; the source is leaked | `Quarantined` |
    /// | quarantined after the source was free | gives the source | `Quarantined` |
    ///
    /// # Cancellation
    ///
    /// Dropping [`Staged`] does not disturb the write: the source is dropped on an engine thread
    /// when the write has ended. Dropping [`Written`] is dropping the write, as for a [`Transfer`]:
    /// what was not issued is withdrawn, and a write that is torn or fails then is reported by later
    /// syncs of the file. `Staged` gives the source then, possibly as late as the write's end.
    ///
    /// # Errors
    ///
    /// For a read `Written` gives `InvalidInput`, and nothing is read: it has no source.
    ///
    /// # Panics
    ///
    /// When the operation was started before, or has completed.
    pub fn staged(mut self) -> (Staged<B>, Written) {
        if self.kind == Kind::Read && matches!(self.pending, Some(Ok(_))) {
            let reason = "a read has no source to be staged";
            self.pending = Some(Err(Error::new(ErrorKind::InvalidInput, reason)));
        }
        let mark = Arc::clone(&self.mark);
        let core = self.handle.as_ref().map(|handle| Arc::clone(handle.core()));
        let mut shared = None;
        let write = self.with_owner(|buf| {
            let source = Arc::new(Mutex::new(Some(buf)));
            shared = Some(Arc::clone(&source));
            Owner { source }
        });
        let (Some(mut write), Some(source), Some(core)) = (write, shared, core) else {
            panic!("`staged` is called before the write is started");
        };
        write.submit();
        let lost = write.describe_range(Error::new(
            ErrorKind::Quarantined,
            "it could not be proved to have ended: its memory is leaked",
        ));
        let staged = Staged {
            source: Some(Handle::new(&core, source)),
            watch: write.watch(),
            lost: Some(lost),
            mark,
        };
        (staged, Written { write, core })
    }
}

/// What the operation owns.
struct Owner {
    source: Arc<dyn AnySource>,
}

/// The first await of a staged write: gives the source back. See [`Transfer::staged`].
#[must_use = "dropped, it leaves the source to the engine"]
pub struct Staged<B> {
    /// An operation that is never submitted: dropped, it has the engine's disposer drop the source.
    source: Option<Handle<Model, Arc<Source<B>>>>,
    /// Absent when the write was refused.
    watch: Option<PayloadWatch<Model>>,
    /// The error of a source that is lost.
    lost: Option<Error>,
    mark: Arc<ProcessMark>,
}

/// Nothing in it is pinned: the source is on the heap.
impl<B> Unpin for Staged<B> {}

impl<B: Send + 'static> Staged<B> {
    fn poll_state(&self, cx: &mut Context<'_>) -> Poll<PayloadState> {
        match &self.watch {
            Some(watch) => watch.poll_free(cx),
            None => Poll::Ready(PayloadState::Free),
        }
    }
}

impl<B: Send + 'static> Future for Staged<B> {
    /// An error is `Quarantined`, or `Forked` in a child of the process that started the write.
    type Output = Result<B>;

    /// # Panics
    ///
    /// When polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(error) = self.mark.check() {
            return Poll::Ready(Err(error.with_operation(Operation::Write)));
        }
        let state = ready!(self.poll_state(cx));
        let mut handle = self.source.take().expect("polled after completion");
        let lost = self.lost.take();
        if state == PayloadState::Free
            && let Some(source) = handle.take_back().as_deref().and_then(take)
        {
            return Poll::Ready(Ok(source));
        }
        Poll::Ready(Err(lost.expect("polled after completion")))
    }
}

impl<B> Drop for Staged<B> {
    fn drop(&mut self) {
        if self.mark.is_forked() {
            leak_in_child((self.source.take(), self.watch.take()));
        }
    }
}

impl<B> fmt::Debug for Staged<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staged")
            .field("watch", &self.watch)
            .finish_non_exhaustive()
    }
}

/// The second await of a staged write: its outcome, without the buffer. See [`Transfer::staged`].
#[must_use = "dropped, it withdraws what was not issued of the write"]
pub struct Written {
    write: Transfer<Owner>,
    core: Arc<Core>,
}

impl Written {
    /// What can cancel the write from elsewhere.
    ///
    /// # Panics
    ///
    /// After the future has completed.
    #[must_use]
    pub fn cancel_handle(&self) -> CancelHandle {
        self.write.cancel_handle()
    }

    /// Who polls does not drop what somebody else may have left in the operation.
    fn dispose(&self, owner: Owner) {
        if !owner.source.is_taken() {
            drop(Handle::<Model, _>::new(&self.core, owner));
        }
    }
}

impl Future for Written {
    type Output = Result<Done<()>, OpError<()>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(Pin::new(&mut self.write).poll(cx));
        Poll::Ready(match result {
            Ok(done) => Ok(done.map(|owner| self.dispose(owner))),
            Err(error) => Err(error.map(|owner| self.dispose(owner))),
        })
    }
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Written").field(&self.write).finish()
    }
}
