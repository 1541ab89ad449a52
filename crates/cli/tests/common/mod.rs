//! Running `cuf` and looking at what it said.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "helpers of tests, of which each test binary uses its part"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
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
    report_of(&mut cuf(verb, path, options))
}

/// Runs a `cuf`, which succeeds, for its one JSON object.
pub(crate) fn report_of(command: &mut Command) -> Value {
    let output = command.arg("--json").output().unwrap();
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
    failure_line_of(&mut cuf(verb, path, options), path)
}

/// The same of a `cuf` that was made otherwise.
pub(crate) fn failure_line_of(command: &mut Command, path: &Path) -> String {
    let text = failed(1, command.output().unwrap());
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

/// Runs `cuf VERB FILE OPTIONS…`, sends it the signal once the file has changed, and returns the one
/// line of its failure.
pub(crate) fn interrupted(verb: &str, path: &Path, options: &[&str], signal: Signal) -> String {
    let state = || fs::metadata(path).and_then(|file| file.modified()).ok();
    let former = state();
    let mut child = cuf(verb, path, options)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Nothing else tells that the write has begun.
    while state() == former {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
    let line = failed(130, child.wait_with_output().unwrap());
    assert_one_line(&line);
    assert!(line.contains("interrupted"), "{line}");
    line
}
