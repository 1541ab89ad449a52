//! Failure: a program is wrong about when memory is read, written or free, and no test shows it.
//! Method: hold work up with a fault, do the wrong thing meanwhile, and see it caught.
#![allow(
    unsafe_code,
    reason = "touches device memory, as a broken program would"
)]

mod support;

use std::ffi::c_void;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;

use support::{NOT_READY, Pinned, sim};
use xtask::again::{self, is_again};

const LEN: usize = 10_000;

#[test]
fn the_host_cannot_touch_device_memory() {
    let sim = sim();
    sim.enter(0);
    let memory = sim.allocate(LEN);
    if is_again() {
        // SAFETY: this is what must not be possible; the process ends here.
        let byte = unsafe { (memory as *const u8).read_volatile() };
        panic!("device memory was read: {byte}");
    }
    let file = std::fs::File::open("/proc/self/exe").expect("a process has a program");
    // SAFETY: the kernel refuses the address.
    let read = unsafe { libc::pread(file.as_raw_fd(), memory as *mut c_void, 100, 0) };
    let error = std::io::Error::last_os_error();
    assert_eq!((read, error.raw_os_error()), (-1, Some(libc::EFAULT)));
    let ended = again::run("the_host_cannot_touch_device_memory", &[]).status;
    assert_eq!(ended.signal(), Some(libc::SIGSEGV), "{ended}");
}

#[test]
fn pinned_memory_is_read_late_and_other_memory_at_the_call() {
    let sim = sim();
    sim.enter(1);
    let (stream, memory) = (sim.stream(), sim.allocate(LEN));
    let mut pinned = Pinned::new(sim, LEN);
    pinned.fill(1);
    sim.faults(1, "@htod:never");
    assert_eq!(
        sim.cuMemcpyHtoDAsync_v2(memory, pinned.bytes, LEN, stream),
        0
    );
    pinned.fill(2);
    sim.clear(1);
    assert_eq!(sim.cuStreamSynchronize(stream), 0);
    assert_eq!(sim.read(memory, LEN), vec![2; LEN]);
    assert_eq!(sim.stats(1).pageable_copies, 0);

    let mut plain = vec![3_u8; LEN];
    sim.faults(1, "@htod:never");
    assert_eq!(
        sim.cuMemcpyHtoDAsync_v2(memory, plain.as_ptr(), LEN, stream),
        0
    );
    plain.fill(4);
    sim.clear(1);
    let asked = sim.cuMemcpyDtoHAsync_v2(plain.as_mut_ptr(), memory, LEN, stream);
    assert_eq!((asked, plain), (0, vec![3; LEN]));
    assert_eq!(sim.stats(1).pageable_copies, 2);
}

#[test]
fn a_copy_to_freed_memory_is_caught() {
    let sim = sim();
    sim.enter(2);
    let stream = sim.stream();
    let (gone, kept) = (sim.allocate(LEN), sim.allocate(LEN));
    sim.faults(2, "@dtod:never,nth=1");
    assert_eq!(sim.cuMemcpyDtoDAsync_v2(gone, kept, LEN, stream), 0);
    assert_eq!(sim.cuMemcpyDtoDAsync_v2(kept, gone, LEN, stream), 0);
    assert_eq!(sim.cuMemFree_v2(gone), 0);
    let before = sim.stats(2);
    assert_eq!((before.late_writes, before.late_reads), (0, 0));
    sim.clear(2);
    assert_eq!(sim.cuStreamSynchronize(stream), 0);
    let after = sim.stats(2);
    assert_eq!((after.late_writes, after.late_reads), (1, 1));
}

/// A program that is right about its copies is not called wrong for ending their context.
#[test]
fn the_end_of_a_context_waits_for_the_copies_that_have_begun() {
    const LONG: usize = 64 << 20;
    let sim = sim();
    for _ in 0..8 {
        sim.enter(10);
        let memory = sim.allocate(LONG);
        // Of a stream that was destroyed, too.
        let (kept, gone) = (sim.stream(), sim.stream());
        let before = sim.stats(10).bytes_on_device;
        assert_eq!(sim.cuMemsetD8Async(memory, 1, LONG, kept), 0);
        for _ in 0..4 {
            let (from, to) = (memory, memory + LONG / 2);
            assert_eq!(sim.cuMemcpyDtoDAsync_v2(to, from, LONG / 2, gone), 0);
        }
        assert_eq!(sim.cuStreamDestroy_v2(gone), 0);
        while sim.stats(10).bytes_on_device == before {
            std::thread::yield_now();
        }
        assert_eq!(sim.cuDevicePrimaryCtxRelease_v2(10), 0);
        let stats = sim.stats(10);
        assert_eq!(stats.live_allocations, 0);
        assert_eq!((stats.late_writes, stats.late_reads), (0, 0));
    }
}

#[test]
fn who_writes_by_another_way_is_caught_by_the_canaries() {
    let sim = sim();
    sim.enter(3);
    for (len, at) in [(LEN, 77), (3 << 20, 2 << 20)] {
        let memory = sim.allocate(len);
        // SAFETY: the signature is that of the library.
        let bytes = unsafe {
            sim.library
                .get::<unsafe extern "C" fn(usize) -> *mut u8>("sim_cuda_bytes\0")
        };
        let bytes = bytes.expect("the function is exported");
        // SAFETY: a pointer that is live.
        let bytes = unsafe { bytes(memory) };
        let caught = sim.stats(3).late_writes;
        assert_eq!(sim.cuMemFree_v2(memory), 0);
        assert_eq!(sim.stats(3).late_writes, caught);
        // SAFETY: freed memory is kept for a while, and nobody else knows of it.
        unsafe { bytes.wrapping_add(at).write(0) };
        assert_eq!(sim.stats(3).late_writes, caught + 1);
        assert_eq!(sim.stats(3).late_writes, caught + 1, "it is said once");
    }
}

