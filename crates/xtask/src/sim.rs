//! `cargo xtask sim`: runs a program with simulated GPUs.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use xtask::simulator;

use crate::args::Simulated;
use crate::{Result, place, process};

/// Becomes the program, so that its exit status is ours. Returns only if that fails.
pub(crate) fn run(sim: &Simulated) -> Result<bool> {
    let folder = match &sim.without {
        None => simulator::cuda()?,
        Some(symbol) => simulator::cuda_without(symbol)?,
    };
    let (word, args) = sim
        .words
        .split_first()
        .ok_or("there is no program to run")?;
    let program = if word == "cuf" {
        process::check_quietly(&mut process::cargo(&[
            "build",
            "--locked",
            "--quiet",
            "--package",
            "tokio-cufile-cli",
        ]))?;
        place::target().join("debug/cuf")
    } else {
        word.into()
    };
    let devices = sim.devices.unwrap_or(2);
    let seed = sim.seed.unwrap_or(0);
    let faults = sim.faults.as_deref().unwrap_or_default();
    eprintln!(
        "xtask: SIMULATED: {devices} GPUs, seed {seed}, {}: {}/libcuda.so.1",
        if faults.is_empty() {
            "no faults"
        } else {
            faults
        },
        folder.display()
    );
    let mut command = Command::new(&program);
    command.args(args);
    configure(&mut command, &folder, devices, seed);
    let error = command.env("TOKIO_CUFILE_SIM_FAULTS", faults).exec();
    Err(format!("cannot run {}: {error}", program.display()))
}

/// Has a program find the simulated driver in `folder`, before any real one, without faults.
pub(crate) fn configure(command: &mut Command, folder: &Path, devices: u32, seed: u64) {
    let mut path = OsString::from(folder);
    let inherited = place::setting("LD_LIBRARY_PATH", "");
    if !inherited.is_empty() {
        path.push(":");
        path.push(inherited);
    }
    command
        .env("LD_LIBRARY_PATH", path)
        .env("TOKIO_CUFILE_SIMULATE", "1")
        .env("TOKIO_CUFILE_SIM_DEVICES", devices.to_string())
        .env("TOKIO_CUFILE_SIM_SEED", seed.to_string())
        .env_remove("TOKIO_CUFILE_SIM_FAULTS");
}
