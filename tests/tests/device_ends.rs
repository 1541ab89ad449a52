//! The end of a process, and a child of it, with copies in flight.
//!
//! Failure: a process that hangs, crashes or reports failure since a driver is going, or a copy never
//! ends; a child that uses or frees what is the parent's.
//! Mechanism: destructors and threads race with the driver's own end; a child has neither the
//! driver's threads nor the engine's.
//! Method: programs of their own that leave in each way, with copies that end, and that never do;
//! one that forks with device memory in every state.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use tokio_cufile_tests::Sim;

fn leave(path: &Path, faults: &str, (count, io, how): (usize, &str, &str)) -> Option<i32> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leaver"));
    command.arg(path).arg(count.to_string());
    command.args([io, how, "device"]);
    command.env("TOKIO_CUFILE_SIM_FAULTS", faults);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    child.wait().unwrap().code()
}

#[test]
fn a_process_ends_as_asked_whatever_its_copies_do() {
    if Sim::need().is_none() {
        return;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(4096).unwrap();
    for faults in ["", "@htod:never", "@htod:slow=300", "@record:never"] {
        for (how, code) in [("return", 0), ("exit", 0), ("panic", 101)] {
            for (count, io) in [(1, "pool"), (32, "pool"), (32, "uring")] {
                let ended = leave(file.path(), faults, (count, io, how));
                assert_eq!(ended, Some(code), "{faults}, {how}, {count}, {io}");
            }
        }
    }
}

#[test]
fn a_child_is_told_and_leaves_the_parents_memory_alone() {
    if Sim::need().is_none() {
        return;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![7; 1 << 20]).unwrap();
    for round in 0..10 {
        let mut forker = Command::new(env!("CARGO_BIN_EXE_forker"));
        let io = ["pool", "uring"][round % 2];
        forker.arg(file.path()).args([io, "device"]);
        let output = forker.output().unwrap();
        assert!(output.status.success(), "{io}: {output:?}");
    }
}
