//! Failure: a program puts requests into streams as the real library does not survive, or does harm
//! by, and no test shows it. Method: as in the test of harshness; what was measured, done on purpose,
//! in processes of their own, as it ends some.
#![allow(unsafe_code, reason = "does what a broken program would do")]

mod support;

use std::os::unix::process::ExitStatusExt;

use nvidia_dl::cuda::{DevicePtr, Stream};
use nvidia_dl::cufile::{Cells, FileHandle, StreamRegisterFlags};
use support::{Sims, cells, done, file, sims};
use xtask::again::{self, is_again, printed, succeeds};

const PAGE: usize = 4096;
const LEN: usize = 4 * PAGE;

#[test]
fn two_calls_at_once_for_one_stream_crash_and_for_two_do_not() {
    const NAME: &str = "two_calls_at_once_for_one_stream_crash_and_for_two_do_not";
    if is_again() {
        return fill_and_submit_more(xtask::place::setting("SIM_CUFILE_CASE", "") == "one");
    }
    let full = ("TOKIO_CUFILE_SIM_CUFILE_BACKLOG", "1");
    let output = again::run(NAME, &[full, ("SIM_CUFILE_CASE", "one")]);
    let text = printed(&output);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{text}");
    let said = "SIMULATED: two calls at once for the stream";
    assert!(text.contains(said), "{text}");
    succeeds(NAME, &[full, ("SIM_CUFILE_CASE", "two")]);
}

/// A thread stays in its call, as the stream is full; then another thread calls.
fn fill_and_submit_more(is_same: bool) {
    let sims = sims();
    let (file, memory) = (file(&[7; LEN]), sims.memory(LEN));
    let (first, second) = (sims.stream(), sims.stream());
    let handle = sims.register(file.as_file());
    sims.faults("@read:never");
    let all = [0; 3].map(|_| cells(LEN, 0, 0) as usize);
    let [one, two, three] = all;
    let submit = move |stream, numbers: usize| {
        sims.enter(0);
        sims.put(stream, handle, memory, numbers as *mut Cells);
    };
    let submitter = std::thread::spawn(move || {
        submit(first, one);
        submit(first, two);
    });
    while sims.stats().blocked_submissions == 0 {
        std::thread::yield_now();
    }
    submit(if is_same { first } else { second }, three);
    sims.clear();
    submitter.join().expect("it goes on");
    sims.synchronize(first);
    sims.synchronize(second);
    for one in all {
        assert_eq!(done(one as *mut Cells, LEN), Some(Ok(LEN)));
    }
    // One after the other they may, and whoever calls.
    std::thread::spawn(move || submit(first, three))
        .join()
        .expect("it goes on");
    sims.synchronize(first);
}

#[test]
fn requests_beside_one_another_do_harm_in_a_stream_that_is_not_registered() {
    const NAME: &str = "requests_beside_one_another_do_harm_in_a_stream_that_is_not_registered";
    if is_again() {
        return beside_one_another();
    }
    let text = succeeds(NAME, &[]);
    assert_eq!(text.matches("which is not registered, beside").count(), 3);
    // Where it was asked for, it ends the process.
    let output = again::run(NAME, &[("TOKIO_CUFILE_SIM_ABORT", "1")]);
    let text = printed(&output);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{text}");
    assert_eq!(text.matches("which is not registered, beside").count(), 1);
}

/// Puts so many reads into a stream, all outstanding at once, and gives how often harm is counted by
/// then.
fn together(
    sims: &Sims,
    (handle, memory): (FileHandle, DevicePtr),
    stream: Stream,
    count: usize,
) -> u64 {
    sims.faults("@read:never");
    for _ in 0..count {
        sims.put(stream, handle, memory, cells(LEN, 0, 0));
    }
    sims.clear();
    sims.synchronize(stream);
    sims.stats().unregistered_together
}

fn beside_one_another() {
    let sims = sims();
    let (file, memory) = (file(&[7; LEN]), sims.memory(LEN));
    let what = (sims.register(file.as_file()), memory);
    let (known, other) = (sims.stream(), sims.stream());
    // SAFETY: the stream is alive, and deregistered at the end.
    let registered = unsafe {
        sims.library
            .stream_register(known, StreamRegisterFlags::FIXED_BUF_OFFSET)
    };
    registered.expect("registered");
    assert_eq!(together(sims, what, known, 9), 0);
    for _ in 0..3 {
        assert_eq!(together(sims, what, other, 1), 0, "one after the other");
    }
    assert_eq!(together(sims, what, other, 2), 1);
    assert_eq!(together(sims, what, other, 3), 3);
    // SAFETY: nothing is in it.
    let deregistered = unsafe { sims.library.stream_deregister(known) };
    deregistered.expect("deregistered");
    sims.deregister(what.0);
}

/// As measured: threads of the library's, which have the name of the one that made them.
#[test]
fn the_first_request_in_a_stream_leaves_a_thread_of_its_callers_name() {
    const NAME: &str = "the_first_request_in_a_stream_leaves_a_thread_of_its_callers_name";
    if !is_again() {
        succeeds(NAME, &[]);
        return;
    }
    let sims = sims();
    let (file, memory, stream) = (file(&[7; LEN]), sims.memory(LEN), sims.stream());
    let handle = sims.register(file.as_file());
    let submit = move || {
        sims.enter(0);
        sims.put(stream, handle, memory, cells(LEN, 0, 0));
        sims.synchronize(stream);
    };
    assert_eq!(named("a-caller"), 0);
    for name in ["a-caller", "a-caller", "another"] {
        let caller = std::thread::Builder::new().name(name.to_owned());
        let caller = caller.spawn(submit).expect("a thread");
        caller.join().expect("it ends");
    }
    // A thread may be there for a moment after it was joined; the library's stays.
    while named("a-caller") != 1 || named("another") != 0 {
        std::thread::yield_now();
    }
}

/// Threads of this process that are called that.
fn named(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the threads");
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|found| found.trim_end() == name).count()
}
