//! Each example does what it says, and says what it did.
//!
//! Failure: an example that compiles and does not work. Method: the programs themselves, with small
//! files, on host memory or on simulated devices; what they print and write is compared.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;
use tokio_cufile_tests::pattern;
use tokio_cufile_tests::skip::skip;

const LEN: usize = 3_000_001;

struct Bed {
    folder: TempDir,
    content: Vec<u8>,
}

impl Bed {
    /// A folder with a file.
    fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let content = pattern::bytes(0, LEN);
        std::fs::write(folder.path().join("file"), &content).unwrap();
        Self { folder, content }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("file")
    }

    fn new_file(&self) -> PathBuf {
        self.folder.path().join("new")
    }

    fn written(&self) -> Vec<u8> {
        std::fs::read(self.new_file()).unwrap()
    }
}

/// The program of an example, which cargo builds with the tests of its package.
fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let program = profile.join("examples").join(name);
    assert!(program.is_file(), "build it: cargo build --examples");
    let mut command = Command::new(program);
    // Settings are those of the test, wherever it runs.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("TOKIO_CUFILE_") || text.starts_with("KVIKIO_") {
            command.env_remove(&name);
        }
    }
    command
}

/// The same with two simulated devices.
fn simulated(name: &str) -> Command {
    let mut command = example(name);
    let folder = xtask::simulator::cuda().expect("the simulator can be built");
    command
        .env("LD_LIBRARY_PATH", folder)
        .env("TOKIO_CUFILE_SIMULATE", "1");
    command
}

/// What a program prints that succeeds.
#[track_caller]
fn said(mut command: Command, args: &[&OsStr]) -> String {
    let output = command.args(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Looks for texts that come one after the other.
#[track_caller]
fn assert_says(text: &str, expected: &[&str]) {
    let mut rest = text;
    for part in expected {
        let Some((_, after)) = rest.split_once(part) else {
            panic!("no {part:?} in its place in\n{text}");
        };
        rest = after;
    }
}

fn arg(path: &Path) -> &OsStr {
    path.as_os_str()
}

#[test]
fn read() {
    let bed = Bed::new();
    let text = said(example("read"), &[arg(&bed.file())]);
    assert_says(&text, &["route: ", "\n3000001 bytes, Receipt"]);
}

#[test]
fn write() {
    let bed = Bed::new();
    let text = said(example("write"), &[arg(&bed.new_file())]);
    assert_eq!(text.lines().count(), 2, "{text}");
    let expected = [[1; 1 << 20], [2; 1 << 20]].concat();
    pattern::assert_same(&bed.written(), &expected);
}

#[test]
fn cancel() {
    let bed = Bed::new();
    let text = said(example("cancel"), &[arg(&bed.file())]);
    // Which of the two is a race.
    let first = text.lines().next().unwrap();
    let cancelled = first.contains("cancelled") && first.contains(" bytes had arrived");
    assert!(
        cancelled || first.starts_with("the cancel came too late"),
        "{text}"
    );
    let rest = ["\n3000001 bytes before the deadline\n", "quarantined: 0"];
    assert_says(&text, &rest);
}

#[test]
fn parts() {
    let bed = Bed::new();
    let text = said(example("parts"), &[arg(&bed.file())]);
    assert_eq!(text.lines().count(), 9, "{text}");
    let last = format!("3000001 bytes, the first: Some({})\n", bed.content[0]);
    assert!(text.ends_with(&last), "{text}");
}

#[test]
fn ranges() {
    let bed = Bed::new();
    let text = said(example("ranges"), &[arg(&bed.file())]);
    assert_says(&text, &["733 ranges, 187648 bytes, in ", "by path: "]);
}

#[test]
fn stream() {
    let bed = Bed::new();
    let text = said(example("stream"), &[arg(&bed.file()), arg(&bed.new_file())]);
    assert_eq!(text, "3000001 bytes\n");
    pattern::assert_same(&bed.written(), &bed.content);
}

#[test]
fn staged_write() {
    let bed = Bed::new();
    let text = said(example("staged_write"), &[arg(&bed.new_file())]);
    assert_says(&text, &["8 chunks, the first: ", "\nread back the same\n"]);
    pattern::assert_same(&bed.written(), &[1; 8 << 20]);
}

#[test]
fn tokio_uring() {
    if let Err(error) = tokio_uring::Runtime::new(&tokio_uring::builder()) {
        return skip("needs-io-uring", &format!("no ring can be made: {error}"));
    }
    let bed = Bed::new();
    let text = said(example("tokio_uring"), &[arg(&bed.file())]);
    assert_says(&text, &["1048576 bytes, "]);
}

#[test]
fn gpu_read() {
    let bed = Bed::new();
    for (args, device) in [
        (&[arg(&bed.file())][..], "into SIMULATED GPU 0\n"),
        (&[arg(&bed.file()), "1".as_ref()], "into SIMULATED GPU 1\n"),
    ] {
        let text = said(simulated("gpu_read"), args);
        assert_says(&text, &[device, "3000001 bytes at 0x", "Receipt"]);
    }
}

#[test]
fn gpu_read_without_a_device_is_an_error() {
    let bed = Bed::new();
    let failed = |command: &mut Command| -> String {
        let Output { status, stderr, .. } = command.output().unwrap();
        assert_eq!(status.code(), Some(1));
        String::from_utf8(stderr).unwrap()
    };
    let mut no_such = simulated("gpu_read");
    let text = failed(no_such.arg(bed.file()).arg("2"));
    assert!(text.contains("no such device"), "{text}");
    let mut no_cuda = simulated("gpu_read");
    let text = failed(no_cuda.arg(bed.file()).env_remove("TOKIO_CUFILE_SIMULATE"));
    assert!(text.contains("no CUDA"), "{text}");
}

#[test]
fn gpu_write() {
    let bed = Bed::new();
    let text = said(simulated("gpu_write"), &[arg(&bed.new_file())]);
    assert_says(&text, &["3145728 bytes, "]);
    pattern::assert_same(&bed.written(), &[7; 3 << 20]);
}

#[test]
fn after_event() {
    let bed = Bed::new();
    let text = said(simulated("after_event"), &[arg(&bed.new_file())]);
    assert_says(&text, &["1048576 bytes, "]);
    pattern::assert_same(&bed.written(), &[7; 1 << 20]);
}
