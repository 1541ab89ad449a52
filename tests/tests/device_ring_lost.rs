//! Failure: a ring thread that is refused by the kernel takes its lanes with it, and with them slots
//! and device memory that copies still use.
//! Mechanism: who goes tears down; an event that nobody asks for is taken for the end.
//! Method: a copy that the simulator holds; from then on the kernel refuses the ring, by a seccomp
//! filter. The copy ends after the engine is gone.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use tokio_cufile::{Engine, ErrorKind};
use tokio_cufile_tests::bench::block_on;
use tokio_cufile_tests::life::{engine_threads, until};
use tokio_cufile_tests::rig::{Rig, Way};
use tokio_cufile_tests::syscalls::{self, Refusal, supervise};
use tokio_cufile_tests::{Sim, pattern};

const BLOCK: usize = 4096;

static REFUSED: AtomicBool = AtomicBool::new(false);

fn refusal() -> Refusal {
    Refusal {
        calls: &[libc::SYS_io_uring_enter],
        matches: |_| REFUSED.load(Ordering::Relaxed),
        errno: Errno::PERM,
        nth: 1,
        for_good: true,
    }
}

fn copy_and_lose_the_ring(sim: &'static Sim) {
    let builder = Engine::builder().num_threads(2).task_size(BLOCK);
    let builder = builder.bounce_buffer_size(BLOCK).budget(1 << 20);
    let rig = Rig::new(sim, Way::Ring, builder, BLOCK);
    let (buffer, other) = (rig.buffer(BLOCK), rig.buffer(BLOCK));
    let address = buffer.address();
    let filled = rig.device.stats().bytes_to_device;
    rig.device.fault("@htod:never");
    let read = rig.file.read_at(buffer, 0).start();
    until(|| rig.device.stats().faults_fired == 1);
    REFUSED.store(true, Ordering::Relaxed);
    // It wakes the thread, which is refused.
    drop(rig.file.read_at(vec![0; BLOCK], 0).start());
    let failed = block_on(read).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::Quarantined);
    assert!(failed.into_parts().1.is_none());
    // The device is well, and the pool serves it.
    let mut beside = rig.file.read_exact_at(other, 0).start();
    assert!(tokio_cufile_tests::life::poll_once(&mut beside).is_pending());
    rig.device.clear();
    let done = block_on(beside).unwrap();
    pattern::assert_same(&rig.content_of(done.buf), &rig.content);
    let report = block_on(rig.engine.shutdown());
    assert!((1..=2).contains(&report.quarantined), "{report:?}");
    let Rig {
        device,
        engine,
        file,
        content,
        ..
    } = rig;
    drop((engine, file));
    until(|| engine_threads() == 0);
    // Both copies were made, the one that was given up into memory that is there.
    until(|| device.stats().bytes_to_device == filled + 2 * BLOCK as u64);
    pattern::assert_same(&device.peek(address, BLOCK), &content);
    let stats = device.stats();
    assert_eq!(
        (stats.live_allocations, stats.host_ranges),
        (1, 1),
        "{stats:?}"
    );
    device.assert_no_harm();
    device.renew();
}

#[test]
fn a_lost_ring_leaves_slots_and_device_memory_to_the_copies_under_way() {
    let Some(sim) = Sim::need() else {
        return;
    };
    if !syscalls::need() {
        return;
    }
    let work = || copy_and_lose_the_ring(sim);
    supervise(refusal(), "a lost ring", work).unwrap();
}
