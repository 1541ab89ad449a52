//! The threads that block in cuFile's calls: one for each part that is in such a call.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use completion::{IssuedPart, PartOutcome, Ticket};
use crossbeam_channel::{Receiver, Sender, bounded};

use super::Absent;
use super::in_stream::{OwnPlace, Refused, Whose, put};
use super::part::{CufilePart, Lost, SoFar};
use super::places::Queued;
use super::session::Session;
use super::streams::{QUEUED_MAX, Streams};
use crate::config::CuFileCalls;
use crate::engine::{Model, PartReport, Task};
use crate::error::{Error, ErrorKind};
use crate::stats::Counters;

#[derive(Debug)]
pub(super) struct Workers {
    inbox: Inbox,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts `count` threads.
    ///
    /// # Errors
    ///
    /// When the system grants no further thread; those already started end.
    pub(super) fn start(
        count: usize,
        calls: CuFileCalls,
        session: &Arc<Session>,
        counters: &Arc<Counters>,
    ) -> Result<Self, Absent> {
        // Every part has a permit, and there is a thread for each permit; every rest has a place.
        let (sender, receiver) = bounded(count + QUEUED_MAX);
        let mut workers = Self {
            inbox: Inbox(Arc::new(Mutex::new(Some(sender)))),
            threads: Vec::with_capacity(count),
        };
        let streams = streams(calls, session);
        for index in 0..count {
            let worker = Worker {
                inbox: workers.inbox.clone(),
                work: receiver.clone(),
                streams: streams.clone(),
                counters: Arc::clone(counters),
            };
            let spawned = thread::Builder::new()
                .name(format!("cufile-gds-{index}"))
                .spawn(move || worker.run());
            match spawned {
                Ok(thread) => workers.threads.push(thread),
                Err(error) => {
                    let library = session.describe();
                    let reason = format!("no thread {index} of {count} for {library}: {error}");
                    return Err(reason.into());
                }
            }
        }
        Ok(workers)
    }

    /// Hands a part to an idle thread, or gives it back. Never blocks.
    pub(super) fn submit(&self, part: IssuedPart<Model>) -> Result<(), IssuedPart<Model>> {
        // Given back, it was granted before its operation was dropped, and is late: everything else has
        // ended.
        match self.inbox.send(Work::Part(part)) {
            Err(Work::Part(part)) => Err(part),
            Ok(()) | Err(Work::Rest(_)) => Ok(()),
        }
    }

    /// Lets every thread end after what it is doing.
    pub(super) fn stop(&self) {
        drop(self.inbox.lock().take());
    }

