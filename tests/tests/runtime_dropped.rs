//! Failure: the runtime is dropped with I/O in flight: its tasks die, their buffers with them, and
//! the kernel writes on.
//! Mechanism: the runtime owns the buffers through the tasks, or the driver that reaps.
//! Method: every task waits for a read that the file system holds; the runtime is dropped.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use futures::executor::block_on;
use tokio::runtime::{Builder, Runtime};
use tokio_cufile::{Engine, HostBuffer};
use tokio_cufile_tests::SlowFs;
use tokio_cufile_tests::life::{open, until_idle};
use tokio_cufile_tests::slow_fs::{Kind, pattern};

const BLOCK: usize = 4096;

fn dropped_with_reads_in_flight(runtime: Runtime, reads: usize) {
    let Some(fs) = SlowFs::mount(64 * BLOCK) else {
        return;
    };
    // An eighth more is kept for urgent operations.
    let (engine, file) = open(&fs, Engine::builder().num_threads(80));
    let mut buffer = HostBuffer::new(&engine, reads * BLOCK).unwrap();
    fs.hold(Kind::Read);
    for at in (0..reads).map(|index| index * BLOCK) {
        let read = file.read_at(buffer.part(at..at + BLOCK).unwrap(), at as u64);
        // A task of a current-thread runtime does not run by itself.
        runtime.spawn(read.start());
    }
    let held = fs.next_held_of(reads);
    drop(runtime);
    assert_eq!(buffer.parts_out(), reads);
    assert_eq!(engine.stats().operations_live, reads);
    let canaries = [(); 64].map(|()| vec![0xA5_u8; BLOCK]);
    drop(held);
    block_on(buffer.idle());
    assert!(buffer.as_slice().unwrap() == pattern(0, reads * BLOCK));
    assert!(canaries.iter().flatten().all(|&byte| byte == 0xA5));
    until_idle(&engine);

    // The engine belonged to no runtime, and goes on under another.
    fs.pass(Kind::Read);
    let second = Builder::new_current_thread().build().unwrap();
    let done = second.block_on(file.read_at(vec![0; BLOCK], 0)).unwrap();
    assert!(done.buf == pattern(0, BLOCK));
}

#[test]
fn a_multi_threaded_runtime() {
    for reads in [1, 7, 64] {
        let runtime = Builder::new_multi_thread().worker_threads(2).build();
        dropped_with_reads_in_flight(runtime.unwrap(), reads);
    }
}

#[test]
fn a_current_thread_runtime() {
    for reads in [1, 7, 64] {
        let runtime = Builder::new_current_thread().build();
        dropped_with_reads_in_flight(runtime.unwrap(), reads);
    }
}

#[test]
fn an_engine_built_inside_a_runtime_survives_it() {
    let runtime = Builder::new_current_thread().build().unwrap();
    let engine = runtime.block_on(Engine::builder().num_threads(1).build());
    drop(runtime);
    let engine = engine.unwrap();
    assert_eq!(block_on(engine.shutdown()).quarantined, 0);
}
