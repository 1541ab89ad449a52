//! Failure: a process that leaves with I/O in flight crashes, hangs or reports failure.
//! Mechanism: destructors and threads race with the end of `main`, or wait for each other.
//! Method: a program of its own starts reads that the file system holds, and leaves in each way;
//! the kernel lets a process go when its I/O has ended, so the reads are released once it is on
//! its way out. Another leaves while reads of an ordinary file run.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use tokio_cufile_tests::SlowFs;
use tokio_cufile_tests::life::until;
use tokio_cufile_tests::slow_fs::Kind;

fn start(path: &std::path::Path, count: usize, io: &str, how: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leaver"));
    command.arg(path).arg(count.to_string()).arg(io).arg(how);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    child
}

fn leave(child: &mut Child) {
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
}

/// The main thread is on its way out. It may have to wait for the others, which wait for us.
fn until_leaving(child: &Child) {
    const EXITING: u64 = 4;
    let path = format!("/proc/{}/stat", child.id());
    until(|| {
        let stat = fs::read_to_string(&path).unwrap();
        let (_, rest) = stat.rsplit_once(") ").unwrap();
        let flags = rest.split(' ').nth(6).unwrap();
        flags.parse::<u64>().unwrap() & EXITING != 0
    });
}

#[test]
fn with_reads_in_flight_it_ends_as_asked() {
    for (how, code) in [("return", 0), ("exit", 0), ("panic", 101)] {
        for (count, io) in [(1, "pool"), (32, "pool"), (1, "uring"), (32, "uring")] {
            let Some(fs) = SlowFs::mount(4096) else {
                return;
            };
            fs.hold(Kind::Read);
            let mut child = start(&fs.path(), count, io, how);
            let held = fs.next_held_of(count);
            leave(&mut child);
            until_leaving(&child);
            drop(held);
            let status = child.wait().unwrap();
            assert_eq!(status.code(), Some(code), "{how}, {count}, {io}: {status}");
            fs.wait_until_closed();
        }
    }
}

#[test]
fn with_reads_of_an_ordinary_file_under_way_it_ends_as_asked() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(4096).unwrap();
    for round in 0..12 {
        let io = ["pool", "uring", "auto"][round % 3];
        let how = ["return", "exit"][round % 2];
        let mut child = start(file.path(), 64, io, how);
        leave(&mut child);
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{status}");
    }
}
