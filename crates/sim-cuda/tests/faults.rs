//! Failure: a fault that a test asks for does not happen, happens elsewhere, or is not counted.

mod support;

use std::ffi::CString;

use support::{NOT_READY, Pinned, sim};

const LEN: usize = 1 << 16;

#[test]
fn calls_fail_when_the_script_says() {
    let sim = sim();
    sim.enter(0);
    sim.faults(
        0,
        "cuEventCreate:fail=2,nth=2; cuStreamCreate:fail=INVALID_VALUE,from=2; \
         cuStreamQuery:fail=999,every=3,times=2; cuEventQuery:fail=719,times=1",
    );
    let events: Vec<i32> = (0..4).map(|_| sim.cuEventCreate(&mut 0, 0)).collect();
    assert_eq!(events, [0, 2, 0, 0]);
    let streams: Vec<i32> = (0..4).map(|_| sim.cuStreamCreate(&mut 0, 1)).collect();
    assert_eq!(streams, [0, 1, 1, 1]);
    let queries: Vec<i32> = (0..10).map(|_| sim.cuStreamQuery(0)).collect();
    assert_eq!(queries, [0, 0, 999, 0, 0, 999, 0, 0, 0, 0]);
    let event = sim.event();
    assert_eq!(sim.cuEventQuery(event), 719);
    assert_eq!(sim.cuEventQuery(event), 0, "a failed call loses no context");
    let stats = sim.stats(0);
    assert_eq!(stats.rules_fired[..5], [1, 3, 2, 1, 0]);
    assert_eq!((stats.rules, stats.faults_fired), (4, 7));
    sim.clear(0);
    let stats = sim.stats(0);
    assert_eq!((stats.rules, stats.faults_fired), (0, 7));
}

#[test]
fn chances_are_the_seed_s() {
    let sim = sim();
    sim.enter(1);
    let draw = || {
        sim.faults(1, "cuStreamQuery:fail=999,chance=1/4");
        let drawn: Vec<i32> = (0..200).map(|_| sim.cuStreamQuery(0)).collect();
        sim.clear(1);
        drawn
    };
    let drawn = draw();
    let fired = drawn.iter().filter(|code| **code == 999).count();
    assert!((20..80).contains(&fired), "{fired} of 200");
    assert_eq!(draw(), drawn);
}

#[test]
fn a_call_can_act_and_fail() {
    let sim = sim();
    sim.enter(2);
    let (stream, memory) = (sim.stream(), sim.allocate(LEN));
    sim.faults(2, "cuMemsetD8Async:act-fail=999");
    assert_eq!(sim.cuMemsetD8Async(memory, 5, LEN, stream), 999);
    assert_eq!(sim.cuStreamSynchronize(stream), 0);
    assert_eq!(sim.read(memory, LEN), vec![5; LEN]);
}

#[test]
fn lost_work_loses_the_context_of_its_device_only() {
    let sim = sim();
    sim.enter(4);
    let other = sim.event();
    sim.enter(3);
    let (stream, event) = (sim.stream(), sim.event());
    let memory = sim.allocate(LEN);
    let mut pinned = Pinned::new(sim, LEN);
    pinned.fill(8);
    sim.faults(3, "@htod:fail=700,nth=2");
    for _ in 0..3 {
        assert_eq!(
            sim.cuMemcpyHtoDAsync_v2(memory, pinned.bytes, LEN, stream),
            0
        );
    }
    assert_eq!(sim.cuEventRecord(event, stream), 0);
    assert_eq!(sim.cuEventSynchronize(event), 700, "who waits is told");
    let free = &mut 0;
    let codes = [
        sim.cuEventQuery(event),
        sim.cuStreamSynchronize(stream),
        sim.cuCtxSynchronize(),
        sim.cuMemAlloc_v2(free, 1),
        sim.cuMemFree_v2(memory),
        sim.cuMemHostUnregister(pinned.bytes),
        sim.cuStreamDestroy_v2(stream),
    ];
    assert_eq!(codes, [700; 7]);
    sim.clear(3);
    assert_eq!(sim.cuEventQuery(event), 700, "it stays");

    sim.enter(4);
    assert_eq!(sim.cuEventQuery(other), 0);
    assert_eq!(sim.cuDevicePrimaryCtxRelease_v2(3), 0);
    sim.enter(3);
    assert_eq!(sim.cuCtxSynchronize(), 0, "a new context is well");
    assert_eq!(sim.stats(3).rules_fired[0], 0);
    assert_eq!(sim.stats(3).faults_fired, 1);
}

