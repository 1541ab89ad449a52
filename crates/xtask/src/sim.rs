//! `cargo xtask sim`: runs a program with simulated GPUs and a simulated libcufile.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use xtask::simulator;

use crate::args::Simulated;
use crate::{Result, place, process};

/// Becomes the program, so that its exit status is ours. Returns only if that fails.
pub(crate) fn run(sim: &Simulated) -> Result<bool> {
    eprintln!("xtask: building what has changed of the simulators; the first time takes minutes");
    let folders = folders(sim)?;
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
    let shown: Vec<_> = folders
        .iter()
        .map(|folder| folder.display().to_string())
        .collect();
    eprintln!(
        "xtask: SIMULATED: {devices} GPUs, cuFile {}, seed {seed}, {}: {}",
        sim.cufile.as_deref().unwrap_or(LATEST),
        match (sim.faults.as_deref(), sim.cufile_faults.as_deref()) {
            (None, None) => "no faults".to_owned(),
            (cuda, cufile) => [cuda, cufile]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join("; "),
        },
        shown.join(":")
    );
    let mut command = Command::new(&program);
    command.args(args);
    configure(&mut command, &folders, devices, seed);
    let path = sim.cufile_path.as_deref().unwrap_or("posix");
    command.env("TOKIO_CUFILE_PROC_DIR", proc_dir(path)?);
    if path == "p2pdma" {
        // It has to be asked for.
        command.env("CUFILE_USE_PCIP2PDMA", "true");
    }
    for (name, value) in [
        ("TOKIO_CUFILE_SIM_FAULTS", &sim.faults),
        ("TOKIO_CUFILE_SIM_CUFILE_FAULTS", &sim.cufile_faults),
        ("TOKIO_CUFILE_SIM_CUFILE_PATH", &sim.cufile_path),
    ] {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    let error = command.exec();
    Err(format!("cannot run {}: {error}", program.display()))
}

/// What libcufile looks for in the process file system, which need not have it here: the list of kernel
/// modules, and nvidia-fs where bytes go by that.
fn proc_dir(path: &str) -> Result<PathBuf> {
    let folder = place::target().join("sim/proc").join(path);
    let inside = if path == "nvidia-fs" {
        "driver/nvidia-fs"
    } else {
        ""
    };
    let made = fs::create_dir_all(folder.join(inside));
    made.and_then(|()| fs::write(folder.join("modules"), ""))
        .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    Ok(folder)
}

const LATEST: &str = simulator::CUFILE_VERSIONS[simulator::CUFILE_VERSIONS.len() - 1];

/// The folders with both libraries, as they are asked for; one that is changed is before the whole.
fn folders(sim: &Simulated) -> Result<Vec<PathBuf>> {
    let mut folders = vec![simulator::cuda()?];
    let lacking = sim.without.as_deref();
    let lacking_of_cufile = lacking.filter(|symbol| symbol.starts_with("cuFile"));
    if let (Some(symbol), None) = (lacking, lacking_of_cufile) {
        folders.insert(0, simulator::cuda_without(symbol)?);
    }
    if sim.cufile.is_none() && lacking_of_cufile.is_none() {
        simulator::cufile()?;
    } else {
        let version = sim.cufile.as_deref().unwrap_or(LATEST);
        folders.insert(0, simulator::cufile_of(version, lacking_of_cufile)?);
    }
    Ok(folders)
}

/// Has a program find the simulated libraries in `folders`, before any real ones, without faults.
pub(crate) fn configure(command: &mut Command, folders: &[PathBuf], devices: u32, seed: u64) {
    let mut path = OsString::new();
    for folder in folders {
        path.push(folder);
        path.push(":");
    }
    path.push(place::setting("LD_LIBRARY_PATH", ""));
    command
        .env(
            "LD_LIBRARY_PATH",
            path.to_string_lossy().trim_end_matches(':'),
        )
        .env("TOKIO_CUFILE_SIMULATE", "1")
        .env("TOKIO_CUFILE_SIM_DEVICES", devices.to_string())
        .env("TOKIO_CUFILE_SIM_SEED", seed.to_string())
        .env_remove("TOKIO_CUFILE_SIM_FAULTS")
        .env_remove("TOKIO_CUFILE_SIM_CUFILE_FAULTS")
        .env_remove("TOKIO_CUFILE_SIM_CUFILE_PATH");
}
