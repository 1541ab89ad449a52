//! The ring thread: takes parts in, hands requests to the kernel, reaps what it completed.
#![allow(unsafe_code, reason = "entries of the ring name memory by address")]

use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use completion::{IssuedPart, Ticket};
use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};
use rustix::io::Errno;

use super::inbox::Inbox;
use super::table::{InFlight, Table};
use super::{RingConfig, probe};
use crate::compat::run::{Paths, Request, Run};
use crate::engine::{Model, Task};
use crate::memory::SlotArena;
use crate::plan::Kind;
use crate::receipt::{Backend, DataPath};
use crate::stats::Counters;

const PATHS: Paths = Paths {
    backend: Backend::CompatUring,
    direct: DataPath::UringDirect,
    cached: DataPath::UringCached,
};

/// Names the read of the bell; no part's entry has this generation and index.
const BELL: u64 = u64::MAX;

/// After a part of at most this size the thread looks for the next event before it sleeps.
const SMALL_PART: usize = 64 << 10;

/// Between attempts to enter a kernel that refuses.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);

pub(super) struct Driver {
    ring: IoUring,
    table: Table,
    inbox: Arc<Inbox>,
    slots: Arc<SlotArena>,
    counters: Arc<Counters>,
    spin: Duration,
    spin_next: bool,
    bell_armed: bool,
    /// Where the kernel puts the bell's count: nowhere else, and as long as the ring lives.
    bell_count: Box<u64>,
}

impl Driver {
    pub(super) fn start(
        config: RingConfig,
        inbox: Arc<Inbox>,
        slots: Arc<SlotArena>,
        counters: Arc<Counters>,
    ) -> Result<(Self, Vec<String>), String> {
        let mut notes = Vec::new();
        // One more for the bell. The completion queue is twice as long, so it cannot overflow.
        let mut ring = probe::build(config.depth + 1, &mut notes)?;
        if let Err(reason) = probe::try_read(&mut ring) {
            // Closing a ring does not wait for what it has in flight.
            #[expect(clippy::disallowed_methods, reason = "its read may still be in flight")]
            std::mem::forget(ring);
            return Err(reason);
        }
        let driver = Self {
            ring,
            table: Table::new(config.depth),
            inbox,
            slots,
            counters,
            spin: config.spin,
            spin_next: false,
            bell_armed: false,
            bell_count: Box::new(0),
        };
        Ok((driver, notes))
    }

    /// Until the inbox is closed and nothing is in flight.
    pub(super) fn run(self) {
        // Not dropped when it panics: closing a ring does not wait for what it has in flight.
        let mut driver = ManuallyDrop::new(self);
        if catch_unwind(AssertUnwindSafe(|| driver.serve())).is_ok() {
            drop(ManuallyDrop::into_inner(driver));
        } else {
            driver.give_up();
        }
    }