    /// Waits for their ends. For when nothing is in flight.
    pub(super) fn end(mut self) {
        self.stop();
        for thread in self.threads.drain(..) {
            // Its panics were caught.
            drop(thread.join());
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The engine's own streams, if they are wanted and can be had.
fn streams(calls: CuFileCalls, session: &Session) -> Option<Arc<Streams>> {
    match (calls, session.takes_streams()) {
        (CuFileCalls::Sync, _) => None,
        (CuFileCalls::Stream, Ok(())) => Some(Arc::default()),
        (CuFileCalls::Stream, Err(reason)) => {
            tracing::warn!(%reason, "synchronous calls are used instead of those in streams");
            None
        }
    }
}

/// The way to the workers.
#[derive(Clone, Debug)]
pub(super) struct Inbox(Arc<Mutex<Option<Sender<Work>>>>);

enum Work {
    Part(IssuedPart<Model>),
    Rest(Box<Rest>),
}

/// What is left of a part when a stream has passed it.
pub(super) struct Rest {
    pub(super) ticket: Ticket<Model>,
    pub(super) part: Box<CufilePart>,
    pub(super) so_far: SoFar,
    /// Kept, so that there are no more of them than the inbox holds.
    pub(super) queued: Queued,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Option<Sender<Work>>> {
        // Every change is one step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives it back once stopped.
    fn send(&self, work: Work) -> Result<(), Work> {
        let inbox = self.lock();
        let Some(sender) = &*inbox else {
            return Err(work);
        };
        let sent = sender.try_send(work);
        debug_assert!(sent.is_ok(), "more parts in flight than permits");
        sent.map_err(|refused| refused.into_inner())
    }

    /// Has a worker go on with a part that no stream holds any more. Never blocks.
    pub(super) fn go_on(&self, rest: Rest) {
        if let Err(Work::Rest(rest)) = self.send(Work::Rest(Box::new(rest))) {
            // Its operation was given up, or the engine would not have ended.
            rest.stop_here();
        }
    }
}

impl Rest {
    /// Ends the part as it is: its operation was quarantined, and the outcome is only counted.
    fn stop_here(self: Box<Self>) {
        let error = Error::new(
            ErrorKind::Quarantined,
            "a stream passed it after its operation was given up",
        );
        let Self {
            ticket,
            part,
            so_far,
            queued,
        } = *self;
        let outcome = PartOutcome {
            bytes: so_far.done as u64,
            fault: Some(part.describe(error, so_far.done)),
            report: so_far.report,
        };
        // Before the operation ends: it may hold the last share of a file.
        drop((part, queued));
        ticket.finish(outcome);
    }
}

struct Worker {
    inbox: Inbox,
    work: Receiver<Work>,
    /// Where parts go by streams. Gone with the last worker, which may call the driver.
    streams: Option<Arc<Streams>>,
    counters: Arc<Counters>,
}

impl Worker {
    fn run(&self) {
        while let Ok(work) = self.work.recv() {
            // A panic is a bug of ours, and nobody knows what it left in flight: the ticket is
            // dropped unfinished, which quarantines the operation.
            if catch_unwind(AssertUnwindSafe(|| self.execute(work))).is_err() {
                tracing::error!("a cuFile worker panicked; its operation is quarantined");
            }
        }
    }

    fn execute(&self, work: Work) {
        let part = match work {
            Work::Part(part) => part,
            Work::Rest(rest) => return self.go_on(rest),
        };
        let Some((ticket, task)) = part.start() else {
            return;
        };
        let Task::Cufile(part) = task else {
            debug_assert!(false, "only cuFile's parts come here");
            return;
        };
        if let Some(user) = part.into_stream.clone() {
            if let Err(refused) = put(ticket, part, Whose::User(user), &self.counters) {
                fail(*refused);
            }
            return;
        }
        if let Some((ticket, part)) = self.by_stream(ticket, part) {
            self.move_now(ticket, part, SoFar::nothing());
        }
    }

    /// Puts a part into a stream of the engine's, or gives it back where it is not to be there.
    fn by_stream(
        &self,
        ticket: Ticket<Model>,
        part: Box<CufilePart>,
    ) -> Option<(Ticket<Model>, Box<CufilePart>)> {
        let streams = self.streams.as_ref();
        let Some((stream, queued)) = streams.and_then(|streams| streams.choose(&part)) else {
            return Some((ticket, part));
        };
        let own = OwnPlace {
            stream,
            queued,
            inbox: self.inbox.clone(),
        };
        let Refused {
            ticket,
            part,
            error,
        } = *put(ticket, part, Whose::Own(own), &self.counters).err()?;
        // A synchronous call is told the same, or it succeeds.
        tracing::debug!(%error, "a part was not put into a stream");
        Some((ticket, part))
    }

    fn go_on(&self, rest: Box<Rest>) {
        if rest.ticket.is_given_up() {
            // An operation whose end was told changes its file no more.
            return rest.stop_here();
        }
        let Rest {
            ticket,
            part,
            so_far,
            queued,
        } = *rest;
        // No stream has it, and the inbox has room for another.
        drop(queued);
        self.move_now(ticket, part, so_far);
    }

    fn move_now(&self, ticket: Ticket<Model>, part: Box<CufilePart>, so_far: SoFar) {
        match part.run(so_far, || ticket.advance()) {
            Ok(outcome) => {
                self.counters.add(&outcome.report);
                // Before the operation ends: it may hold the last share of a file.
                drop(part);
                ticket.finish(outcome);
            }
            Err(Lost) => {
                tracing::error!("cuFile left memory in doubt; its operation is quarantined");
                // The library may still use handle and descriptor.
                #[expect(clippy::disallowed_methods, reason = "cuFile may still use its file")]
                std::mem::forget(part);
                drop(ticket);
            }
        }
    }
}

/// Ends a part that was not put into its user's stream.
fn fail(refused: Refused) {
    let Refused {
        ticket,
        part,
        error,
    } = refused;
    let fault = Some(part.describe(error, 0));
    // Before the operation ends: it may hold the last share of a file.
    drop(part);
    ticket.finish(PartOutcome {
        bytes: 0,
        fault,
        report: PartReport::default(),
    });
}
