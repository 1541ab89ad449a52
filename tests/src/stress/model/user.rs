//! A user of the model: several operations in flight, each on its way to its fate.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;

use measure::data::Draws;
use tokio_cufile_completion::{
    Canceller, Class, Ending, PayloadState, PayloadWatch, ReleasePolicy, StopReason,
};

use super::ground::{Disk, LEN_MAX, Owned, Payload, Way};
use super::support::hardware::Memory;
use super::support::simulation::{Fate, File};
use super::support::wakers::Inline;
use super::support::{Fake, Job, Outcome, Want, World};
use super::{PAUSE, Shared, is_set};
use crate::stress::acts::Act;
use crate::stress::content::{Claim, Content, Written};
use crate::stress::counts::{Harm, Point, add};
use crate::stress::lock;

/// Operations in flight.
const WINDOW: usize = 12;
/// Looks at an operation before it is cancelled: its hardware may be silent.
const PATIENCE: u64 = 3000;
/// Looks at an operation that has ended, as the engine says, before its wake counts as lost.
const WAKE_MAX: u64 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Await,
    Cancel(u64),
    Drop(Point),
}

/// An operation, and what its waker has seen of it.
struct Seat<P: ReleasePolicy> {
    job: Job<P>,
    outcome: Option<Outcome<P>>,
}

struct Flying<P: ReleasePolicy> {
    seat: Arc<Mutex<Seat<P>>>,
    woken: Arc<AtomicBool>,
    waker: Waker,
    canceller: Canceller<Fake<P>>,
    /// Of a write whose source its user wants back as soon as can be.
    source: Option<PayloadWatch<Fake<P>>>,
    memory: Memory,
    payload: Arc<Payload>,
    claim: Claim,
    plan: Plan,
    /// It asked to be stopped, or late.
    may_stop: bool,
    looks: u64,
    looks_drained: u64,
}

/// A dropped operation, which is over when its memory has come back.
struct Orphan {
    memory: Memory,
    claim: Claim,
}

pub(super) struct User<'a, P: ReleasePolicy> {
    world: &'a World<P>,
    shared: &'a Shared,
    file: &'a File,
    content: Content,
    disk: Arc<Disk>,
    draws: Draws,
    flying: Vec<Flying<P>>,
    orphans: Vec<Orphan>,
    fates: Vec<Fate>,
}

impl<'a, P: ReleasePolicy> User<'a, P> {
    pub(super) fn new(
        world: &'a World<P>,
        shared: &'a Shared,
        file: &'a File,
        content: Content,
        draws: Draws,
    ) -> Self {
        let mut bytes = vec![0; usize::try_from(content.len()).unwrap_or(0)];
        content.fill(0, 0, &mut bytes);
        Self {
            world,
            shared,
            file,
            content,
            disk: Disk::new(&bytes),
            draws,
            flying: Vec::new(),
            orphans: Vec::new(),
            fates: Vec::new(),
        }
    }

    pub(super) fn into_fates(self) -> Vec<Fate> {
        self.fates
    }

    /// Does so many operations, and waits for their ends.
    pub(super) fn fly(&mut self, operations: usize) {
        let mut begun = 0;
        while begun < operations && !is_set(&self.shared.given_up) {
            if self.flying.len() < WINDOW && self.begin() {
                begun += 1;
            } else {
                self.shared.wake_hardware();
                self.look_at_all();
            }
        }
        self.shared.through.fetch_add(1, Ordering::AcqRel);
        let is_open = |user: &Self| !user.flying.is_empty() || !is_set(&user.shared.drained);
        while is_open(self) && !is_set(&self.shared.given_up) {
            self.look_at_all();
        }
        self.inspect();
        self.shared.through.fetch_add(1, Ordering::AcqRel);
    }

