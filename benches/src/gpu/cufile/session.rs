//! The process's libcufile, as the calls of these contestants find it.
//!
//! An engine opens it, with all that is to be looked at before, and keeps it open. The contestants
//! that are engines themselves have the same settings, so all share it: it is opened once, and never
//! closed.
#![allow(
    unsafe_code,
    reason = "names the library that an engine has loaded, and makes a context current"
)]

use nvidia_dl::Search;
use nvidia_dl::cuda::{Context, Driver};
use nvidia_dl::cufile::{Library, SizeParameter};
use tokio::runtime::Runtime;
use tokio_cufile::{CompatMode, CuFileConfig, CuFileInfo, Engine, EngineBuilder};

use crate::Result;
use crate::engines;

/// Sizes in KiB and counts of the slabs that cuFile stages through in its compatibility mode, where
/// the library does not tell.
const SLABS: ([usize; 3], [usize; 3]) = ([4, 1024, 16384], [128, 64, 64]);

/// What says most about how bytes go.
const TOLD: [&str; 6] = [
    "properties.allow_compat_mode",
    "properties.force_compat_mode",
    "properties.max_direct_io_size_kb",
    "execution.parallel_io",
    "execution.max_io_threads",
    "properties.io_batchsize",
];

pub(super) struct Session {
    pub(super) engine: Engine,
    pub(super) runtime: Runtime,
    pub(super) library: &'static Library,
    pub(super) driver: &'static Driver,
    pub(super) device: u32,
    context: Context,
    info: CuFileInfo,
}

impl Session {
    /// Opens libcufile, and makes the device's context current in this thread.
    ///
    /// # Errors
    ///
    /// Why it cannot be used here.
    pub(super) fn open(device: u32, config: &CuFileConfig) -> Result<Self> {
        let engine = builder(config, CompatMode::Off).num_threads(1);
        let engine = engine.build_blocking()?;
        let runtime = engines::runtime()?;
        let info = runtime.block_on(engine.cufile());
        let info = info.map_err(|error| error.reason().to_owned())?;
        // SAFETY: the engine has loaded this file as libcufile.
        let search = unsafe { Search::named([&info.library]) };
        let library = Library::load(&search)?;
        let driver = Driver::load(&Search::libcuda())?;
        driver.init()?;
        let context = driver.primary_ctx_retain(driver.device(i32::try_from(device)?)?)?;
        let session = Self {
            engine,
            runtime,
            library,
            driver,
            device,
            context,
            info,
        };
        session.bind()?;
        Ok(session)
    }

    /// Makes the device's context current in this thread: cuFile's calls want it.
    pub(super) fn bind(&self) -> Result<()> {
        // SAFETY: retained, and not released before the process ends.
        Ok(unsafe { self.driver.ctx_set_current(Some(self.context)) }?)
    }

    /// The most entries of one batch.
    pub(super) fn entries_max(&self) -> Result<usize> {
        match self.library.size_parameter(SizeParameter::IO_BATCHSIZE) {
            Ok(entries) => Ok(entries),
            // It tells its parameters from 1.14 on.
            Err(_) => {
                let properties = self.library.driver_properties()?;
                Ok(usize::try_from(properties.max_batch_io_size)?)
            }
        }
    }

    /// The most entries of `block` bytes that may be in flight: in its compatibility mode cuFile has
    /// been reported to block for ever when a batch is larger than the slabs that it stages through.
    pub(super) fn in_flight_max(&self, block: usize) -> usize {
        if self.info.not_direct.is_none() {
            return usize::MAX;
        }
        let default = || (SLABS.0.to_vec(), SLABS.1.to_vec());
        let told = self.library.posix_pool(SLABS.0.len());
        let (sizes, counts) = told.unwrap_or_else(|_| default());
        let slabs = sizes.iter().zip(counts);
        let holding = slabs.filter(|(kib, _)| **kib << 10 >= block);
        let smallest = holding.min_by_key(|(kib, _)| **kib);
        smallest.map_or(0, |(_, count)| count)
    }

    /// Which library this is, and how it is set, for the head of a table.
    pub(super) fn circumstances(&self) -> Vec<(String, String)> {
        let info = &self.info;
        let version = info.version.as_deref().unwrap_or("older than 1.8");
        let nvidia_fs = info.nvidia_fs.as_deref().unwrap_or("none");
        let file = info.config_file.as_ref();
        let file = file.map_or_else(|| "none".to_owned(), |file| file.display().to_string());
        let mode = info.not_direct.as_deref();
        let mode = mode.unwrap_or("GPUDirect Storage is possible");
        let told = |key: &&str| {
            let setting = info.settings.iter().find(|setting| setting.key == *key)?;
            let (_, name) = key.split_once('.')?;
            Some(format!("{name} {}", setting.value))
        };
        let settings: Vec<String> = TOLD.iter().filter_map(told).collect();
        [
            (
                "libcufile",
                format!("{version} ({})", info.library.display()),
            ),
            ("libcufile's mode", format!("\"{mode}\"")),
            (
                "libcufile's settings",
                format!(
                    "({}), cufile.json {file}, nvidia-fs {nvidia_fs}",
                    settings.join(", ")
                ),
            ),
        ]
        .map(|(name, text)| (name.to_owned(), text))
        .into()
    }
}

/// An engine that has its part in the process's libcufile.
pub(super) fn builder(config: &CuFileConfig, compat_mode: CompatMode) -> EngineBuilder {
    Engine::builder()
        .compat_mode(compat_mode)
        .cufile(config.clone())
}
