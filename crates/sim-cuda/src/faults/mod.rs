//! Faults on demand. Each device has its own, and so have the calls that concern none.

pub(crate) mod script;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sim_common::monitor::{self, lock};
use sim_common::{Meter, Rng};

use crate::code::{Code, Result};
use crate::context::Health;
use crate::entry::Entry;
use crate::work::Kind;
use script::{Action, Rule, Subject};

/// As many as the counts of a device have room for.
pub(crate) const RULES_MAX: usize = 16;

#[derive(Debug)]
pub(crate) struct Faults {
    seed: u64,
    /// Spares the lock where there is no rule, which is nearly always.
    any: AtomicBool,
    rules: Mutex<Vec<Active>>,
    fired: AtomicU64,
    /// How often they were cleared: what hangs waits for the next time.
    cleared: AtomicU64,
}

#[derive(Debug)]
struct Active {
    rule: Rule,
    meter: Meter,
}

/// What the faults do to a call.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// The call has been made, and its result is replaced by this.
    pub(crate) result: Option<Code>,
}

/// What the faults do to work.
#[derive(Debug, Default)]
pub(crate) struct Spoiled {
    pub(crate) fail: Option<Code>,
    pub(crate) flip: bool,
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            any: AtomicBool::new(false),
            rules: Mutex::default(),
            fired: AtomicU64::new(0),
            cleared: AtomicU64::new(0),
        }
    }

    /// Adds rules to those that are there; all or none.
    pub(crate) fn add(&self, rules: Vec<Rule>) -> Result<(), String> {
        let mut active = lock(&self.rules);
        if active.len() + rules.len() > RULES_MAX {
            return Err(format!("there can be {RULES_MAX} faults at a time"));
        }
        for rule in rules {
            let place = 0xFA00 + active.len() as u64;
            let meter = Meter::new(rule.timing, Rng::new(self.seed, place));
            active.push(Active { rule, meter });
        }
        self.any.store(!active.is_empty(), Ordering::Release);
        Ok(())
    }

    /// Ends them all; what hangs goes on.
    pub(crate) fn clear(&self) {
        let mut active = lock(&self.rules);
        active.clear();
        self.any.store(false, Ordering::Release);
        drop(active);
        self.cleared.fetch_add(1, Ordering::AcqRel);
        monitor::ring();
    }

    /// How often each rule that is there has fired.
    pub(crate) fn fired_each(&self) -> Vec<u64> {
        lock(&self.rules)
            .iter()
            .map(|active| active.meter.fired())
            .collect()
    }

    /// How often any has fired, those that were cleared too.
    pub(crate) fn fired(&self) -> u64 {
        self.fired.load(Ordering::Relaxed)
    }

    /// What happens to a call: an error if it is not to be made.
    pub(crate) fn at_call(&self, entry: Entry, health: Option<&Health>) -> Result<Verdict> {
        let mut verdict = Verdict::default();
        for (action, cleared) in self.firing(Subject::Call(entry)) {
            match action {
                Action::Fail(code) => return Err(code),
                Action::Lose(code) => {
                    if let Some(health) = health {
                        health.lose(code);
                    }
                    return Err(code);
                }
                Action::ActAndFail(code) => verdict.result = Some(code),
                Action::Slow(time) => monitor::pause(time),
                Action::Never => self.hang(cleared, health),
                Action::Flip => unreachable!("refused by the parser"),
            }
        }
        Ok(verdict)
    }

    /// What happens to work.
    pub(crate) fn at_work(&self, kind: Kind, health: &Health) -> Spoiled {
        let mut spoiled = Spoiled::default();
        for (action, cleared) in self.firing(Subject::Work(kind)) {
            match action {
                Action::Fail(code) => spoiled.fail = Some(code),
                Action::Slow(time) => monitor::pause(time),
                Action::Never => self.hang(cleared, Some(health)),
                Action::Flip => spoiled.flip = true,
                Action::ActAndFail(_) | Action::Lose(_) => unreachable!("refused by the parser"),
            }
        }
        spoiled
    }

    fn firing(&self, subject: Subject) -> Vec<(Action, u64)> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut rules = lock(&self.rules);
        let cleared = self.cleared.load(Ordering::Acquire);
        let covering = rules
            .iter_mut()
            .filter(|active| active.rule.subject.covers(subject));
        let firing =
            covering.filter_map(|active| active.meter.meet().then_some(active.rule.action));
        let firing: Vec<_> = firing.map(|action| (action, cleared)).collect();
        self.fired.fetch_add(firing.len() as u64, Ordering::Relaxed);
        firing
    }

    fn hang(&self, cleared: u64, health: Option<&Health>) {
        let is_lost = || health.is_some_and(|health| health.check().is_err());
        monitor::wait(|| self.cleared.load(Ordering::Acquire) != cleared || is_lost());
    }
}
