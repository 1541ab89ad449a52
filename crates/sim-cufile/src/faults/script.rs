//! The text that says what goes wrong. The head of the crate has the grammar.

use std::time::Duration;

use sim_common::{Timed, Timing, number};

use crate::entry::Entry;
use crate::settings::Route;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Everywhere,
    Device(i32),
    /// A part of the path of the file.
    File(String),
}

/// What a call or an operation is about.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place<'a> {
    pub(crate) device: Option<i32>,
    pub(crate) file: Option<&'a str>,
}

impl Scope {
    pub(super) fn covers(&self, place: Place<'_>) -> bool {
        match self {
            Self::Everywhere => true,
            Self::Device(ordinal) => place.device == Some(*ordinal),
            Self::File(part) => place.file.is_some_and(|path| path.contains(part)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Call(Entry),
    AnyCall,
    /// An operation in a stream or a batch.
    Read,
    Write,
    AnyWork,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Fail(i32),
    ActAndFail(i32),
    Slow(Duration),
    Never,
    Short(usize),
    Long(usize),
    Return(isize),
    Flip,
    Path(Route),
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
            Self::AnyWork => matches!(other, Self::Read | Self::Write),
            one => one == other,
        }
    }

    /// Whether bytes move by it, and its result is a count.
    fn moves(self) -> bool {
        match self {
            Self::Call(entry) => matches!(
                entry,
                Entry::cuFileRead | Entry::cuFileWrite | Entry::cuFileReadv | Entry::cuFileWritev
            ),
            Self::AnyCall => false,
            Self::Read | Self::Write | Self::AnyWork => true,
        }
    }

    fn is_work(self) -> bool {
        matches!(self, Self::Read | Self::Write | Self::AnyWork)
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
    let (scope, name) = match head.rsplit_once('/') {
        None => (Scope::Everywhere, head),
        Some((place, name)) => match place.parse() {
            Ok(ordinal) => (Scope::Device(ordinal), name),
            Err(_) => (Scope::File(place.to_owned()), name),
        },
    };
    let subject = subject(name)?;
    let mut words = tail.split(',').map(str::trim);
    Ok(Rule {
        scope,
        subject,
        action: action(words.next().unwrap_or_default(), subject)?,
        timing: Timing::parse(words)?,
    })
}

fn subject(name: &str) -> Result<Subject, String> {
    let unknown = || format!("there is no `{name}`");
    Ok(match name {
        "*" => Subject::AnyCall,
        "@read" => Subject::Read,
        "@write" => Subject::Write,
        "@*" => Subject::AnyWork,
        name => Subject::Call(Entry::named(name).ok_or_else(unknown)?),
    })
}

fn action(text: &str, subject: Subject) -> Result<Action, String> {
    let action = match text.split_once('=') {
        Some(("fail", code)) => Action::Fail(error(code)?),
        Some(("act-fail", code)) => Action::ActAndFail(error(code)?),
        Some(("slow", micros)) => Action::Slow(Duration::from_micros(number(micros)?)),
        Some(("short", bytes)) => Action::Short(number(bytes)?),
        Some(("long", bytes)) => Action::Long(number(bytes)?),
        Some(("return", value)) => Action::Return(number(value)?),
        Some(("path", name)) => {
            Action::Path(Route::named(name).ok_or_else(|| format!("`{name}` is no path"))?)
        }
        None if text == "never" => Action::Never,
        None if text == "flip" => Action::Flip,
        _ => return Err(format!("`{text}` is no action")),
    };
    let fits = match action {
        Action::Fail(_) | Action::Slow(_) | Action::Never => true,
        Action::ActAndFail(_) => !subject.is_work(),
        _ => subject.moves(),
    };
    if fits {
        Ok(action)
    } else {
        Err(format!("`{text}` does not go with that subject"))
    }
}

fn error(text: &str) -> Result<i32, String> {
    match number(text)? {
        code if code > 0 => Ok(code),
        _ => Err(format!("`{text}` is no error")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_understood() {
        let timing = |word| Timing::parse([word].into_iter()).expect("a word of the page");
        let rules = parse(
            "model.bin/cuFileHandleRegister:fail=5030;1/cuFileBufRegister:fail=5036,from=3;\
             @read:path=posix,from=10;a/b/cuFileRead:return=-6001,nth=2",
        );
        let rules = rules.expect("the example of the page");
        assert_eq!(rules.len(), 4);
        assert_eq!(rules[0].scope, Scope::File("model.bin".into()));
        assert_eq!(rules[1].scope, Scope::Device(1));
        assert_eq!(rules[1].action, Action::Fail(5036));
        assert_eq!(rules[1].timing, timing("from=3"));
        assert_eq!(rules[2].action, Action::Path(Route::Posix));
        assert_eq!(rules[3].scope, Scope::File("a/b".into()));
        assert_eq!(rules[3].action, Action::Return(-6001));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for text in [
            "cuFileReed:fail=5",
            "cuFileRead",
            "cuFileRead:fail=0",
            "cuFileRead:fail=EIO",
            "cuFileBufRegister:short=1",
            "*:flip",
            "@read:act-fail=5",
            "@copy:never",
            "@read:path=air",
            "@read:never,nth=0",
        ] {
            assert!(parse(text).is_err(), "`{text}` was accepted");
        }
    }
}
