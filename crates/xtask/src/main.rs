//! The project's own commands. `cargo xtask help` lists them.

mod args;
mod ci;
mod facts;
mod interop;
mod models;
mod process;
mod report;
mod sanitize;
mod sim;
mod skips;
mod stress;
mod tally;
mod test;
mod tidy;

use std::process::ExitCode;

use args::Command;
use report::Report;
use xtask::place;

/// Every fallible step says what went wrong in one text for a person.
type Result<T, E = String> = std::result::Result<T, E>;

fn main() -> ExitCode {
    let command = match args::parse(std::env::args().skip(1)) {
        Ok(command) => command,
        Err(message) => {
            eprintln!("xtask: {message}\n\n{}", args::USAGE);
            return ExitCode::from(2);
        }
    };
    match run(command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<bool> {
    match command {
        Command::Help => {
            println!("{}", args::USAGE);
            Ok(true)
        }
        Command::Tidy => tidy::print_findings(),
        Command::Sim(run) => sim::run(&run),
        Command::Sanitize(sanitizer, words) => sanitize::run(sanitizer, &words),
        Command::Stress(words) => stress::run(&words),
        Command::Test(groups) => {
            let mut report = Report::new()?;
            test::run(&groups, &mut report);
            report.finish()
        }
        Command::Ci => {
            let mut report = Report::new()?;
            ci::run(&mut report);
            report.finish()
        }
    }
}
