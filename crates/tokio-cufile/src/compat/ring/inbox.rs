//! Parts on their way to the ring thread, and how it is woken.
//!
//! The thread says that it is about to sleep, looks into the inbox once more, and only then sleeps.
//! A sender puts its part in and then wakes the thread if that is what it said. So either the
//! thread sees the part or the sender sees the thread's word.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::compat::job::Job;

#[derive(Debug)]
pub(super) struct Inbox {
    jobs: Sender<Job>,
    taken: Receiver<Job>,
    sleeping: AtomicBool,
    closed: AtomicBool,
    /// The thread takes nothing more.
    retired: AtomicBool,
    bell: OwnedFd,
}

impl Inbox {
    pub(super) fn new(capacity: usize) -> Result<Self, Errno> {
        let (jobs, taken) = bounded(capacity);
        Ok(Self {
            jobs,
            taken,
            sleeping: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub(super) fn push(&self, job: Job) {
        match self.jobs.try_send(job) {
            Ok(()) => {
                self.wake();
                // Granted before its operation was dropped, and late: everything else has ended.
                // The fence in `wake` lies between the part and the flag, as in `retire`.
                if self.retired.load(Ordering::SeqCst) {
                    self.hand_back();
                }
            }
            // Dropping the part hands it back to the scheduler, and its operation stops.
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => {
                debug_assert!(false, "more parts in flight than permits");
                drop(job);
            }
        }
    }

    /// The thread will look no more. What is in the inbox, or still comes, goes back to the
    /// scheduler, which it would otherwise keep alive for ever.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.hand_back();
    }

    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::SeqCst)
    }

    fn hand_back(&self) {
        while let Some(part) = self.take() {
            drop(part);
        }
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        // Between the part and the flag: without it both sides could miss each other.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) && self.sleeping.swap(false, Ordering::SeqCst) {
            self.ring_bell();
        }
    }

    fn ring_bell(&self) {
        // Never full: that takes 2^64 rings.
        let _: Result<usize, Errno> = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Takes back what has been rung so far: the bell is not readable until it is rung again.
    pub(super) fn hush(&self) {
        // What has not been rung gives an error, and is what is wanted.
        let _: Result<usize, Errno> = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub(super) fn take(&self) -> Option<Job> {
        self.taken.try_recv().ok()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Announces sleep. `false`: something came in between, so do not.
    ///
    /// While parts are `in_flight`, also when closed: a completion wakes the thread, and nothing
    /// else is left to wait for.
    pub(super) fn may_sleep(&self, in_flight: bool) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.is_empty() && (in_flight || !self.is_closed()) {
            return true;
        }
        self.awake();
        false
    }

    pub(super) fn awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }
}
