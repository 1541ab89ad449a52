//! Functions that no real library has: faults and counts for tests. Found by `dlsym`; they return 0,
//! or the number of what is wrong.
#![allow(
    unsafe_code,
    reason = "C functions: exported by name, and the caller vouches for its pointers"
)]

use std::ffi::c_char;
use std::sync::atomic::Ordering;

use sim_common::RULES_MAX;
use sim_common::monitor::lock;

use super::text;
use crate::code::{Fail, INVALID_VALUE, Result};
use crate::driver;
use crate::entry::Entry;
use crate::faults::script;
use crate::settings;
use crate::state::{self, State, say};

/// Asks for the simulation, as the variable does. The first call before anything else counts.
#[unsafe(no_mangle)]
extern "C" fn sim_cufile_opt_in(seed: u64) -> i32 {
    settings::opt_in(seed);
    0
}

/// Adds faults.
#[unsafe(no_mangle)]
unsafe extern "C" fn sim_cufile_fault_set(script: *const c_char) -> i32 {
    number(state::get().and_then(|state| {
        // SAFETY: as the caller vouches.
        let script = unsafe { text(script) }?;
        let said = |message: String| {
            say(format_args!("{message}"));
            Fail::Code(INVALID_VALUE)
        };
        let rules = script::parse(&script).map_err(said)?;
        state.faults.add(rules).map_err(said)
    }))
}

/// Ends all faults. What hangs goes on.
#[unsafe(no_mangle)]
extern "C" fn sim_cufile_faults_clear() -> i32 {
    number(state::get().map(|state| state.faults.clear()))
}

/// How often an entry point was called; -1 if there is none of that name.
#[unsafe(no_mangle)]
unsafe extern "C" fn sim_cufile_calls(name: *const c_char) -> i64 {
    let count = || -> Result<i64> {
        let state = state::get()?;
        // SAFETY: as the caller vouches.
        let name = unsafe { text(name) }?;
        let entry = Entry::named(&name).ok_or(Fail::Code(INVALID_VALUE))?;
        let calls = state.counts.calls[entry.index()].load(Ordering::Relaxed);
        i64::try_from(calls).map_err(|_| Fail::Code(INVALID_VALUE))
    };
    count().unwrap_or(-1)
}

/// Fills a report of whole numbers of 64 bits, whose first says how many bytes there is room for:
/// see [`report`]. More may be added at the end.
#[unsafe(no_mangle)]
unsafe extern "C" fn sim_cufile_stats(to: *mut u64) -> i32 {
    number(state::get().and_then(|state| {
        if to.is_null() {
            return Err(Fail::Code(INVALID_VALUE));
        }
        let words = report(state);
        // SAFETY: not null, and the first number is there, as the caller vouches.
        let room = usize::try_from(unsafe { to.read() }).unwrap_or(0);
        let kept = words.len().min(room / size_of::<u64>());
        // SAFETY: there is room for as much as the first number says, as the caller vouches.
        unsafe { to.copy_from(words.as_ptr(), kept) };
        Ok(())
    }))
}

/// Bytes of the whole; calls of all entry points; faults that are set, and how often any has fired;
/// opens; files, buffers and streams that are registered; buffers whose memory was freed; pieces by
/// nvidia-fs, P2PDMA and POSIX; the [counts](state::Counts) in their order; how often each fault that
/// is set has fired.
fn report(state: &State) -> Vec<u64> {
    let each = state.faults.fired_each();
    let calls = state.counts.calls.iter();
    let mut words = vec![
        0,
        calls.map(|calls| calls.load(Ordering::Relaxed)).sum(),
        each.len() as u64,
        state.faults.fired(),
    ];
    let freed = driver::freed_buffers(state) as u64;
    let inner = lock(&state.inner);
    words.push(u64::try_from(inner.uses).unwrap_or(0));
    words.push(inner.files.len() as u64);
    words.push(inner.buffers.len() as u64);
    let registered = inner.streams.values().filter(|stream| stream.is_registered);
    words.push(registered.count() as u64);
    words.push(freed);
    words.extend(inner.stats.by_path());
    drop(inner);
    words.extend(state.counts.words());
    let end = words.len() + RULES_MAX;
    words.extend(each);
    words.resize(end, 0);
    words[0] = (words.len() * size_of::<u64>()) as u64;
    words
}

fn number(result: Result) -> i32 {
    match result {
        Ok(()) => 0,
        Err(fail) => fail.number(),
    }
}
