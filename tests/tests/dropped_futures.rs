//! Failure: a future is dropped, its buffer is freed or reused, and the kernel writes to it later;
//! or its slot and permits never come back.
//! Mechanism: the buffer lives in the future, or its release follows the drop instead of the I/O.
//! Method: a future is dropped in each of its states while the file system holds the read. The
//! buffer is a part of a larger one, which says when the part is back, or memory whose reuse would
//! show. The control does what a broken engine would do and must be seen.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    unsafe_code,
    reason = "the control reads into memory that it has given away"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "forgetting a future is one of the cases"
)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;

use futures::executor::block_on;
use tokio_cufile::{CacheMode, Engine, ErrorKind, HostBuffer, OpenOptions};
use tokio_cufile_tests::SlowFs;
use tokio_cufile_tests::life::{open, poll_once, until, until_idle};
use tokio_cufile_tests::slow_fs::{Kind, pattern};

const LEN: usize = 64 << 10;

#[test]
fn before_the_first_poll_nothing_is_issued_and_the_buffer_is_free() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder().num_threads(1));
    let mut buffer = HostBuffer::new(&engine, LEN).unwrap();
    drop(file.read_at(buffer.part(0..LEN).unwrap(), 0));
    block_on(buffer.idle());
    until_idle(&engine);
    assert_eq!(fs.count(Kind::Read), 0);
}

#[test]
fn queued_it_is_withdrawn_at_once() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder().num_threads(1));
    fs.hold(Kind::Read);
    let running = file
        .read_at(HostBuffer::new(&engine, LEN).unwrap(), 0)
        .start();
    let held = fs.next_held();
    let mut buffer = HostBuffer::new(&engine, LEN).unwrap();
    let queued = file.read_at(buffer.part(0..LEN).unwrap(), 0).start();
    assert_eq!(engine.stats().operations_queued, 1);
    drop(queued);
    assert_eq!(engine.stats().operations_queued, 0);
    // While the worker is still stuck.
    block_on(buffer.idle());
    held.release();
    assert_eq!(block_on(running).unwrap().bytes, LEN);
    until_idle(&engine);
    assert_eq!(fs.count(Kind::Read), 1);
}

#[test]
fn in_flight_its_buffer_is_kept_until_the_read_has_returned() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder().num_threads(1));
    let mut buffer = HostBuffer::new(&engine, LEN).unwrap();
    fs.hold(Kind::Read);
    let mut read = file.read_at(buffer.part(0..LEN).unwrap(), 0);
    assert!(poll_once(&mut read).is_pending());
    let held = fs.next_held();
    drop(read);
    assert_eq!(buffer.parts_out(), 1);
    assert_eq!(buffer.as_slice().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(buffer.part(0..1).unwrap_err().kind(), ErrorKind::Busy);
    let stats = engine.stats();
    assert_eq!((stats.operations_live, stats.parts.in_flight), (1, 1));
    held.release();
    block_on(buffer.idle());
    assert!(buffer.as_slice().unwrap() == pattern(0, LEN));
    until_idle(&engine);
}

#[test]
fn in_flight_through_a_slot_both_are_kept_and_the_copy_is_left_out() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder().num_threads(1));
    let mut buffer = HostBuffer::new(&engine, LEN).unwrap();
    fs.hold(Kind::Read);
    let read = file.read_at(buffer.part(1..9000).unwrap(), 10).start();
    let held = fs.next_held();
    assert_eq!(engine.stats().small_slots.in_flight, 1);
    drop(read);
    assert_eq!(engine.stats().small_slots.in_flight, 1);
    assert_eq!(buffer.parts_out(), 1);
    held.release();
    block_on(buffer.idle());
    assert!(buffer.as_slice().unwrap() == vec![0; LEN]);
    until_idle(&engine);
}

#[test]
fn a_split_one_issues_no_further_part_and_keeps_its_buffer_for_the_last() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder().num_threads(3).task_size(4096));
    let mut buffer = HostBuffer::new(&engine, LEN).unwrap();
    fs.hold(Kind::Read);
    let read = file.read_at(buffer.part(0..LEN).unwrap(), 0).start();
    let mut held = fs.next_held_of(3);
    drop(read);
    held.remove(1).release();
    held.remove(0).release();
    until(|| engine.stats().parts.in_flight == 1);
    assert_eq!(buffer.parts_out(), 1);
    held.remove(0).release();
    block_on(buffer.idle());
    until_idle(&engine);
    assert_eq!(fs.count(Kind::Read), 3);
}

