//! Tests under the compiler's sanitizers, which need a nightly toolchain.
//!
//! `cargo xtask test` has the thread sanitizer on the one file of `completion` that uses threads
//! without a model checker. `cargo xtask sanitize` is the long tier: the integration tests, on the host
//! and on simulated devices, through the real dynamic loading.

use std::ffi::OsStr;
use std::process::Command;

use crate::report::Report;
use crate::tally::Tally;
use crate::{Result, facts, place, process, sim, test};
use xtask::simulator;

/// Sanitizers want a target to be named, so that build scripts are built without.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// What the thread sanitizer says where it finds something.
const RACE: &str = "data race";
/// The variable that gives the threaded tests a broken engine.
const BROKEN_VARIABLE: &str = "COMPLETION_BROKEN";

/// Which mistakes are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sanitizer {
    Address,
    Leak,
    Thread,
}

impl Sanitizer {
    pub(crate) fn parse(name: &str) -> Result<Self> {
        match name {
            "address" => Ok(Self::Address),
            "leak" => Ok(Self::Leak),
            "thread" => Ok(Self::Thread),
            other => Err(format!("no sanitizer is called `{other}`")),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Leak => "leak",
            Self::Thread => "thread",
        }
    }

    /// Tests that say nothing under it, and why.
    const fn left_out(self) -> &'static str {
        match self {
            // It counts allocations, by an allocator of its own.
            Self::Address => "binary(drop_costs)",
            // What is in quarantine is leaked on purpose; and it cannot look at a traced process.
            Self::Leak => {
                "binary(drop_costs) | binary(/_fail_nth$/) | binary(/_lost$/) | binary(/_stuck$/) \
                 | binary(ring_block_device) | test(/quarantine/) | test(/stuck/) | test(/forgotten/) \
                 | test(/whichever_call_fails/) | test(/entering_that_fails/)"
            }
            // The slow file system's threads have descriptors of their own, which it takes for those
            // of the others. The rest has a filter on its calls, is traced, or counts.
            Self::Thread => {
                "binary(cancel_and_deadline) | binary(device_drops) | binary(device_staging) \
                 | binary(digest) | binary(drop_costs) | binary(dropped_futures) \
                 | binary(engine_dropped) | binary(file_closed_in_flight) | binary(fork) \
                 | binary(forgotten_futures) \
                 | binary(orphaned_writes) | binary(process_exit) | binary(ranges) | binary(reader) \
                 | binary(/^ring_/) | binary(runtime_dropped) | binary(runtimes) \
                 | binary(short_results) | binary(shutdown) | binary(staged) | binary(stream) \
                 | binary(tracing_spans) | binary(writer) | binary(/_fail_nth$/) | test(slow_fs)"
            }
        }
    }
}

/// The threaded tests of `completion` under the thread sanitizer, and their control.
pub(crate) fn completion(report: &mut Report) {
    if !facts::has_sources() {
        let why =
            "no nightly toolchain with its sources (rust-src) is here, or they cannot be fetched";
        report.skip_step("thread sanitizer", "no-tsan", why);
        return;
    }
    report.step("thread sanitizer of completion", || {
        let mut command = threads();
        command.env_remove(BROKEN_VARIABLE);
        test::run_counted(&mut command)
    });
    report.step("thread sanitizer of completion, broken", || {
        let mut command = threads();
        command.env(BROKEN_VARIABLE, "1");
        must_find(&process::watch_unseen(&mut command)?)
    });
}

fn threads() -> Command {
    let mut command = Command::new("rustup");
    let args = "run nightly cargo test --locked -p tokio-cufile-completion --test threads";
    command.args(args.split(' '));
    configure(&mut command, Sanitizer::Thread);
    // Half the time of a build of the standard library.
    command.env("CARGO_PROFILE_TEST_OPT_LEVEL", "0");
    command
}

fn must_find(run: &process::Finished) -> Result<()> {
    if run.success {
        return Err("the broken engine passed".to_owned());
    }
    if !run.output.contains(RACE) {
        return Err(format!(
            "it ended with {}, and for another reason:\n{}",
            run.status,
            process::last_lines(&run.output, 30)
        ));
    }
    Ok(())
}

fn configure(command: &mut Command, sanitizer: Sanitizer) {
    let name = sanitizer.name();
    process::add_rustflags(command, &format!("-Zsanitizer={name}"));
    command.args(["--target", TARGET]);
    if sanitizer == Sanitizer::Thread {
        // One that knows nothing of the sanitizer would hide what it orders.
        command.arg("-Zbuild-std");
        // A mapping that libc did not make it would take for the one that was there before.
        process::add_rustflags(
            command,
            &format!("-Zsanitizer={name} --cfg rustix_use_libc"),
        );
    }
    // What reports need of it, and no more.
    command
        .env("CARGO_PROFILE_TEST_DEBUG", "line-tables-only")
        .env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");
    command.current_dir(place::root());
    command.env(
        "CARGO_TARGET_DIR",
        place::target().join(format!("{name}-sanitizer")),
    );
}

/// The integration tests under one sanitizer; `words` choose among them as nextest understands it.
pub(crate) fn run(sanitizer: Sanitizer, words: &[String]) -> Result<bool> {
    let mut command = Command::new("rustup");
    command.args("run nightly cargo nextest run --locked --no-fail-fast".split(' '));
    command.args(["-p", "tokio-cufile-tests"]);
    if !words.iter().any(|word| word == "--test") {
        command.arg("--tests");
    }
    configure(&mut command, sanitizer);
    let filter = format!("not ({})", sanitizer.left_out());
    command
        .args(["-E", &filter])
        .args(words.iter().map(OsStr::new));
    // The thread sanitizer sees the simulator's copies, and not the locks that order them.
    if sanitizer != Sanitizer::Thread {
        sim::configure(
            &mut command,
            &[simulator::cuda()?],
            test::SIMULATED_DEVICES,
            0,
        );
    }
    // Leaks are the other one's business: what is in quarantine is leaked on purpose.
    command.env(
        "ASAN_OPTIONS",
        place::setting("ASAN_OPTIONS", "detect_leaks=0"),
    );
    command.env(
        "TSAN_OPTIONS",
        place::setting("TSAN_OPTIONS", "halt_on_error=0"),
    );
    let ran = process::watch(&mut command)?;
    let tally = Tally::of(&ran.output);
    println!("{} sanitizer: {tally:?}", sanitizer.name());
    // Those that were left out count as ignored, which elsewhere is a failure.
    Ok(ran.success && tally.passed > 0 && tally.failed == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_must_fail_for_its_reason() {
        let judged = |success, output: &str| {
            must_find(&process::Finished {
                success,
                status: "exit status: 66".into(),
                output: output.into(),
            })
        };
        assert!(judged(false, "WARNING: ThreadSanitizer: data race (pid=1)").is_ok());
        assert!(judged(false, "could not compile").is_err());
        assert!(judged(true, "data race").is_err());
    }
}