    fn look_at_all(&mut self) {
        let is_drained = is_set(&self.shared.drained);
        let before = self.flying.len() + self.orphans.len();
        for index in (0..self.flying.len()).rev() {
            let mut flying = self.flying.swap_remove(index);
            flying.looks += 1;
            flying.looks_drained += u64::from(is_drained);
            if let Some(flying) = self.look_at(flying) {
                self.flying.push(flying);
            }
        }
        self.gather();
        if self.flying.len() + self.orphans.len() == before {
            thread::park_timeout(PAUSE);
        }
    }

    /// Takes back what dropped operations have let go.
    fn gather(&mut self) {
        let content = &mut self.content;
        self.orphans.retain(|orphan| {
            let is_over = orphan.memory.releases() > 0;
            if is_over {
                let is_started = orphan.memory.was_started();
                end_claim(content, &orphan.claim, Written::Dropped, is_started);
            }
            !is_over
        });
    }

    /// Whether there was room for one more.
    fn begin(&mut self) -> bool {
        let is_write = self.draws.below(5) < 2;
        let claim = if is_write {
            self.content.claim_write(&mut self.draws, LEN_MAX as u64)
        } else {
            self.content.claim_read(&mut self.draws, LEN_MAX as u64)
        };
        let Some(claim) = claim else {
            return false;
        };
        let start = usize::try_from(claim.range.start).unwrap_or(0);
        let len = usize::try_from(claim.range.end).unwrap_or(0) - start;
        let way = if is_write {
            Way::ToDisk(start)
        } else {
            Way::FromDisk(start)
        };
        let Some(payload) = self.shared.arena.take(&self.disk, len, way) else {
            end_claim(&mut self.content, &claim, Written::Nothing, false);
            return false;
        };
        if let Some(generation) = claim.generation {
            let mut bytes = vec![0; len];
            self.content.fill(generation, claim.range.start, &mut bytes);
            payload.fill(&bytes);
        }
        self.submit(claim, payload, len);
        true
    }

    fn submit(&mut self, claim: Claim, payload: Arc<Payload>, len: usize) {
        let want = self.want(&claim, len as u64);
        let plan = self.plan();
        let memory = Memory::of_bytes(Owned(Arc::clone(&payload)));
        let job = self.world.prepare_with(want, memory.clone());
        let counts = &self.shared.counts;
        add(&counts.ops, 1);
        add(&counts.timed_out, u64::from(job.want.deadline.is_some()));
        if plan == Plan::Drop(Point::Unpolled) {
            counts.dropped(Point::Unpolled);
            self.orphan(job, claim);
            return;
        }
        if plan == Plan::Cancel(0) {
            job.cancel();
        }
        job.submit();
        let may_stop = job.want.deadline.is_some();
        let canceller = job.handle().canceller();
        let is_staged = claim.generation.is_some() && self.draws.below(2) == 0;
        let source = is_staged.then(|| job.handle().payload_watch());
        if is_staged {
            counts.acts.begun(Act::Staged);
        }
        let seat = Arc::new(Mutex::new(Seat { job, outcome: None }));
        let woken = Arc::new(AtomicBool::new(false));
        let is_inline = self.draws.below(4) == 0;
        let waker = waker(&seat, &woken, is_inline);
        let mut flying = Flying {
            seat,
            woken,
            waker,
            canceller,
            source,
            memory,
            payload,
            claim,
            plan,
            may_stop,
            looks: 0,
            looks_drained: 0,
        };
        flying.poll();
        self.flying.push(flying);
    }

    /// Cut into parts at random, some through slots.
    fn want(&mut self, claim: &Claim, len: u64) -> Want {
        let mut parts = Vec::new();
        let mut left = len;
        while left > 0 {
            let part = match self.draws.below(3) {
                0 => left,
                _ => 1 + self.draws.below(left),
            };
            parts.push(part);
            left -= part;
        }
        let mut want = match claim.generation {
            Some(_) => Want::write(self.file, claim.range.start, &parts),
            None => Want::read(&parts),
        };
        want.class = [Class::Urgent, Class::Normal, Class::Bulk]
            [usize::try_from(self.draws.below(3)).unwrap_or(0)];
        if self.draws.below(10) == 0 {
            want = want.deadline(self.world.now() + self.draws.below(60));
        }
        if self.draws.below(3) == 0 {
            want = want.through_slot(2);
        }
        want
    }

