//! `cargo xtask ci`: what has to be good before a change lands.

use crate::args::Group;
use crate::report::Report;
use crate::{Result, interop, models, place, process, test, tidy};

pub(crate) fn run(report: &mut Report) {
    report.step("format", || {
        cargo("fmt --all --check")?;
        interop::format()
    });
    report.step("lints", || {
        cargo("clippy --locked --workspace --all-targets --all-features -- -D warnings")
    });
    report.step("lints of the interop tests", interop::clippy);
    report.step("lints of the models", models::clippy);
    report.step("documentation", documentation);
    report.step("tidy", tidy::check);
    if place::has_tool("cargo-deny") {
        // Advisories need a database from the network; licences, bans and sources do not.
        report.step("deny", || {
            cargo("deny --offline --locked check licenses bans sources")
        });
    } else {
        report.skip_step("deny", "no-cargo-deny", "cargo-deny is not installed");
    }
    test::run(&Group::ALL, report);
}

fn cargo(line: &str) -> Result<()> {
    let args: Vec<&str> = line.split(' ').collect();
    process::check(&mut process::cargo(&args))
}

fn documentation() -> Result<()> {
    let mut command = process::cargo(&[
        "doc",
        "--locked",
        "--workspace",
        "--all-features",
        "--no-deps",
    ]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    process::check(&mut command)
}
