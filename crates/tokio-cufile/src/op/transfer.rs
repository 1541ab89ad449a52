//! Reads and writes.

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use completion::{Cost, Handle, Part, Role, Settlement, Spec};

use super::{CancelHandle, Options, error_of};
use crate::compat::TransferPart;
use crate::config::Priority;
use crate::engine::{Model, PartReport, Shared, Task};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::file::FileShared;
use crate::memory::{IoBuf, MemoryRange};
use crate::plan::route::{FileRoute, check_required, slots_go_by_ring};
use crate::plan::{self, Kind, Lane, Plan};
use crate::receipt::{PathClass, Receipt, Route};

/// What a finished read or write gives back.
#[non_exhaustive]
pub struct Done<B> {
    /// The buffer.
    pub buf: B,
    /// Bytes moved, from the buffer's start.
    pub bytes: usize,
    /// What happened on the way.
    pub receipt: Receipt,
}

impl<B> fmt::Debug for Done<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Done")
            .field("bytes", &self.bytes)
            .field("receipt", &self.receipt)
            .finish_non_exhaustive()
    }
}

/// Why a read or write failed, with the buffer.
#[must_use]
pub struct OpError<B> {
    error: Error,
    buf: Option<B>,
    bytes_done: usize,
    /// Boxed, to keep results small.
    receipt: Option<Box<Receipt>>,
}

impl<B> OpError<B> {
    /// The error.
    #[must_use]
    pub const fn error(&self) -> &Error {
        &self.error
    }

    /// Bytes moved before it without a gap, from the buffer's start. After a failed write more may
    /// have reached the file.
    #[must_use]
    pub const fn bytes_done(&self) -> usize {
        self.bytes_done
    }

    /// What happened on the way; `None` when nothing was submitted.
    #[must_use]
    pub fn receipt(&self) -> Option<&Receipt> {
        self.receipt.as_deref()
    }

    /// The error and the buffer. The buffer is `None` exactly when the error is `Quarantined`, or
    /// `Forked` for an operation that was started before the fork.
    pub fn into_parts(self) -> (Error, Option<B>) {
        (self.error, self.buf)
    }
}

impl<B> From<OpError<B>> for Error {
    fn from(error: OpError<B>) -> Self {
        error.error
    }
}

impl<B> fmt::Display for OpError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> fmt::Debug for OpError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpError")
            .field("error", &self.error)
            .field("bytes_done", &self.bytes_done)
            .finish_non_exhaustive()
    }
}

impl<B> std::error::Error for OpError<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

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
#[must_use = "futures do nothing unless polled, or started"]
pub struct Transfer<B> {
    handle: Option<Handle<Model, Payload<B>>>,
    /// What is left to do before it is submitted, or why it never will be.
    pending: Option<Result<Pending>>,
    /// Until it is submitted; its parts hold the file then, as long as they need it.
    file: Option<Arc<FileShared>>,
    path: Arc<Path>,
    kind: Kind,
    offset: u64,
    len: usize,
    exact: bool,
    route: Arc<Route>,
    options: Options,
    require: Option<PathClass>,
    submitted: Option<Instant>,
    engine: Arc<Shared>,
}

/// What the operation owns until it is quiet.
struct Payload<B> {
    buf: B,
    /// Here, since closing it runs the subscriber's code.
    span: tracing::Span,
}

struct Pending {
    plan: Plan,
    memory: MemoryRange,
    route: FileRoute,
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
    /// not to be available, `PathViolated` where the file system turns out to refuse it.
    pub fn require(mut self, class: PathClass) -> Self {
        self.require = Some(class);
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
        CancelHandle {
            canceller: handle.canceller(),
            process: self.engine.process,
        }
    }
}

