//! Random operations under faults; `cargo xtask stress` builds and runs it.

use std::hash::{BuildHasher, RandomState};
use std::process::ExitCode;

use tokio_cufile_tests::stress::{self, args};

fn main() -> ExitCode {
    let words = std::env::args().skip(1);
    let seed = RandomState::new().hash_one(0) >> 32;
    let args = match args::Args::parse(words, seed) {
        Ok(args) => args,
        Err(message) => {
            eprintln!("stress: {message}\n\n{}", args::USAGE);
            return ExitCode::from(2);
        }
    };
    println!("stress: {}", args.again());
    match stress::run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("stress: {message}");
            ExitCode::FAILURE
        }
    }
}
