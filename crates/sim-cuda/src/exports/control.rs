//! Functions that no real driver has: faults and counts for tests, and the way to the bytes for a
//! simulator of another library. Found by `dlsym`; what they return are codes of the driver.
#![allow(
    unsafe_code,
    reason = "C functions: exported by name, and the caller vouches for its pointers"
)]

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::AtomicBool;

use super::put;
use crate::call::number;
use crate::code::{Code, Result};
use crate::context::Context;
use crate::device::Device;
use crate::driver::{self, Driver};
use crate::entry::Entry;
use crate::faults::Faults;
use crate::faults::script::{self, Scope};
use crate::memory::Access;
use crate::report::Report;
use crate::settings;
use crate::stats::{Counters, say};
use crate::work::{Call, CallFn, Work};

/// Asks for the simulation, as the variables do that the head of the crate names. The first call
/// before anything else counts.
#[unsafe(no_mangle)]
extern "C" fn sim_cuda_opt_in(devices: u32, seed: u64) -> i32 {
    match usize::try_from(devices) {
        Ok(devices) => {
            settings::opt_in(devices, seed);
            Code::SUCCESS.0
        }
        Err(_) => Code::INVALID_VALUE.0,
    }
}

/// Adds faults to a device; -1 takes the scopes that the script names.
#[unsafe(no_mangle)]
unsafe extern "C" fn sim_cuda_fault_set(device: i32, text: *const c_char) -> i32 {
    let set = || -> Result {
        let driver = found()?;
        if text.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so a text that ends with a zero as the caller vouches.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        let said = |message: String| {
            say(format_args!("{message}"));
            Code::INVALID_VALUE
        };
        let rules = script::parse(&text).map_err(said)?;
        if device == -1 {
            return driver.add_faults(&rules).map_err(said);
        }
        let device = driver.device(device)?;
        if rules.iter().any(|rule| rule.scope != Scope::Everywhere) {
            return Err(said(format!(
                "`{text}` names a scope, and so does the call"
            )));
        }
        device.faults.add(rules).map_err(said)
    };
    number(set())
}

/// Ends all faults of a device; -1 for those of every device and of none. What hangs goes on.
#[unsafe(no_mangle)]
extern "C" fn sim_cuda_faults_clear(device: i32) -> i32 {
    let clear = || -> Result {
        let driver = found()?;
        if device == -1 {
            driver.faults.clear();
            driver
                .devices
                .iter()
                .for_each(|device| device.faults.clear());
            return Ok(());
        }
        driver.device(device)?.faults.clear();
        Ok(())
    };
    number(clear())
}

/// Fills a [`Report`], whose first field says how many bytes of it there is room for. -1 for the
/// calls that concern no device.
#[unsafe(no_mangle)]
unsafe extern "C" fn sim_cuda_stats(device: i32, to: *mut u64) -> i32 {
    let fill = || -> Result {
        let driver = found()?;
        if to.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let domain = Domain::find(driver, device)?;
        let report = Report::of(driver, domain.device, domain.counters, domain.faults);
        // SAFETY: not null, and the first field is there, as the caller vouches.
        let room = usize::try_from(unsafe { to.read() }).unwrap_or(0);
        let words = report.words();
        let kept = words.len().min(room / size_of::<u64>());
        // SAFETY: there is room for as much as the first field says, as the caller vouches.
        unsafe { to.copy_from(words.as_ptr(), kept) };
        Ok(())
    };
    number(fill())
}

/// How often an entry point was called; -1 if there is none of that name, or no such device.
#[unsafe(no_mangle)]
unsafe extern "C" fn sim_cuda_calls(device: i32, name: *const c_char) -> i64 {
    let count = || -> Result<i64> {
        if name.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so a text that ends with a zero as the caller vouches.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let entry = Entry::named(&name).ok_or(Code::INVALID_VALUE)?;
        let calls = Domain::find(found()?, device)?.counters.calls(entry);
        i64::try_from(calls).map_err(|_| Code::UNKNOWN)
    };
    count().unwrap_or(-1)
}

