//! The control block of one operation: what it owns, how far it is, who waits for it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use crate::domain::{Class, Domain, Environment, PartOutcome, Report, Tick};
use crate::ledger::{Ledger, Loss};
use crate::policy::ReleasePolicy;
use crate::scheduler::{Parts, Remainder};
use crate::sync::{Mutex, MutexGuard, lock};

/// Everything that hardware can touch on behalf of one operation (I1).
pub(crate) type Payload = Box<dyn Any + Send>;

/// What an operation is to do, given when it is submitted.
pub struct Spec<D: Domain> {
    /// Its class.
    pub class: Class,
    /// When nothing more may be issued for it.
    pub deadline: Option<Tick>,
    /// Bytes that all parts together are to move.
    pub total: u64,
    /// Its parts, in order of offset. Advanced under the engine's lock: plan, do nothing else, and
    /// do not panic. Dropped without it.
    pub parts: Box<dyn Iterator<Item = crate::Part<D>> + Send>,
    /// What it has to do with its file's ledger.
    pub ledger: Role<D::Fault>,
    /// Whether it waits, holding no permit and no slot, until its [`Gate`](crate::Gate) is opened.
    pub gated: bool,
}

impl<D: Domain> fmt::Debug for Spec<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spec")
            .field("class", &self.class)
            .field("deadline", &self.deadline)
            .field("total", &self.total)
            .finish_non_exhaustive()
    }
}

/// How an operation and its file's ledger meet.
#[derive(Debug)]
pub enum Role<F> {
    /// Not at all: a read, an open.
    None,
    /// A write at this file offset: its outcome is recorded when nobody awaits it.
    Write(Arc<Ledger<F>>, u64),
    /// A barrier: it waits for every write submitted before it.
    Barrier(Arc<Ledger<F>>),
}

/// Who asked an operation to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Its cancel handle.
    Cancelled,
    /// Its deadline.
    Deadline,
    /// The engine's shutdown.
    Shutdown,
    /// Its future was dropped.
    Dropped,
    /// Its backend gave a part back unstarted: it takes no more.
    HandedBack,
}

/// Why an operation was never admitted, or can never be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// Admission is closed.
    ShuttingDown,
    /// As many operations wait as may.
    QueueFull,
    /// What quarantine has left of the budget cannot hold its next part.
    NoCapacity,
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending<F> {
    /// Everything moved, or everything up to the end of the file.
    Done,
    /// A part failed. The first by offset.
    Failed {
        /// Where, in bytes from the operation's start.
        offset: u64,
        /// Why.
        fault: F,
    },
    /// It was asked to stop before everything was issued; every issued part is quiet.
    Stopped(StopReason),
    /// Not admitted: nothing was issued.
    Rejected(Rejection),
    /// Quiet could not be proved: the payload is leaked.
    Quarantined,
}

/// The result that a future takes.
#[derive(Debug)]
pub struct Settlement<D: Domain, T> {
    /// How it ended.
    pub ending: Ending<D::Fault>,
    /// Bytes moved without a gap from the operation's start.
    pub bytes: u64,
    /// Parts that were started.
    pub parts: u64,
    /// What the parts did.
    pub report: D::Report,
    /// What the operation owned. `None` exactly when it is quarantined.
    pub payload: Option<T>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Built, and unknown to the engine.
    Reserved,
    /// Admitted; no part was granted.
    Queued,
    /// At least one part was granted.
    Issued,
    /// Ended; the outcome waits.
    Settled,
    /// The outcome was taken, or disposed of.
    Consumed,
}

pub(crate) struct Operation<D: Domain> {
    pub(crate) id: u64,
    state: Mutex<State<D>>,
}

