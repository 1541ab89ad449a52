//! What every call does before its own part: is there a driver, a device, a context, and is it well.

use std::sync::Arc;

use crate::code::{Code, Result};
use crate::context::Context;
use crate::device::Device;
use crate::driver::{self, Driver};
use crate::entry::Entry;

/// A call that concerns no device.
pub(crate) fn process(entry: Entry, run: impl FnOnce(&'static Driver) -> Result) -> i32 {
    number(driver::get().and_then(|driver| {
        driver.counters.called(entry);
        run(driver)
    }))
}

/// A call that names a device.
pub(crate) fn device(
    entry: Entry,
    ordinal: i32,
    run: impl FnOnce(&'static Driver, &'static Device) -> Result,
) -> i32 {
    number(driver::get().and_then(|driver| {
        let device = driver.device(ordinal)?;
        device.counters.called(entry);
        run(driver, device)
    }))
}

/// A call that needs the thread's context, and the context well.
pub(crate) fn context(
    entry: Entry,
    run: impl FnOnce(&'static Driver, &Arc<Context>) -> Result,
) -> i32 {
    number(driver::get().and_then(|driver| {
        let context = Context::current(driver)?;
        context.device.counters.called(entry);
        context.health.check()?;
        run(driver, &context)
    }))
}

pub(crate) fn number(result: Result) -> i32 {
    match result {
        Ok(()) => Code::SUCCESS.0,
        Err(code) => code.0,
    }
}
