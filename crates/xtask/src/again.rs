//! Tests that need a process of their own run themselves again.

use std::process::{Command, Output};

use crate::place;

const VARIABLE: &str = "TOKIO_CUFILE_SIM_TEST_AGAIN";

/// The command that runs the test of that name again, without simulation asked for. Inside of it
/// [`is_again`] holds.
///
/// # Panics
///
/// When the test cannot find its own program.
#[must_use]
pub fn command(test: &str) -> Command {
    let program = std::env::current_exe().expect("a test knows its program");
    let mut command = Command::new(program);
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env_remove("TOKIO_CUFILE_SIMULATE")
        .env(VARIABLE, "1");
    command
}

/// Runs the test of that name again, with variables.
///
/// # Panics
///
/// When it cannot be started.
#[must_use]
pub fn run(test: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = command(test);
    let output = command.envs(variables.iter().copied()).output();
    output.expect("a test can be started again")
}

/// Runs a test again and gives what it printed.
///
/// # Panics
///
/// When it fails.
#[track_caller]
pub fn succeeds(test: &str, variables: &[(&str, &str)]) -> String {
    let output = run(test, variables);
    let text = printed(&output);
    assert!(output.status.success(), "{}\n{text}", output.status);
    text
}

/// All that a test printed.
#[must_use]
pub fn printed(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Whether this is the inner one.
#[must_use]
pub fn is_again() -> bool {
    place::setting(VARIABLE, "") == "1"
}
