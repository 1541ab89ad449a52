//! Faults on demand. Each device has its own, and so have the calls that concern none.

pub(crate) mod script;

use std::ops::Deref;

use sim_common::{Era, Rules, monitor};

use crate::code::{Code, Result};
use crate::context::Health;
use crate::entry::Entry;
use crate::work::Kind;
use script::{Action, Rule, Subject};

#[derive(Debug)]
pub(crate) struct Faults(Rules<Rule>);

impl Deref for Faults {
    type Target = Rules<Rule>;

    fn deref(&self) -> &Rules<Rule> {
        &self.0
    }
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
        Self(Rules::new(seed, 0xFA00))
    }

    /// What happens to a call: an error if it is not to be made.
    pub(crate) fn at_call(&self, entry: Entry, health: Option<&Health>) -> Result<Verdict> {
        let mut verdict = Verdict::default();
        for (action, era) in self.firing(Subject::Call(entry)) {
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
                Action::Never => self.hang(era, health),
                Action::Flip => unreachable!("refused by the parser"),
            }
        }
        Ok(verdict)
    }

    /// What happens to work.
    pub(crate) fn at_work(&self, kind: Kind, health: &Health) -> Spoiled {
        let mut spoiled = Spoiled::default();
        for (action, era) in self.firing(Subject::Work(kind)) {
            match action {
                Action::Fail(code) => spoiled.fail = Some(code),
                Action::Slow(time) => monitor::pause(time),
                Action::Never => self.hang(era, Some(health)),
                Action::Flip => spoiled.flip = true,
                Action::ActAndFail(_) | Action::Lose(_) => unreachable!("refused by the parser"),
            }
        }
        spoiled
    }

    fn firing(&self, subject: Subject) -> Vec<(Action, Era)> {
        self.0
            .firing(|rule| rule.subject.covers(subject).then_some(rule.action))
    }

    fn hang(&self, era: Era, health: Option<&Health>) {
        let is_lost = || health.is_some_and(|health| health.check().is_err());
        monitor::wait(|| self.is_over(era) || is_lost());
    }
}