/// Lets a function at the bytes behind a device pointer, as a device's own engines are: late
/// accesses are caught and named (the function is not run), and the bytes stay until it returns.
/// It gets the address of the first byte and `argument`.
#[unsafe(no_mangle)]
unsafe extern "C" fn sim_cuda_access(
    pointer: usize,
    len: usize,
    write: i32,
    run: Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>,
    argument: *mut c_void,
) -> i32 {
    let access = || -> Result {
        let driver = driver::get()?;
        let run = run.ok_or(Code::INVALID_VALUE)?;
        let device = driver.device_of_pointer(pointer);
        let device = device.ok_or(Code::INVALID_VALUE)?;
        let access = Access {
            pointer,
            len,
            write: write != 0,
        };
        device.memory.access(&access, &device.counters, |bytes| {
            // SAFETY: the caller vouches for the function and its argument; the bytes are mapped
            // for as long as it runs.
            unsafe { run(bytes as *mut c_void, argument) };
        })
    };
    number(access())
}

/// The device of the thread's context, or the error of that context. Counts as no call.
#[unsafe(no_mangle)]
unsafe extern "C" fn sim_cuda_context(ordinal: *mut i32) -> i32 {
    let find = || -> Result {
        let context = Context::current(driver::get()?)?;
        context.health.check()?;
        let found = i32::try_from(context.device.ordinal).map_err(|_| Code::UNKNOWN)?;
        // SAFETY: as the caller vouches.
        unsafe { put(ordinal, found) }
    };
    number(find())
}

/// The device whose address this is, whether something is allocated there or not; -1 if none's.
#[unsafe(no_mangle)]
extern "C" fn sim_cuda_device_of(pointer: usize) -> i32 {
    let device = driver::get().ok();
    let device = device.and_then(|driver| driver.device_of_pointer(pointer));
    let ordinal = device.and_then(|device| i32::try_from(device.ordinal).ok());
    ordinal.unwrap_or(-1)
}

/// Puts a function into a stream of the thread's context. It gets `argument`, and 1 in its turn, or
/// 0 if that will never come; one of them, once, on any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn sim_cuda_enqueue(
    stream: usize,
    run: Option<CallFn>,
    argument: *mut c_void,
) -> i32 {
    let enqueue = || -> Result {
        let context = Context::current(driver::get()?)?;
        context.health.check()?;
        let run = run.ok_or(Code::INVALID_VALUE)?;
        let stream = context.stream(stream)?;
        let call = Call {
            run,
            argument: argument as usize,
            is_told: AtomicBool::new(false),
        };
        stream.issue(Work::Call(call), context.implied_order(&stream));
        Ok(())
    };
    number(enqueue())
}

/// Where the bytes behind a device pointer are, now. Who keeps the address knows no end of the
/// memory: this is how tests play the part of somebody who writes late.
#[unsafe(no_mangle)]
extern "C" fn sim_cuda_bytes(pointer: usize) -> *mut c_void {
    let find = || {
        let device = driver::get().ok()?.device_of_pointer(pointer)?;
        let (allocation, offset) = device.memory.find(pointer)?;
        Some(allocation.bytes() + offset)
    };
    find().map_or(std::ptr::null_mut(), |address| address as *mut c_void)
}

fn found() -> Result<&'static Driver> {
    driver::loaded().ok_or(Code::NO_DEVICE)?
}

/// A device, or the calls that concern none.
struct Domain {
    device: Option<&'static Device>,
    counters: &'static Counters,
    faults: &'static Faults,
}

impl Domain {
    fn find(driver: &'static Driver, device: i32) -> Result<Self> {
        if device == -1 {
            return Ok(Self {
                device: None,
                counters: &driver.counters,
                faults: &driver.faults,
            });
        }
        let device = driver.device(device)?;
        Ok(Self {
            device: Some(device),
            counters: &device.counters,
            faults: &device.faults,
        })
    }
}
