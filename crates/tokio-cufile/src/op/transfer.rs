//! Reads and writes.

mod owner;

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use completion::{Handle, Settlement};

use super::outcome::{Done, OpError};
use super::parts::{Cut, Parts};
use super::planned::request;
use super::ranges::Ranges;
use super::{CancelHandle, Options, digested, error_of};
use crate::config::Priority;
use crate::cuda::CudaEvent;
use crate::digest::DigestState;
use crate::engine::{Model, PartReport, Shared};
use crate::error::{Error, ErrorKind, Result};
use crate::file::FileShared;
use crate::memory::{IoBuf, ProcessMark, Region, leak_in_child};
use crate::plan::ranges::Runs;
use crate::plan::route::FileRoute;
use crate::plan::{Kind, Outline, Plan};
use crate::receipt::{PathClass, Receipt, Route};

/// A read or write on its way through the engine. Owns the buffer and gives it back.
///
/// Lazy: nothing is issued before the first poll, or [`start`](Self::start).
///
/// # Cancellation
///
/// Dropping it is safe at any instant, and never blocks: what was not issued is withdrawn at once;
/// for what was, the buffer stays with the engine until the last part has ended, and is dropped on
/// an engine thread then. To have the buffer back, use [`cancel_handle`](Self::cancel_handle) or
/// [`deadline`](Self::deadline) and await the outcome.
///
/// Leaked (`std::mem::forget`) once it has begun, it is done to its end, and leaks itself and its result,
/// the buffer, and nothing of the engine or the file. Before that it counts as a leaked file:
/// [`Engine`](crate::Engine).
#[must_use = "futures do nothing unless polled, or started"]
pub struct Transfer<B> {
    pub(super) handle: Option<Handle<Model, Payload<B>>>,
    /// What is left to do before it is submitted, or why it never will be.
    pub(super) pending: Option<Result<Pending>>,
    pub(super) path: Arc<Path>,
    pub(super) kind: Kind,
    /// Of the first byte asked for.
    pub(super) offset: u64,
    /// Bytes asked for.
    pub(super) len: usize,
    exact: bool,
    /// How the bytes lie, of a read of many ranges.
    pub(super) runs: Option<Arc<Runs>>,
    route: Arc<Route>,
    pub(super) options: Options,
    pub(super) require: Option<PathClass>,
    /// What it waits for before it is admitted.
    pub(super) after: Vec<Arc<CudaEvent>>,
    pub(super) digest: Option<Arc<DigestState>>,
    /// For the sake of its digests, against its route.
    pub(super) moved_by_pool: bool,
    /// Somebody waits for the source of a write.
    pub(super) let_go: bool,
    pub(super) submitted: Option<Instant>,
    pub(super) mark: Arc<ProcessMark>,
}

/// What the operation owns until it is quiet.
pub(super) struct Payload<B> {
    buf: B,
    /// Here, since closing it runs the subscriber's code.
    span: tracing::Span,
}

/// What a transfer is to do.
#[derive(Clone, Copy)]
struct Asked {
    kind: Kind,
    /// Of the first byte asked for.
    offset: u64,
    /// The whole buffer where it does not say.
    len: Option<usize>,
    exact: bool,
}

/// Small, since a future moves before it is polled.
pub(super) struct Pending {
    /// They hold the file, as long as they need it.
    pub(super) parts: Box<Parts>,
    pub(super) outline: Outline,
    pub(super) route: FileRoute,
    /// Gone once the operation was submitted: the completion model knows of it then, and whoever forgets
    /// the future shall not keep the engine (I12). After `parts`, whose file its disposer closes.
    pub(super) engine: Arc<Shared>,
}

impl<B> Transfer<B> {
    /// Nothing is issued after `at`; what was issued is waited for. Resolves to
    /// `DeadlineExceeded` then, to the real outcome if everything had been issued, or to
    /// `Quarantined` if nothing is heard for the engine's
    /// [`quiet_limit`](crate::Config::quiet_limit). The engine's own clock watches it: no runtime
    /// timer is needed.
    pub fn deadline(mut self, at: Instant) -> Self {
        self.options.deadline = Some(at);
        self
    }

    /// The class that the operation waits in. Default: [`Priority::Normal`].
    pub fn priority(mut self, priority: Priority) -> Self {
        self.options.priority = Some(priority);
        self
    }

