//! Failure: the simulator is taken for a GPU, holds up the end of a process, or settings have no
//! effect. Method: a process for each, as loading and initialisation happen once.
#![allow(
    unsafe_code,
    reason = "asks to be called when the process ends, and forks"
)]

mod support;

use std::sync::OnceLock;

use support::{Sim, load};
use xtask::again::{self, is_again, succeeds};

const ON: (&str, &str) = ("TOKIO_CUFILE_SIMULATE", "1");

#[test]
fn without_being_asked_for_there_is_no_device() {
    if !is_again() {
        let text = succeeds("without_being_asked_for_there_is_no_device", &[]);
        assert!(text.contains("this is a simulator"), "{text}");
        return;
    }
    let sim = load();
    assert_eq!(sim.cuInit(0), 100);
    assert_eq!(sim.cuDeviceGetCount(&mut 0), 3);
    let mut version = 0;
    assert_eq!(sim.cuDriverGetVersion(&raw mut version), 0);
    assert_eq!(version, 13_000);
}

#[test]
fn the_environment_sets_devices_version_memory_and_faults() {
    if !is_again() {
        let variables = [
            ON,
            ("TOKIO_CUFILE_SIM_DEVICES", "3"),
            ("TOKIO_CUFILE_SIM_VERSION", "12040"),
            ("TOKIO_CUFILE_SIM_MEMORY", "1000"),
            (
                "TOKIO_CUFILE_SIM_FAULTS",
                "cuInit:fail=999,nth=1;2/cuMemAlloc_v2:fail=2,nth=1",
            ),
        ];
        succeeds(
            "the_environment_sets_devices_version_memory_and_faults",
            &variables,
        );
        return;
    }
    let sim = load();
    let (mut count, mut version) = (0, 0);
    assert_eq!(sim.cuInit(0), 999);
    assert_eq!(sim.cuDeviceGetCount(&raw mut count), 3);
    assert_eq!(sim.cuInit(0), 0);
    assert_eq!(sim.cuInit(1), 1);
    assert_eq!(sim.cuDeviceGetCount(&raw mut count), 0);
    assert_eq!(sim.cuDriverGetVersion(&raw mut version), 0);
    assert_eq!((count, version), (3, 12_040));
    sim.enter(2);
    assert_eq!(sim.cuMemAlloc_v2(&mut 0, 1000), 2);
    assert_eq!(sim.cuMemAlloc_v2(&mut 0, 1000), 0);
    assert_eq!(sim.cuMemAlloc_v2(&mut 0, 1), 2);
    assert_eq!(sim.stats(-1).rules_fired[0], 1);
}

#[test]
fn there_may_be_no_device() {
    if !is_again() {
        succeeds(
            "there_may_be_no_device",
            &[ON, ("TOKIO_CUFILE_SIM_DEVICES", "0")],
        );
        return;
    }
    let sim = load();
    let mut count = 7;
    assert_eq!(sim.cuInit(0), 0);
    assert_eq!(sim.cuDeviceGetCount(&raw mut count), 0);
    assert_eq!(count, 0);
    assert_eq!(sim.cuDeviceGet(&raw mut count, 0), 101);
}

#[test]
fn settings_that_are_not_understood_are_said() {
    const NAME: &str = "settings_that_are_not_understood_are_said";
    if is_again() {
        assert_eq!(load().cuInit(0), 1);
        return;
    }
    for (name, value) in [
        ("TOKIO_CUFILE_SIM_DEVICES", "17"),
        ("TOKIO_CUFILE_SIM_SEED", "x"),
        ("TOKIO_CUFILE_SIM_FAULTS", "cuInit:fial=1"),
    ] {
        let text = succeeds(NAME, &[ON, (name, value)]);
        assert!(text.contains(value), "{text}");
    }
}

