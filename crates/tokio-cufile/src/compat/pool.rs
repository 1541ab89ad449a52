//! The `pread`/`pwrite` pool: one thread for each part that it may have in flight.
#![allow(unsafe_code, reason = "hands the memory of an operation to the kernel")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use completion::{IssuedPart, PartOutcome, Ticket};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use rustix::io::Errno;

use super::devices::Staged;
use super::job::Job;
use super::part::{Paths, TransferPart};
use super::run::{Request, Run, Step};
use crate::engine::{Call, Model, PartReport, Task};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::memory::SlotArena;
use crate::os::io;
use crate::plan::Kind;
use crate::receipt::{Backend, DataPath};
use crate::stats::Counters;

const PATHS: Paths = Paths {
    backend: Backend::CompatPool,
    direct: DataPath::PoolDirect,
    cached: DataPath::PoolCached,
};

/// The way to the workers.
#[derive(Debug)]
pub(crate) struct Pool {
    /// `None` once stopped. Workers end when it is gone and what it sent is done: a part may be on
    /// its way that was granted before its operation was dropped.
    jobs: Mutex<Option<Sender<Job>>>,
}

impl Pool {
    /// Starts `threads` workers.
    ///
    /// # Errors
    ///
    /// When the system grants no further thread; those already started end.
    pub(crate) fn start(
        threads: usize,
        slots: &Arc<SlotArena>,
        counters: &Arc<Counters>,
    ) -> Result<Self> {
        // Every part in flight has a permit and there is a thread for each permit, so the channel
        // holds what is on its way to an idle thread.
        let (jobs, inbox) = bounded(threads);
        let pool = Self {
            jobs: Mutex::new(Some(jobs)),
        };
        for index in 0..threads {
            let worker = Worker {
                inbox: inbox.clone(),
                slots: Arc::clone(slots),
                counters: Arc::clone(counters),
            };
            let spawned = thread::Builder::new()
                .name(format!("cufile-io-{index}"))
                .spawn(move || worker.run());
            if let Err(error) = spawned {
                pool.stop();
                let reason = format!("worker {index} of {threads}: {error}");
                return Err(Error::new(ErrorKind::OutOfMemory, reason)
                    .with_operation(Operation::Build)
                    .with_source(error));
            }
        }
        Ok(pool)
    }

    /// Hands a part to an idle worker. Never blocks.
    pub(crate) fn submit(&self, part: IssuedPart<Model>) {
        self.send(Job::Start(part));
    }

    /// Goes on with a part that a device has copied for. Never blocks.
    pub(super) fn resume(&self, staged: Box<Staged>) {
        self.send(Job::Resume(staged));
    }

    fn send(&self, job: Job) {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = match &*jobs {
            Some(jobs) => jobs.try_send(job).err().map(TrySendError::into_inner),
            // Granted before its operation was dropped, and late: everything else has ended.
            None => return drop((jobs, job)),
        };
        drop(jobs);
        debug_assert!(refused.is_none(), "more parts in flight than permits");
        // Dropping the part hands it back to the scheduler, and its operation stops.
        drop(refused);
    }

    /// Lets every worker end after what there is to do.
    pub(crate) fn stop(&self) {
        let jobs = self
            .jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(jobs);
    }
}

struct Worker {
    inbox: Receiver<Job>,
    slots: Arc<SlotArena>,
    counters: Arc<Counters>,
}

impl Worker {
    fn run(&self) {
        while let Ok(job) = self.inbox.recv() {
            // A panic is a bug of ours, and nobody knows what it left in flight: the ticket is
            // dropped unfinished, which quarantines the operation.
            if catch_unwind(AssertUnwindSafe(|| self.execute(job))).is_err() {
                tracing::error!("a worker panicked; its operation is quarantined");
            }
        }
    }

    fn execute(&self, job: Job) {
        match job {
            Job::Start(part) => {
                let Some((ticket, task)) = part.start() else {
                    return;
                };
                match task {
                    Task::Transfer(part) => {
                        let slot = ticket.slot().map(|slot| self.slots.slot(slot.0 as usize));
                        let run = Run::new(part, slot, PATHS);
                        if run.lets_go() {
                            ticket.let_go();
                        }
                        self.transfer(Staged { ticket, run });
                    }
                    Task::Cufile(_) => debug_assert!(false, "cuFile has its own threads"),
                    Task::Call(call) => {
                        let outcome = perform(&*call);
                        // Before the operation ends: what the call left may be its last owner's.
                        drop(call);
                        self.finish(ticket, outcome);
                    }
                }
            }
            Job::Resume(staged) => self.transfer(*staged),
        }
    }

    fn finish(&self, ticket: Ticket<Model>, outcome: PartOutcome<Model>) {
        self.counters.add(&outcome.report);
        ticket.finish(outcome);
    }

    /// One part, by blocking calls, up to its end or to where a device takes over.
    fn transfer(&self, mut staged: Staged) {
        while let Some(step) = staged.next() {
            let Staged { ticket, run } = &mut staged;
            match (step, &run.part.device) {
                (Step::Io(request), device) => {
                    if device.is_some() && request.kind == Kind::Write {
                        hand_over(run);
                    }
                    if run.is_retrying() {
                        thread::yield_now();
                    }
                    let result = make(&request, &run.part);
                    staged.completed(result);
                }
                (Step::Copy, Some(device)) => {
                    let device = Arc::clone(device);
                    if run.kind() == Kind::Read {
                        hand_over(run);
                        // The device's copy is the part's last step: meanwhile this thread reads on.
                        ticket.free_worker();
                    }
                    return device.copy(Box::new(staged));
                }
                (Step::Copy, None) => unreachable!("only device memory is copied by a device"),
            }
        }
        let Staged { ticket, mut run } = staged;
        let digest = run.part.digest.take();
        let outcome = run.finish(|| ticket.advance());
        if let Some(digest) = digest {
            let failed = outcome.fault.is_some();
            // SAFETY: the ticket outlives the call; the calls for the part were synchronous, and
            // those bytes that `outcome` counts are in the memory or came from it. Where the copy
            // out of a slot was skipped, nobody waits, and the bytes of a buffer are always
            // initialised.
            unsafe { digest.part_ended(outcome.bytes, failed, || ticket.report()) };
        }
        self.finish(ticket, outcome);
    }
}

/// Has the bytes digested that a part has in its slot, on their way to or from a device.
fn hand_over(run: &mut Run) {
    if let Some(digest) = run.part.digest.take() {
        let pieces = run.copies().map(|(staged, _)| staged);
        // SAFETY: they were read or copied there, and no request or copy is under way; this thread
        // has the part alone.
        unsafe { digest.in_slot(pieces) };
    }
}

fn make(request: &Request, part: &TransferPart) -> std::result::Result<usize, Errno> {
    let (fd, memory) = (request.fd(part), request.memory);
    match request.kind {
        // SAFETY: the range is the user's memory, owned by the operation's payload and writable, or
        // a slot that the part has alone; the call is synchronous.
        Kind::Read => unsafe { io::read_at(fd, memory.as_ptr(), memory.len(), request.offset) },
        // SAFETY: as above; nobody writes the source while the operation owns it.
        Kind::Write => unsafe { io::write_at(fd, memory.as_ptr(), memory.len(), request.offset) },
    }
}

fn perform(call: &dyn Call) -> PartOutcome<Model> {
    let start = Instant::now();
    let fault = call.run().err();
    let mut report = PartReport::started_at(start);
    report.io_time = start.elapsed();
    PartOutcome {
        bytes: 0,
        fault,
        report,
    }
}