#[test]
fn completed_and_unread_it_gives_the_buffer_back() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder().num_threads(1));
    let mut buffer = HostBuffer::new(&engine, LEN).unwrap();
    let read = file.read_at(buffer.part(0..LEN).unwrap(), 0).start();
    until_idle(&engine);
    assert_eq!(buffer.parts_out(), 1, "the result holds it");
    drop(read);
    block_on(buffer.idle());
    assert!(buffer.as_slice().unwrap() == pattern(0, LEN));
}

#[test]
fn forgotten_it_leaks_its_result_and_no_permit() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder().num_threads(1));
    let mut buffer = HostBuffer::new(&engine, LEN).unwrap();
    fs.hold(Kind::Read);
    let read = file.read_at(buffer.part(1..100).unwrap(), 0).start();
    let held = fs.next_held();
    std::mem::forget(read);
    held.release();
    until_idle(&engine);
    assert_eq!(buffer.parts_out(), 1);
}

#[test]
fn an_open_that_nobody_awaits_any_more_closes_its_file() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let engine = Engine::builder().num_threads(1).build_blocking().unwrap();
    fs.hold(Kind::Open);
    let open = OpenOptions::new()
        .read(true)
        .open(&engine, fs.path())
        .start();
    let held = fs.next_held();
    drop(open);
    fs.pass(Kind::Open);
    held.release();
    fs.wait_until_closed();
    until_idle(&engine);
}

#[test]
fn freed_memory_is_not_written_when_the_reads_arrive() {
    const READS: usize = 48;
    const SIZE: usize = 16 << 10;
    let Some(fs) = SlowFs::mount(SIZE) else {
        return;
    };
    let engine = Engine::builder().num_threads(64).build_blocking().unwrap();
    // Cached: the kernel writes to the vector itself, not to a slot.
    let open = OpenOptions::new().read(true).cache(CacheMode::Cached);
    let file = block_on(open.open(&engine, fs.path())).unwrap();
    fs.hold(Kind::Read);
    let reads = [(); READS].map(|()| file.read_at(vec![0; SIZE], 0).start());
    let held = fs.next_held_of(READS);
    drop(reads);
    let canaries = [(); 4 * READS].map(|()| vec![0xA5_u8; SIZE]);
    drop(held);
    until_idle(&engine);
    assert!(canaries.iter().flatten().all(|&byte| byte == 0xA5));
}

#[test]
fn control_memory_reused_before_the_read_arrives_is_seen() {
    let Some(fs) = SlowFs::mount(4096) else {
        return;
    };
    let memory: Arc<[AtomicU8]> = (0..4096).map(|_| AtomicU8::new(0)).collect();
    let file = File::open(fs.path()).unwrap();
    fs.hold(Kind::Read);
    let given_away = Arc::clone(&memory);
    let reader = thread::spawn(move || {
        let to = given_away.as_ptr().cast_mut().cast();
        // SAFETY: the memory is 4096 atomics, which may change at any time, and outlives the call.
        unsafe { libc::pread(file.as_raw_fd(), to, 4096, 0) }
    });
    let held = fs.next_held();
    for byte in &*memory {
        byte.store(0xA5, Ordering::SeqCst);
    }
    held.release();
    assert_eq!(reader.join().unwrap(), 4096);
    let intact = memory
        .iter()
        .all(|byte| byte.load(Ordering::SeqCst) == 0xA5);
    assert!(!intact, "the read arrived late and nothing showed it");
}

#[test]
fn a_storm_of_drops_at_every_instant_loses_no_permit_and_no_byte() {
    const OPERATIONS: usize = 2000;
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder().num_threads(4).task_size(8192));
    let mut buffer = HostBuffer::new(&engine, LEN).unwrap();
    let mut canary = buffer.part(0..4096).unwrap();
    canary.as_mut_slice().fill(0xA5);
    let seed = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = seed;
    for round in 0..OPERATIONS {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let start = 4096 + usize::try_from(random % 4096).unwrap();
        let Ok(part) = buffer.part(start..start + 30_000) else {
            // The read before this one is still in flight, as it may be.
            until(|| buffer.parts_out() == 1);
            continue;
        };
        let mut read = file.read_at(part, random >> 52);
        match round % 5 {
            0 => {}
            1 => drop(read.start()),
            2 => drop(poll_once(&mut read)),
            3 => {
                let read = read.start();
                until(|| engine.stats().operations_queued == 0);
                drop(read);
            }
            _ => assert_eq!(block_on(read).unwrap().bytes, 30_000),
        }
    }
    until_idle(&engine);
    until(|| buffer.parts_out() == 1);
    assert!(
        canary.as_slice().iter().all(|&byte| byte == 0xA5),
        "seed {seed:#x}"
    );
}
