//! Exit codes and messages: 1 with one line naming file, offset and reason; 2 for wrong usage.

mod common;

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;

use common::{bytes, cuf, failed, fails, failure_line, file, folder};
use rustix::fs::{CWD, FileType, Mode, mknodat};

#[test]
fn a_missing_file_and_a_dangling_link_are_not_found() {
    let folder = folder();
    let link = folder.path().join("link");
    symlink("nowhere", &link).unwrap();
    for path in [folder.path().join("missing"), link] {
        assert!(failure_line("read", &path, &[]).contains("not found"));
    }
    let beyond = folder.path().join("no-folder/f");
    assert!(failure_line("write", &beyond, &["--size", "1"]).contains("not found"));
}

#[test]
fn what_is_not_a_regular_file_is_refused_without_waiting_for_it() {
    let folder = folder();
    let fifo = folder.path().join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    for path in [folder.path(), &fifo, Path::new("/dev/null")] {
        assert!(failure_line("read", path, &[]).contains("not a regular file"));
        assert!(failure_line("read", path, &["--drop-cache"]).contains("not a regular file"));
        assert!(failure_line("write", path, &["--size", "1"]).contains("not a regular file"));
    }
}

#[test]
fn the_line_names_the_offset_that_was_asked_for() {
    let missing = folder().path().join("missing");
    let line = failure_line("read", &missing, &["--offset", "64KiB"]);
    assert!(line.contains(": offset 65536: "), "{line}");
}

#[test]
fn a_newline_in_the_name_does_not_make_a_second_line() {
    let path = folder().path().join("a\nb");
    let line = fails(1, "read", &path, &[]);
    assert_eq!(line.lines().count(), 1);
    assert!(line.contains("a\\nb"), "{line}");
}

#[test]
fn a_range_that_no_file_can_have_is_a_failure() {
    let folder = folder();
    let path = file(&folder, "f", &bytes(10_000));
    let max = u64::MAX.to_string();
    let cases: [&[&str]; 4] = [
        &["--offset", &max],
        &["--offset", &max, "--length", &max],
        &["--offset", "1", "--length", "9223372036854775807"],
        &["--length", "8192PiB"],
    ];
    for options in cases {
        let line = failure_line("read", &path, options);
        assert!(line.contains("2^63"), "{line}");
    }
    assert!(failure_line("write", &path, &["--size", &max]).contains("2^63"));
}

#[test]
fn a_required_path_that_is_not_there_is_refused() {
    let folder = folder();
    let path = file(&folder, "f", &bytes(10_000));
    for require in ["gds", "nvidia-fs", "cufile-posix"] {
        let line = failure_line("read", &path, &["--require", require]);
        assert!(line.contains("required path refused"), "{line}");
        assert!(failure_line("read", &path, &["--require", require, "--json"]).contains("refused"));
        assert!(
            failure_line("read", &path, &["--require", require, "--length", "0"])
                .contains("refused")
        );
    }
}

#[test]
fn a_deadline_that_has_passed_is_a_failure() {
    let folder = folder();
    let path = file(&folder, "f", &bytes(10_000));
    assert!(failure_line("read", &path, &["--deadline", "0ms"]).contains("deadline exceeded"));
    let new = folder.path().join("new");
    let line = failure_line("write", &new, &["--size", "1", "--deadline", "0ms"]);
    assert!(line.contains("deadline exceeded"), "{line}");
    assert!(!new.exists());
}

#[test]
fn without_cufile_what_asks_for_nothing_else_touches_nothing() {
    let folder = folder();
    let path = file(&folder, "f", &bytes(10_000));
    let options = ["--compat-mode", "off"];
    let write = [options.as_slice(), &["--size", "1"]].concat();
    for (verb, options) in [("read", options.as_slice()), ("write", &write)] {
        let line = failure_line(verb, &path, options);
        assert!(line.contains("compat_mode is off"), "{line}");
    }
    assert_eq!(
        std::fs::metadata(&path).unwrap().len(),
        10_000,
        "nothing was written"
    );
}

#[test]
fn wrong_usage_is_2() {
    let folder = folder();
    let path = file(&folder, "f", &bytes(10_000));
    let read: [&[&str]; 13] = [
        &["--require", "teleport"],
        &["--offset", "1KB"],
        &["--offset", "-1"],
        &["--length", "18446744073709551616"],
        &["--task-size", "0"],
        &["--task-size", "12345"],
        &["--window", "1"],
        &["--deadline", "5"],
        &["--repeat", "0"],
        &["--device", "gpu"],
        &["--cache", "warm"],
        &["--size", "1"],
        &["--no-such-option"],
    ];
    for options in read {
        assert!(!fails(2, "read", &path, options).is_empty(), "{options:?}");
    }
    let write: [&[&str]; 3] = [
        &[],
        &["--size", "1", "--from", "g"],
        &["--from", "g", "--seed", "1"],
    ];
    for options in write {
        assert!(!fails(2, "write", &path, options).is_empty(), "{options:?}");
    }
}

#[test]
fn a_reader_that_went_away_is_no_failure() {
    let folder = folder();
    let path = file(&folder, "f", &bytes(10_000));
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    drop(reader);
    let output = cuf("read", &path, &[])
        .stdout(Stdio::from(writer))
        .output()
        .unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let folder = folder();
    let path = file(&folder, "f", &bytes(10_000));
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = cuf("read", &path, &["--json"])
        .stdout(Stdio::from(full))
        .output()
        .unwrap();
    common::assert_one_line(&failed(1, output));
}

#[test]
fn a_failure_without_standard_error_keeps_its_exit_code() {
    let (mut reader, writer) = rustix::pipe::pipe()
        .map(|(r, w)| (File::from(r), w))
        .unwrap();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let missing = folder().path().join("missing");
    let status = cuf("read", &missing, &[])
        .stdout(writer)
        .stderr(full)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(1));
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "");
}
