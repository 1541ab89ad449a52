//! NVIDIA's libraries as this machine has them, real or simulated, for tests that run on either.
#![allow(
    unsafe_code,
    reason = "loads a library that a variable names, and makes a context current"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "a variable says which library is meant"
)]

use std::env;
use std::fmt::Display;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nvidia_dl::Search;
use nvidia_dl::cuda::Driver;
use nvidia_dl::cufile::{Code, Library};

use crate::bench::LIBRARY_VARIABLE;
use crate::sim;
use crate::skip::skip;

/// The libcufile that [`LIBRARY_VARIABLE`] or the loader names; `None`, with a skip noted, where there
/// is none.
#[must_use = "a test without it returns"]
#[track_caller]
pub fn cufile() -> Option<&'static Library> {
    let setting = env::var_os(LIBRARY_VARIABLE);
    // SAFETY: whoever sets the variable says that this is libcufile.
    let search = unsafe { Search::libcufile().before(setting) };
    match Library::load(&search) {
        Ok(library) => Some(library),
        Err(absent) => {
            skip("needs-cufile", &absent.to_string());
            None
        }
    }
}

/// The driver; `None`, with a skip noted, where there is no device for cuFile.
///
/// # Panics
///
/// Where libcufile would hang.
#[must_use = "a test without it returns"]
#[track_caller]
pub fn driver() -> Option<&'static Driver> {
    let driver = match Driver::load(&Search::libcuda()) {
        Ok(driver) => driver,
        Err(absent) => {
            skip("needs-cufile", &absent.to_string());
            return None;
        }
    };
    if let Err(error) = driver.init() {
        skip("needs-cufile", &error.to_string());
        return None;
    }
    if !sim::is_asked_for() {
        // Without it some versions never return from their first call.
        fs::read("/proc/modules").expect("/proc/modules can be read");
    }
    Some(driver)
}

/// Makes a device's primary context the calling thread's.
///
/// # Panics
///
/// When it cannot be had.
pub fn enter(driver: &Driver, ordinal: u32) {
    let ordinal = i32::try_from(ordinal).expect("a small number");
    let device = driver.device(ordinal).expect("a device");
    let context = driver.primary_ctx_retain(device).expect("a context");
    // SAFETY: the context is retained, and never released.
    unsafe { driver.ctx_set_current(Some(context)) }.expect("it is current");
}

/// Notes a skip for a file that libcufile refuses, as it does where the file's block device is not in
/// the udev database.
///
/// # Panics
///
/// When the device is there, or the code is another one.
#[track_caller]
pub fn skip_unknown_disk(path: &Path, code: Option<Code>, error: &dyn Display) {
    assert!(!has_udev_entry(path), "{error}");
    // Older reports have the second, and so do overlays.
    let known = [Code::HANDLE_NOT_REGISTERED, Code::INTERNAL_ERROR];
    assert!(code.is_some_and(|code| known.contains(&code)), "{error}");
    skip("needs-udev-entry", "its device is not in the udev database");
}

fn has_udev_entry(path: &Path) -> bool {
    let device = fs::metadata(path).expect("the file").dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    Path::new(&format!("/run/udev/data/b{major}:{minor}")).exists()
}
