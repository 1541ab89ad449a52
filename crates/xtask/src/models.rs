//! The model checkers of `completion`: loom, shuttle and miri.
//!
//! Models are found by file name, `crates/completion/tests/loom_*.rs` and `shuttle_*.rs`, so a
//! new one cannot be forgotten. Each is built under a private cfg and in a target folder of its
//! own, so that ordinary builds stay warm.

use std::fs;
use std::process::Command;

use crate::report::{Outcome, Report};
use crate::tally::Tally;
use crate::test::{self, Runner};
use crate::{Result, facts, place, process};

/// Sets one bound on preemptions for all loom models, instead of the models' own.
const LOOM_BOUND_VARIABLE: &str = "LOOM_MAX_PREEMPTIONS";
/// The least number of random schedules over all shuttle models together.
const SHUTTLE_SCHEDULES_MIN: u64 = 50_000;
/// What miri interprets: where memory changes hands. The whole suite would take it a quarter of an
/// hour.
const MIRI_TESTS: [&str; 4] = ["drop_and_cancel", "foreign_code", "ledger", "parts"];

/// Each miri seed is another interleaving and another layout of memory.
const MIRI_SEEDS: &str = "0..2";
/// What each shuttle model prints, so that the total can be checked.
const SCHEDULES_MARK: &str = "schedules run:";

/// One checker with its cfg.
struct Checker {
    name: &'static str,
    cfg: &'static str,
}

const LOOM: Checker = Checker {
    name: "loom",
    cfg: "completion_loom",
};
const SHUTTLE: Checker = Checker {
    name: "shuttle",
    cfg: "completion_shuttle",
};

impl Checker {
    /// The names of the models. None at all is an error.
    fn models(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for (name, path) in test::test_files(&format!("{}_", self.name))? {
            let text = fs::read_to_string(&path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            let guard = format!("#![cfg({})]", self.cfg);
            if !text.contains(&guard) {
                return Err(format!("{} lacks `{guard}`", path.display()));
            }
            names.push(name);
        }
        if names.is_empty() {
            let name = self.name;
            return Err(format!("there is no crates/completion/tests/{name}_*.rs"));
        }
        Ok(names)
    }

    fn args(&self) -> Result<Vec<String>> {
        let mut args: Vec<String> = ["-p", "tokio-cufile-completion", "--release"]
            .map(str::to_owned)
            .to_vec();
        for model in self.models()? {
            args.extend(["--test".to_owned(), model]);
        }
        Ok(args)
    }

    /// Gives a cargo command this checker's cfg and target folder.
    fn configure(&self, command: &mut Command) {
        process::add_rustflags(command, &format!("--cfg {}", self.cfg));
        command.env("CARGO_TARGET_DIR", place::target().join(self.name));
    }
}

pub(crate) fn loom(runner: Runner) -> Outcome {
    let args = match LOOM.args() {
        Ok(args) => args,
        Err(message) => return Err(message).into(),
    };
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut command = runner.command("models", &args);
    LOOM.configure(&mut command);
    match place::setting(LOOM_BOUND_VARIABLE, "").as_str() {
        "" => println!("loom: every interleaving within the bounds that the models state"),
        bound => println!("loom: every interleaving with at most {bound} preemptions"),
    }
    test::run_counted(&mut command)
}

pub(crate) fn shuttle(runner: Runner) -> Outcome {
    let args = match SHUTTLE.args() {
        Ok(args) => args,
        Err(message) => return Err(message).into(),
    };
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut command = runner.command_with_output("models", &args);
    SHUTTLE.configure(&mut command);
    // Unseen, since a control that is caught prints what a failure prints.
    match process::watch_unseen(&mut command) {
        Ok(run) => show_shuttle(&run),
        Err(message) => Err(message).into(),
    }
}

fn show_shuttle(run: &process::Finished) -> Outcome {
    let outcome = judge_shuttle(run);
    if outcome.failure.is_some() {
        println!("{}", run.output);
    }
    outcome
}

fn judge_shuttle(run: &process::Finished) -> Outcome {
    let mut outcome = test::judge(run, Tally::of(&run.output));
    let schedules = schedules_in(&run.output);
    println!("shuttle: {schedules} schedules run");
    if outcome.failure.is_none() && schedules < SHUTTLE_SCHEDULES_MIN {
        outcome.failure = Some(format!(
            "{schedules} schedules were reported by lines of `{SCHEDULES_MARK} N`, \
             at least {SHUTTLE_SCHEDULES_MIN} are wanted"
        ));
    }
    outcome
}

fn schedules_in(output: &str) -> u64 {
    output
        .lines()
        .filter_map(|line| line.trim().strip_prefix(SCHEDULES_MARK))
        .filter_map(|count| count.trim().parse::<u64>().ok())
        .sum()
}

/// Miri needs a nightly, which a machine may not have.
pub(crate) fn miri(report: &mut Report) {
    if !facts::has_miri() {
        report.skip_step("miri", "no-miri", "no nightly toolchain with miri is here");
        return;
    }
    report.step("miri", || {
        let mut command = Command::new("rustup");
        let args = "run nightly cargo miri test --locked -p tokio-cufile-completion --lib";
        command.args(args.split(' '));
        command.args(MIRI_TESTS.iter().flat_map(|test| ["--test", test]));
        command.current_dir(place::root());
        command.env("CARGO_TARGET_DIR", place::target().join("miri"));
        // What is quarantined is leaked on purpose, and so is what a broken engine loses.
        let default = format!("-Zmiri-many-seeds={MIRI_SEEDS} -Zmiri-ignore-leaks");
        command.env("MIRIFLAGS", place::setting("MIRIFLAGS", &default));
        judge_miri(&process::watch(&mut command)?)
    });
}

/// The seeds run side by side and their lines mix, so tests are not counted. They are the ones
/// that were counted before.
fn judge_miri(run: &process::Finished) -> Result<()> {
    if !run.success {
        return Err(format!("miri ended with {}", run.status));
    }
    let mut before_passed = run.output.split(" passed").map(|text| {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        text[digits..].parse::<u64>().unwrap_or(0)
    });
    if before_passed.all(|count| count == 0) {
        return Err("no test ran".to_owned());
    }
    Ok(())
}

/// Lints the code that only the models compile.
pub(crate) fn clippy() -> Result<()> {
    for checker in [LOOM, SHUTTLE] {
        let args = "clippy --locked -p tokio-cufile-completion --all-targets -- -D warnings";
        let args: Vec<&str> = args.split(' ').collect();
        let mut command = process::cargo(&args);
        checker.configure(&mut command);
        process::check(&mut command)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(output: &str) -> Option<String> {
        let run = process::Finished {
            success: true,
            status: "exit status: 0".into(),
            output: output.into(),
        };
        judge_shuttle(&run).failure
    }

    #[test]
    fn miri_must_run_a_test_and_end_well() {
        let judged = |success, output: &str| {
            judge_miri(&process::Finished {
                success,
                status: "exit status: 1".into(),
                output: output.into(),
            })
        };
        assert!(judged(true, "test result: okok. 0 passed; 0 failed. 12 passed;").is_ok());
        assert!(judged(true, "test result: ok. 0 passed; 0 failed").is_err());
        assert!(judged(true, "").is_err());
        assert!(judged(false, "12 passed").is_err());
    }

    #[test]
    fn shuttle_must_report_enough_schedules() {
        assert_eq!(
            judged("    schedules run: 40000\nschedules run: 10000\n"),
            None
        );
        assert!(judged("schedules run: 49999\n").is_some());
        assert!(judged("").is_some());
    }
}
