//! Running other programs.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::thread;

use crate::Result;
use xtask::place;

/// What a program printed and how it ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) success: bool,
    pub(crate) status: String,
    pub(crate) output: String,
}

/// A cargo command in the root of the workspace.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(place::cargo());
    command.args(args).current_dir(place::root());
    command
}

/// Adds compiler flags to those the caller asked for.
pub(crate) fn add_rustflags(command: &mut Command, flags: &str) {
    let inherited = place::setting("RUSTFLAGS", "");
    command.env("RUSTFLAGS", format!("{inherited} {flags}").trim());
    // The encoded form would win over the plain one.
    command.env_remove("CARGO_ENCODED_RUSTFLAGS");
}

/// Runs a command whose output is of interest only if it fails; it goes to where errors go.
pub(crate) fn check_quietly(command: &mut Command) -> Result<()> {
    let output = command
        .output()
        .map_err(|error| format!("cannot run {}: {error}", shown(command)))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "{} ended with {}\n{text}",
        shown(command),
        output.status
    ))
}

/// Runs a command with its output going straight to ours.
pub(crate) fn check(command: &mut Command) -> Result<()> {
    announce(command);
    let status = command
        .status()
        .map_err(|error| format!("cannot run {}: {error}", shown(command)))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{} ended with {status}", shown(command)))
    }
}

/// Runs a command, shows its output as it comes, and keeps it.
pub(crate) fn watch(command: &mut Command) -> Result<Finished> {
    run(command, &mut io::stdout(), io::stderr())
}

/// Runs a command that is to fail, and keeps its output: shown, it would be taken for a failure.
pub(crate) fn watch_unseen(command: &mut Command) -> Result<Finished> {
    run(command, &mut io::sink(), io::sink())
}

/// The last `count` lines of a text.
pub(crate) fn last_lines(text: &str, count: usize) -> &str {
    let text = text.trim_end();
    let start = text.rmatch_indices('\n').nth(count.saturating_sub(1));
    start.map_or(text, |(at, _)| &text[at + 1..])
}

fn run(
    command: &mut Command,
    to: &mut impl Write,
    mut errors_to: impl Write + Send + 'static,
) -> Result<Finished> {
    announce(command);
    let fail = |command: &Command, error| format!("cannot run {}: {error}", shown(command));
    let mut child = command
        .env("CARGO_TERM_COLOR", "never")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| fail(command, error))?;
    let stdout = child.stdout.take().expect("stdout was piped above");
    let stderr = child.stderr.take().expect("stderr was piped above");
    let err_reader = thread::spawn(move || relay(stderr, &mut errors_to));
    let mut output = relay(stdout, to);
    output.push_str(&err_reader.join().expect("the relay does not panic"));
    let status = child.wait().map_err(|error| fail(command, error))?;
    Ok(Finished {
        success: status.success(),
        status: status.to_string(),
        output,
    })
}

/// The output of a command that is only asked something; `None` if it fails or is not there.
pub(crate) fn ask(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(args)
        .current_dir(place::root())
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(text)
}

fn relay(from: impl Read, to: &mut impl Write) -> String {
    let mut kept = String::new();
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    // A test may print bytes that are no text; they must not end the reading.
    while matches!(reader.read_until(b'\n', &mut line), Ok(n) if n > 0) {
        // A closed terminal is no reason to stop the tests.
        let _ = to.write_all(&line);
        kept.push_str(&String::from_utf8_lossy(&line));
        line.clear();
    }
    kept
}

fn announce(command: &Command) {
    let variables: Vec<String> = command
        .get_envs()
        .filter_map(|(name, value)| {
            let value = value?.to_string_lossy();
            Some(format!("{}='{value}' ", name.to_string_lossy()))
        })
        .collect();
    println!("$ {}{}", variables.concat(), shown(command));
}

fn shown(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    let name = program.rsplit('/').next().unwrap_or(&program);
    let args = command.get_args().map(|arg| arg.to_string_lossy());
    let mut text = name.to_owned();
    for arg in args {
        text.push(' ');
        text.push_str(&arg);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::last_lines;

    #[test]
    fn the_last_lines_are_whole_and_no_more_than_asked_for() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("a\nb\nc", 3), "a\nb\nc");
        assert_eq!(last_lines("a\nb", 9), "a\nb");
        assert_eq!(last_lines("", 2), "");
    }
}
