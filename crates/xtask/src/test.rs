//! `cargo xtask test`: the tests of the workspace, its documentation and its models.

use std::path::PathBuf;
use std::process::Command;

use crate::args::Group;
use crate::report::{Outcome, Report};
use crate::tally::Tally;
use crate::{Result, interop, models, process, sanitize, sim, skips, stress};
use xtask::simulator;

/// The program that runs test binaries.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Runner {
    /// Kills a test that hangs, and names it.
    Nextest,
    /// What every Rust installation has.
    CargoTest,
}

impl Runner {
    fn find() -> Self {
        if process::ask("cargo", &["nextest", "--version"]).is_some() {
            return Self::Nextest;
        }
        println!(
            "cargo-nextest is not installed: `cargo test` runs the tests instead. \
             It does not kill a test that hangs."
        );
        Self::CargoTest
    }

    /// The command that runs every test it is asked for, also after a failure.
    pub(crate) fn command(self, profile: &str, args: &[&str]) -> Command {
        let mut command = match self {
            Self::Nextest => process::cargo(&["nextest", "run", "--profile", profile]),
            Self::CargoTest => process::cargo(&["test"]),
        };
        command.args(["--locked", "--no-fail-fast"]).args(args);
        command.env(skips::LOG_VARIABLE, skips::log_path());
        command
    }

    /// The same, with what passing tests print.
    pub(crate) fn command_with_output(self, profile: &str, args: &[&str]) -> Command {
        let mut command = self.command(profile, args);
        match self {
            Self::Nextest => command.args(["--success-output", "immediate"]),
            Self::CargoTest => command.args(["--", "--show-output"]),
        };
        command
    }
}

pub(crate) fn run(groups: &[Group], report: &mut Report) {
    let runner = Runner::find();
    for group in groups {
        match group {
            Group::Tests => report.step("tests", || run_counted(&mut tests(runner))),
            Group::Sim => {
                report.step("tests on simulated GPUs", || on_simulator(runner));
                report.ran_simulated();
            }
            Group::Interop => interop::run(runner, report),
            Group::Doc => report.step("documentation tests", documentation),
            Group::Loom => report.step("loom models", || models::loom(runner)),
            Group::Shuttle => report.step("shuttle models", || models::shuttle(runner)),
            Group::Miri => models::miri(report),
            Group::Tsan => sanitize::completion(report),
            Group::Stress => report.step("stress", stress::short_tier),
        }
    }
}

fn tests(runner: Runner) -> Command {
    // Documentation has its own step, as nextest does not run it. Not `--all-targets`: it would have
    // examples built as tests only, and a test runs them.
    runner.command("default", &["--workspace"])
}

/// The test files that use devices where there are any. A pattern that matches none is an error.
const WITH_DEVICES: [&str; 8] = [
    "conformance_*",
    "cufile_*",
    "device_*",
    "digest",
    "property",
    "ranges",
    "staged",
    "user_streams",
];

/// Runs the tests that use devices on simulated ones. All packages are chosen, so that nothing is
/// built anew for other features.
fn on_simulator(runner: Runner) -> Outcome {
    let folder = match simulator::cuda().and_then(|_| simulator::cufile()) {
        Ok(folder) => folder,
        Err(message) => return Err(message).into(),
    };
    let chosen = WITH_DEVICES.iter().flat_map(|name| ["--test", name]);
    let args: Vec<&str> = ["--workspace"].into_iter().chain(chosen).collect();
    let mut command = runner.command("default", &args);
    // A test that breaks a device takes one of its own, where tests share a process too.
    sim::configure(&mut command, &[folder], SIMULATED_DEVICES, 0);
    run_counted(&mut command)
}

/// As many as the simulator has.
pub(crate) const SIMULATED_DEVICES: u32 = 16;

/// Documentation may have no example at all, so no count is asked for.
fn documentation() -> Outcome {
    let args = "test --doc --locked --workspace --all-features";
    let mut command = process::cargo(&args.split(' ').collect::<Vec<_>>());
    match process::watch(&mut command) {
        Ok(run) => judge(&run, Tally::of(&run.output)),
        Err(message) => Err(message).into(),
    }
}

/// Runs tests, and fails if there was none: a filter that matches nothing proves nothing.
pub(crate) fn run_counted(command: &mut Command) -> Outcome {
    let run = match process::watch(command) {
        Ok(run) => run,
        Err(message) => return Err(message).into(),
    };
    let tally = Tally::of(&run.output);
    let mut outcome = judge(&run, tally);
    if outcome.failure.is_none() && tally.passed == 0 {
        outcome.failure = Some("no test ran".to_owned());
    }
    outcome
}

pub(crate) fn judge(run: &process::Finished, tally: Tally) -> Outcome {
    let failure = if tally.failed > 0 {
        Some(format!("{} tests failed", tally.failed))
    } else if !run.success {
        Some(format!("the runner ended with {}", run.status))
    } else if tally.ignored > 0 {
        // `#[ignore]` would be a skip that no list knows of.
        Some(format!(
            "{} tests are ignored; a test that cannot run everywhere asks `need` instead",
            tally.ignored
        ))
    } else {
        None
    };
    let last_lines = match &failure {
        Some(_) => process::last_lines(&run.output, LAST_LINES).to_owned(),
        None => String::new(),
    };
    Outcome {
        tally,
        failure,
        last_lines,
    }
}

/// Enough for the failures of a few tests; a log may be cut to its end.
const LAST_LINES: usize = 60;

/// The names of the test files of `completion` that start with `prefix`.
pub(crate) fn test_files(prefix: &str) -> Result<Vec<(String, PathBuf)>> {
    let folder = xtask::place::root().join("crates/completion/tests");
    let listing =
        std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files = Vec::new();
    for entry in listing {
        let path = entry.map_err(|error| error.to_string())?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let is_rust = path.extension().is_some_and(|end| end == "rs");
        if is_rust && name.starts_with(prefix) {
            files.push((name.into_owned(), path));
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(success: bool, passed: u64, failed: u64, ignored: u64) -> Option<String> {
        let run = process::Finished {
            success,
            status: "exit status: 1".into(),
            output: "compiling\nFAIL a test\n".into(),
        };
        let tally = Tally {
            passed,
            failed,
            ignored,
        };
        let Outcome {
            failure,
            last_lines,
            ..
        } = judge(&run, tally);
        assert_eq!(last_lines.contains("FAIL a test"), failure.is_some());
        failure
    }

    #[test]
    fn only_a_clean_run_is_good() {
        assert_eq!(judged(true, 3, 0, 0), None);
        assert!(judged(true, 3, 1, 0).is_some());
        assert!(judged(false, 3, 0, 0).is_some());
        assert!(judged(true, 3, 0, 1).is_some());
    }

    #[test]
    fn a_run_without_a_test_is_not_good() {
        let outcome = run_counted(&mut Command::new("true"));
        assert_eq!(outcome.failure.as_deref(), Some("no test ran"));
    }
}
