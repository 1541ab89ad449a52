//! Faults on demand.

pub(crate) mod script;

use std::ops::Deref;

use sim_common::{Rules, monitor};

use crate::code::{Fail, Result};
use crate::settings::Route;
use script::{Action, Place, Rule, Subject};

#[derive(Debug)]
pub(crate) struct Faults(Rules<Rule>);

impl Deref for Faults {
    type Target = Rules<Rule>;

    fn deref(&self) -> &Rules<Rule> {
        &self.0
    }
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
        Self(Rules::new(seed, 0xCF00))
    }

    /// What happens to a call or an operation: an error if it is not to be made.
    pub(crate) fn at(&self, subject: Subject, place: Place<'_>) -> Result<Spoiled> {
        let mut spoiled = Spoiled::default();
        let firing = self.firing(|rule| {
            let is_met = rule.subject.covers(subject) && rule.scope.covers(place);
            is_met.then_some(rule.action)
        });
        for (action, era) in firing {
            match action {
                Action::Fail(code) => return Err(fail(code)),
                Action::ActAndFail(code) => spoiled.result = Some(fail(code)),
                Action::Slow(time) => monitor::pause(time),
                Action::Never => monitor::wait(|| self.is_over(era)),
                Action::Short(bytes) => spoiled.short = Some(bytes),
                Action::Long(bytes) => spoiled.long = bytes,
                Action::Return(value) => spoiled.raw = Some(value),
                Action::Flip => spoiled.flip = true,
                Action::Path(route) => spoiled.route = Some(route),
            }
        }
        Ok(spoiled)
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