impl<B: IoBuf> Transfer<B> {
    pub(crate) fn new(
        engine: &Arc<Shared>,
        file: &Arc<FileShared>,
        kind: Kind,
        mut buf: B,
        offset: u64,
        exact: bool,
    ) -> Self {
        let route = file.route_now();
        let memory = buf.prepare(engine.id);
        let len = memory.as_ref().map_or(0, |memory| memory.len());
        let span = tracing::debug_span!(
            "cufile",
            operation = %operation_of(kind),
            path = %file.path.display(),
            offset,
            len
        );
        let route_now = Arc::clone(&route.route);
        let pending = engine.check_process().and(memory).and_then(|memory| {
            file.handle.check_access(kind)?;
            let plan = plan(engine, kind, offset, memory, &route)?;
            Ok(Pending {
                plan,
                memory,
                route,
            })
        });
        let payload = Payload { buf, span };
        Self {
            handle: Some(Handle::new(&engine.core, payload)),
            pending: Some(pending),
            file: Some(Arc::clone(file)),
            path: Arc::clone(&file.path),
            kind,
            offset,
            len,
            exact,
            route: route_now,
            options: Options::default(),
            require: None,
            submitted: None,
            engine: Arc::clone(engine),
        }
    }

    /// Starts the operation now instead of at the first poll.
    pub fn start(mut self) -> Self {
        self.submit();
        self
    }

    /// Submits once. A refusal stays in `pending`.
    fn submit(&mut self) {
        let Some(Ok(pending)) = &self.pending else {
            return;
        };
        // Again: the process may have forked since the future was made.
        if let Err(error) = self.engine.check_process() {
            self.pending = Some(Err(error));
            return;
        }
        if let Some(class) = self.require
            && let Err(error) =
                check_required(class, self.kind, &pending.route, &pending.plan.outline())
        {
            self.pending = Some(Err(error));
            return;
        }
        let (Some(handle), Some(Ok(pending)), Some(file)) =
            (&self.handle, self.pending.take(), self.file.take())
        else {
            return;
        };
        // The span is with the operation by now: its fields are said again.
        tracing::trace!(
            operation = %operation_of(self.kind),
            path = %self.path.display(),
            offset = self.offset,
            len = self.len,
            parts = pending.plan.parts_total(),
            "submitted"
        );
        self.submitted = Some(Instant::now());
        let ledger = match self.kind {
            Kind::Read => Role::None,
            Kind::Write => Role::Write(Arc::clone(&file.ledger), self.offset),
        };
        let route = &pending.route;
        let parts = Parts {
            staged_by_ring: route.by_ring && slots_go_by_ring(&pending.plan.outline()),
            in_place_by_ring: route.by_ring,
            may_use_cache: route.may_use_cache && self.require.is_none(),
            plan: pending.plan,
            memory: pending.memory,
            file,
            kind: self.kind,
            require: self.require,
        };
        handle.submit(Spec {
            class: self.options.class(Priority::Normal),
            deadline: self.options.deadline(&self.engine),
            total: self.len as u64,
            parts: Box::new(parts),
            ledger,
        });
    }

    fn describe(&self, error: Error) -> Error {
        error
            .with_operation(operation_of(self.kind))
            .with_path(&self.path)
    }

