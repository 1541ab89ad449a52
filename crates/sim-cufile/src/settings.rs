//! What the environment asks for. The one file that reads it.
#![allow(
    clippy::disallowed_methods,
    reason = "a program that loads the simulator has no other way to configure it"
)]

use std::env;
use std::sync::OnceLock;

/// Asks for the simulation, of devices and of this library.
const OPT_IN: &str = "TOKIO_CUFILE_SIMULATE";

/// What a test asked for by a call instead: the seed.
static ASKED: OnceLock<u64> = OnceLock::new();

/// The way that bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Posix,
    NvidiaFs,
    P2pdma,
}

impl Route {
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "posix" => Self::Posix,
            "nvidia-fs" => Self::NvidiaFs,
            "p2pdma" => Self::P2pdma,
            _ => return None,
        })
    }
}

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) seed: u64,
    pub(crate) faults: String,
    /// The best way that there is on this simulated machine.
    pub(crate) route: Route,
    /// KiB of the GPUs' windows to the bus, for each.
    pub(crate) bar_kb: usize,
    /// Operations that a stream holds before submitting another blocks.
    pub(crate) backlog: usize,
    /// Misuse that is caught ends the process.
    pub(crate) abort: bool,
    /// The real library's own variables.
    pub(crate) force_compat: Option<bool>,
    pub(crate) allow_compat: Option<bool>,
    pub(crate) use_p2pdma: Option<bool>,
    pub(crate) log_level: Option<String>,
    pub(crate) log_path: Option<String>,
    /// The level of statistics that a `cufile.json` would ask for.
    pub(crate) file_stats: Option<i32>,
    /// A descriptor that is closed by the opening.
    pub(crate) closes: Option<i32>,
}

pub(crate) fn opted_in() -> bool {
    ASKED.get().is_some() || env::var_os(OPT_IN).is_some_and(|value| value == "1")
}

/// Asks for the simulation from within the process. The first time counts.
pub(crate) fn opt_in(seed: u64) {
    ASKED.get_or_init(|| seed);
}

/// The settings, or what is wrong with which variable.
pub(crate) fn read() -> Result<Settings, String> {
    const ROUTE: &str = "TOKIO_CUFILE_SIM_CUFILE_PATH";
    let route = text(ROUTE).unwrap_or_else(|| "posix".into());
    let route = Route::named(&route).ok_or_else(|| format!("{ROUTE}={route} is no path"))?;
    let seed = match ASKED.get() {
        Some(seed) => *seed,
        None => number("TOKIO_CUFILE_SIM_SEED", 0)?,
    };
    Ok(Settings {
        seed,
        faults: text("TOKIO_CUFILE_SIM_CUFILE_FAULTS").unwrap_or_default(),
        route,
        bar_kb: number("TOKIO_CUFILE_SIM_CUFILE_BAR_KB", 16 << 20)?,
        backlog: number("TOKIO_CUFILE_SIM_CUFILE_BACKLOG", 64)?,
        abort: number::<u8>("TOKIO_CUFILE_SIM_ABORT", 0)? != 0,
        force_compat: boolean("CUFILE_FORCE_COMPAT_MODE"),
        allow_compat: boolean("CUFILE_ALLOW_COMPAT_MODE"),
        use_p2pdma: boolean("CUFILE_USE_PCIP2PDMA"),
        log_level: text("CUFILE_LOGGING_LEVEL"),
        log_path: text("CUFILE_LOGFILE_PATH"),
        file_stats: optional("TOKIO_CUFILE_SIM_CUFILE_STATS")?,
        closes: optional("TOKIO_CUFILE_SIM_CUFILE_CLOSES")?,
    })
}

fn text(name: &str) -> Option<String> {
    env::var(name).ok()
}

/// As the real library takes them: what it does not understand it leaves.
fn boolean(name: &str) -> Option<bool> {
    match text(name)?.to_ascii_lowercase().as_str() {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    }
}

fn number<T: std::str::FromStr>(name: &str, default: T) -> Result<T, String> {
    Ok(optional(name)?.unwrap_or(default))
}

fn optional<T: std::str::FromStr>(name: &str) -> Result<Option<T>, String> {
    match env::var(name) {
        Err(env::VarError::NotPresent) => Ok(None),
        Ok(text) => match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(format!("{name}={text} is no number that fits")),
        },
        Err(error) => Err(format!("{name}: {error}")),
    }
}
