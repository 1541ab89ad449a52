//! Failure: a program that works with the simulator does not work with the driver, because calls
//! succeed that must not, or mean something else. Method: each call, and each way to misuse it.

mod support;

use std::ffi::{CStr, c_char};
use std::ptr::null_mut;

use support::{NAMES, NOT_READY, Pinned, Sim, sim};

#[test]
fn devices_say_that_they_are_simulated() {
    let sim = sim();
    let mut count = 0;
    assert_eq!(sim.cuDeviceGetCount(&raw mut count), 0);
    assert_eq!(count, 16);
    let mut name: [c_char; 64] = [1; 64];
    assert_eq!(sim.cuDeviceGetName(name.as_mut_ptr(), 64, 3), 0);
    let text: Vec<u8> = name.iter().map(|c| c.to_ne_bytes()[0]).collect();
    let text = CStr::from_bytes_until_nul(&text).expect("the name ends");
    assert_eq!(text, c"SIMULATED GPU 3");
    assert_eq!(sim.cuDeviceGetName(name.as_mut_ptr(), 64, 16), 101);
    assert_eq!(sim.cuDeviceGet(&raw mut count, -1), 101);
    let mut version = 0;
    assert_eq!(sim.cuDriverGetVersion(&raw mut version), 0);
    assert_eq!(version, 13_000);
    assert!(NAMES.len() > 45);
}

#[test]
fn bytes_come_back_as_they_went_in_the_order_of_the_stream() {
    let sim = sim();
    sim.enter(0);
    let stream = sim.stream();
    let event = sim.event();
    let len = (3 << 20) + 17;
    let (one, other) = (sim.allocate(len), sim.allocate(len));
    let (mut from, to) = (Pinned::new(sim, len), Pinned::new(sim, len));
    for round in 1..=20 {
        from.fill(round);
        assert_eq!(sim.cuMemcpyHtoDAsync_v2(one, from.bytes, len, stream), 0);
        assert_eq!(sim.cuMemcpyDtoDAsync_v2(other, one, len, stream), 0);
        assert_eq!(sim.cuMemsetD8Async(other + 1, 0xEE, 1, stream), 0);
        assert_eq!(sim.cuMemcpyDtoHAsync_v2(to.bytes, other, len, stream), 0);
        assert_eq!(sim.cuEventRecord(event, stream), 0);
        assert_eq!(sim.cuEventSynchronize(event), 0);
        assert_eq!(sim.cuEventQuery(event), 0);
        let mut expected = vec![round; len];
        expected[1] = 0xEE;
        assert!(to.get() == expected, "round {round}");
    }
    let stats = sim.stats(0);
    assert_eq!(stats.bytes_to_device, 20 * len as u64);
    assert_eq!(stats.bytes_to_host, 20 * len as u64);
    assert_eq!(stats.pageable_copies, 0);
}

#[test]
fn an_event_stands_for_its_latest_record() {
    let sim = sim();
    sim.enter(1);
    let (stream, event) = (sim.stream(), sim.event());
    assert_eq!(sim.cuEventQuery(event), 0, "never recorded is complete");
    sim.faults(1, "@record:never,nth=2");
    assert_eq!(sim.cuEventRecord(event, stream), 0);
    assert_eq!(sim.cuEventSynchronize(event), 0);
    assert_eq!(sim.cuEventRecord(event, stream), 0);
    assert_eq!(sim.cuEventQuery(event), NOT_READY);
    assert_eq!(sim.cuStreamQuery(stream), NOT_READY);
    sim.clear(1);
    assert_eq!(sim.cuEventSynchronize(event), 0);
    assert_eq!(sim.cuStreamSynchronize(stream), 0);
    assert_eq!(sim.cuStreamQuery(stream), 0);
    assert_eq!(sim.cuEventDestroy_v2(event), 0);
    assert_eq!(sim.cuEventQuery(event), 400);
    assert_eq!(sim.cuStreamDestroy_v2(stream), 0);
    assert_eq!(sim.cuStreamSynchronize(stream), 400);
    assert_eq!(sim.stats(1).stale_handles, 2);
}

