//! Processes that end with libcufile in use.
//!
//! Failure: a program that has done its work, and crashes or hangs on its way out.
//! Mechanism: some versions crash at exit where they were left open while counting; every version does
//! where it is closed by then, by a destructor or another thread.
//! Method: programs that leave in each way with files, buffers and operations at hand, on each version
//! that differs. The simulator aborts where the real library was seen to crash.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::disallowed_methods,
    reason = "a parent says how to leave, and what is left is not dropped"
)]

use std::env;
use std::mem::forget;
use std::time::Duration;

use tokio_cufile::{CuFileStats, ErrorKind};
use tokio_cufile_tests::bench::block_on;
use tokio_cufile_tests::cufile::{self, enqueue, enter_each};
use tokio_cufile_tests::life::until;
use tokio_cufile_tests::{Bed, World, pattern};

const LEN: usize = 64 << 10;

/// A world for each version and each of the words.
fn worlds(versions: &[&'static str], words: &[&str]) -> Vec<World> {
    let mut worlds = Vec::new();
    for version in versions {
        for how in words {
            let world = World::new().version(version).by("nvidia-fs");
            worlds.push(world.with("HOW", how));
        }
    }
    worlds
}

fn how() -> String {
    env::var("HOW").unwrap()
}

fn bed(here: &std::path::Path, stats: CuFileStats) -> Bed {
    let mut config = cufile::with_nvidia_fs(here);
    config.stats = stats;
    Bed::new(here, |builder| {
        builder
            .cufile(config)
            .quiet_limit(Duration::from_millis(20))
    })
}

const VERSIONS: [&str; 4] = ["1.11", "1.15", "1.16", "1.20"];

#[test]
fn without_a_shutdown_a_process_ends_as_asked() {
    let words = [
        "forgotten return",
        "forgotten exit",
        "dropped return",
        "dropped exit",
    ];
    let Some(here) = enter_each(&worlds(&VERSIONS, &words)) else {
        return;
    };
    let bed = bed(&here, CuFileStats::On);
    let file = bed.file("file", &pattern::bytes(1, LEN));
    let buffer = bed.buffer(&vec![0; LEN]);
    block_on(buffer.register(&bed.engine)).unwrap();
    let done = block_on(file.read_exact_at(buffer, 0)).unwrap();
    let how = how();
    if how.starts_with("forgotten") {
        forget((bed, file, done));
    } else {
        drop((bed.engine, file, done));
        forget((bed.device, bed.cufile));
    }
    if how.ends_with("exit") {
        // As the harness would say it.
        println!("1 passed");
        std::process::exit(0);
    }
}

#[test]
fn with_operations_under_way_a_process_ends_as_asked() {
    let words = ["call return", "call exit", "stream return", "stream exit"];
    let Some(here) = enter_each(&worlds(&VERSIONS, &words)) else {
        return;
    };
    let bed = bed(&here, CuFileStats::On);
    let file = bed.file("file", &pattern::bytes(1, LEN));
    let buffer = bed.buffer(&vec![0; LEN]);
    block_on(buffer.register(&bed.engine)).unwrap();
    let how = how();
    if how.starts_with("call") {
        bed.cufile.fault("cuFileRead:never");
        let read = file.read_exact_at(buffer, 0).start();
        until(|| bed.fired() == 1);
        forget(read);
    } else {
        let stream = bed.device.user().stream();
        bed.cufile.fault("@read:never");
        let read = enqueue(file.read_exact_at(buffer, 0), stream);
        forget(block_on(read).unwrap());
        until(|| bed.fired() == 1);
    }
    forget((bed, file));
    if how.ends_with("exit") {
        println!("1 passed");
        std::process::exit(0);
    }
}

#[test]
fn after_a_shutdown_a_process_ends_as_asked_with_whatever_it_still_has() {
    let Some(here) = enter_each(&worlds(&VERSIONS, &["return", "exit"])) else {
        return;
    };
    let bed = bed(&here, CuFileStats::OnWithShutdown);
    let file = bed.file("file", &pattern::bytes(1, LEN));
    let other = bed.open("file").unwrap();
    let buffer = bed.buffer(&vec![0; LEN]);
    block_on(buffer.register(&bed.engine)).unwrap();
    let done = block_on(file.read_exact_at(buffer, 0)).unwrap();
    // Dropped in flight.
    drop(other.read_at(bed.buffer(&vec![0; LEN]), 0).start());
    assert_eq!(block_on(bed.engine.shutdown()).quarantined, 0);
    let stats = bed.cufile.report();
    let left = (stats.opens, stats.files, stats.buffers);
    assert_eq!(left, (0, 0, 0), "{stats:?}");
    bed.cufile.assert_no_harm();
    let late = block_on(file.read_at(vec![0; LEN], 0)).unwrap_err();
    assert_eq!(late.error().kind(), ErrorKind::ShuttingDown);
    forget((bed, file, other, done));
    if how() == "exit" {
        println!("1 passed");
        std::process::exit(0);
    }
}
