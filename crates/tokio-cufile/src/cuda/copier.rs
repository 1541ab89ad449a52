//! The copy thread of a device: a driver call that blocks stalls it, and nothing else.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::device::Device;
use super::event::Watched;
use super::lane::{CopyJob, CopyLane, nap_after};
use super::pinned::Pinned;
use crate::error::{Error, ErrorKind, Operation};

/// How long the thread looks for the end of a copy before it sleeps: about what a copy of 256 KiB
/// takes. A small copy is over by then.
const SPIN: Duration = Duration::from_micros(20);

/// How long it sleeps at least while nothing but users' events is outstanding.
const WATCH_NAP: Duration = Duration::from_micros(200);

/// What becomes of a job that has ended.
pub(crate) type Finish<T> = Box<dyn FnMut(T, Result<(), Error>) + Send>;

/// The way to a device's copy thread.
pub(crate) struct Copier<T> {
    inbox: Arc<Inbox<T>>,
    thread: Thread,
}

struct Inbox<T> {
    state: Mutex<State<T>>,
}

/// Bounded by the permits of parts in flight, and of operations that wait.
struct State<T> {
    jobs: Vec<T>,
    watches: Vec<Box<dyn Watched>>,
    stopped: bool,
    /// The thread looks no more.
    retired: bool,
}

impl<T: CopyJob> Copier<T> {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// What making streams gives; `OutOfMemory` when the system grants no thread.
    pub(crate) fn start(
        device: &Arc<Device>,
        pinned: &Arc<Pinned>,
        finish: Finish<T>,
    ) -> Result<Self, Error> {
        let inbox = Arc::new(Inbox {
            state: Mutex::new(State {
                jobs: Vec::new(),
                watches: Vec::new(),
                stopped: false,
                retired: false,
            }),
        });
        let ordinal = device.ordinal();
        let (mine, device, pinned) = (Arc::clone(&inbox), Arc::clone(device), Arc::clone(pinned));
        let (answer, is_up) = std::sync::mpsc::sync_channel(1);
        let run = move || {
            let lane = CopyLane::new(&device, &pinned);
            drop(pinned);
            match lane {
                Ok(lane) => {
                    // Its receiver waits for this one answer.
                    drop(answer.send(Ok(())));
                    let mut worker = Worker::new(&mine, lane, finish);
                    if catch_unwind(AssertUnwindSafe(|| worker.run())).is_err() {
                        // A bug of ours: what is in flight is dropped unfinished, and quarantined.
                        tracing::error!("a copy thread panicked; its operations are quarantined");
                        device.give_up(&panicked());
                    }
                    mine.retire();
                }
                Err(error) => drop(answer.send(Err(error))),
            }
        };
        let name = format!("cufile-copy-{}", ordinal);
        let spawned = thread::Builder::new().name(name).spawn(run);
        let handle = spawned.map_err(|error| {
            Error::new(ErrorKind::OutOfMemory, format!("a copy thread: {error}"))
                .with_operation(Operation::Build)
                .with_source(error)
        })?;
        is_up.recv().unwrap_or_else(|_| Err(panicked()))?;
        Ok(Self {
            inbox,
            thread: handle.thread().clone(),
        })
    }

    /// Hands a job over. Never blocks.
    pub(crate) fn submit(&self, job: T) {
        // What comes after the thread's end is dropped: unfinished, so quarantined.
        let late = self.inbox.with(|state| match state.retired {
            true => Some(job),
            false => {
                state.jobs.push(job);
                None
            }
        });
        drop(late);
        self.thread.unpark();
    }

    /// Has events looked after. Their operation fails at once when the thread has ended.
    pub(crate) fn watch(&self, watch: Box<dyn Watched>) {
        let late = self.inbox.with(|state| match state.retired {
            true => Some(watch),
            false => {
                state.watches.push(watch);
                None
            }
        });
        drop(late);
        self.thread.unpark();
    }

    /// Lets the thread end when nothing is in flight.
    pub(crate) fn stop(&self) {
        self.inbox.with(|state| state.stopped = true);
        self.thread.unpark();
    }
}

fn panicked() -> Error {
    Error::new(ErrorKind::DeviceFailed, "the copy thread panicked")
}

impl<T> std::fmt::Debug for Copier<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copier").finish_non_exhaustive()
    }
}

impl<T> Inbox<T> {
    fn with<R>(&self, change: impl FnOnce(&mut State<T>) -> R) -> R {
        // Every change is one step.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state)
    }

    /// Lets go of what is in the inbox, and of all that still comes.
    fn retire(&self) {
        let (jobs, watches) = self.with(|state| {
            state.retired = true;
            let jobs = std::mem::take(&mut state.jobs);
            (jobs, std::mem::take(&mut state.watches))
        });
        drop(jobs);
        drop(watches);
    }
}

struct Worker<'a, T: CopyJob> {
    inbox: &'a Inbox<T>,
    lane: CopyLane<T>,
    finish: Finish<T>,
    watches: Vec<Box<dyn Watched>>,
    /// Taken in, and not yet issued.
    jobs: Vec<T>,
}

impl<'a, T: CopyJob> Worker<'a, T> {
    const fn new(inbox: &'a Inbox<T>, lane: CopyLane<T>, finish: Finish<T>) -> Self {
        Self {
            inbox,
            lane,
            finish,
            watches: Vec::new(),
            jobs: Vec::new(),
        }
    }

    fn run(&mut self) {
        let mut busy_since = Instant::now();
        loop {
            let watched = self.watches.len();
            let stopped = self.take_in();
            let is_watch_new = self.watches.len() > watched;
            if self.progress() || is_watch_new {
                busy_since = Instant::now();
                continue;
            }
            let waited = busy_since.elapsed();
            if !self.lane.is_idle() || self.watches.iter().any(|watch| watch.is_near()) {
                if waited < SPIN {
                    std::hint::spin_loop();
                } else {
                    thread::park_timeout(nap_after(waited));
                }
            } else if !self.watches.is_empty() {
                thread::park_timeout(nap_after(waited).max(WATCH_NAP));
            } else if stopped {
                return;
            } else {
                thread::park();
            }
        }
    }

    /// Whether the thread is to end.
    fn take_in(&mut self) -> bool {
        let (jobs, watches) = (&mut self.jobs, &mut self.watches);
        self.inbox.with(|state| {
            std::mem::swap(&mut state.jobs, jobs);
            watches.append(&mut state.watches);
            state.stopped
        })
    }

    /// Issues what has come in and finishes what has ended. Whether there was any.
    fn progress(&mut self) -> bool {
        let mut progress = !self.jobs.is_empty();
        for job in self.jobs.drain(..) {
            if let Err((job, error)) = self.lane.issue(job) {
                (self.finish)(job, Err(error));
            }
        }
        self.lane.flush();
        while let Some((job, result)) = self.lane.poll() {
            (self.finish)(job, result);
            progress = true;
        }
        let before = self.watches.len();
        let device = self.lane.device();
        self.watches.retain_mut(|watch| !watch.look(device));
        progress || self.watches.len() < before
    }
}