#[test]
fn a_thread_needs_a_context_and_its_end_ends_what_is_in_it() {
    let sim = sim();
    assert_eq!(sim.cuCtxSynchronize(), 201);
    assert_eq!(sim.cuMemAlloc_v2(&mut 0, 1), 201);
    assert_eq!(sim.cuEventQuery(5), 201);
    assert_eq!(sim.cuDevicePrimaryCtxRelease_v2(2), 201);
    let context = sim.enter(2);
    assert_eq!(sim.enter(2), context, "there is one a device");
    let (event, memory) = (sim.event(), sim.allocate(10));
    assert_eq!(sim.stats(2).context_references, 2);
    assert_eq!(sim.cuDevicePrimaryCtxRelease_v2(2), 0);
    assert_eq!(sim.cuEventQuery(event), 0);
    assert_eq!(sim.cuDevicePrimaryCtxRelease_v2(2), 0);
    assert_eq!(sim.cuEventQuery(event), 709);
    assert_eq!(sim.cuCtxSetCurrent(context), 201);
    assert_eq!(sim.stats(2).live_allocations, 0);
    sim.enter(2);
    assert_eq!(sim.cuEventQuery(event), 400);
    assert_eq!(sim.cuMemFree_v2(memory), 1);
}

#[test]
fn what_is_another_device_s_is_no_handle_but_its_events_can_be_waited_for() {
    let sim = sim();
    sim.enter(3);
    let (far_stream, far_event) = (sim.stream(), sim.event());
    sim.faults(3, "@record:never");
    assert_eq!(sim.cuEventRecord(far_event, far_stream), 0);
    sim.enter(4);
    let (stream, event) = (sim.stream(), sim.event());
    assert_eq!(sim.cuEventRecord(far_event, stream), 400);
    assert_eq!(sim.cuEventRecord(event, far_stream), 400);
    assert_eq!(sim.cuStreamWaitEvent(stream, far_event, 0), 0);
    assert_eq!(sim.cuEventRecord(event, stream), 0);
    assert_eq!(sim.cuEventQuery(event), NOT_READY);
    sim.clear(3);
    assert_eq!(sim.cuEventSynchronize(event), 0);
}

#[test]
fn the_default_stream_and_blocking_streams_wait_for_each_other() {
    let sim = sim();
    sim.enter(5);
    let blocking = sim.made(|to| sim.cuStreamCreate(to, 0));
    let free = sim.stream();
    let memory = sim.allocate(1);
    let event = sim.event();
    sim.faults(5, "@fill:never,nth=1");
    assert_eq!(sim.cuMemsetD8Async(memory, 1, 1, blocking), 0);
    assert_eq!(sim.cuEventRecord(event, 0), 0);
    assert_eq!(sim.cuStreamSynchronize(free), 0);
    let aside = sim.event();
    assert_eq!(sim.cuEventRecord(aside, free), 0);
    assert_eq!(sim.cuEventSynchronize(aside), 0);
    assert_eq!(sim.cuEventQuery(event), NOT_READY, "waits for the other");
    sim.clear(5);
    assert_eq!(sim.cuEventSynchronize(event), 0);

    sim.faults(5, "@fill:never,nth=1");
    assert_eq!(sim.cuMemsetD8Async(memory, 1, 1, 0), 0);
    assert_eq!(sim.cuEventRecord(event, blocking), 0);
    assert_eq!(sim.cuEventRecord(aside, free), 0);
    assert_eq!(sim.cuEventSynchronize(aside), 0);
    assert_eq!(sim.cuEventQuery(event), NOT_READY, "the other waits for it");
    sim.clear(5);
    assert_eq!(sim.cuCtxSynchronize(), 0);
    assert_eq!(sim.cuEventQuery(event), 0);
}

