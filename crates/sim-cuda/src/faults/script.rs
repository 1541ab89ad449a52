//! The text that says what goes wrong. The head of the crate has the grammar.

use std::time::Duration;

use sim_common::{Timed, Timing, number};

use crate::code::Code;
use crate::entry::Entry;
use crate::work::Kind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Everywhere,
    Process,
    Device(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Call(Entry),
    AnyCall,
    Work(Kind),
    AnyWork,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Fail(Code),
    ActAndFail(Code),
    Lose(Code),
    Slow(Duration),
    Never,
    Flip,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) scope: Scope,
    pub(crate) subject: Subject,
    pub(crate) action: Action,
    pub(crate) timing: Timing,
}

impl Subject {
    pub(super) fn covers(self, other: Self) -> bool {
        match self {
            Self::AnyCall => matches!(other, Self::Call(_)),
            Self::AnyWork => matches!(other, Self::Work(_)),
            one => one == other,
        }
    }

    fn is_work(self) -> bool {
        matches!(self, Self::Work(_) | Self::AnyWork)
    }
}

impl Timed for Rule {
    fn timing(&self) -> Timing {
        self.timing
    }
}

/// All rules, or what is wrong with which.
pub(crate) fn parse(script: &str) -> Result<Vec<Rule>, String> {
    sim_common::parse(script, rule)
}

fn rule(text: &str) -> Result<Rule, String> {
    let (head, tail) = text.split_once(':').ok_or("it has no `:`")?;
    let (scope, name) = match head.split_once('/') {
        None => (Scope::Everywhere, head),
        Some(("p", name)) => (Scope::Process, name),
        Some((ordinal, name)) => (Scope::Device(number(ordinal)?), name),
    };
    let subject = subject(name)?;
    let mut words = tail.split(',').map(str::trim);
    let action = action(words.next().unwrap_or_default(), subject)?;
    Ok(Rule {
        scope,
        subject,
        action,
        timing: Timing::parse(words)?,
    })
}

fn subject(name: &str) -> Result<Subject, String> {
    let unknown = || format!("there is no `{name}`");
    Ok(match name.strip_prefix('@') {
        None if name == "*" => Subject::AnyCall,
        None => Subject::Call(Entry::named(name).ok_or_else(unknown)?),
        Some("*") => Subject::AnyWork,
        Some(kind) => Subject::Work(Kind::named(kind).ok_or_else(unknown)?),
    })
}

fn action(text: &str, subject: Subject) -> Result<Action, String> {
    let action = match text.split_once('=') {
        Some(("fail", code)) => Action::Fail(error(code)?),
        Some(("act-fail", code)) => Action::ActAndFail(error(code)?),
        Some(("lose", code)) => Action::Lose(error(code)?),
        Some(("slow", micros)) => Action::Slow(Duration::from_micros(number(micros)?)),
        None if text == "never" => Action::Never,
        None if text == "flip" => Action::Flip,
        _ => return Err(format!("`{text}` is no action")),
    };
    let fits = match action {
        Action::Fail(_) | Action::Slow(_) | Action::Never => true,
        Action::ActAndFail(_) | Action::Lose(_) => !subject.is_work(),
        Action::Flip => subject.is_work(),
    };
    if fits {
        Ok(action)
    } else {
        Err(format!("`{text}` does not go with that subject"))
    }
}

fn error(text: &str) -> Result<Code, String> {
    match Code::parse(text) {
        Some(code) if code != Code::SUCCESS => Ok(code),
        _ => Err(format!("`{text}` is no error code")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_understood() {
        let timing = |word| Timing::parse([word].into_iter()).expect("a word of the page");
        let text = "cuMemAlloc_v2:fail=OUT_OF_MEMORY,nth=3;1/@htod:fail=700,from=10;\
                    @*:slow=200,chance=1/20";
        let rules = parse(text).expect("the example of the page");
        let expected = [
            Rule {
                scope: Scope::Everywhere,
                subject: Subject::Call(Entry::cuMemAlloc_v2),
                action: Action::Fail(Code::OUT_OF_MEMORY),
                timing: timing("nth=3"),
            },
            Rule {
                scope: Scope::Device(1),
                subject: Subject::Work(Kind::HostToDevice),
                action: Action::Fail(Code::ILLEGAL_ADDRESS),
                timing: timing("from=10"),
            },
            Rule {
                scope: Scope::Everywhere,
                subject: Subject::AnyWork,
                action: Action::Slow(Duration::from_micros(200)),
                timing: timing("chance=1/20"),
            },
        ];
        assert_eq!(rules, expected);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for text in [
            "cuMemAlloc:fail=2",
            "cuMemAlloc_v2",
            "cuMemAlloc_v2:fail=0",
            "cuMemAlloc_v2:fail=MEMORY",
            "cuMemAlloc_v2:flip",
            "@htod:lose=700",
            "@copy:never",
            "x/@htod:never",
            "@htod:never,nth=0",
            "@htod:never,nth=1,every=2",
            "@htod:never,soon",
            "@htod:slow=-1",
        ] {
            assert!(parse(text).is_err(), "`{text}` was accepted");
        }
    }
}