#[test]
fn freed_memory_is_known_for_a_while_and_does_not_pile_up() {
    unsafe extern "C" fn nothing(_bytes: *mut c_void, _argument: *mut c_void) {}
    let sim = sim();
    sim.enter(4);
    let freed: Vec<usize> = (0..200)
        .map(|_| {
            let memory = sim.allocate(LEN);
            assert_eq!(sim.cuMemFree_v2(memory), 0);
            memory
        })
        .collect();
    let access = |memory| sim.sim_cuda_access(memory, 1, 0, nothing, std::ptr::null_mut());
    assert_eq!(access(freed[199]), 700);
    assert_eq!(access(freed[199 - 63]), 700);
    assert_eq!(access(freed[199 - 64]), 1, "forgotten");
    assert_eq!(sim.stats(4).late_reads, 2);
    let (mut free, mut total) = (0, 0);
    assert_eq!(sim.cuMemGetInfo_v2(&raw mut free, &raw mut total), 0);
    assert_eq!(free, total);
}

#[test]
fn another_library_is_let_at_live_memory_only() {
    unsafe extern "C" fn write(bytes: *mut c_void, argument: *mut c_void) {
        // SAFETY: there is one byte at least, and the argument is the test's.
        unsafe { bytes.cast::<u8>().copy_from(argument.cast(), 1) };
    }
    let sim = sim();
    sim.enter(5);
    let memory = sim.allocate(LEN);
    let mut byte = 9_u8;
    let argument = (&raw mut byte).cast();
    assert_eq!(sim.sim_cuda_access(memory + 5, 1, 1, write, argument), 0);
    assert_eq!(sim.read(memory + 5, 1), [9]);
    assert_eq!(sim.sim_cuda_access(memory, LEN + 1, 1, write, argument), 1);
    assert_eq!(sim.cuMemFree_v2(memory), 0);
    assert_eq!(sim.sim_cuda_access(memory + 5, 1, 1, write, argument), 700);
    assert_eq!(sim.stats(5).late_writes, 1);
}

#[test]
fn memory_that_is_freed_under_an_access_is_caught() {
    unsafe extern "C" fn free(_bytes: *mut c_void, pointer: *mut c_void) {
        assert_eq!(sim().cuMemFree_v2(pointer as usize), 0);
    }
    let sim = sim();
    sim.enter(9);
    let memory = sim.allocate(LEN);
    let argument = memory as *mut c_void;
    assert_eq!(sim.sim_cuda_access(memory, LEN, 1, free, argument), 700);
    assert_eq!(sim.stats(9).late_writes, 1);
}

#[test]
fn pinned_memory_that_ends_under_a_copy_is_caught() {
    let sim = sim();
    sim.enter(6);
    let (stream, memory) = (sim.stream(), sim.allocate(LEN));
    let mut host = vec![0_u8; LEN];
    let bytes = host.as_mut_ptr();
    assert_eq!(sim.cuMemHostRegister_v2(bytes, LEN, 1), 0);
    sim.faults(6, "@htod:never");
    assert_eq!(sim.cuMemcpyHtoDAsync_v2(memory, bytes, LEN, stream), 0);
    assert_eq!(sim.cuMemHostUnregister(bytes), 0);
    assert_eq!(sim.stats(6).unregistered_in_use, 1);
    sim.clear(6);
    assert_eq!(sim.cuStreamSynchronize(stream), 0);
    assert_eq!(sim.cuMemHostRegister_v2(bytes, LEN, 1), 0);
    assert_eq!(sim.cuMemcpyHtoDAsync_v2(memory, bytes, LEN, stream), 0);
    assert_eq!(sim.cuStreamSynchronize(stream), 0);
    assert_eq!(sim.cuMemHostUnregister(bytes), 0);
    assert_eq!(sim.stats(6).unregistered_in_use, 1);
}

#[test]
fn stream_ordered_memory_is_there_from_its_allocation_to_its_end() {
    let sim = sim();
    sim.enter(7);
    let (own, other) = (sim.stream(), sim.stream());
    sim.faults(7, "@alloc:never");
    let memory = sim.made(|to| sim.cuMemAllocAsync(to, LEN, own));
    assert_eq!(sim.cuMemsetD8Async(memory, 1, LEN, other), 0);
    assert_eq!(sim.cuStreamSynchronize(other), 0);
    assert_eq!(sim.stats(7).early_accesses, 1);
    sim.clear(7);
    let pinned = Pinned::new(sim, LEN);
    assert_eq!(sim.cuMemsetD8Async(memory, 2, LEN, own), 0);
    assert_eq!(sim.cuMemcpyDtoHAsync_v2(pinned.bytes, memory, LEN, own), 0);
    assert_eq!(sim.cuMemFreeAsync(memory, own), 0);
    assert_eq!(
        sim.cuMemsetD8Async(memory, 3, LEN, own),
        1,
        "it is given up"
    );
    assert_eq!(sim.cuStreamSynchronize(own), 0);
    assert_eq!(pinned.get(), vec![2; LEN]);
    let stats = sim.stats(7);
    assert_eq!((stats.early_accesses, stats.late_writes), (1, 0));
    assert_eq!(stats.live_allocations, 0);
}

#[test]
fn what_was_never_written_is_no_zero() {
    let sim = sim();
    sim.enter(8);
    let memory = sim.allocate(LEN);
    assert!(sim.read(memory, LEN).iter().all(|byte| *byte != 0));
    assert_eq!(sim.cuStreamQuery(0) % NOT_READY, 0);
}