#[test]
fn ranges_outside_of_an_allocation_are_refused() {
    let sim = sim();
    sim.enter(6);
    let memory = sim.allocate(1000);
    let mut host = vec![0; 2000];
    let bytes = host.as_mut_ptr();
    assert_eq!(sim.cuMemcpyHtoD_v2(memory, bytes, 1001), 1);
    assert_eq!(sim.cuMemcpyHtoD_v2(memory + 1, bytes, 1000), 1);
    assert_eq!(sim.cuMemcpyDtoH_v2(bytes, memory - 1, 2), 1);
    assert_eq!(sim.cuMemcpyDtoH_v2(bytes, bytes as usize, 2), 1);
    assert_eq!(sim.cuMemsetD8_v2(memory, 0, usize::MAX), 1);
    assert_eq!(sim.cuMemcpyHtoD_v2(memory, null_mut(), 5), 1);
    assert_eq!(sim.cuMemFree_v2(memory + 1), 1);
    assert_eq!(sim.cuMemAlloc_v2(&mut 0, 0), 1);
    assert_eq!(sim.cuMemAlloc_v2(null_mut(), 8), 1);
    assert_eq!(sim.cuMemAlloc_v2(&mut 0, 1 << 50), 2);
    assert_eq!(sim.cuMemsetD8_v2(memory, 7, 1000), 0);
    assert_eq!(sim.read(memory, 1000), vec![7; 1000]);
    let (mut base, mut len) = (0, 0);
    let asked = sim.cuMemGetAddressRange_v2(&raw mut base, &raw mut len, memory + 999);
    assert_eq!((asked, base, len), (0, memory, 1000));
    assert_eq!(sim.cuMemFree_v2(memory), 0);
    assert_eq!(sim.cuMemFree_v2(memory), 1);
}

#[test]
fn pinned_ranges_do_not_overlap_in_any_page() {
    let sim = sim();
    sim.enter(7);
    let mut memory = vec![0_u8; 5 * 4096];
    let start = memory.as_mut_ptr();
    let page = start.wrapping_add(start.align_offset(4096));
    assert_eq!(
        sim.cuMemHostRegister_v2(page.wrapping_add(4096), 5000, 0),
        0
    );
    for offset in [4096, 8192, 4096 + 5000] {
        let inside = page.wrapping_add(offset);
        assert_eq!(sim.cuMemHostRegister_v2(inside, 1, 0), 712, "{offset}");
    }
    assert_eq!(sim.cuMemHostRegister_v2(page, 4097, 0), 712);
    assert_eq!(sim.cuMemHostRegister_v2(page, 4096, 0), 0);
    assert_eq!(sim.stats(7).host_ranges, 2);
    assert_eq!(sim.cuMemHostUnregister(page.wrapping_add(8192)), 713);
    assert_eq!(sim.cuMemHostUnregister(page), 0);
    assert_eq!(sim.cuMemHostUnregister(page), 713);
    assert_eq!(sim.cuMemHostUnregister(page.wrapping_add(4096)), 0);
    assert_eq!(sim.cuMemHostRegister_v2(null_mut(), 1, 0), 1);
    assert_eq!(sim.cuMemHostRegister_v2(page, 0, 0), 1);
    let nowhere = sim.allocate(1 << 20);
    assert_eq!(sim.cuMemHostRegister_v2(4096 as *mut u8, 1, 0), 1);
    assert_eq!(sim.cuMemFree_v2(nowhere), 0);
}