    fn plan(&mut self) -> Plan {
        match self.draws.below(100) {
            0..4 => Plan::Drop(Point::Unpolled),
            4..10 => Plan::Drop(Point::Queued),
            10..18 => Plan::Drop(Point::Issued),
            18..24 => Plan::Drop(Point::Between),
            24..30 => Plan::Drop(Point::Settled),
            30..40 => {
                add(&self.shared.counts.cancelled, 1);
                Plan::Cancel(self.draws.below(20))
            }
            _ => Plan::Await,
        }
    }

    fn look_at(&mut self, mut flying: Flying<P>) -> Option<Flying<P>> {
        if flying.takes_source_back() {
            self.shared.counts.acts.ended_well(Act::Staged);
        }
        if let Some(point) = flying.drops_now() {
            self.shared.counts.dropped(point);
            let mut seat = lock(&flying.seat);
            if seat.outcome.is_none() {
                seat.job.drop_future();
            }
            // An outcome that its waker has taken is dropped with the seat.
            let outcome = seat.outcome.take();
            match &outcome {
                Some(outcome) => self.fates.push(Fate::awaited(&seat.job, &outcome.ending)),
                None => self.fates.push(Fate::dropped(&seat.job)),
            }
            drop(seat);
            drop(outcome);
            let (memory, claim) = (flying.memory, flying.claim);
            self.orphans.push(Orphan { memory, claim });
            return None;
        }
        let patience = flying.looks == PATIENCE;
        if flying.plan == Plan::Cancel(flying.looks) || patience {
            flying.may_stop = true;
            flying.canceller.cancel();
        }
        if flying.looks_drained == WAKE_MAX {
            // The engine says that it has ended, and nobody was woken.
            let message = || "an operation has ended and woken nobody".to_owned();
            self.shared.counts.harm(Harm::Lost, 1, message);
            flying.woken.store(true, Ordering::Release);
        }
        if flying.woken.swap(false, Ordering::AcqRel) {
            flying.poll();
        }
        let outcome = lock(&flying.seat).outcome.take();
        match outcome {
            Some(outcome) => {
                self.settle(&flying, outcome);
                None
            }
            None => Some(flying),
        }
    }

    fn settle(&mut self, flying: &Flying<P>, outcome: Outcome<P>) {
        let fate = Fate::awaited(&lock(&flying.seat).job, &outcome.ending);
        self.fates.push(fate);
        self.judge(flying, &outcome);
        let found = flying.payload.look();
        let claim = &flying.claim;
        let written = match outcome.ending {
            Ending::Done if outcome.bytes == found.len() as u64 => Written::All,
            _ => Written::Failed,
        };
        let len = usize::try_from(outcome.bytes).unwrap_or(0);
        if claim.generation.is_none() && outcome.payload.is_some() {
            let wrong = self.content.first_wrong(claim.range.start, &found[..len]);
            self.corrupt(wrong, "a read");
        }
        add(&self.shared.counts.bytes, outcome.bytes);
        if outcome.payload.is_some() {
            drop(outcome);
            end_claim(&mut self.content, claim, written, true);
        }
        // Else the hardware may yet be at it: its plots are nobody's to the world's end.
    }

    fn judge(&self, flying: &Flying<P>, outcome: &Outcome<P>) {
        let counts = &self.shared.counts;
        let is_done = outcome.ending == Ending::Done;
        add(
            if is_done {
                &counts.done
            } else {
                &counts.failed
            },
            1,
        );
        let stop_may = flying.may_stop || matches!(flying.plan, Plan::Cancel(_));
        let may = match &outcome.ending {
            Ending::Stopped(StopReason::Cancelled | StopReason::Deadline) => stop_may,
            _ => true,
        };
        let message = || format!("{:?} by nobody", outcome.ending);
        counts.harm(Harm::Other, u64::from(!may), message);
    }

