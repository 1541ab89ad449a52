//! Faults on demand.

pub(crate) mod script;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sim_common::monitor::{self, lock};
use sim_common::{Meter, Rng};

use crate::code::{Fail, Result};
use crate::settings::Route;
use script::{Action, Place, Rule, Subject};

/// As many as the counts have room for.
pub(crate) const RULES_MAX: usize = 16;

#[derive(Debug)]
pub(crate) struct Faults {
    seed: u64,
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

/// What the faults do to a call or an operation that is made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spoiled {
    /// It is made, and its result is replaced by this.
    pub(crate) result: Option<Fail>,
    /// No more bytes than that move.
    pub(crate) short: Option<usize>,
    /// That many bytes more are told.
    pub(crate) long: usize,
    /// Nothing moves, and this is told.
    pub(crate) raw: Option<isize>,
    pub(crate) flip: bool,
    pub(crate) route: Option<Route>,
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
            let place = 0xCF00 + active.len() as u64;
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
        let rules = lock(&self.rules);
        rules.iter().map(|active| active.meter.fired()).collect()
    }

    /// How often any has fired, those that were cleared too.
    pub(crate) fn fired(&self) -> u64 {
        self.fired.load(Ordering::Relaxed)
    }

    /// What happens to a call or an operation: an error if it is not to be made.
    pub(crate) fn at(&self, subject: Subject, place: Place<'_>) -> Result<Spoiled> {
        let mut spoiled = Spoiled::default();
        for (action, cleared) in self.firing(subject, place) {
            match action {
                Action::Fail(code) => return Err(fail(code)),
                Action::ActAndFail(code) => spoiled.result = Some(fail(code)),
                Action::Slow(time) => monitor::pause(time),
                Action::Never => {
                    monitor::wait(|| self.cleared.load(Ordering::Acquire) != cleared);
                }
                Action::Short(bytes) => spoiled.short = Some(bytes),
                Action::Long(bytes) => spoiled.long = bytes,
                Action::Return(value) => spoiled.raw = Some(value),
                Action::Flip => spoiled.flip = true,
                Action::Path(route) => spoiled.route = Some(route),
            }
        }
        Ok(spoiled)
    }

    fn firing(&self, subject: Subject, place: Place<'_>) -> Vec<(Action, u64)> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut rules = lock(&self.rules);
        let cleared = self.cleared.load(Ordering::Acquire);
        let covering = rules.iter_mut().filter(|active| {
            active.rule.subject.covers(subject) && active.rule.scope.covers(place)
        });
        let firing = covering.filter_map(|one| one.meter.meet().then_some(one.rule.action));
        let firing: Vec<_> = firing.map(|action| (action, cleared)).collect();
        self.fired.fetch_add(firing.len() as u64, Ordering::Relaxed);
        firing
    }
}

/// The library's numbers begin above the system's.
fn fail(code: i32) -> Fail {
    if code > 5000 {
        Fail::Code(code)
    } else {
        Fail::Errno(code)
    }
}
