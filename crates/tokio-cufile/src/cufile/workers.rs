//! The threads that block in cuFile's calls: one for each part that it may have in flight.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use completion::IssuedPart;
use crossbeam_channel::{Receiver, Sender, bounded};

use super::Absent;
use super::in_stream::put;
use super::part::Lost;
use super::session::Session;
use crate::engine::{Model, Task};
use crate::stats::Counters;

#[derive(Debug)]
pub(super) struct Workers {
    /// `None` once stopped.
    parts: Option<Sender<IssuedPart<Model>>>,
}

impl Workers {
    /// Starts `count` threads.
    ///
    /// # Errors
    ///
    /// When the system grants no further thread; those already started end.
    pub(super) fn start(
        count: usize,
        session: &Arc<Session>,
        counters: &Arc<Counters>,
    ) -> Result<Self, Absent> {
        // Every part has a permit, and there is a thread for each permit.
        let (parts, inbox) = bounded(count);
        let workers = Self { parts: Some(parts) };
        for index in 0..count {
            let worker = Worker {
                inbox: inbox.clone(),
                counters: Arc::clone(counters),
            };
            let spawned = thread::Builder::new()
                .name(format!("cufile-gds-{index}"))
                .spawn(move || worker.run());
            if let Err(error) = spawned {
                let library = session.describe();
                return Err(format!("no thread {index} of {count} for {library}: {error}").into());
            }
        }
        Ok(workers)
    }

    /// Hands a part to an idle thread, or gives it back. Never blocks.
    pub(super) fn submit(&self, part: IssuedPart<Model>) -> Result<(), IssuedPart<Model>> {
        let Some(parts) = &self.parts else {
            // Granted before its operation was dropped, and late: everything else has ended.
            return Err(part);
        };
        let sent = parts.try_send(part);
        debug_assert!(sent.is_ok(), "more parts in flight than permits");
        sent.map_err(|refused| refused.into_inner())
    }

    /// Lets every thread end after what it is doing.
    pub(super) fn stop(&mut self) {
        self.parts = None;
    }
}

struct Worker {
    inbox: Receiver<IssuedPart<Model>>,
    counters: Arc<Counters>,
}

impl Worker {
    fn run(&self) {
        while let Ok(part) = self.inbox.recv() {
            // A panic is a bug of ours, and nobody knows what it left in flight: the ticket is
            // dropped unfinished, which quarantines the operation.
            if catch_unwind(AssertUnwindSafe(|| self.execute(part))).is_err() {
                tracing::error!("a cuFile worker panicked; its operation is quarantined");
            }
        }
    }

    fn execute(&self, part: IssuedPart<Model>) {
        let Some((ticket, task)) = part.start() else {
            return;
        };
        let Task::Cufile(part) = task else {
            debug_assert!(false, "only cuFile's parts come here");
            return;
        };
        if let Some(into) = part.into_stream.clone() {
            return put(ticket, part, &into, &self.counters);
        }
        match part.run(|| ticket.advance()) {
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