#[test]
fn a_call_can_lose_the_context() {
    let sim = sim();
    sim.enter(5);
    let event = sim.event();
    sim.faults(5, "cuEventQuery:lose=214,nth=2");
    let queries: Vec<i32> = (0..3).map(|_| sim.cuEventQuery(event)).collect();
    assert_eq!(queries, [0, 214, 214]);
    assert_eq!(sim.cuCtxSynchronize(), 214);
}

#[test]
fn what_never_ends_ends_when_the_faults_do() {
    let sim = sim();
    let context = sim.enter(6);
    let (stream, event) = (sim.stream(), sim.event());
    let memory = sim.allocate(LEN);
    sim.faults(6, "cuMemsetD8Async:never; @fill:slow=100");
    let calls = || sim.calls(6, "cuMemsetD8Async");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(sim.cuCtxSetCurrent(context), 0);
            assert_eq!(sim.cuMemsetD8Async(memory, 6, LEN, stream), 0);
            assert_eq!(sim.cuEventRecord(event, stream), 0);
        });
        while sim.stats(6).faults_fired == 0 {
            std::thread::yield_now();
        }
        assert_eq!(calls(), 1);
        assert_eq!(sim.calls(6, "cuEventRecord"), 0, "the call hangs");
        sim.clear(6);
    });
    assert_eq!(sim.cuEventSynchronize(event), 0);
    assert_eq!(sim.read(memory, LEN), vec![6; LEN]);
}

#[test]
fn waiting_for_what_never_ends_ends_with_the_context() {
    let sim = sim();
    let context = sim.enter(7);
    let (stream, event) = (sim.stream(), sim.event());
    sim.faults(7, "@record:never");
    assert_eq!(sim.cuEventRecord(event, stream), 0);
    assert_eq!(sim.cuEventQuery(event), NOT_READY);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            assert_eq!(sim.cuCtxSetCurrent(context), 0);
            sim.cuEventSynchronize(event)
        });
        while sim.calls(7, "cuEventSynchronize") == 0 {
            std::thread::yield_now();
        }
        assert_eq!(sim.cuDevicePrimaryCtxRelease_v2(7), 0);
        assert_eq!(waiter.join().expect("the waiter does not panic"), 709);
    });
}

#[test]
fn a_bit_can_be_wrong() {
    let sim = sim();
    sim.enter(8);
    let (stream, memory) = (sim.stream(), sim.allocate(LEN));
    let pinned = Pinned::new(sim, LEN);
    assert_eq!(sim.cuMemsetD8_v2(memory, 0, LEN), 0);
    sim.faults(8, "@dtoh:flip,times=1");
    assert_eq!(
        sim.cuMemcpyDtoHAsync_v2(pinned.bytes, memory, LEN, stream),
        0
    );
    assert_eq!(sim.cuStreamSynchronize(stream), 0);
    let wrong = pinned.get().iter().filter(|byte| **byte != 0).count();
    assert_eq!(wrong, 1);
    assert_eq!(sim.stats(8).rules_fired[0], 1);
}

#[test]
fn a_script_that_is_not_understood_changes_nothing() {
    let sim = sim();
    for (device, text) in [
        (9, "cuInit"),
        (9, "1/cuInit:fail=1"),
        (-1, "99/cuInit:fail=1"),
    ] {
        let script = CString::new(text).expect("no zero");
        assert_eq!(sim.sim_cuda_fault_set(device, script.as_ptr()), 1, "{text}");
    }
    assert_eq!(sim.stats(9).rules, 0);
    sim.faults(-1, "9/cuStreamCreate:fail=2");
    assert_eq!((sim.stats(9).rules, sim.stats(10).rules), (1, 0));
}
