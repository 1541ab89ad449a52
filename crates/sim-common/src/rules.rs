//! The rules of a fault script that are in force: what every simulator does with them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::monitor::{self, lock};
use crate::{Meter, Rng, Timing};

/// As many at a time as the counts of a simulator have room for.
pub const RULES_MAX: usize = 16;

/// A rule of a script, which says when it fires.
pub trait Timed {
    /// When.
    fn timing(&self) -> Timing;
}

/// The rules in force, and how often each has fired.
#[derive(Debug)]
pub struct Rules<R> {
    seed: u64,
    place: u64,
    /// Spares the lock where there is no rule, which is nearly always.
    any: AtomicBool,
    active: Mutex<Vec<(R, Meter)>>,
    fired: AtomicU64,
    /// How often they were cleared: what hangs waits for the next time.
    cleared: AtomicU64,
}

/// The time between two clearings, in which a rule fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Era(u64);

impl<R: Timed> Rules<R> {
    /// None yet. Their chances are drawn by the seed, for each a sequence from `place` on.
    #[must_use]
    pub fn new(seed: u64, place: u64) -> Self {
        Self {
            seed,
            place,
            any: AtomicBool::new(false),
            active: Mutex::default(),
            fired: AtomicU64::new(0),
            cleared: AtomicU64::new(0),
        }
    }

    /// Adds rules to those that are there; all or none.
    ///
    /// # Errors
    ///
    /// The text says that there would be too many.
    pub fn add(&self, rules: Vec<R>) -> Result<(), String> {
        let mut active = lock(&self.active);
        if active.len() + rules.len() > RULES_MAX {
            return Err(format!("there can be {RULES_MAX} faults at a time"));
        }
        for rule in rules {
            let rng = Rng::new(self.seed, self.place + active.len() as u64);
            let meter = Meter::new(rule.timing(), rng);
            active.push((rule, meter));
        }
        self.any.store(!active.is_empty(), Ordering::Release);
        Ok(())
    }

    /// Ends them all; what hangs goes on.
    pub fn clear(&self) {
        let mut active = lock(&self.active);
        active.clear();
        self.any.store(false, Ordering::Release);
        drop(active);
        self.cleared.fetch_add(1, Ordering::AcqRel);
        monitor::ring();
    }

    /// How often each rule that is there has fired.
    pub fn fired_each(&self) -> Vec<u64> {
        let active = lock(&self.active);
        active.iter().map(|(_, meter)| meter.fired()).collect()
    }

    /// How often any has fired, those that were cleared too.
    pub fn fired(&self) -> u64 {
        self.fired.load(Ordering::Relaxed)
    }

    /// What the rules do that fire now. `action` is what a rule does, or nothing where it is about
    /// something else.
    pub fn firing<A>(&self, action: impl Fn(&R) -> Option<A>) -> Vec<(A, Era)> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut active = lock(&self.active);
        let era = Era(self.cleared.load(Ordering::Acquire));
        let firing = active.iter_mut().filter_map(|(rule, meter)| {
            let action = action(rule)?;
            meter.meet().then_some((action, era))
        });
        let firing: Vec<_> = firing.collect();
        self.fired.fetch_add(firing.len() as u64, Ordering::Relaxed);
        firing
    }

    /// Whether the rules were cleared since.
    pub fn is_over(&self, era: Era) -> bool {
        self.cleared.load(Ordering::Acquire) != era.0
    }
}

/// All rules of a script, each read by `rule`, or what is wrong with which.
///
/// # Errors
///
/// The text names the rule and says what is wrong.
pub fn parse<R>(script: &str, rule: impl Fn(&str) -> Result<R, String>) -> Result<Vec<R>, String> {
    let rules = script.split(';').map(str::trim);
    rules
        .filter(|text| !text.is_empty())
        .map(|text| rule(text).map_err(|why| format!("fault `{text}`: {why}")))
        .collect()
}
