//! Failure: with io_uring as the engine, memory, slots or descriptors are released before the ring
//! has given the completion; closing a ring does not wait for what is in flight.
//! Mechanism: the ring goes with the engine's last handle, or a cancel is taken for the end.
//! Method: the operations of the other files here, on an engine whose ring was asked for; the
//! kernel's workers wait for the file system on its behalf.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use futures::executor::block_on;
use tokio_cufile::{Engine, EngineBuilder, ErrorKind, HostBuffer, IoEngine, OpenOptions};
use tokio_cufile_tests::SlowFs;
use tokio_cufile_tests::life::{engine_threads, poll_once, until, until_idle};
use tokio_cufile_tests::slow_fs::{Kind, pattern};

const LEN: usize = 64 << 10;

fn ring() -> EngineBuilder {
    Engine::builder().io(IoEngine::Uring)
}

/// An engine, a read of the whole file in flight, and the buffer that it fills.
macro_rules! in_flight {
    ($fs:ident, $engine:ident, $file:ident, $buffer:ident, $read:ident, $held:ident, $builder:expr) => {
        let Some($fs) = SlowFs::mount(LEN) else {
            return;
        };
        let $engine = $builder.build_blocking().unwrap();
        let open = OpenOptions::new().read(true).write(true);
        let $file = block_on(open.open(&$engine, $fs.path())).unwrap();
        let mut $buffer = HostBuffer::new(&$engine, LEN).unwrap();
        $fs.hold(Kind::Read);
        let part = $buffer.part(0..LEN).unwrap();
        let $read = $file.read_at(part, 0).start();
        let $held = $fs.next_held();
    };
}

#[test]
fn a_dropped_read_keeps_its_buffer_until_its_completion() {
    in_flight!(fs, engine, file, buffer, read, held, ring());
    drop(read);
    assert_eq!(buffer.parts_out(), 1);
    assert_eq!(buffer.as_slice().unwrap_err().kind(), ErrorKind::Busy);
    fs.pass(Kind::Read);
    held.release();
    block_on(buffer.idle());
    assert!(buffer.as_slice().unwrap() == pattern(0, LEN));
    until_idle(&engine);
    drop(file);
    fs.wait_until_closed();
}

#[test]
fn a_cancelled_read_is_waited_for() {
    in_flight!(fs, engine, file, buffer, read, held, ring());
    let mut read = read;
    read.cancel_handle().cancel();
    assert!(poll_once(&mut read).is_pending());
    assert_eq!(buffer.parts_out(), 1);
    fs.pass(Kind::Read);
    held.release();
    let done = block_on(read).unwrap();
    assert!(done.buf.as_slice() == pattern(0, LEN));
    drop((done, file));
    until_idle(&engine);
}

#[test]
fn everything_dropped_ends_in_the_background() {
    in_flight!(fs, engine, file, buffer, read, held, ring());
    drop((read, file, engine));
    assert_eq!(buffer.parts_out(), 1);
    let canaries = [(); 16].map(|()| vec![0xA5_u8; LEN]);
    fs.pass(Kind::Read);
    held.release();
    block_on(buffer.idle());
    assert!(buffer.as_slice().unwrap() == pattern(0, LEN));
    assert!(canaries.iter().flatten().all(|&byte| byte == 0xA5));
    fs.wait_until_closed();
    until(|| engine_threads() == 0);
}

#[test]
fn several_in_flight_with_everything_dropped_write_their_own_bytes_only() {
    const PIECE: usize = 4096;
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(2).build().unwrap();
    let engine = ring().build_blocking().unwrap();
    let open = OpenOptions::new().read(true);
    let file = runtime.block_on(open.open(&engine, fs.path())).unwrap();
    let mut buffer = HostBuffer::new(&engine, LEN).unwrap();
    buffer.as_mut_slice().unwrap().fill(0xA5);
    fs.hold(Kind::Read);
    // Every second page is read; the others must not change.
    let places: Vec<usize> = (0..LEN).step_by(2 * PIECE).collect();
    for &at in &places {
        let part = buffer.part(at..at + PIECE).unwrap();
        runtime.spawn(file.read_at(part, at as u64).start());
    }
    let held = fs.next_held_of(places.len());
    runtime.shutdown_background();
    drop((file, engine));
    // What was released by mistake would be used again by these.
    let canaries = [(); 64].map(|()| vec![0xA5_u8; LEN]);
    fs.pass(Kind::Read);
    // Not in the order in which they were asked for.
    for held in held.into_iter().rev() {
        held.release();
    }
    block_on(buffer.idle());
    for at in (0..LEN).step_by(PIECE) {
        let found = &buffer.as_slice().unwrap()[at..at + PIECE];
        if places.contains(&at) {
            assert!(found == pattern(at, PIECE), "at {at}");
        } else {
            assert!(found.iter().all(|&byte| byte == 0xA5), "at {at}");
        }
    }
    assert!(canaries.iter().flatten().all(|&byte| byte == 0xA5));
    fs.wait_until_closed();
    until(|| engine_threads() == 0);
}

#[test]
fn a_shutdown_waits_and_counts() {
    in_flight!(fs, engine, file, buffer, read, held, ring());
    let mut shutdown = Box::pin(engine.shutdown());
    assert!(poll_once(&mut shutdown).is_pending());
    fs.pass(Kind::Read);
    held.release();
    let report = block_on(shutdown);
    assert_eq!((report.drained, report.quarantined), (1, 0));
    drop(block_on(read).unwrap());
    block_on(buffer.idle());
    drop(file);
}

#[test]
fn a_shutdown_quarantines_what_never_answers() {
    let builder = ring().quiet_limit(Duration::from_millis(20));
    in_flight!(fs, engine, file, buffer, read, held, builder);
    let report = block_on(engine.shutdown());
    assert_eq!((report.drained, report.quarantined), (0, 1));
    let (error, part) = block_on(read).unwrap_err().into_parts();
    assert_eq!(error.kind(), ErrorKind::Quarantined);
    assert!(part.is_none());
    drop(file);
    fs.pass(Kind::Read);
    held.release();
    assert_eq!(buffer.parts_out(), 1, "never reused");
    // The answer that came too late lets the ring thread end.
    drop(engine);
    until(|| engine_threads() == 0);
}

#[test]
fn a_dropped_write_that_fails_is_told_by_the_next_sync() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let engine = ring().build_blocking().unwrap();
    let open = OpenOptions::new().write(true);
    let file = block_on(open.open(&engine, fs.path())).unwrap();
    fs.hold(Kind::Write);
    let write = file.write_at(vec![1; 4096], 8192).start();
    let failing = fs.next_held();
    drop(write);
    failing.fail(fuser::Errno::EIO);
    let error = block_on(file.sync_data()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OrphanedWrite);
    assert_eq!(error.offset(), Some(8192));
    until_idle(&engine);
}