impl<D: Domain> fmt::Debug for Operation<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl<D: Domain> Operation<D> {
    pub(crate) fn new(id: u64, payload: Payload) -> Self {
        Self {
            id,
            state: Mutex::new(State::new(payload)),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State<D>> {
        lock(&self.state)
    }
}

pub(crate) struct State<D: Domain> {
    pub(crate) phase: Phase,
    pub(crate) detached: bool,
    pub(crate) stop: Option<StopReason>,
    /// A part failed or met the end of the file: no part behind it is needed.
    ended_early: bool,
    /// Where, at the lowest offset.
    early_end: u64,
    /// The last part was granted.
    exhausted: bool,
    in_flight: u32,
    /// Of those in flight, the parts that were not started.
    unstarted: u32,
    /// Of those in flight, the parts that may yet read the payload (or write it).
    holding: u32,
    started: u64,
    issued_end: u64,
    total: u64,
    gap: u64,
    failure: Option<(u64, D::Fault)>,
    /// Why it was refused its next part after it had been admitted.
    pub(crate) refusal: Option<Rejection>,
    pub(crate) ending: Option<Ending<D::Fault>>,
    pub(crate) report: D::Report,
    pub(crate) payload: Option<Payload>,
    pub(crate) waker: Option<Waker>,
    /// Of who waits for the payload alone.
    pub(crate) payload_waker: Option<Waker>,
    /// It was quarantined with parts that held the payload.
    pub(crate) payload_lost: bool,
    pub(crate) class: Class,
    /// Its age, while it stands in the scheduler.
    pub(crate) queued_at: Option<u64>,
    /// Its parts, while it waits at a barrier. Of one that was dropped and has ended: for the disposer
    /// to drop.
    pub(crate) waiting_parts: Option<Parts<D>>,
    /// What the scheduler still had of it when it was withdrawn, for the disposer to drop.
    pub(crate) withdrawn: Option<Remainder<D>>,
    pub(crate) timer: Option<Tick>,
    /// Its timer is the quiet limit, not the deadline.
    pub(crate) watched: bool,
    /// The last sign of life, while it is watched.
    pub(crate) heard_at: Tick,
    pub(crate) role: Role<D::Fault>,
    pub(crate) write_ticket: Option<u64>,
    pub(crate) next_disposal: Option<Arc<Operation<D>>>,
}

impl<D: Domain> State<D> {
    fn new(payload: Payload) -> Self {
        Self {
            phase: Phase::Reserved,
            detached: false,
            stop: None,
            ended_early: false,
            early_end: u64::MAX,
            exhausted: false,
            in_flight: 0,
            unstarted: 0,
            holding: 0,
            started: 0,
            issued_end: 0,
            total: 0,
            gap: u64::MAX,
            failure: None,
            refusal: None,
            ending: None,
            report: D::Report::default(),
            payload: Some(payload),
            waker: None,
            payload_waker: None,
            payload_lost: false,
            class: Class::Normal,
            queued_at: None,
            waiting_parts: None,
            withdrawn: None,
            timer: None,
            watched: false,
            heard_at: Tick(0),
            role: Role::None,
            write_ticket: None,
            next_disposal: None,
        }
    }

    pub(crate) fn admit(&mut self, class: Class, total: u64, role: Role<D::Fault>) {
        assert_eq!(
            self.phase,
            Phase::Reserved,
            "an operation is submitted once"
        );
        self.phase = Phase::Queued;
        self.class = class;
        self.total = total;
        self.role = role;
    }

    pub(crate) const fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Queued | Phase::Issued)
    }

    /// Whether no further part is to be issued.
    pub(crate) const fn is_stopping(&self) -> bool {
        self.stop.is_some() || self.ended_early || !self.is_live()
    }

    /// The first offset from which no part is needed any more. After an early end, the parts before
    /// it are: one behind them may have met the end of the file first.
    pub(crate) const fn unneeded_from(&self) -> u64 {
        if self.stop.is_some() || !self.is_live() {
            0
        } else if self.ended_early {
            self.gap
        } else {
            u64::MAX
        }
    }

    /// Whether nothing is in flight and nothing will be (I3).
    pub(crate) const fn is_quiet(&self) -> bool {
        self.in_flight == 0 && (self.exhausted || self.is_stopping())
    }

    /// Whether no part touches the payload any more and none will (I25). True of a quiet operation,
    /// and of one whose parts have all moved on to other memory.
    pub(crate) fn is_payload_free<P: ReleasePolicy>(&self) -> bool {
        match self.phase {
            Phase::Reserved => false,
            Phase::Queued | Phase::Issued => {
                let nobody_will = self.exhausted || self.is_stopping();
                nobody_will && (self.holding == 0 || !P::waits_for_holders())
            }
            Phase::Settled | Phase::Consumed => true,
        }
    }

    /// Who waits for the payload alone, if the wait is over.
    pub(crate) fn take_payload_waker(&mut self) -> Option<Waker> {
        if self.payload_waker.is_some() && self.is_payload_free::<D::Policy>() {
            self.payload_waker.take()
        } else {
            None
        }
    }

    /// A sign of life. Its time matters only while silence is counted: a clock is not read for nothing.
    pub(crate) fn hear(&mut self, clock: &dyn Environment<D>) {
        if self.watched {
            self.heard_at = clock.now();
        }
    }

