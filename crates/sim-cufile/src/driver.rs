//! Opening and closing, files and buffers.

use std::fs::{self, OpenOptions};
use std::io::Write;

use sim_common::monitor::{self, lock};

use crate::code::{self, Fail, Result};
use crate::cuda;
use crate::os;
use crate::params;
use crate::settings::Route;
use crate::state::{self, Buffer, Inner, Registered, State, caught, crash};
use crate::version;

/// What marks a handle; the rest of it is the descriptor's number.
const HANDLE: usize = 0xABAB_ABAB << 32;

/// One open more.
pub(crate) fn open(state: &State) -> Result {
    let is_first = lock(&state.inner).uses == 0;
    if is_first {
        look_at_machine()?;
    }
    let mut inner = lock(&state.inner);
    if inner.uses == 0 {
        let is_direct = route(state, &inner) != Route::Posix;
        if !is_direct && !inner.params.bool(params::ALLOW_COMPAT) {
            return Err(Fail::Code(code::DRIVER_NOT_INITIALIZED));
        }
        write_log(&inner);
        read_file(&mut inner, state.settings.file_stats);
        if let Some(fd) = state.settings.closes {
            os::close(fd);
        }
        inner.params.is_settled = true;
    }
    // As measured: 1.15 does not count how often.
    if is_first || version::number() >= 1160 {
        inner.uses += 1;
    }
    drop(inner);
    if is_first {
        crate::exports::at_exit();
    }
    Ok(())
}

/// What other calls do for whoever has not opened.
pub(crate) fn open_if_needed(state: &State) -> Result {
    let is_open = lock(&state.inner).uses > 0;
    if is_open { Ok(()) } else { open(state) }
}

/// Without a context in the thread the real library has been reported to refuse. Without libcuda:
/// versions up to 1.15 say so on the standard output; later ones look for the
/// kernel's modules, for ever if they cannot, and then succeed.
fn look_at_machine() -> Result {
    if let Some(cuda) = cuda::get() {
        let context = cuda.context().map(drop);
        return context.map_err(|_| Fail::Code(code::DRIVER_NOT_INITIALIZED));
    }
    if version::number() < 1160 {
        let mut out = std::io::stdout();
        for line in 1..=3 {
            // Nobody may be reading.
            let _ = writeln!(out, "SIMULATED libcufile: no libcuda ({line} of 3)");
        }
        return Err(Fail::Code(code::NVFS_SETUP_ERROR));
    }
    if fs::read("/proc/modules").is_err() {
        monitor::wait(|| false);
    }
    Ok(())
}

/// Before 1.16 asking for a range readies the library, as opening it does, whether that works or
/// not.
pub(crate) fn ready_for_ranges(state: &State) {
    if version::number() < 1160 {
        // The answer does not depend on it.
        let _ = look_at_machine();
        lock(&state.inner).params.is_settled = true;
    }
}

/// A log in the current folder, unless something says otherwise.
fn write_log(inner: &Inner) {
    let text = |index: usize| inner.params.string(index);
    let path = match (text(params::LOG_PATH), text(params::LOG_DIR)) {
        ("", "") => "SIMULATED-cufile.log".to_owned(),
        ("", folder) => format!("{folder}/SIMULATED-cufile_{}.log", std::process::id()),
        (path, _) => path.to_owned(),
    };
    let log = OpenOptions::new().create(true).append(true).open(path);
    // A log that cannot be written costs the real library a warning only.
    if let Ok(mut log) = log {
        let _ = writeln!(log, "SIMULATED libcufile {}: open", version::number());
    }
}

/// What a `cufile.json` says comes over what was set before (measured).
fn read_file(inner: &mut Inner, stats: Option<i32>) {
    if let Some(level) = stats {
        inner.level = level;
        inner.params.file_stats(usize::try_from(level).unwrap_or(0));
    }
}

/// One open less; the last ends what is registered.
pub(crate) fn close(state: &State) -> Result {
    let mut inner = lock(&state.inner);
    if inner.uses == 0 {
        return Err(Fail::Code(code::DRIVER_NOT_INITIALIZED));
    }
    inner.uses -= 1;
    if inner.uses == 0 {
        let left = inner.files.len();
        if left > 0 {
            let counter = &state.counts.closed_with_files;
            caught(counter, format_args!("closed with {left} files registered"));
        }
        inner.files.clear();
        inner.buffers.clear();
        inner.is_counting = false;
        // As measured on 1.15 and 1.20; where in between it changed is not known.
        if version::number() >= 1160 {
            inner.level = 0;
        }
    }
    Ok(())
}

/// Every version crashes when the process exits while calls run or streams have requests, and 1.15
/// also with the library open and statistics at level 3.
pub(crate) fn end_of_process(state: &State) {
    let calls = state::calls_inside();
    if calls > 0 {
        crash(format_args!("exit with {calls} calls running"));
    }
    let inner = lock(&state.inner);
    let queued: usize = inner.streams.values().map(|stream| stream.in_flight).sum();
    if queued > 0 {
        crash(format_args!("exit with {queued} requests in streams"));
    }
    if version::number() == 1150 && inner.level == 3 && inner.uses > 0 {
        crash(format_args!("exit with level 3 and the library open"));
    }
}

/// The way that bytes go, but for faults.
pub(crate) fn route(state: &State, inner: &Inner) -> Route {
    if inner.params.bool(params::FORCE_COMPAT) {
        Route::Posix
    } else {
        state.settings.route
    }
}

pub(crate) fn descriptor_of(handle: usize) -> Option<i32> {
    let is_ours = handle & HANDLE == HANDLE && handle >> 32 == HANDLE >> 32;
    let number = i32::try_from(handle & 0xFFFF_FFFF).ok()?;
    is_ours.then_some(number)
}

