//! The ring thread: takes parts in, hands requests to the kernel, reaps what it completed.
#![allow(unsafe_code, reason = "entries of the ring name memory by address")]

use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use completion::{IssuedPart, Next, SlotId, Wakers};
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::io::Errno;

use super::copies::Copies;
use super::inbox::Inbox;
use super::table::{InFlight, Table};
use super::throttle::Throttle;
use super::{RingConfig, probe};
use crate::compat::devices::Staged;
use crate::compat::job::Job;
use crate::compat::part::Paths;
use crate::compat::run::{Request, Run, Step};
use crate::engine::{Model, Task};
use crate::error::{Error, ErrorKind};
use crate::memory::SlotArena;
use crate::plan::Kind;
use crate::receipt::{Backend, DataPath};
use crate::stats::Counters;

const PATHS: Paths = Paths {
    backend: Backend::CompatUring,
    direct: DataPath::UringDirect,
    cached: DataPath::UringCached,
};

/// Names the poll of the bell; no part's entry has this generation and index.
const BELL: u64 = u64::MAX;

/// What the bell is polled for.
const READABLE: u32 = libc::POLLIN as u32;

/// After a part of at most this size the thread looks for the next event before it sleeps.
const SMALL_PART: usize = 64 << 10;

/// So many small parts one at a time, and the next is expected soon.
const LONE_PARTS_MIN: u64 = 4;

/// Between attempts to enter a kernel that refuses.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);

/// So many refusals in a row, and the ring is given up: what it has in flight will never be heard of.
const REFUSALS_MAX: u32 = 1000;

pub(super) struct Driver {
    ring: IoUring,
    table: Table<InFlight>,
    inbox: Arc<Inbox>,
    slots: Arc<SlotArena>,
    slots_registered: bool,
    counters: Arc<Counters>,
    copies: Copies,
    throttle: Throttle<(Box<Staged>, Request)>,
    copy_threads: bool,
    spin: Duration,
    /// Refusals of the kernel in a row.
    refusals: u32,
    /// Small parts in a row, each of which came when no other was there.
    lone_parts: u64,
    bell_armed: bool,
    /// Its poll stays armed after it has told of a ring.
    bell_is_multishot: bool,
    /// Of operations that have settled since the last round.
    wakers: Wakers,
}

impl Driver {
    pub(super) fn start(
        config: RingConfig,
        inbox: Arc<Inbox>,
        slots: Arc<SlotArena>,
        counters: Arc<Counters>,
    ) -> Result<(Self, Vec<String>), String> {
        let mut notes = Vec::new();
        // One more for the bell. The completion queue is twice as long, so it cannot overflow: the bell
        // is rung once for each sleep, and all is reaped before the next.
        let mut ring = probe::build(config.depth + 1, &mut notes)?;
        let known = probe::KnownFile::new()?;
        if let Err(reason) = probe::try_read(&mut ring, &known) {
            // What is still in the queue the kernel has never seen. Of all else nobody knows, and
            // closing a ring does not wait for what it has in flight.
            if ring.submission().is_empty() {
                #[expect(clippy::disallowed_methods, reason = "its read may still be in flight")]
                std::mem::forget(ring);
            }
            return Err(reason);
        }
        let slots_registered =
            config.registered_buffers && probe::register(&ring, &slots, &mut notes);
        let driver = Self {
            // Kernels that know these rings (6.1) have known such polls for long.
            bell_is_multishot: ring.params().is_setup_single_issuer(),
            ring,
            slots_registered,
            table: Table::new(config.depth),
            inbox,
            slots,
            counters,
            copies: Copies::new(),
            throttle: Throttle::new(),
            copy_threads: config.copy_threads,
            spin: config.spin,
            refusals: 0,
            lone_parts: 0,
            bell_armed: false,
            wakers: Wakers::new(),
        };
        Ok((driver, notes))
    }

