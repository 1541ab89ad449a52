//! Processes that end with libcufile in use.
//!
//! Failure: a program that has done its work, and crashes or hangs on its way out.
//! Mechanism: some versions crash at exit where they were left open while counting; every version does
//! where it is closed by then, by a destructor or another thread, and where one of its calls still runs.
//! Method: programs that leave in each way with files, buffers and operations at hand, on each version
//! that differs. The simulator aborts where the real library was seen to crash.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::disallowed_methods,
    reason = "a parent says how to leave, and what is left is not dropped"
)]

use std::env;
use std::io::Write;
use std::mem::forget;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio_cufile::{CuFileStats, DataPath, ErrorKind};
use tokio_cufile_tests::bench::{self, block_on};
use tokio_cufile_tests::cufile::{self, enqueue, enter_each};
use tokio_cufile_tests::cufile_sim::CufileSim;
use tokio_cufile_tests::life::until;
use tokio_cufile_tests::{Bed, World, pattern};
use xtask::simulator;

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

fn exit_if_asked(how: &str) {
    if how.ends_with("exit") {
        // As the harness would say it.
        println!("1 passed");
        std::process::exit(0);
    }
}

fn bed(here: &Path, stats: CuFileStats) -> Bed {
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
    exit_if_asked(&how);
}

/// 1.15 keeps the level of its statistics when it is closed.
#[test]
fn without_a_shutdown_a_process_that_counted_before_ends_as_asked() {
    let Some(here) = enter_each(&worlds(&["1.15", "1.20"], &["return"])) else {
        return;
    };
    let first = bed(&here, CuFileStats::OnWithShutdown);
    drop(first.file("file", &pattern::bytes(1, LEN)));
    first.end();
    let second = bed(&here, CuFileStats::Off);
    let file = second.open("file").unwrap();
    forget((second, file));
}

/// Asked for by a file, or by an engine that nobody shuts down.
#[test]
fn a_version_that_crashes_at_exit_ends_as_asked_without_a_shutdown() {
    let mut all = worlds(&["1.15"], &["engine return", "engine exit"]);
    for world in worlds(&["1.15", "1.20"], &["file return", "file exit"]) {
        all.push(world.with("TOKIO_CUFILE_SIM_CUFILE_STATS", "3"));
    }
    let Some(here) = enter_each(&all) else {
        return;
    };
    let how = how();
    let stats = match how.starts_with("file") {
        true => CuFileStats::Off,
        false => CuFileStats::OnWithShutdown,
    };
    let bed = bed(&here, stats);
    let file = bed.file("file", &pattern::bytes(1, LEN));
    let done = block_on(file.read_exact_at(bed.buffer(&vec![0; LEN]), 0)).unwrap();
    let told = done.receipt.paths.get(DataPath::NvidiaFs);
    assert_eq!(told, LEN as u64, "it counts");
    forget((bed, file, done));
    exit_if_asked(&how);
}

#[test]
fn with_an_operation_that_never_ends_a_process_ends_as_asked() {
    // Each takes as long as the end of a process waits.
    let mut all = worlds(&["1.15"], &["call return"]);
    all.extend(worlds(&["1.20"], &["stream exit"]));
    let Some(here) = enter_each(&all) else {
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
    exit_if_asked(&how);
}

/// A program on a version of the simulated library.
fn on_version(program: &str, version: &str, home: &Path) -> Command {
    let library = simulator::cufile_of(version, None).unwrap();
    let before = env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command
        .current_dir(home)
        .env("LD_LIBRARY_PATH", format!("{}:{before}", library.display()))
        .env("TOKIO_CUFILE_SIM_CUFILE_PATH", "nvidia-fs")
        .env_remove("CUFILE_FORCE_COMPAT_MODE")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[test]
fn with_reads_under_way_a_process_waits_for_them_and_ends_as_asked() {
    if CufileSim::need().is_none() {
        return;
    }
    let home = tempfile::tempdir_in(bench::disk()).unwrap();
    let file = home.path().join("file");
    std::fs::write(&file, pattern::bytes(1, 16 * 4096)).unwrap();
    for version in ["1.15", "1.20"] {
        for calls in ["sync", "stream"] {
            for (how, code) in [("return", 0), ("exit", 0), ("panic", 101)] {
                let mut command = on_version(env!("CARGO_BIN_EXE_leaver"), version, home.path());
                command
                    .arg(&file)
                    .args(["16", "auto", how, "device", calls]);
                // The first ones are done at once.
                let slow = "cuFileRead:slow=200000,from=9;@read:slow=20000,from=5";
                command.env("TOKIO_CUFILE_SIM_CUFILE_FAULTS", slow);
                let mut child = command.spawn().unwrap();
                child.stdin.take().unwrap().write_all(b"go\n").unwrap();
                let output = child.wait_with_output().unwrap();
                let said = String::from_utf8_lossy(&output.stdout);
                let errors = String::from_utf8_lossy(&output.stderr);
                let case = format!("{version}, {calls}, {how}: {}: {errors}", output.status);
                assert_eq!(output.status.code(), Some(code), "{case}");
                // In time: every handler has run.
                assert_eq!(said, "started\nleft\n", "{case}");
            }
        }
    }
}

#[test]
fn a_child_of_a_process_with_reads_under_way_waits_for_nothing() {
    if CufileSim::need().is_none() {
        return;
    }
    let home = tempfile::tempdir_in(bench::disk()).unwrap();
    let file = home.path().join("file");
    std::fs::write(&file, pattern::bytes(1, 4096)).unwrap();
    let mut command = on_version(env!("CARGO_BIN_EXE_forker"), "1.20", home.path());
    command.arg(&file).args(["pool", "cufile"]);
    command.env("TOKIO_CUFILE_SIM_CUFILE_FAULTS", "cuFileRead:slow=500000");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
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
