//! The example does what it says.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

use tokio_cufile_tests::{Sim, pattern};

#[test]
fn it_copies_a_file() {
    if Sim::need().is_none() {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
    let content = pattern::bytes(0, 3_000_001);
    std::fs::write(&from, &content).unwrap();
    let mut example = Command::new(env!("CARGO_BIN_EXE_cudarc-example"));
    let output = example.args([&from, &to]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("on SIMULATED"), "{text}");
    assert!(
        text.contains("read 3000001 bytes") && text.contains("wrote 3000001 bytes"),
        "{text}"
    );
    pattern::assert_same(&std::fs::read(&to).unwrap(), &content);
}