    /// Insists on a way for the bytes: `PathRefused` before anything is issued where it is known
    /// not to be available, or could not be told afterwards; `PathViolated`, when the bytes have moved,
    /// where they took another way or, by cuFile, where others at the same time keep it from being told.
    pub fn require(mut self, class: PathClass) -> Self {
        self.require = Some(class);
        self
    }

    /// Not admitted before `event` is complete: until then the operation waits, and holds neither
    /// permit nor slot. Called again, it waits for all. Deadline, cancel and drop work meanwhile.
    pub fn after(mut self, event: Arc<CudaEvent>) -> Self {
        self.after.push(event);
        self
    }

    /// What can cancel the operation from elsewhere.
    ///
    /// # Panics
    ///
    /// After the future has completed.
    #[must_use]
    pub fn cancel_handle(&self) -> CancelHandle {
        let handle = self.handle.as_ref().expect("the future has not completed");
        CancelHandle::new(handle, &self.mark)
    }
}

impl<B: IoBuf> Transfer<B> {
    /// All of `buf`, in one range of the file.
    pub(crate) fn new(
        engine: &Arc<Shared>,
        file: &Arc<FileShared>,
        kind: Kind,
        buf: B,
        offset: u64,
        exact: bool,
    ) -> Self {
        let cut = |memory: Region, route: &FileRoute| {
            let request = request(engine, (kind, offset), memory, route, memory.len());
            let plan = Plan::new(request)?;
            let outline = plan.outline();
            Ok((Cut::One(plan), outline))
        };
        let asked = Asked {
            kind,
            offset,
            len: None,
            exact,
        };
        Self::planned(engine, file, buf, asked, cut)
    }

    /// Many ranges of the file into `buf`, all of them or an error.
    pub(crate) fn ranges(
        engine: &Arc<Shared>,
        file: &Arc<FileShared>,
        buf: B,
        ranges: Ranges,
    ) -> Self {
        let (offset, len) = ranges.extent();
        let asked = Asked {
            kind: Kind::Read,
            offset,
            len: Some(len),
            exact: true,
        };
        let cut = |memory, route: &FileRoute| ranges.plan(engine, memory, route);
        Self::planned(engine, file, buf, asked, cut)
    }

    /// Validates and cuts; `cut` is asked where nothing speaks against the operation.
    fn planned(
        engine: &Arc<Shared>,
        file: &Arc<FileShared>,
        mut buf: B,
        asked: Asked,
        cut: impl FnOnce(Region, &FileRoute) -> Result<(Cut, Outline)>,
    ) -> Self {
        let mut route = file.route_now();
        if !buf.suits_cufile() {
            route.cufile = None;
        }
        let memory = buf.prepare(engine.id);
        let device = buf.device();
        let after = buf.ready().into_iter().collect();
        let whole = memory.as_ref().map_or(0, |memory| memory.len());
        let Asked {
            kind,
            offset,
            exact,
            ..
        } = asked;
        let len = asked.len.unwrap_or(whole);
        let span = tracing::debug_span!(
            "cufile",
            operation = %kind.operation(),
            path = %file.path.display(),
            offset,
            len
        );
        let route_now = Arc::clone(&route.route);
        let pending = engine.check_process().and(memory).and_then(|memory| {
            file.handle.check_access(kind)?;
            let (cut, outline) = cut(memory, &route)?;
            let parts = Parts::new(cut, memory, device, Arc::clone(file), kind, engine.slots);
            Ok(Pending {
                parts: Box::new(parts),
                outline,
                route,
                engine: Arc::clone(engine),
            })
        });
        let payload = Payload { buf, span };
        let runs = pending
            .as_ref()
            .ok()
            .and_then(|pending| pending.parts.cut.runs());
        Self {
            handle: Some(Handle::new(&engine.core, payload)),
            pending: Some(pending),
            path: Arc::clone(&file.path),
            kind,
            offset,
            len,
            exact,
            runs,
            route: route_now,
            options: Options::default(),
            require: None,
            after,
            digest: None,
            moved_by_pool: false,
            let_go: false,
            submitted: None,
            mark: Arc::clone(&engine.mark),
        }
    }
}