#[test]
fn a_late_access_can_be_fatal() {
    const NAME: &str = "a_late_access_can_be_fatal";
    if is_again() {
        let sim = load();
        assert_eq!(sim.cuInit(0), 0);
        sim.enter(0);
        let (stream, memory) = (sim.stream(), sim.allocate(10));
        sim.faults(0, "@fill:never");
        assert_eq!(sim.cuMemsetD8Async(memory, 1, 10, stream), 0);
        assert_eq!(sim.cuMemFree_v2(memory), 0);
        sim.clear(0);
        assert_eq!(sim.cuStreamSynchronize(stream), 0);
        return;
    }
    let text = succeeds(NAME, &[ON]);
    let said = "caught, with seed 0: a write to byte 0 and on of allocation 0 of SIMULATED GPU 0 (10 bytes at";
    assert!(text.contains(said), "{text}");
    let output = again::run(NAME, &[ON, ("TOKIO_CUFILE_SIM_ABORT", "1")]);
    assert!(!output.status.success(), "{}", output.status);
}

#[test]
fn streams_do_not_hold_up_the_end_and_calls_then_say_so() {
    static SIM: OnceLock<Sim> = OnceLock::new();
    extern "C" fn last() {
        let sim = SIM.get().expect("set before the end");
        println!("the last call gave {}", sim.cuStreamSynchronize(0));
    }
    if !is_again() {
        let text = succeeds(
            "streams_do_not_hold_up_the_end_and_calls_then_say_so",
            &[ON],
        );
        assert!(text.contains("the last call gave 4"), "{text}");
        return;
    }
    // SAFETY: the function is there until the end. It runs last, as it is the first to be given.
    assert_eq!(unsafe { libc::atexit(last) }, 0);
    let sim = SIM.get_or_init(load);
    assert_eq!(sim.cuInit(0), 0);
    sim.enter(0);
    let stream = sim.stream();
    let memory = sim.allocate(1 << 20);
    sim.faults(0, "@fill:never");
    assert_eq!(sim.cuMemsetD8Async(memory, 1, 1 << 20, stream), 0);
    while sim.stats(0).faults_fired == 0 {
        std::thread::yield_now();
    }
    std::process::exit(0);
}

#[test]
fn after_a_fork_nothing_is_initialised() {
    const NAME: &str = "after_a_fork_nothing_is_initialised";
    if !is_again() {
        succeeds(NAME, &[ON]);
        return;
    }
    let sim = load();
    assert_eq!(sim.cuInit(0), 0);
    sim.enter(0);
    // SAFETY: the child makes one call, which takes no lock, and ends.
    let forked = unsafe { libc::fork() };
    if forked == 0 {
        let code = sim.cuCtxSynchronize();
        // SAFETY: ends the child without what the test harness does at its end.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    let waited = unsafe { libc::waitpid(forked, &raw mut status, 0) };
    assert_eq!(waited, forked);
    assert_eq!(
        (libc::WIFEXITED(status), libc::WEXITSTATUS(status)),
        (true, 3)
    );
    assert_eq!(sim.cuCtxSynchronize(), 0);
}

#[test]
fn a_function_can_be_missing() {
    let folder = xtask::simulator::cuda_without("cuMemFreeAsync").expect("it can be made");
    let path = folder.join("libcuda.so.1");
    let error = Sim::load(&path).map(drop).expect_err("one is missing");
    let text = format!("{error:?}");
    assert!(text.contains("undefined symbol: cuMemFreeAsync"), "{text}");
    // SAFETY: the library does nothing when it is loaded.
    let library = unsafe { libloading::Library::new(&path) }.expect("all else is there");
    for name in support::NAMES {
        // SAFETY: the function is not called.
        let found = unsafe { library.get::<unsafe extern "C" fn()>(format!("{name}\0")) };
        assert_eq!(found.is_ok(), *name != "cuMemFreeAsync", "{name}");
    }
    assert!(xtask::simulator::cuda_without("cuNoSuchCall").is_err());
}