pub(crate) fn register_file(state: &State, fd: i32, path: String) -> Result<usize> {
    let about = os::about(fd).map_err(|_| Fail::Code(code::INVALID_VALUE))?;
    if !about.holds_bytes {
        return Err(Fail::Code(code::INVALID_FILE_TYPE));
    }
    let mode = about.flags & libc::O_ACCMODE;
    if about.flags & libc::O_APPEND != 0 && mode == libc::O_WRONLY {
        return Err(Fail::Code(code::INVALID_FILE_OPEN_FLAG));
    }
    if about.on_tmpfs && version::number() < 1160 {
        return Err(Fail::Code(code::HANDLE_NOT_REGISTERED));
    }
    open_if_needed(state)?;
    // As measured: one that goes around the page cache gets another beside it.
    let is_direct = about.flags & libc::O_DIRECT != 0;
    let own = is_direct
        .then(|| os::open_again(fd, about.flags))
        .transpose();
    let own = own.map_err(|_| Fail::Code(code::GETNEWFD_FAILED))?;
    let mut inner = lock(&state.inner);
    if inner.files.contains_key(&fd) {
        return Err(Fail::Code(code::HANDLE_ALREADY_REGISTERED));
    }
    let registered = Registered {
        identity: about.identity,
        path,
        _own: own,
        in_flight: 0,
    };
    inner.files.insert(fd, registered);
    let number = usize::try_from(fd).map_err(|_| Fail::Code(code::INVALID_VALUE))?;
    Ok(HANDLE | number)
}

/// What is registered by that handle ends; what is not is ignored.
pub(crate) fn deregister_file(state: &State, handle: usize) {
    let Some(fd) = descriptor_of(handle) else {
        return;
    };
    let mut inner = lock(&state.inner);
    let found = inner.files.remove(&fd);
    inner.stats.handle_deregisters.count(found.is_some());
    drop(inner);
    let Some(found) = found else { return };
    let (counts, path) = (&state.counts, &found.path);
    if found.in_flight > 0 {
        let what = format_args!("{path} was deregistered with requests in flight");
        caught(&counts.files_ended_in_flight, what);
    }
    let now = os::about(fd).map(|about| about.identity);
    if now != Ok(found.identity) {
        let what = format_args!("{path} was closed before it was deregistered");
        caught(&counts.files_closed_early, what);
    }
}

pub(crate) fn register_buffer(state: &State, base: usize, len: usize) -> Result {
    if base == 0 || len == 0 {
        return Err(Fail::Code(code::INVALID_VALUE));
    }
    open_if_needed(state)?;
    let device = cuda::get().and_then(|cuda| cuda.device_of(base));
    let result = try_register_buffer(state, base, len, device);
    let mut inner = lock(&state.inner);
    inner.stats.count_buffer(device, result.is_ok(), len);
    result
}

fn try_register_buffer(state: &State, base: usize, len: usize, device: Option<i32>) -> Result {
    if let (Some(cuda), Some(_)) = (cuda::get(), device) {
        cuda.context()?;
        cuda.access((base, len), false, |_| ())?;
    }
    let mut inner = lock(&state.inner);
    let before = inner.buffers.range(..base.saturating_add(len)).next_back();
    if before.is_some_and(|(start, buffer)| start + buffer.len > base) {
        return Err(Fail::Code(code::MEMORY_ALREADY_REGISTERED));
    }
    let sum = |all: &mut dyn Iterator<Item = &Buffer>| all.map(|buffer| buffer.len).sum::<usize>();
    let on_devices = |buffer: &&Buffer| buffer.device.is_some();
    if device.is_some() {
        let pinned = sum(&mut inner.buffers.values().filter(on_devices)) + len;
        if pinned
            > inner
                .params
                .size(params::MAX_PINNED_KB)
                .saturating_mul(1024)
        {
            return Err(Fail::Code(code::INVALID_MAPPING_SIZE));
        }
        let same = |buffer: &&Buffer| buffer.device == device;
        let mapped = sum(&mut inner.buffers.values().filter(same)) + len;
        if mapped > state.settings.bar_kb.saturating_mul(1024) {
            return Err(Fail::Code(code::GPU_MEMORY_PINNING_FAILED));
        }
    }
    let buffer = Buffer {
        len,
        device,
        in_flight: 0,
    };
    inner.buffers.insert(base, buffer);
    Ok(())
}

pub(crate) fn deregister_buffer(state: &State, base: usize) -> Result {
    let mut inner = lock(&state.inner);
    let found = inner.buffers.remove(&base);
    let device = found.and_then(|buffer| buffer.device);
    inner.stats.count_buffer_end(device, found.is_some());
    drop(inner);
    let buffer = found.ok_or(Fail::Code(code::MEMORY_NOT_REGISTERED))?;
    if buffer.in_flight > 0 {
        let what = format_args!("a buffer at {base:#x} was deregistered with requests in flight");
        caught(&state.counts.buffers_ended_in_flight, what);
    }
    Ok(())
}

/// Registered buffers whose memory is no more: with the real library that can hang.
pub(crate) fn freed_buffers(state: &State) -> usize {
    let Some(cuda) = cuda::get() else { return 0 };
    let buffers: Vec<_> = {
        let inner = lock(&state.inner);
        inner
            .buffers
            .iter()
            .map(|(base, buffer)| (*base, *buffer))
            .collect()
    };
    let is_gone =
        |(base, buffer): &(usize, Buffer)| buffer.device.is_some() && !cuda.is_allocated(*base);
    buffers.iter().filter(|one| is_gone(one)).count()
}