impl<B: Send + 'static> Transfer<B> {
    pub(crate) const fn bytes_asked(&self) -> usize {
        self.len
    }

    /// Starts the operation now instead of at the first poll.
    pub fn start(mut self) -> Self {
        self.submit();
        self
    }

    pub(super) fn describe(&self, error: Error) -> Error {
        error
            .with_operation(self.kind.operation())
            .with_path(&self.path)
    }

    pub(super) fn describe_range(&self, error: Error) -> Error {
        self.describe(error)
            .with_range(self.offset, self.len as u64)
    }

    /// The outcome of what was never submitted.
    fn refused(&mut self, error: Error) -> OpError<B> {
        let payload = self.handle.take().and_then(|mut handle| handle.take_back());
        OpError {
            error: self.describe_range(error),
            buf: payload.map(|payload| payload.buf),
            bytes_done: 0,
            receipt: None,
        }
    }

    /// The outcome, in a child process, of what the parent started: the child's copy of the buffer
    /// is behind locks that nobody may ever open, and is leaked.
    fn forked(&mut self, error: Error) -> OpError<B> {
        leak_in_child(self.handle.take());
        OpError {
            error: self.describe_range(error),
            buf: None,
            bytes_done: 0,
            receipt: None,
        }
    }

    fn outcome(&self, settlement: Settlement<Model, Payload<B>>) -> Result<Done<B>, OpError<B>> {
        let (bytes, end) = self.progress(settlement.bytes);
        let receipt = self.receipt(settlement.report, settlement.parts);
        let span = settlement
            .payload
            .as_ref()
            .map(|payload| payload.span.clone());
        let buf = settlement.payload.map(|payload| payload.buf);
        let mut error = error_of(settlement.ending);
        if error.is_none() && self.exact && bytes < self.len {
            error = Some(self.too_short(end));
        }
        span.unwrap_or_else(tracing::Span::none).in_scope(|| {
            tracing::debug!(bytes, paths = ?receipt.paths, error = ?error, "settled");
        });
        match (error, buf) {
            (None, Some(buf)) => Ok(Done {
                buf,
                bytes,
                receipt,
                digests: self.digest.as_ref().and_then(|digest| digest.take(bytes)),
            }),
            (Some(error), buf) => {
                // A worker names the range that failed; an event that was waited for knows of none.
                let error = match error.operation() {
                    Some(_) => error,
                    None => self.describe_range(error),
                };
                Err(OpError {
                    error,
                    buf,
                    bytes_done: bytes,
                    receipt: Some(Box::new(receipt)),
                })
            }
            (None, None) => unreachable!("only a quarantined operation keeps its payload"),
        }
    }

    /// Bytes asked for among the operation's first `done`, and the file offset of the next one.
    fn progress(&self, done: u64) -> (usize, u64) {
        let (bytes, end) = match &self.runs {
            Some(runs) => runs.progress(done),
            None => (done, self.offset.saturating_add(done)),
        };
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        (bytes.min(self.len), end)
    }

    fn too_short(&self, end: u64) -> Error {
        match self.kind {
            Kind::Read => Error::new(
                ErrorKind::UnexpectedEof,
                format!("the file ends at offset {end}"),
            ),
            Kind::Write => Error::new(ErrorKind::WriteZero, "the file system took no more bytes"),
        }
    }

    fn receipt(&self, mut report: PartReport, parts: u64) -> Receipt {
        if self.moved_by_pool && parts > 0 {
            report.note(digested::NOTE.into());
        }
        let queued = match (self.submitted, report.first_start) {
            (Some(submitted), Some(start)) => start.saturating_duration_since(submitted),
            _ => Duration::ZERO,
        };
        Receipt {
            paths: report.paths,
            route: Arc::clone(&self.route),
            notes: report.notes,
            parts,
            retries: report.retries,
            queue_time: queued,
            io_time: report.io_time,
            copy_time: report.copy_time,
        }
    }
}

impl<B: Send + 'static> Future for Transfer<B> {
    type Output = Result<Done<B>, OpError<B>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.submit();
        if let Some(Err(error)) = self.pending.take() {
            return Poll::Ready(Err(self.refused(error)));
        }
        if let Err(error) = self.mark.check() {
            return Poll::Ready(Err(self.forked(error)));
        }
        let handle = self.handle.as_mut().expect("polled after completion");
        let settlement = ready!(handle.poll_settled(cx));
        self.handle = None;
        Poll::Ready(self.outcome(settlement))
    }
}

impl<B> Drop for Transfer<B> {
    fn drop(&mut self) {
        if self.handle.is_some() && self.mark.is_forked() {
            leak_in_child(self.handle.take());
        }
    }
}

impl<B> fmt::Debug for Transfer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("kind", &self.kind)
            .field("path", &self.path)
            .field("offset", &self.offset)
            .field("len", &self.len)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
