//! `cargo xtask stress`: builds the stress program and runs it, on simulated devices where it is to
//! use some.

use std::path::{Path, PathBuf};
use std::process::Command;

use xtask::simulator;

use crate::report::Outcome;
use crate::{Result, place, process, sim, skips};

/// Of what a failed run has printed: its counts, its findings and its verdict.
const LAST_LINES: usize = 24;

/// As many as the simulator has: some are used up.
const DEVICES: u32 = 16;

/// What CI runs. The seeds are fixed, so that a failure is there again; the long tier draws its own.
const SHORT_TIER: [&str; 10] = [
    "--broken all --seed 1",
    "--backend model --ops 1000000 --seed 1",
    "--ops 40000 --seed 1",
    "--device sim --ops 20000 --seed 1",
    "--backend cufile --device sim --ops 20000 --seed 1",
    "--backend cufile-streams --device sim --ops 20000 --seed 1",
    "--shutdown-rounds 250 --seed 1",
    "--device sim --shutdown-rounds 250 --seed 2",
    // As on a real device, whose memory is reached by the driver only.
    "--device cuda --faults none --ops 4000 --seed 1",
    "--backend cufile-streams --device cuda --faults none --ops 4000 --seed 1",
];

/// Runs the program once, with these words.
pub(crate) fn run(words: &[String]) -> Result<bool> {
    let program = build()?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = command(&program, &words, uses(&words, &["sim"]))?;
    match process::check(&mut command) {
        Ok(()) => Ok(true),
        Err(message) => {
            eprintln!("xtask: {message}");
            Ok(false)
        }
    }
}

/// Runs it in every way that CI wants. The first failure does not keep the others from running.
pub(crate) fn short_tier() -> Outcome {
    let program = match build() {
        Ok(program) => program,
        Err(message) => return Outcome::from(Err(message)),
    };
    let mut failed = Vec::new();
    let mut last_lines = String::new();
    for way in SHORT_TIER {
        if let Err(found) = run_way(&program, way) {
            failed.push(format!("stress {way}"));
            last_lines.push_str(&format!("stress {way}:\n{found}\n"));
        }
    }
    Outcome {
        failure: (!failed.is_empty()).then(|| failed.join("; ")),
        last_lines,
        ..Outcome::default()
    }
}

/// Runs it in one of these ways. The error is the end of what it printed.
fn run_way(program: &Path, way: &str) -> Result<()> {
    let words: Vec<&str> = way.split(' ').collect();
    let mut command = command(program, &words, uses(&words, &["sim", "cuda"]))?;
    command.env(skips::LOG_VARIABLE, skips::log_path());
    let run = process::watch(&mut command)?;
    if run.success {
        return Ok(());
    }
    let found = process::last_lines(&run.output, LAST_LINES);
    Err(format!("{found}\nit ended with {}", run.status))
}

fn build() -> Result<PathBuf> {
    let package = "tokio-cufile-tests";
    let mut cargo = process::cargo(&["build", "--release", "--locked", "--package", package]);
    cargo.args(["--bin", "stress"]);
    process::check(&mut cargo)?;
    Ok(place::target().join("release/stress"))
}

/// Whether devices of one of these kinds are asked for.
fn uses(words: &[&str], kinds: &[&str]) -> bool {
    let mut pairs = words.windows(2);
    pairs.any(|two| two[0] == "--device" && kinds.contains(&two[1]))
}

fn command(program: &Path, words: &[&str], simulated: bool) -> Result<Command> {
    let mut command = Command::new(program);
    command.args(words);
    if simulated {
        let folder = simulator::cuda().and_then(|_| simulator::cufile())?;
        sim::configure(&mut command, &[folder], DEVICES, seed_of(words));
    }
    Ok(command)
}

/// The simulator's choices are the run's.
fn seed_of(words: &[&str]) -> u64 {
    let said = words.windows(2).find(|two| two[0] == "--seed");
    said.and_then(|two| two[1].parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_device_is_simulated_only_where_that_is_said() {
        let words = ["--ops", "5", "--device", "cuda"];
        assert!(!uses(&words, &["sim"]));
        assert!(uses(&words, &["sim", "cuda"]));
        assert!(!uses(&["--ops", "5"], &["sim", "cuda"]));
    }

    #[test]
    fn the_simulator_has_the_seed_of_the_run() {
        assert_eq!(seed_of(&["--ops", "5", "--seed", "7"]), 7);
        assert_eq!(seed_of(&["--ops", "5"]), 0);
    }
}