    /// Until the inbox is closed and nothing is in flight.
    pub(super) fn run(self) {
        // Not dropped when it panics: closing a ring does not wait for what it has in flight.
        let mut driver = ManuallyDrop::new(self);
        match catch_unwind(AssertUnwindSafe(|| driver.serve())) {
            Ok(()) if !driver.is_refused() => {
                driver.inbox.retire();
                drop(ManuallyDrop::into_inner(driver));
            }
            Ok(()) => driver.give_up("the kernel refuses the ring for good"),
            // A bug of ours.
            Err(_) => driver.give_up("the ring thread panicked"),
        }
    }

    /// What the kernel knows of is quarantined: the ticket goes unfinished, and ring, slots and files
    /// stay for ever. What comes in goes back.
    fn give_up(&mut self, reason: &'static str) {
        tracing::error!(reason, "the operations of the ring are quarantined");
        // First: whoever is told that an operation was lost is served by the pool from then on.
        self.inbox.retire();
        for InFlight { staged, .. } in self.table.drain() {
            let Staged { ticket, run } = *staged;
            #[expect(
                clippy::disallowed_methods,
                reason = "the kernel may still use its file"
            )]
            std::mem::forget(run);
            drop(ticket);
        }
        for (staged, _) in self.throttle.drain() {
            // The kernel has not seen its request.
            let Staged { ticket, mut run } = *staged;
            run.fail_with(Error::new(ErrorKind::Io, reason));
            ticket.finish_with(run.finish(|| Next::Skip), &mut self.wakers);
        }
        // Unfinished, so quarantined; a lane leaks what its device may still use.
        drop(std::mem::replace(&mut self.copies, Copies::new()));
        // Of operations that had settled before.
        self.wakers.wake();
    }

    fn serve(&mut self) {
        loop {
            self.take_in();
            self.reap();
            self.finish_copies();
            // After the last completion at hand: the first wake may set a thread against the rest.
            self.wakers.wake();
            if self.is_refused() {
                return;
            }
            if self.is_over() {
                break;
            }
            if self.has_work() {
                continue;
            }
            if !self.copies.is_idle() {
                self.wait_beside_copies();
                continue;
            }
            if self.spin_for_event() {
                continue;
            }
            // Submits what was pushed and waits, in one call.
            self.sleep();
        }
    }

    const fn is_refused(&self) -> bool {
        self.refusals >= REFUSALS_MAX
    }

    /// Whether there is something to take in or to reap already.
    fn has_work(&mut self) -> bool {
        !self.inbox.is_empty() || !self.ring.completion().is_empty()
    }

    fn is_over(&self) -> bool {
        self.inbox.is_closed()
            && self.inbox.is_empty()
            && self.table.is_empty()
            && self.throttle.is_empty()
            && self.copies.is_idle()
    }

    /// Starts what has come in.
    fn take_in(&mut self) {
        while let Some(job) = self.inbox.take() {
            match job {
                Job::Start(part) => self.begin(part),
                Job::Resume(staged) => self.go_on(staged),
            }
        }
    }

    fn begin(&mut self, part: IssuedPart<Model>) {
        let Some((ticket, task)) = part.start() else {
            return;
        };
        let Task::Transfer(part) = task else {
            debug_assert!(false, "calls go to the pool");
            return;
        };
        let is_lone = part.len <= SMALL_PART && self.table.is_empty() && self.inbox.is_empty();
        self.lone_parts = if is_lone { self.lone_parts + 1 } else { 0 };
        let slot = ticket.slot().map(|slot| self.slots.slot(slot.0 as usize));
        let run = Run::new(part, slot, PATHS);
        if run.lets_go() {
            ticket.let_go();
        }
        self.go_on(Box::new(Staged { ticket, run }));
    }

    /// Hands the part's next request to the kernel, or ends the part.
    fn go_on(&mut self, mut staged: Box<Staged>) {
        let request = match staged.next() {
            Some(Step::Io(request)) => request,
            Some(Step::Copy) => return self.copy(staged),
            None => {
                let Staged { ticket, run } = *staged;
                let outcome = run.finish(|| ticket.advance());
                self.counters.add(&outcome.report);
                return ticket.finish_with(outcome, &mut self.wakers);
            }
        };
        if staged.run.is_retrying() {
            thread::yield_now();
        }
        if !request.copies_much {
            return self.hand_in(staged, request);
        }
        if let Some((staged, request)) = self.throttle.admit((staged, request)) {
            self.hand_in(staged, request);
        }
    }

    fn hand_in(&mut self, staged: Box<Staged>, request: Request) {
        let slot = staged.ticket.slot();
        let slot = slot.filter(|_| self.slots_registered && request.in_slot);
        let entry = entry_of(&request, &staged.run, slot);
        let user_data = self.table.insert(InFlight {
            staged,
            asked: request.memory.len(),
            throttled: request.copies_much,
        });
        self.push(&entry.user_data(user_data));
    }

    fn copy(&mut self, staged: Box<Staged>) {
        let device = staged.run.part.device.clone();
        let device = device.expect("only device memory is copied by a device");
        if self.copy_threads {
            return device.copy(staged);
        }
        if let Err((staged, error)) = self.copies.issue(&device, staged) {
            self.copied(staged, Err(error));
        }
    }

    fn copied(&mut self, staged: Box<Staged>, result: Result<(), Error>) {
        self.go_on(staged.copied(result));
    }

    fn finish_copies(&mut self) {
        self.copies.flush();
        while let Some((staged, result)) = self.copies.poll() {
            self.copied(staged, result);
        }
    }

    fn push(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: what the entry names is owned by the part's operation, or is the arena's, and
            // a poll names none; the table keeps the part's ticket and file until the completion, or
            // until `give_up` leaks them; and the ring is dropped when the table is empty.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            // No room: more was pushed since the last entering than the queue holds.
            self.enter(0);
            if self.is_refused() {
                return; // The part is in the table, and is given up with the rest.
            }
        }
    }

    /// Takes what the kernel has completed.
    fn reap(&mut self) {
        while let Some(entry) = self.next_completion() {
            if entry.user_data() == BELL {
                self.bell_rang(&entry);
            } else {
                self.completed(entry.user_data(), entry.result());
            }
        }
    }

    fn next_completion(&mut self) -> Option<cqueue::Entry> {
        self.ring.completion().next()
    }

    fn completed(&mut self, user_data: u64, result: i32) {
        let Some(in_flight) = self.table.remove(user_data) else {
            self.counters.stray_completion();
            return;
        };
        let InFlight {
            mut staged, asked, ..
        } = in_flight;
        if in_flight.throttled
            && let Some((next, request)) = self.throttle.ended()
        {
            self.hand_in(next, request);
        }
        let result = match usize::try_from(result) {
            // More than was asked for: nobody knows where the rest went. The ticket goes
            // unfinished, which quarantines the operation (I18).
            Ok(moved) if moved > asked => return,
            Ok(moved) => Ok(moved),
            Err(_) => Err(Errno::from_raw_os_error(-result)),
        };
        staged.completed(result);
        self.go_on(staged);
    }

    /// Submits what was pushed and waits for `want` completions. An error leaves everything where
    /// it is: what was pushed counts as submitted, and is entered again (I4).
    fn enter(&mut self, want: usize) {
        match self.ring.submit_and_wait(want) {
            Ok(_) => self.refusals = 0,
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR) => {}
                // For now; it may last as long as memory is short.
                Some(libc::EAGAIN | libc::EBUSY) => {
                    if self.ring.completion().is_empty() {
                        thread::park_timeout(REFUSED_PAUSE);
                    }
                }
                _ => {
                    if self.refusals == 0 {
                        tracing::error!(%error, "the kernel refuses the ring");
                    }
                    self.refusals += 1;
                    thread::park_timeout(REFUSED_PAUSE);
                }
            },
        }
    }

    /// Looks for an event for a while, where small parts come one at a time. With several in flight
    /// there is always one to wake the thread, and the tasks need the processor. Whether there was
    /// an event.
    fn spin_for_event(&mut self) -> bool {
        if self.lone_parts < LONE_PARTS_MIN || self.spin.is_zero() {
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

    /// Nothing tells this thread that a copy has ended: it looks, and sleeps for a while at most.
    fn wait_beside_copies(&mut self) {
        let submission = self.ring.submission();
        let (has_entries, has_completions) = (!submission.is_empty(), submission.taskrun());
        drop(submission);
        if self.copies.may_spin() {
            if has_entries || has_completions {
                self.enter(0);
            }
            return std::hint::spin_loop();
        }
        self.arm_bell();
        if self.inbox.may_sleep(true) {
            let nap = self.copies.nap();
            let timeout = Timespec::from(nap);
            let wait = SubmitArgs::new().timespec(&timeout);
            let waited = self.ring.submitter().submit_with_args(1, &wait);
            self.inbox.awake();
            match waited.map_err(|error| error.raw_os_error()) {
                Ok(_) | Err(Some(libc::ETIME | libc::EINTR)) => {}
                // A kernel before 5.11 knows no such wait; what else it may be, entering tells.
                Err(_) => {
                    self.enter(0);
                    thread::park_timeout(nap);
                }
            }
        }
    }

    fn sleep(&mut self) {
        self.arm_bell();
        if self.inbox.may_sleep(!self.table.is_empty()) {
            self.enter(1);
            self.inbox.awake();
        }
    }

    /// Has the bell end a wait of the ring. The poll names no memory, so it may outlive the driver.
    fn arm_bell(&mut self) {
        if self.bell_armed {
            return;
        }
        self.bell_armed = true;
        let bell = Fd(self.inbox.bell().as_raw_fd());
        let poll = opcode::PollAdd::new(bell, READABLE).multi(self.bell_is_multishot);
        self.push(&poll.build().user_data(BELL));
    }

    /// Its poll has told of a ring, or has ended: then the next sleep arms it again.
    fn bell_rang(&mut self, entry: &cqueue::Entry) {
        if cqueue::more(entry.flags()) {
            return;
        }
        self.bell_armed = false;
        if entry.result() < 0 {
            // A kernel that knows no such poll says so here. Nor is it asked at once again and again,
            // should it have no memory for any.
            self.bell_is_multishot = false;
            thread::park_timeout(REFUSED_PAUSE);
        }
        // A new poll would end at once otherwise.
        self.inbox.hush();
    }
}

/// The entry for a request; into or out of `slot`, if it is a registered one.
fn entry_of(request: &Request, run: &Run, slot: Option<SlotId>) -> squeue::Entry {
    let fd = Fd(request.fd(&run.part).as_raw_fd());
    let (at, offset) = (request.memory.as_ptr(), request.offset);
    // A part is shorter than the kernel's limit on one request, which is below 2^31.
    let len = u32::try_from(request.memory.len()).unwrap_or(u32::MAX);
    let slot = slot.and_then(|slot| u16::try_from(slot.0).ok());
    let entry = match (request.kind, slot) {
        (Kind::Read, None) => opcode::Read::new(fd, at, len).offset(offset).build(),
        (Kind::Write, None) => opcode::Write::new(fd, at, len).offset(offset).build(),
        (Kind::Read, Some(slot)) => opcode::ReadFixed::new(fd, at, len, slot)
            .offset(offset)
            .build(),
        (Kind::Write, Some(slot)) => opcode::WriteFixed::new(fd, at, len, slot)
            .offset(offset)
            .build(),
    };
    if request.blocks {
        // Made by the kernel's workers, in parallel, and not by this thread.
        entry.flags(squeue::Flags::ASYNC)
    } else {
        entry
    }
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
