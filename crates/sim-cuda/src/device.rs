//! A device: memory, one primary context, counts. No device knows of another.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::code::{Code, Result};
use crate::context::Context;
use crate::driver::Driver;
use crate::faults::Faults;
use crate::memory::Memory;
use crate::settings::Settings;
use crate::stats::Counters;
use sim_common::Rng;
use sim_common::monitor::lock;

/// Handles are numbers that no pointer can be: to follow one faults.
const HANDLE: usize = 0xC0DA << 48;
const HANDLE_DEVICE_SHIFT: u32 = 40;

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) ordinal: usize,
    pub(crate) memory: Memory,
    pub(crate) counters: Counters,
    pub(crate) faults: Faults,
    pub(crate) seed: u64,
    primary: Mutex<Primary>,
    handles: AtomicUsize,
}

#[derive(Debug)]
struct Primary {
    retained: usize,
    context: Option<Arc<Context>>,
}

impl Device {
    pub(crate) fn new(ordinal: usize, settings: &Settings) -> Option<Self> {
        let seed = settings.seed.wrapping_add((ordinal as u64) << 32);
        let total = usize::try_from(settings.memory_bytes).ok()?;
        Some(Self {
            ordinal,
            memory: Memory::new(ordinal, total, Rng::new(seed, 0))?,
            counters: Counters::new(),
            faults: Faults::new(seed),
            seed,
            primary: Mutex::new(Primary {
                retained: 0,
                context: None,
            }),
            handles: AtomicUsize::new(0),
        })
    }

    pub(crate) fn name(&self) -> String {
        format!("SIMULATED GPU {}", self.ordinal)
    }

    /// A handle that was never given out before.
    pub(crate) fn new_handle(&self) -> usize {
        let serial = self.handles.fetch_add(1, Ordering::Relaxed) + 1;
        HANDLE | (self.ordinal << HANDLE_DEVICE_SHIFT) | serial
    }

    pub(crate) fn retain(&'static self) -> usize {
        let mut primary = lock(&self.primary);
        primary.retained += 1;
        let context = primary
            .context
            .get_or_insert_with(|| Arc::new(Context::new(self)));
        context.handle
    }

    /// The last release ends the context, and everything in it.
    pub(crate) fn release(&self, driver: &Driver) -> Result {
        let mut primary = lock(&self.primary);
        let left = primary.retained.checked_sub(1);
        primary.retained = left.ok_or(Code::INVALID_CONTEXT)?;
        if primary.retained > 0 {
            return Ok(());
        }
        let ended = primary.context.take();
        drop(primary);
        if let Some(context) = ended {
            context.end();
            self.memory.free_all(&self.counters);
            driver.host.forget(self.ordinal);
        }
        Ok(())
    }

    pub(crate) fn retained(&self) -> usize {
        lock(&self.primary).retained
    }

    pub(crate) fn context(&self) -> Option<Arc<Context>> {
        lock(&self.primary).context.clone()
    }
}

pub(crate) fn ordinal_of_handle(handle: usize) -> Option<usize> {
    let tagged = handle >> 48 == HANDLE >> 48;
    tagged.then_some((handle >> HANDLE_DEVICE_SHIFT) & 0xFF)
}
