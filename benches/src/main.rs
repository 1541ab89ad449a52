//! Engines side by side: `cargo run --release -p tokio-cufile-benches -- cold-read --file-dir DIR`.
//!
//! Every workload runs all its contestants interleaved and prints one table. A contestant that
//! cannot run here is named with the reason. `docs/performance.md` says how to read the figures.
#![allow(
    clippy::future_not_send,
    reason = "a bench runs its futures where it makes them"
)]

mod args;
mod contest;
mod engines;
mod gpu;
mod job;
mod queue;
mod workloads;

use std::process::ExitCode;

use clap::Parser;

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    match workloads::run(&args::Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("benches: {error}");
            ExitCode::FAILURE
        }
    }
}
