//! Failure: a child after `fork` hangs on the engine's locks, whose holders are threads that it
//! does not have, or waits for completions that nobody will bring; or it closes and ends what is
//! the parent's.
//! Mechanism: the child inherits handles and futures, and drops or awaits them.
//! Method: a program of its own forks with futures in every state, tries every call in the child,
//! and goes on in the parent.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::process::Command;

#[test]
fn a_child_is_told_and_the_parent_goes_on() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), vec![7; 1 << 20]).unwrap();
    for _ in 0..20 {
        let mut forker = Command::new(env!("CARGO_BIN_EXE_forker"));
        let output = forker.arg(file.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}
