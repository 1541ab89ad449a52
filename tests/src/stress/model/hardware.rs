//! The hardware of the model: it starts parts, and ends them in every way there is.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::thread;

use measure::data::Draws;
use tokio_cufile_completion::{PartKey, ReleasePolicy};

use super::ground::REST;
use super::support::World;
use super::support::hardware::{Started, outcome};
use super::{PAUSE, Shared, is_set};
use crate::stress::counts::{Fault, Harm};

/// Turns that a part waits at most.
const DELAY_MAX: u64 = REST / 2;
/// Parts at work at once.
const AT_WORK_MAX: usize = 64;

struct AtWork<P: ReleasePolicy> {
    due: u64,
    started: Started<P>,
}

/// One thread's part of the hardware.
struct Hardware<'a, P: ReleasePolicy> {
    world: &'a World<P>,
    shared: &'a Shared,
    draws: Draws,
    at_work: VecDeque<AtWork<P>>,
    /// Never heard of, until all is over.
    silent: Vec<Started<P>>,
    /// Keys of parts that have ended.
    stale: Vec<PartKey>,
    strays: u64,
}

/// Works until the world has ended; then what was silent stores after all.
pub(super) fn work<P: ReleasePolicy>(world: &World<P>, shared: &Shared, seed: u64) {
    let mut hardware = Hardware {
        world,
        shared,
        draws: Draws::new(seed),
        at_work: VecDeque::new(),
        silent: Vec::new(),
        stale: Vec::new(),
        strays: 0,
    };
    let _ = shared.hardware.set(thread::current());
    while !is_set(&shared.over) {
        hardware.turn();
        if hardware.at_work.is_empty() {
            thread::park_timeout(PAUSE);
        }
    }
    hardware.end();
}

impl<P: ReleasePolicy> Hardware<'_, P> {
    fn turn(&mut self) {
        let now = self.shared.arena.turns.fetch_add(1, Ordering::AcqRel);
        while self.at_work.len() < AT_WORK_MAX {
            let Some(part) = self.world.take_part() else {
                break;
            };
            if let Some((ticket, task)) = part.start() {
                let started = Started::new(ticket, task);
                self.begin(now, started);
            }
        }
        for _ in 0..self.at_work.len() {
            let Some(at_work) = self.at_work.pop_front() else {
                return;
            };
            if at_work.due <= now {
                self.finish(at_work.started);
            } else {
                self.at_work.push_back(at_work);
            }
        }
    }

    fn begin(&mut self, now: u64, started: Started<P>) {
        // Into the slot, or nowhere; most are seen between the two by somebody.
        if started.ticket.slot().is_some() || self.draws.below(2) == 0 {
            let _ = started.advance();
        }
        let due = match self.draws.below(16) {
            0 => {
                self.fired(Fault::Slow);
                now + 1 + self.draws.below(DELAY_MAX)
            }
            _ => now + self.draws.below(3),
        };
        self.at_work.push_back(AtWork { due, started });
    }

    /// Counts a fault. Whether it is to happen.
    fn fired(&self, fault: Fault) -> bool {
        let wanted = self.shared.faults.contains(&fault);
        self.shared.counts.fired(fault, u64::from(wanted));
        wanted
    }

    fn finish(&mut self, started: Started<P>) {
        let len = started.task.len;
        match self.draws.below(400) {
            0 if self.fired(Fault::Silent) => self.fall_silent(started),
            1..12 if self.fired(Fault::Eio) => {
                let bytes = self.draws.below(len + 1);
                started.fail(bytes, "EIO");
            }
            12..24 if self.fired(Fault::Short) => {
                let bytes = self.draws.below(len + 1);
                started.finish_with(bytes, None);
            }
            24..80 => self.finish_by_name(started),
            _ => started.finish(),
        }
    }

    fn fall_silent(&mut self, started: Started<P>) {
        match self.draws.below(3) {
            0 => drop(started),
            _ => self.silent.push(started),
        }
    }

    fn finish_by_name(&mut self, started: Started<P>) {
        let len = started.task.len;
        started.task.count(len);
        started.task.hit_by(started.ticket.slot());
        let (key, _) = started.into_key();
        self.world.core.finish(key, outcome(len, None));
        // Once more, when the place may be somebody else's.
        if self.draws.below(2) == 0 {
            self.stale.push(key);
        }
        if self.stale.len() > 4 {
            let key = self.stale.swap_remove(0);
            self.strays += 1;
            self.world.core.finish(key, outcome(len, None));
        }
    }

    fn end(self) {
        // Withdrawn before they began.
        while let Some(part) = self.world.take_part() {
            drop(part);
        }
        for at_work in self.at_work {
            at_work.started.finish();
        }
        for started in self.silent {
            started.finish();
        }
        let seen = self.world.check().stray_completions;
        let missing = self.strays.saturating_sub(seen);
        let message = || "a completion of an earlier life ended somebody".to_owned();
        self.shared.counts.harm(Harm::Double, missing, message);
    }
}
