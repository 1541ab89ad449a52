//! What every call does before its own part: is there a driver, a device, a context, is it well, and
//! is it to go wrong.

use std::sync::Arc;

use crate::code::{Code, Result};
use crate::context::Context;
use crate::device::Device;
use crate::driver::{self, Driver};
use crate::entry::Entry;
use crate::faults::Verdict;

/// A call that concerns no device.
pub(crate) fn process(entry: Entry, run: impl FnOnce(&'static Driver) -> Result) -> i32 {
    number(driver::get().and_then(|driver| {
        driver.counters.called(entry);
        let verdict = driver.faults.at_call(entry, None)?;
        ended(run(driver), &verdict)
    }))
}

/// A call that works before `cuInit` too.
pub(crate) fn always(entry: Entry, run: impl FnOnce() -> Result) -> i32 {
    let call = || {
        driver::alive()?;
        // Without the simulation asked for there is nothing to count or to go wrong.
        let Some(driver) = driver::loaded() else {
            return run();
        };
        let driver = driver?;
        driver.counters.called(entry);
        let verdict = driver.faults.at_call(entry, None)?;
        ended(run(), &verdict)
    };
    number(call())
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
        let verdict = device.faults.at_call(entry, None)?;
        ended(run(driver, device), &verdict)
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
        let verdict = context
            .device
            .faults
            .at_call(entry, Some(&context.health))?;
        // It may have been lost while the call was held up.
        context.health.check()?;
        ended(run(driver, &context), &verdict)
    }))
}

fn ended(result: Result, verdict: &Verdict) -> Result {
    match verdict.result {
        Some(code) => result.and(Err(code)),
        None => result,
    }
}

pub(crate) fn number(result: Result) -> i32 {
    match result {
        Ok(()) => Code::SUCCESS.0,
        Err(code) => code.0,
    }
}
