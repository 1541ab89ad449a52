//! Opening libcufile, what it says of itself then, and closing it.
#![allow(unsafe_code, reason = "closes what nobody uses")]

use std::path::PathBuf;
use std::sync::Arc;

use nvidia_dl::cufile::{
    BoolParameter, DriverProperties, Library, P2pFlags, StatusFlags, StringParameter, Version,
};

use super::effective::Set;
use super::given::Given;
use super::leaving::{self, Guarded, Purpose};
use super::{Absent, counting, descriptors, gate};
use crate::config::CuFileStats;
use crate::cuda::{Device, open_driver};

/// The device whose context is current where no device's memory is named.
const DEVICE: u32 = 0;

/// What the open library says of itself.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) version: Option<Version>,
    pub(super) properties: DriverProperties,
    pub(super) compat_forced: bool,
    /// `None` where the library does not tell.
    pub(super) p2pdma: Option<bool>,
    /// Whether it counts by which way bytes go, or why not.
    pub(super) stats: Result<(), Absent>,
    pub(super) streams: Result<(), String>,
    /// What this process has set.
    pub(super) ours: Vec<Set>,
    /// What its user ought to know of it.
    pub(super) notes: Vec<String>,
}

/// Everything from the first call to the open library. On a thread that may be lost.
pub(super) struct Opening {
    pub(super) library: Guarded,
    pub(super) stats: CuFileStats,
    pub(super) proc_dir: PathBuf,
    /// What was set when it was opened, if it is open.
    pub(super) open: Option<Vec<Set>>,
}

/// The open library, and the device whose context is current where no device's memory is named.
pub(super) struct Opened {
    pub(super) device: Arc<Device>,
    pub(super) facts: Facts,
    library: Guarded,
    /// It was not open before.
    is_new: bool,
}

impl Opened {
    /// Nobody will use what was just opened.
    pub(super) fn close_again(self) {
        close_again(&self.library.call(Purpose::Open), self.is_new);
    }
}

impl Opening {
    /// # Errors
    ///
    /// Why the library cannot be used.
    pub(super) fn run(self) -> Result<Opened, Absent> {
        let version = self.library.call(Purpose::Ask).version();
        let version = version.map_err(|error| error.to_string())?;
        gate::check(version, &self.proc_dir)?;
        let driver = open_driver().map_err(|error| error.to_string())?;
        let device = Device::open(driver, DEVICE).map_err(|error| error.to_string())?;
        device.bind().map_err(|error| error.to_string())?;
        Ok(Opened {
            device: Arc::new(device),
            facts: self.facts(version)?,
            library: self.library,
            is_new: self.open.is_none(),
        })
    }

    /// Opens it, if it is not open, and asks it.
    fn facts(&self, version: Option<Version>) -> Result<Facts, Absent> {
        // Kept to the end: on this thread nothing else calls it meanwhile.
        let open = self.library.call(Purpose::Open);
        let library = &*open;
        let mut ours = self.open.clone().unwrap_or_default();
        let mut asked = Err("cuFile was opened without its statistics".into());
        let mut notes = Vec::new();
        if self.open.is_none() {
            ours.extend(keep_log_out_of_folder(library, &Given::read()));
            asked = counting::ask(library, self.stats, version);
            let opened = library.driver_open();
            notes = descriptors::restore();
            opened.map_err(|error| {
                let also: String = notes.iter().map(|note| format!("; {note}")).collect();
                format!("libcufile does not open: {error}{also}")
            })?;
        }
        let counting = counting::settle(library, asked, (self.stats, version));
        ours.extend(counting.set);
        notes.extend(counting.note);
        let properties = match library.driver_properties() {
            Ok(properties) => properties,
            Err(error) => {
                close_again(library, self.open.is_none());
                return Err(error.to_string().into());
            }
        };
        let forced = library.bool_parameter(BoolParameter::FORCE_COMPAT_MODE);
        Ok(Facts {
            version,
            properties,
            compat_forced: forced.unwrap_or(false),
            p2pdma: p2pdma(library, &properties),
            stats: counting.told,
            streams: streams(library),
            ours,
            notes,
        })
    }
}

/// Whether operations can be put into streams.
fn streams(library: &Library) -> Result<(), String> {
    let missing = library.missing_symbols();
    let mut needed = ["cuFileReadAsync", "cuFileWriteAsync"].iter();
    match needed.find(|name| missing.contains(name)) {
        Some(name) => Err(format!("this libcufile has no {name}")),
        None => Ok(()),
    }
}

fn close_again(library: &Library, is_new: bool) {
    if is_new {
        // SAFETY: this thread has opened it, and nobody else has been told: nothing is registered.
        unsafe { close(library) };
    }
}

/// Closes the library. Whether it is closed.
///
/// # Safety
///
/// Nothing is registered, and nobody else calls it meanwhile.
pub(super) unsafe fn close(library: &Library) -> bool {
    // SAFETY: as the caller says.
    match unsafe { library.driver_close() } {
        Ok(()) => {
            leaving::crashes_at_exit(false);
            true
        }
        Err(error) => {
            tracing::warn!(%error, "libcufile did not close");
            false
        }
    }
}

/// Whether P2PDMA is in use; `None` where the library does not tell. Up to 1.15 it has a bit of the
/// properties, from 1.16 on a call.
fn p2pdma(library: &Library, properties: &DriverProperties) -> Option<bool> {
    if properties.status_flags.0 & StatusFlags::NVME_P2P.0 != 0 {
        return Some(true);
    }
    // Not before 1.14.
    let is_asked_for = library.bool_parameter(BoolParameter::USE_PCIP2PDMA).ok()?;
    if !is_asked_for {
        return Some(false);
    }
    let flags = library.p2p_flags(StatusFlags::NVME).ok()?;
    Some(flags.0 & P2pFlags::P2PDMA.0 != 0)
}

/// By default the library writes its log into the current folder. Where neither environment nor file
/// says otherwise, it is told to write none. Before 1.14 it cannot be told.
fn keep_log_out_of_folder(library: &Library, given: &Given) -> Option<Set> {
    const NOWHERE: &str = "/dev/null";
    // Of a file that is not understood here, the library may understand more.
    if given.names_a_log() || given.problem.is_some() {
        return None;
    }
    let parameter = StringParameter::LOG_FILE_PATH;
    match library.set_string_parameter(parameter, NOWHERE) {
        Ok(()) => parameter.key().map(|key| (key, NOWHERE.to_owned())),
        Err(error) => {
            tracing::info!(%error, "libcufile may write cufile.log into the current folder");
            None
        }
    }
}
