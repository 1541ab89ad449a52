//! The tests of the feature `cudarc`, with each version of cudarc that there is a package for.
//!
//! The packages `tests/cudarc/v*` have the same tests, and are outside the workspace: it has one
//! version of cudarc at most, and none unless asked. They share a folder of build products, so that
//! the second builds little.

use std::path::PathBuf;

use xtask::simulator;

use crate::report::{Outcome, Report};
use crate::test::{self, Runner};
use crate::{Result, place, process, sim};

pub(crate) fn run(runner: Runner, report: &mut Report) {
    report.step("no cudarc without its feature", is_optional);
    match packages() {
        Ok(packages) => {
            for package in packages {
                let name = format!("interop with cudarc {}", package.version);
                report.step(&name, || on_simulator(runner, &package));
            }
        }
        Err(message) => report.step("interop with cudarc", || Err(message)),
    }
}

/// One version of cudarc.
struct Package {
    /// `0.19`, say.
    version: String,
    manifest: PathBuf,
}

/// None at all is an error.
fn packages() -> Result<Vec<Package>> {
    let folder = place::root().join("tests/cudarc");
    let listing =
        std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut packages = Vec::new();
    for entry in listing {
        let entry = entry.map_err(|error| error.to_string())?;
        if let Some(version) = entry.file_name().to_string_lossy().strip_prefix('v') {
            packages.push(Package {
                version: version.to_owned(),
                manifest: entry.path().join("Cargo.toml"),
            });
        }
    }
    packages.sort_by(|one, two| one.version.cmp(&two.version));
    if packages.is_empty() {
        return Err(format!("{} has no package", folder.display()));
    }
    Ok(packages)
}

fn on_simulator(runner: Runner, package: &Package) -> Outcome {
    let folder = match simulator::cuda() {
        Ok(folder) => folder,
        Err(message) => return Err(message).into(),
    };
    let mut command = runner.command("default", &["--manifest-path"]);
    command.arg(&package.manifest);
    if matches!(runner, Runner::Nextest) {
        let config = place::root().join(".config/nextest.toml");
        command.arg("--config-file").arg(config);
    }
    command.env("CARGO_TARGET_DIR", place::target().join("interop"));
    sim::configure(&mut command, &[folder], test::SIMULATED_DEVICES, 0);
    test::run_counted(&mut command)
}

/// Whoever does not ask for cudarc does not build it.
fn is_optional() -> Result<()> {
    let args = "tree --locked --workspace --edges normal,build --prefix none --format {p}";
    let args: Vec<&str> = args.split(' ').collect();
    let output = process::cargo(&args)
        .output()
        .map_err(|error| format!("cargo tree: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || !text.contains("tokio-cufile ") {
        return Err(format!("cargo tree ended with {}", output.status));
    }
    match text.lines().find(|line| line.starts_with("cudarc ")) {
        Some(line) => Err(format!("{line} is built without being asked for")),
        None => Ok(()),
    }
}

/// Looks at the format of what `cargo fmt --all` does not know of.
pub(crate) fn format() -> Result<()> {
    for package in packages()? {
        let mut command = process::cargo(&["fmt", "--check", "--manifest-path"]);
        process::check(command.arg(package.manifest))?;
    }
    Ok(())
}

/// Lints the tests. The newest version has them all.
pub(crate) fn clippy() -> Result<()> {
    let newest = packages()?.pop().ok_or("there is no package")?;
    let mut command = process::cargo(&["clippy", "--locked", "--all-targets", "--manifest-path"]);
    command.arg(newest.manifest).args(["--", "-D", "warnings"]);
    command.env("CARGO_TARGET_DIR", place::target().join("interop"));
    process::check(&mut command)
}
