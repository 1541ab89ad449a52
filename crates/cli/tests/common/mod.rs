//! Running `cuf` and looking at what it said.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "helpers of tests, of which each test binary uses its part"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// A folder on the file system that the build lies on, which is seldom a tmpfs.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// `length` bytes without a period that windows or blocks could hide behind.
pub(crate) fn bytes(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    })
    .flatten()
    .take(length)
    .collect()
}

pub(crate) fn file(folder: &TempDir, name: &str, content: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, content).unwrap();
    path
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

pub(crate) fn cuf(verb: &str, path: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cuf"));
    command.arg(verb).arg(path).args(options);
    // The engine's settings are those of the test, wherever it runs.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("TOKIO_CUFILE_") || text.starts_with("KVIKIO_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs `cuf VERB FILE --json OPTIONS…`, which succeeds, and returns its one JSON object.
pub(crate) fn json(verb: &str, path: &Path, options: &[&str]) -> Value {
    let output = cuf(verb, path, options).arg("--json").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// Runs `cuf VERB FILE OPTIONS…`, which fails with `code` and says nothing on standard output.
pub(crate) fn fails(code: i32, verb: &str, path: &Path, options: &[&str]) -> String {
    failed(code, cuf(verb, path, options).output().unwrap())
}

pub(crate) fn failed(code: i32, output: Output) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// As [`fails`] with exit code 1: the one line that names the file, the offset and the reason.
pub(crate) fn failure_line(verb: &str, path: &Path, options: &[&str]) -> String {
    let text = fails(1, verb, path, options);
    assert_one_line(&text);
    assert!(text.contains(&*path.to_string_lossy()), "{text}");
    text
}

pub(crate) fn assert_one_line(text: &str) {
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("cuf: ") && text.ends_with('\n'), "{text}");
    assert!(text.contains(": offset "), "{text}");
}

pub(crate) fn sum_of_paths(report: &Value) -> u64 {
    let paths = report["paths"].as_object().unwrap();
    paths.values().map(|bytes| bytes.as_u64().unwrap()).sum()
}