    fn corrupt(&self, wrong: Option<u64>, what: &str) {
        let message = || format!("{what}: byte {} is wrong", wrong.unwrap_or(0));
        let count = u64::from(wrong.is_some());
        self.shared.counts.harm(Harm::Corrupt, count, message);
    }

    fn orphan(&mut self, mut job: Job<P>, claim: Claim) {
        job.drop_future();
        self.fates.push(Fate::dropped(&job));
        let memory = job.memory.clone();
        self.orphans.push(Orphan { memory, claim });
    }

    /// Looks at the whole file, but for what a silent part may yet change.
    fn inspect(&mut self) {
        self.gather();
        if self.orphans.is_empty() && self.content.claim_all().is_some() {
            let found = self.disk.look();
            let wrong = self.content.first_wrong(0, &found);
            self.corrupt(wrong, "the file");
        }
    }
}

fn end_claim(content: &mut Content, claim: &Claim, written: Written, is_started: bool) {
    match claim.generation {
        None => content.release(claim),
        Some(_) if is_started => content.wrote(claim, written),
        Some(_) => content.wrote(claim, Written::Nothing),
    }
}

impl<P: ReleasePolicy> Flying<P> {
    fn poll(&mut self) {
        let mut seat = lock(&self.seat);
        if seat.outcome.is_none() && seat.job.handle.is_some() {
            seat.outcome = seat.job.poll_with(&self.waker);
            if seat.outcome.is_some() {
                seat.job.handle = None;
            }
        }
    }

    /// Uses the source for something else once nothing of the write reads it any more. Whether that
    /// was before the write had ended.
    fn takes_source_back(&mut self) -> bool {
        let Some(watch) = &self.source else {
            return false;
        };
        let is_under_way = !self.is_settled();
        let Poll::Ready(state) = watch.poll_free(&mut Context::from_waker(Waker::noop())) else {
            return false;
        };
        self.source = None;
        if state == PayloadState::Free {
            self.payload.scribble();
        }
        state == PayloadState::Free && is_under_way
    }

    fn is_settled(&self) -> bool {
        self.woken.load(Ordering::Acquire) || lock(&self.seat).outcome.is_some()
    }

    /// Whether it is dropped now, and where it is.
    fn drops_now(&self) -> Option<Point> {
        let Plan::Drop(wanted) = self.plan else {
            return None;
        };
        let is_started = self.memory.was_started();
        let is = match wanted {
            _ if self.is_settled() => Point::Settled,
            _ if self.payload.is_between() => Point::Between,
            _ if is_started => Point::Issued,
            _ => Point::Queued,
        };
        let is_late = is == Point::Settled || self.looks > 40;
        (is == wanted || is_late).then_some(is)
    }
}

/// Some look for the outcome from within the wake, where it must be found.
fn waker<P: ReleasePolicy>(
    seat: &Arc<Mutex<Seat<P>>>,
    woken: &Arc<AtomicBool>,
    is_inline: bool,
) -> Waker {
    let (seat, woken) = (Arc::downgrade(seat), Arc::clone(woken));
    let user = thread::current();
    Inline::waker(move || {
        let looked = is_inline
            && seat.upgrade().is_some_and(|seat| {
                // Its user may be at it, on this thread even.
                seat.try_lock().is_ok_and(|mut seat| {
                    if seat.outcome.is_none() && seat.job.handle.is_some() {
                        seat.outcome = seat.job.poll_with(Waker::noop());
                    }
                    if seat.outcome.is_some() {
                        seat.job.handle = None;
                    }
                    true
                })
            });
        if !looked {
            woken.store(true, Ordering::Release);
        }
        user.unpark();
    })
}
