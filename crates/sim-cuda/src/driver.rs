//! The state of the process: nothing before the first `cuInit`, nothing after `exit` has begun.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::code::{Code, Result};
use crate::device::{self, Device};
use crate::entry::Entry;
use crate::faults::Faults;
use crate::faults::script::{self, Rule, Scope};
use crate::host::HostRanges;
use crate::settings::{self, Settings};
use crate::stats::{self, Counters};

static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
static READY: AtomicBool = AtomicBool::new(false);
static EXITING: AtomicBool = AtomicBool::new(false);

#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) devices: Vec<&'static Device>,
    pub(crate) host: HostRanges,
    /// Of calls that concern no device.
    pub(crate) counters: Counters,
    pub(crate) faults: Faults,
    process: u32,
}

/// What `cuInit` does. Where the simulation was not asked for there is no device, as without the
/// simulator.
pub(crate) fn init() -> Result {
    alive()?;
    let Some(driver) = loaded() else {
        stats::say(format_args!(
            "this is a simulator; TOKIO_CUFILE_SIMULATE=1 is not set: no device"
        ));
        return Err(Code::NO_DEVICE);
    };
    let driver = driver?;
    driver.check_process()?;
    driver.counters.called(Entry::cuInit);
    let verdict = driver.faults.at_call(Entry::cuInit, None)?;
    if let Some(code) = verdict.result {
        return Err(code);
    }
    READY.store(true, Ordering::Release);
    Ok(())
}

/// The driver, initialised or not, where the simulation was asked for.
pub(crate) fn loaded() -> Option<Result<&'static Driver>> {
    settings::opted_in().then(|| {
        let made = DRIVER.get_or_init(Driver::new);
        made.as_ref().map_err(|code| *code)
    })
}

/// The driver, if it was initialised, in this process, and the process has not begun to end.
pub(crate) fn get() -> Result<&'static Driver> {
    alive()?;
    if !READY.load(Ordering::Acquire) {
        return Err(Code::NOT_INITIALIZED);
    }
    let made = DRIVER.get().and_then(|made| made.as_ref().ok());
    let driver = made.ok_or(Code::NOT_INITIALIZED)?;
    driver.check_process()?;
    Ok(driver)
}

/// Nothing works once the process ends: the calls of its last functions are told so.
pub(crate) fn alive() -> Result {
    if EXITING.load(Ordering::Acquire) {
        Err(Code::DEINITIALIZED)
    } else {
        Ok(())
    }
}

pub(crate) fn begin_exit() {
    EXITING.store(true, Ordering::Release);
}

impl Driver {
    fn new() -> Result<Self> {
        let said = |message: String| {
            stats::say(format_args!("{message}"));
            Code::INVALID_VALUE
        };
        let settings = settings::read().map_err(said)?;
        let rules = script::parse(&settings.faults).map_err(said)?;
        stats::judge_late(settings.seed, settings.abort);
        let driver = Self {
            devices: devices(&settings)?,
            host: HostRanges::default(),
            counters: Counters::new(),
            faults: Faults::new(settings.seed ^ 0x00AB_CDEF),
            process: std::process::id(),
        };
        driver.add_faults(&rules).map_err(said)?;
        crate::exports::at_exit()?;
        Ok(driver)
    }

    /// Gives each rule to the domains of its scope.
    pub(crate) fn add_faults(&self, rules: &[Rule]) -> Result<(), String> {
        let of = |scope| {
            let ours = rules
                .iter()
                .filter(move |rule| rule.scope == Scope::Everywhere || rule.scope == scope);
            ours.cloned().collect::<Vec<_>>()
        };
        for rule in rules {
            if let Scope::Device(ordinal) = rule.scope
                && ordinal >= self.devices.len()
            {
                return Err(format!("fault: there is no device {ordinal}"));
            }
        }
        self.faults.add(of(Scope::Process))?;
        for device in &self.devices {
            device.faults.add(of(Scope::Device(device.ordinal)))?;
        }
        Ok(())
    }

    pub(crate) fn device(&self, ordinal: i32) -> Result<&'static Device> {
        let ordinal = usize::try_from(ordinal).map_err(|_| Code::INVALID_DEVICE)?;
        self.devices
            .get(ordinal)
            .copied()
            .ok_or(Code::INVALID_DEVICE)
    }

    /// The device that a handle of a context, stream or event belongs to.
    pub(crate) fn device_of_handle(&self, handle: usize) -> Option<&'static Device> {
        self.devices
            .get(device::ordinal_of_handle(handle)?)
            .copied()
    }

    pub(crate) fn device_of_pointer(&self, address: usize) -> Option<&'static Device> {
        let mut devices = self.devices.iter().copied();
        devices.find(|device| device.memory.contains(address))
    }

    /// After a fork the child has the state, but none of the threads.
    fn check_process(&self) -> Result {
        if self.process == std::process::id() {
            Ok(())
        } else {
            Err(Code::NOT_INITIALIZED)
        }
    }
}

fn devices(settings: &Settings) -> Result<Vec<&'static Device>> {
    let made = (0..settings.devices).map(|ordinal| {
        let device = Device::new(ordinal, settings).ok_or(Code::OUT_OF_MEMORY)?;
        // Streams are threads that end when the process does, and devices outlive them.
        Ok(&*Box::leak(Box::new(device)))
    });
    made.collect()
}
