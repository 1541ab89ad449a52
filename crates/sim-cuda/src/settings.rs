//! What the environment asks for. The one file that reads it.
#![allow(
    clippy::disallowed_methods,
    reason = "a program that loads the simulator has no other way to configure it"
)]

use std::env;
use std::sync::OnceLock;

/// Asks for the simulation; without it `cuInit` finds no device.
const OPT_IN: &str = "TOKIO_CUFILE_SIMULATE";

/// As many as a handle can name, and as address space allows.
const DEVICES_MAX: usize = 16;

/// What a test asked for by a call instead: number of devices and seed.
static ASKED: OnceLock<(usize, u64)> = OnceLock::new();

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) devices: usize,
    pub(crate) seed: u64,
    pub(crate) memory_bytes: u64,
    /// End the process where a late access is caught.
    pub(crate) abort: bool,
    pub(crate) faults: String,
}

/// Whether the simulation was asked for.
pub(crate) fn opted_in() -> bool {
    ASKED.get().is_some() || env::var_os(OPT_IN).is_some_and(|value| value == "1")
}

/// Asks for the simulation from within the process. The first time counts.
pub(crate) fn opt_in(devices: usize, seed: u64) {
    ASKED.get_or_init(|| (devices, seed));
}

/// The version that `cuDriverGetVersion` gives, or what is wrong with the variable.
pub(crate) fn driver_version() -> Result<i32, String> {
    number("TOKIO_CUFILE_SIM_VERSION", 13_000)
}

/// The settings, or what is wrong with which variable.
pub(crate) fn read() -> Result<Settings, String> {
    let (devices, seed) = match ASKED.get() {
        Some(asked) => *asked,
        None => (
            number("TOKIO_CUFILE_SIM_DEVICES", 2)?,
            number("TOKIO_CUFILE_SIM_SEED", 0)?,
        ),
    };
    if devices > DEVICES_MAX {
        return Err(format!(
            "{devices} devices are asked for, the most is {DEVICES_MAX}"
        ));
    }
    Ok(Settings {
        devices,
        seed,
        memory_bytes: number("TOKIO_CUFILE_SIM_MEMORY", 8 << 30)?,
        abort: number::<u8>("TOKIO_CUFILE_SIM_ABORT", 0)? != 0,
        faults: env::var("TOKIO_CUFILE_SIM_FAULTS").unwrap_or_default(),
    })
}

fn number<T: std::str::FromStr>(name: &str, default: T) -> Result<T, String> {
    match env::var(name) {
        Err(env::VarError::NotPresent) => Ok(default),
        Ok(text) => text
            .parse()
            .map_err(|_| format!("{name}={text} is no number that fits")),
        Err(error) => Err(format!("{name}: {error}")),
    }
}
