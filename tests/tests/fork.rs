//! Failure: a child after `fork` hangs on the engine's locks, whose holders are threads that it
//! does not have, or waits for completions that nobody will bring; or it closes and ends what is
//! the parent's.
//! Mechanism: the child inherits handles and futures, and drops or awaits them.
//! Method: a program of its own forks with futures in every state, tries every call in the child,
//! and goes on in the parent.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use tokio_cufile_tests::SlowFs;
use tokio_cufile_tests::slow_fs::Kind;

#[test]
fn a_child_is_told_and_the_parent_goes_on() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), vec![7; 1 << 20]).unwrap();
    for round in 0..40 {
        let mut forker = Command::new(env!("CARGO_BIN_EXE_forker"));
        let io = ["pool", "uring"][round % 2];
        let output = forker.arg(file.path()).arg(io).output().unwrap();
        assert!(output.status.success(), "{io}: {output:?}");
    }
}

#[test]
fn a_child_that_drops_a_read_in_flight_does_not_disturb_it() {
    for io in ["pool", "uring"] {
        let Some(fs) = SlowFs::mount(4096) else {
            return;
        };
        fs.hold(Kind::Read);
        let mut command = Command::new(env!("CARGO_BIN_EXE_forker"));
        command.arg(fs.path()).args([io, "held"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut forker = command.spawn().unwrap();
        let mut said = BufReader::new(forker.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "started", "{io}");
        let held = fs.next_held();
        forker.stdin.take().unwrap().write_all(b"go\n").unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "forked", "{io}");
        held.release();
        let status = forker.wait().unwrap();
        assert!(status.success(), "{io}: {status}");
        fs.wait_until_closed();
    }
}
