//! `cuf write` leaves exactly the bytes that it says, and nothing half-written that is new.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use common::{
    assert_one_line, bytes, failed, failure_line, file, folder, interrupted, json, sha256,
    sum_of_paths,
};
use rustix::process::Signal;

#[test]
fn random_bytes_are_those_of_the_seed_whatever_the_window() {
    let folder = folder();
    let path = folder.path().join("f");
    let mut hashes = Vec::new();
    for window in ["8KiB", "100000", "1GiB"] {
        let report = json(
            "write",
            &path,
            &["--size", "1000003", "--seed", "7", "--window", window],
        );
        let content = fs::read(&path).unwrap();
        assert_eq!(content.len(), 1_000_003);
        assert_eq!(report["sha256"], sha256(&content));
        assert_eq!(report["seed"], 7);
        assert_eq!(report["durable"], true);
        assert_eq!(sum_of_paths(&report), 1_000_003);
        hashes.push(report["sha256"].clone());
    }
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
    let other = json("write", &path, &["--size", "1000003", "--seed", "8"]);
    assert_ne!(other["sha256"], hashes[0]);
}

#[test]
fn the_printed_seed_gives_the_same_bytes_again() {
    let folder = folder();
    let path = folder.path().join("f");
    let first = json("write", &path, &["--size", "64KiB"]);
    let seed = first["seed"].as_u64().unwrap().to_string();
    let again = json("write", &path, &["--size", "64KiB", "--seed", &seed]);
    assert_eq!(first["sha256"], again["sha256"]);
}

#[test]
fn a_copy_has_the_bytes_of_its_source() {
    let folder = folder();
    for length in [0, 1, 4095, 4096, 3_000_001] {
        let content = bytes(length);
        let source = file(&folder, "source", &content);
        for window in ["8KiB", "1MiB", "1GiB"] {
            let copy = folder.path().join("copy");
            let options = ["--from", source.to_str().unwrap(), "--window", window];
            let report = json("write", &copy, &options);
            assert!(fs::read(&copy).unwrap() == content, "{length} {window}");
            assert_eq!(report["sha256"], sha256(&content));
            assert_eq!(report["bytes"], length);
            assert_eq!(report["from"]["file"], source.to_str().unwrap());
            fs::remove_file(copy).unwrap();
        }
    }
}

#[test]
fn a_source_that_reports_no_length_is_copied_to_its_end() {
    let folder = folder();
    let copy = folder.path().join("copy");
    json("write", &copy, &["--from", "/proc/version"]);
    assert_eq!(fs::read(copy).unwrap(), fs::read("/proc/version").unwrap());
}

#[test]
fn what_was_written_is_what_is_read_back() {
    let folder = folder();
    let path = folder.path().join("f");
    let written = json("write", &path, &["--size", "3000001"]);
    let read = json("read", &path, &["--hash", "--drop-cache"]);
    assert_eq!(written["sha256"], read["sha256"]);
}

#[test]
fn a_longer_former_content_is_replaced_whole() {
    let folder = folder();
    let path = file(&folder, "f", &bytes(100_000));
    let report = json("write", &path, &["--size", "5000"]);
    assert_eq!(
        sha256(&fs::read(&path).unwrap()),
        report["sha256"].as_str().unwrap()
    );
    json("write", &path, &["--size", "0"]);
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
}

#[test]
fn a_file_is_not_copied_onto_itself() {
    let folder = folder();
    let content = bytes(10_000);
    let path = file(&folder, "f", &content);
    let link = folder.path().join("link");
    symlink(&path, &link).unwrap();
    for source in [&path, &link] {
        let line = failure_line("write", &path, &["--from", source.to_str().unwrap()]);
        assert!(line.contains("same file"), "{line}");
    }
    assert!(fs::read(&path).unwrap() == content);
}

#[test]
fn a_source_that_cannot_be_read_costs_nobody_a_file() {
    let folder = folder();
    let there = file(&folder, "there", b"precious");
    let new = folder.path().join("new");
    let missing = folder.path().join("missing");
    for destination in [&there, &new] {
        let mut command = common::cuf("write", destination, &["--from", missing.to_str().unwrap()]);
        let line = failed(1, command.output().unwrap());
        assert_one_line(&line);
        assert!(
            line.contains("missing") && line.contains("not found"),
            "{line}"
        );
    }
    assert_eq!(fs::read(&there).unwrap(), b"precious");
    assert!(!new.exists());
}

#[test]
fn a_refused_path_leaves_the_destination_as_it_was() {
    let folder = folder();
    let there = file(&folder, "there", b"precious");
    let new = folder.path().join("new");
    for path in [&there, &new] {
        let line = failure_line("write", path, &["--size", "10000", "--require", "gds"]);
        assert!(line.contains("required path refused"), "{line}");
    }
    assert_eq!(fs::read(&there).unwrap(), b"precious");
    assert!(!new.exists());
}

#[test]
fn a_new_file_that_does_not_fit_is_removed_and_the_line_says_where_it_ended() {
    let folder = folder();
    let path = folder.path().join("f");
    // 8 blocks of 512 or 1024 bytes, as the shell has it; without the signal the write gets EFBIG.
    let script = "trap '' XFSZ; ulimit -f 8; exec \"$0\" write \"$1\" --size 1MiB";
    let output = Command::new("sh")
        .args([
            "-c",
            script,
            env!("CARGO_BIN_EXE_cuf"),
            path.to_str().unwrap(),
        ])
        .output()
        .unwrap();
    let line = failed(1, output);
    assert_one_line(&line);
    assert!(
        line.contains("storage full") && line.contains("was removed"),
        "{line}"
    );
    assert!(!path.exists());
}

#[test]
fn a_size_that_cannot_fit_touches_nothing() {
    let folder = folder();
    let there = file(&folder, "there", b"precious");
    let new = folder.path().join("new");
    for path in [&there, &new] {
        let line = failure_line("write", path, &["--size", "4096PiB"]);
        assert!(line.contains("storage full"), "{line}");
        assert!(line.contains("nothing was touched"), "{line}");
    }
    assert_eq!(fs::read(&there).unwrap(), b"precious");
    assert!(!new.exists());
}

#[test]
fn an_interrupt_removes_a_new_file_and_never_one_that_was_there() {
    let folder = folder();
    // Long enough for a signal to come in the middle: windows of two blocks, synchronously.
    let options = ["--size", "256MiB", "--window", "8KiB"];
    for signal in [Signal::INT, Signal::TERM] {
        let new = folder.path().join("new");
        let line = interrupted("write", &new, &options, signal);
        assert!(line.contains("was removed"), "{line}");
        assert!(!new.exists());

        let there = file(&folder, "there", b"precious");
        let line = interrupted("write", &there, &options, signal);
        assert!(line.contains("partly overwritten"), "{line}");
        assert!(there.exists());
    }
}