    pub(crate) const fn part_let_go(&mut self) {
        self.holding -= 1;
    }

    /// Whether a backend holds parts that it has not started.
    pub(crate) const fn has_unstarted(&self) -> bool {
        self.unstarted > 0
    }

    pub(crate) const fn was_started(&self) -> bool {
        self.started > 0
    }

    pub(crate) fn part_granted(&mut self, end: u64, last: bool) {
        assert!(
            !self.is_stopping(),
            "a stopped operation stands in no queue"
        );
        self.phase = Phase::Issued;
        self.in_flight += 1;
        self.unstarted += 1;
        self.holding += 1;
        self.issued_end = end;
        self.exhausted = last;
    }

    pub(crate) const fn part_started(&mut self) {
        self.unstarted -= 1;
        self.started += 1;
    }

    /// A granted part was taken back before it became visible (I24).
    pub(crate) fn part_withdrawn(&mut self, offset: u64) {
        self.in_flight -= 1;
        self.unstarted -= 1;
        self.holding -= 1;
        self.gap = self.gap.min(offset);
        self.exhausted = false;
    }

    pub(crate) fn part_finished(&mut self, offset: u64, len: u64, outcome: PartOutcome<D>) {
        self.in_flight -= 1;
        self.report.merge(outcome.report);
        if outcome.bytes < len || outcome.fault.is_some() {
            self.early_end = self.early_end.min(offset + outcome.bytes);
            self.gap = self.gap.min(self.early_end);
            self.ended_early = true;
        }
        if let Some(fault) = outcome.fault {
            let at = offset + outcome.bytes;
            if self.failure.as_ref().is_none_or(|&(first, _)| at < first) {
                self.failure = Some((at, fault));
            }
        }
    }

    /// Nobody knows what a part that is still in flight did: nothing from its offset on counts.
    pub(crate) fn part_unknown(&mut self, offset: u64) {
        self.gap = self.gap.min(offset);
    }

    /// Bytes moved without a gap from the start.
    fn prefix(&self) -> u64 {
        self.gap.min(self.issued_end)
    }

    /// Ends a quiet operation. The first failure by offset wins; a stop that came too late to
    /// keep anything from being issued changes nothing.
    pub(crate) fn end(&mut self) {
        let of_parts = (self.unstarted, self.holding);
        assert!(
            self.in_flight > 0 || of_parts == (0, 0),
            "without parts: (unstarted, holding) is {of_parts:?}"
        );
        // Behind an early end nothing was needed; before it, a part that was withdrawn was.
        let is_whole = self.exhausted || (self.ended_early && self.early_end <= self.gap);
        let kept_from = self.stop.filter(|_| !is_whole);
        let ending = match (self.failure.take(), kept_from, self.refusal) {
            (Some((offset, fault)), ..) => Ending::Failed { offset, fault },
            (None, Some(_), Some(refusal)) => Ending::Rejected(refusal),
            (None, Some(reason), None) => Ending::Stopped(reason),
            (None, None, _) => Ending::Done,
        };
        self.ending = Some(ending);
    }

    /// What the ledger must know of an outcome that nobody takes, and the file offset. Takes the
    /// ending: moved, not cloned, since a drop allocates nothing (I11).
    pub(crate) fn take_loss(&mut self) -> Option<(Loss<D::Fault>, u64)> {
        let &Role::Write(_, offset) = &self.role else {
            return None;
        };
        let loss = match self.ending.take()? {
            Ending::Failed { fault, .. } => Loss::Failed(fault),
            Ending::Quarantined => Loss::Quarantined,
            // A short write is a lost one too: only a read may end at the end of the file.
            Ending::Done if self.prefix() < self.total => Loss::Torn,
            Ending::Stopped(_) | Ending::Rejected(_) if self.started > 0 => Loss::Torn,
            Ending::Done | Ending::Stopped(_) | Ending::Rejected(_) => return None,
        };
        Some((loss, offset.saturating_add(self.prefix())))
    }

    pub(crate) fn settlement(&mut self) -> Settlement<D, Payload> {
        assert_eq!(self.phase, Phase::Settled);
        self.phase = Phase::Consumed;
        Settlement {
            ending: self.ending.take().unwrap_or(Ending::Done),
            bytes: self.prefix().min(self.total),
            parts: self.started,
            report: std::mem::take(&mut self.report),
            payload: self.payload.take(),
        }
    }
}
