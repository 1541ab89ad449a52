//! `cuf`: read and write files through tokio-cufile, from the command line.
#![allow(
    clippy::future_not_send,
    reason = "a command runs its futures on one thread"
)]

mod args;
mod duration;
mod failure;
mod hash;
mod interrupt;
mod memory;
mod place;
mod progress;
mod read;
mod report;
mod resolved;
mod room;
mod size;
mod transfer;
mod write;

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use measure::usage;

use crate::args::{Cli, Command};
use crate::failure::Failure;
use crate::resolved::Settings;

fn main() -> ExitCode {
    let start = Instant::now();
    match run(Cli::parse(), start) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // With standard error gone, the exit code is all that is left to say it.
            let _ = writeln!(std::io::stderr(), "cuf: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run(cli: Cli, start: Instant) -> Result<(), Failure> {
    let (path, transfer) = match &cli.command {
        Command::Read(args) => (&args.file, &args.transfer),
        Command::Write(args) => (&args.file, &args.transfer),
    };
    let settings = Settings::try_from(transfer)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        // For the signals that `cuf write` waits for.
        .enable_io()
        .build()
        .map_err(|error| Failure::new(path, 0, format!("no tokio runtime: {error}")))?;
    let result = match &cli.command {
        Command::Read(args) => runtime.block_on(read::run(args, &settings)),
        Command::Write(args) => runtime.block_on(write::run(args, &settings)),
    };
    // After an interrupt a thread may still be making bytes, which nobody waits for.
    runtime.shutdown_background();
    let mut report = result?;
    report.process_seconds = start.elapsed().as_secs_f64();
    report.process_cpu_seconds = usage::process_cpu().as_secs_f64();
    report.print(settings.json).map_err(|error| {
        Failure::new(
            path,
            report.offset,
            format!("done, but not printed: {error}"),
        )
    })
}