    fn describe_range(&self, error: Error) -> Error {
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
        #[expect(
            clippy::disallowed_methods,
            reason = "its locks are the parent's (I22)"
        )]
        std::mem::forget(self.handle.take());
        OpError {
            error: self.describe_range(error),
            buf: None,
            bytes_done: 0,
            receipt: None,
        }
    }

    fn outcome(&self, settlement: Settlement<Model, Payload<B>>) -> Result<Done<B>, OpError<B>> {
        let bytes = usize::try_from(settlement.bytes)
            .unwrap_or(usize::MAX)
            .min(self.len);
        let receipt = self.receipt(settlement.report, settlement.parts);
        let span = settlement
            .payload
            .as_ref()
            .map(|payload| payload.span.clone());
        let buf = settlement.payload.map(|payload| payload.buf);
        let worker_named_range = matches!(settlement.ending, completion::Ending::Failed { .. });
        let mut error = error_of(settlement.ending);
        if error.is_none() && self.exact && bytes < self.len {
            error = Some(self.too_short(bytes));
        }
        span.unwrap_or_else(tracing::Span::none).in_scope(|| {
            tracing::debug!(bytes, paths = ?receipt.paths, error = ?error, "settled");
        });
        match (error, buf) {
            (None, Some(buf)) => Ok(Done {
                buf,
                bytes,
                receipt,
            }),
            (Some(error), buf) => {
                let error = if worker_named_range {
                    error
                } else {
                    self.describe_range(error)
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

    fn too_short(&self, bytes: usize) -> Error {
        match self.kind {
            Kind::Read => {
                let end = self.offset + bytes as u64;
                Error::new(
                    ErrorKind::UnexpectedEof,
                    format!("the file ends at offset {end}"),
                )
            }
            Kind::Write => Error::new(ErrorKind::WriteZero, "the file system took no more bytes"),
        }
    }

    fn receipt(&self, report: PartReport, parts: u64) -> Receipt {
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

const fn operation_of(kind: Kind) -> Operation {
    match kind {
        Kind::Read => Operation::Read,
        Kind::Write => Operation::Write,
    }
}

fn plan(
    engine: &Shared,
    kind: Kind,
    file_offset: u64,
    memory: MemoryRange,
    route: &FileRoute,
) -> Result<Plan> {
    let request = plan::Request {
        kind,
        file_offset,
        len: memory.len() as u64,
        memory_address: memory.address(),
        direct: route.direct,
        cached: route.cached,
        task_size: engine.config.task_size,
        slot_size: engine.config.bounce_buffer_size,
    };
    Ok(Plan::new(request)?)
}

impl<B: IoBuf> Future for Transfer<B> {
    type Output = Result<Done<B>, OpError<B>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.submit();
        if let Some(Err(error)) = self.pending.take() {
            return Poll::Ready(Err(self.refused(error)));
        }
        if let Err(error) = self.engine.check_process() {
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
        if self.handle.is_some() && self.engine.is_forked() {
            #[expect(
                clippy::disallowed_methods,
                reason = "its locks are the parent's (I22)"
            )]
            std::mem::forget(self.handle.take());
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

/// The plan's parts as tasks, made one by one as they are granted.
struct Parts {
    plan: Plan,
    memory: MemoryRange,
    file: Arc<FileShared>,
    kind: Kind,
    in_place_by_ring: bool,
    staged_by_ring: bool,
    may_use_cache: bool,
    require: Option<PathClass>,
}

impl Iterator for Parts {
    type Item = Part<Model>;

    fn next(&mut self) -> Option<Part<Model>> {
        let part = self.plan.next()?;
        let place = (usize::try_from(part.buf_offset), usize::try_from(part.len));
        let memory = match place {
            (Ok(offset), Ok(len)) => self.memory.sub(offset, len),
            _ => None,
        };
        // What goes through the page cache by plan is the pool's: whoever asks for it copies it.
        let (slot, by_ring) = match part.lane {
            Lane::DirectInPlace => (false, self.in_place_by_ring),
            Lane::DirectViaSlot { .. } => (true, self.staged_by_ring),
            Lane::Buffered => (false, false),
        };
        Some(Part {
            offset: part.buf_offset,
            len: part.len,
            cost: Cost {
                bytes: part.len,
                slot,
                worker: !by_ring,
            },
            stages: if slot { 2 } else { 1 },
            task: Task::Transfer(TransferPart {
                file: Arc::clone(&self.file),
                kind: self.kind,
                memory: memory.expect("the plan cuts the range that it was made for"),
                file_offset: part.file_offset,
                lane: part.lane,
                by_ring,
                may_use_cache: self.may_use_cache,
                require: self.require,
            }),
        })
    }
}