    /// A panic is a bug of ours. What the kernel knows of is quarantined: the ticket goes
    /// unfinished, and ring, slots and files stay for ever. What comes in goes back.
    fn give_up(&mut self) {
        tracing::error!("the ring thread panicked; its operations are quarantined");
        for InFlight { ticket, run, .. } in self.table.drain() {
            #[expect(
                clippy::disallowed_methods,
                reason = "the kernel may still use its file"
            )]
            std::mem::forget(run);
            drop(ticket);
        }
        loop {
            while let Some(part) = self.inbox.take() {
                drop(part);
            }
            if self.inbox.is_closed() {
                return;
            }
            thread::park_timeout(REFUSED_PAUSE);
        }
    }

    fn serve(&mut self) {
        loop {
            let busy = self.take_in() | self.reap();
            if self.is_over() {
                break;
            }
            if busy {
                self.enter(0);
            } else if !self.spin_for_event() {
                self.sleep();
            }
        }
        self.disarm_bell();
    }

    fn is_over(&self) -> bool {
        self.inbox.is_closed() && self.inbox.is_empty() && self.table.is_empty()
    }

    /// Starts what has come in. Whether anything had.
    fn take_in(&mut self) -> bool {
        let mut any = false;
        while let Some(part) = self.inbox.take() {
            any = true;
            self.begin(part);
        }
        any
    }

    fn begin(&mut self, part: IssuedPart<Model>) {
        let Some((ticket, task)) = part.start() else {
            return;
        };
        let Task::Transfer(part) = task else {
            debug_assert!(false, "calls go to the pool");
            return;
        };
        self.spin_next = part.memory.len() <= SMALL_PART;
        let slot = ticket.slot().map(|slot| self.slots.slot(slot.0 as usize));
        let run = Run::new(part, slot, PATHS);
        self.go_on(ticket, run);
    }

    /// Hands the part's next request to the kernel, or ends the part.
    fn go_on(&mut self, ticket: Ticket<Model>, mut run: Run) {
        let Some(request) = run.next() else {
            let outcome = run.finish(|| ticket.advance());
            self.counters.add(&outcome.report);
            return ticket.finish(outcome);
        };
        if run.is_retrying() {
            thread::yield_now();
        }
        let entry = entry_of(&request, &run);
        let asked = request.memory.len();
        let user_data = self.table.insert(InFlight { ticket, run, asked });
        self.push(&entry.user_data(user_data));
    }

    fn push(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: what the entry names is owned by the part's operation, or is the arena's or
            // this driver's; the table, which is emptied by completions only, keeps the part's
            // ticket; and the ring is dropped when the table is empty.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            // No room: more was pushed since the last entering than the queue holds.
            self.enter(0);
        }
    }

    /// Takes what the kernel has completed. Whether there was anything.
    fn reap(&mut self) -> bool {
        let mut any = false;
        while let Some(entry) = self.next_completion() {
            any = true;
            if entry.0 == BELL {
                self.bell_armed = false;
            } else {
                self.completed(entry.0, entry.1);
            }
        }
        any
    }

    fn next_completion(&mut self) -> Option<(u64, i32)> {
        let entry = self.ring.completion().next()?;
        Some((entry.user_data(), entry.result()))
    }

    fn completed(&mut self, user_data: u64, result: i32) {
        let Some(InFlight {
            ticket,
            mut run,
            asked,
        }) = self.table.remove(user_data)
        else {
            self.counters.stray_completion();
            return;
        };
        let result = match usize::try_from(result) {
            // More than was asked for: nobody knows where the rest went. The ticket goes
            // unfinished, which quarantines the operation (I18).
            Ok(moved) if moved > asked => return,
            Ok(moved) => Ok(moved),
            Err(_) => Err(Errno::from_raw_os_error(-result)),
        };
        run.complete(result);
        self.go_on(ticket, run);
    }

    /// Submits what was pushed and waits for `want` completions. An error leaves everything where
    /// it is: what was pushed counts as submitted, and is entered again (I4).
    fn enter(&mut self, want: usize) {
        match self.ring.submit_and_wait(want) {
            Ok(_) => {}
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => {}
                _ => {
                    tracing::error!(%error, "the kernel refuses the ring");
                    thread::park_timeout(REFUSED_PAUSE);
                }
            },
        }
    }

    /// Looks for an event for a while, after a small part. Whether there was one.
    fn spin_for_event(&mut self) -> bool {
        if !std::mem::take(&mut self.spin_next) || self.spin.is_zero() {
            return false;
        }
        self.enter(0);
        let start = Instant::now();
        while start.elapsed() < self.spin {
            if self.ring.submission().taskrun() {
                self.enter(0);
            }
            if !self.inbox.is_empty() || !self.ring.completion().is_empty() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    fn sleep(&mut self) {
        self.arm_bell();
        if self.inbox.may_sleep() {
            self.enter(1);
            self.inbox.awake();
        }
    }

    fn arm_bell(&mut self) {
        if self.bell_armed {
            return;
        }
        self.bell_armed = true;
        let bell = Fd(self.inbox.bell().as_raw_fd());
        let into = std::ptr::from_mut(&mut *self.bell_count).cast();
        self.push(&opcode::Read::new(bell, into, 8).build().user_data(BELL));
    }

    /// Waits for the read of the bell: its memory goes with the driver.
    fn disarm_bell(&mut self) {
        while self.bell_armed {
            self.inbox.ring_for_the_last_time();
            self.enter(1);
            self.reap();
        }
    }
}

fn entry_of(request: &Request, run: &Run) -> squeue::Entry {
    let fd = Fd(request.fd(&run.part).as_raw_fd());
    let memory = request.memory;
    // A part is shorter than the kernel's limit on one request, which is below 2^31.
    let len = u32::try_from(memory.len()).unwrap_or(u32::MAX);
    let entry = match request.kind {
        Kind::Read => opcode::Read::new(fd, memory.as_ptr(), len)
            .offset(request.offset)
            .build(),
        Kind::Write => opcode::Write::new(fd, memory.as_ptr(), len)
            .offset(request.offset)
            .build(),
    };
    if request.cached {
        // Copied by the kernel's workers, in parallel, and not by this thread.
        entry.flags(squeue::Flags::ASYNC)
    } else {
        entry
    }
}