#[test]
fn pointers_say_what_they_are() {
    let sim = sim();
    sim.enter(8);
    let about = |pointer: usize| {
        let (mut kind, mut ordinal) = (9_u32, 9_i32);
        let (mut start, mut pool) = (9_usize, 9_usize);
        let mut managed = 9_u8;
        let data = [
            (&raw mut kind).cast(),
            (&raw mut ordinal).cast(),
            (&raw mut start).cast(),
            (&raw mut pool).cast(),
            (&raw mut managed).cast(),
        ];
        let attributes = [2, 9, 11, 17, 8];
        let asked = sim.cuPointerGetAttributes(5, attributes.as_ptr(), data.as_ptr(), pointer);
        assert_eq!(asked, 0);
        assert!(managed < 2, "a boolean");
        (kind, ordinal, start, pool != 0, managed != 0)
    };
    let memory = sim.allocate(100);
    assert_eq!(about(memory + 99), (2, 8, memory, false, false));
    let pooled = sim.made(|to| sim.cuMemAllocAsync(to, 10, 0));
    assert_eq!(about(pooled), (2, 8, pooled, true, false));
    let managed = sim.made(|to| sim.cuMemAllocManaged(to, 10, 1));
    assert_eq!(about(managed + 9), (2, 8, managed, false, true));
    let pinned = Pinned::new(sim, 100);
    let start = pinned.bytes as usize;
    assert_eq!(about(start + 1), (1, 8, start, false, false));
    let plain = Box::new(0_u8);
    assert_eq!(about(&raw const *plain as usize), (0, -2, 0, false, false));
    assert_eq!(sim.cuMemFree_v2(memory), 0);
    assert_eq!(about(memory), (0, -2, 0, false, false));
}

#[test]
fn codes_have_names_and_unknown_ones_none() {
    let sim = sim();
    let mut text = std::ptr::null();
    assert_eq!(sim.cuGetErrorName(700, &raw mut text), 0);
    assert!(!text.is_null());
    assert_eq!(sim.cuGetErrorString(9999, &raw mut text), 1);
    assert!(text.is_null());
}

#[test]
fn threads_with_streams_of_their_own_do_not_disturb_each_other() {
    const DEVICE: i32 = 9;
    let sim = sim();
    let context = sim.enter(DEVICE);
    sim.faults(DEVICE, "@*:slow=100,chance=1/20; *:slow=50,chance=1/50");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                assert_eq!(sim.cuCtxSetCurrent(context), 0);
                for round in 0..50 {
                    there_and_back(sim, thread * 50 + round);
                }
            });
        }
    });
    let stats = sim.stats(DEVICE);
    assert!(
        stats.rules_fired[0] > 0 && stats.rules_fired[1] > 0,
        "{stats:?}"
    );
    let caught = [
        stats.late_writes,
        stats.late_reads,
        stats.early_accesses,
        stats.unregistered_in_use,
        stats.stale_handles,
    ];
    assert_eq!(caught, [0; 5]);
    let left = [
        stats.live_allocations,
        stats.live_bytes,
        stats.live_streams,
        stats.live_events,
        stats.host_ranges,
    ];
    assert_eq!(left, [0; 5]);
}

/// In by one stream, out by another, with an event between.
fn there_and_back(sim: &Sim, byte: u8) {
    const LEN: usize = 30_001;
    let (inward, outward) = (sim.stream(), sim.stream());
    let (arrived, gone) = (sim.event(), sim.event());
    let memory = sim.allocate(LEN);
    let (mut from, to) = (Pinned::new(sim, LEN), Pinned::new(sim, LEN));
    from.fill(byte);
    assert_eq!(sim.cuMemcpyHtoDAsync_v2(memory, from.bytes, LEN, inward), 0);
    assert_eq!(sim.cuEventRecord(arrived, inward), 0);
    assert_eq!(sim.cuStreamWaitEvent(outward, arrived, 0), 0);
    assert_eq!(sim.cuMemcpyDtoHAsync_v2(to.bytes, memory, LEN, outward), 0);
    assert_eq!(sim.cuEventRecord(gone, outward), 0);
    while sim.cuEventQuery(gone) == NOT_READY {
        std::thread::yield_now();
    }
    assert_eq!(sim.cuEventQuery(gone), 0);
    assert_eq!(to.get(), vec![byte; LEN]);
    assert_eq!(sim.cuMemFreeHost(from.bytes), 0);
    assert_eq!(sim.cuMemFreeHost(to.bytes), 0);
    assert_eq!(sim.cuMemFree_v2(memory), 0);
    for event in [arrived, gone] {
        assert_eq!(sim.cuEventDestroy_v2(event), 0);
    }
    for stream in [inward, outward] {
        assert_eq!(sim.cuStreamDestroy_v2(stream), 0);
    }
}
