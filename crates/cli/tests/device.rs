//! `--device cuda:N` on the simulated driver: the bytes are those of the file whichever way they go,
//! the report says SIMULATED, and what a device cannot do ends in one line.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{bytes, cuf, failure_line_of, file, folder, report_of, sha256, sum_of_paths};
use serde_json::Value;

const LENGTH: usize = 3_000_001;

/// `cuf` with simulated devices, changed by variables of the simulator.
fn simulated(verb: &str, path: &Path, options: &[&str], settings: &[(&str, &str)]) -> Command {
    let folder = xtask::simulator::cuda().expect("the simulator can be built");
    let mut command = cuf(verb, path, options);
    command
        .env("LD_LIBRARY_PATH", folder)
        .env("TOKIO_CUFILE_SIMULATE", "1")
        .envs(settings.iter().copied());
    command
}

fn json(verb: &str, path: &Path, options: &[&str]) -> Value {
    report_of(&mut simulated(verb, path, options, &[]))
}

fn failure(verb: &str, path: &Path, options: &[&str], settings: &[(&str, &str)]) -> String {
    failure_line_of(&mut simulated(verb, path, options, settings), path)
}

#[test]
fn a_read_into_a_device_has_the_bytes_of_the_file() {
    let folder = folder();
    let content = bytes(LENGTH);
    let path = file(&folder, "f", &content);
    for device in ["cuda:0", "cuda:1"] {
        for (window, offset) in [
            ("8KiB", 0),
            ("100000", 1),
            ("1MiB", 777_777),
            ("1GiB", 4096),
        ] {
            let offset_text = offset.to_string();
            let options = [
                "--device",
                device,
                "--hash",
                "--window",
                window,
                "--offset",
                &offset_text,
            ];
            let report = json("read", &path, &options);
            assert_eq!(report["sha256"], sha256(&content[offset..]), "{options:?}");
            assert_eq!(report["bytes"], LENGTH - offset);
            assert_eq!(sum_of_paths(&report), (LENGTH - offset) as u64);
            assert_eq!(report["device"], device);
            let name = report["device_name"].as_str().unwrap();
            assert!(name.contains("SIMULATED"), "{name}");
        }
    }
}

#[test]
fn every_engine_and_cache_mode_reads_into_a_device() {
    let folder = folder();
    let content = bytes(LENGTH);
    let path = file(&folder, "f", &content);
    for io in ["auto", "pool"] {
        for cache in ["auto", "cached"] {
            let report = json(
                "read",
                &path,
                &[
                    "--device", "cuda:1", "--hash", "--io", io, "--cache", cache, "--repeat", "2",
                ],
            );
            assert_eq!(report["sha256"], sha256(&content), "{io} {cache}");
        }
    }
}

#[test]
fn a_write_from_a_device_leaves_the_bytes_of_the_seed() {
    let folder = folder();
    let path = folder.path().join("f");
    let on_host = common::json("write", &path, &["--size", "3000001", "--seed", "7"]);
    for window in ["8KiB", "100000", "1GiB"] {
        let options = [
            "--size", "3000001", "--seed", "7", "--device", "cuda:0", "--window", window,
        ];
        let report = json("write", &path, &options);
        let content = fs::read(&path).unwrap();
        assert_eq!(report["sha256"], sha256(&content), "{window}");
        assert_eq!(report["sha256"], on_host["sha256"]);
        assert_eq!(report["durable"], true);
        assert_eq!(sum_of_paths(&report), 3_000_001);
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_copy_goes_through_the_device() {
    let folder = folder();
    for length in [0, 1, 4096, LENGTH] {
        let content = bytes(length);
        let source = file(&folder, "source", &content);
        for window in ["8KiB", "1GiB"] {
            let copy = folder.path().join("copy");
            let from = source.to_str().unwrap();
            let options = ["--from", from, "--device", "cuda:1", "--window", window];
            let report = json("write", &copy, &options);
            assert!(fs::read(&copy).unwrap() == content, "{length} {window}");
            assert_eq!(report["sha256"], sha256(&content));
            fs::remove_file(copy).unwrap();
        }
    }
}

#[test]
fn the_hash_is_of_the_device_and_not_of_the_file() {
    let folder = folder();
    let content = bytes(LENGTH);
    let path = file(&folder, "f", &content);
    let flip = [("TOKIO_CUFILE_SIM_FAULTS", "@htod:flip,nth=1")];
    let options = ["--device", "cuda:0", "--hash"];
    let report = report_of(&mut simulated("read", &path, &options, &flip));
    assert_ne!(report["sha256"], sha256(&content));
}

#[test]
fn the_text_says_that_it_is_simulated() {
    let folder = folder();
    let path = file(&folder, "f", &bytes(10_000));
    let output = simulated("read", &path, &["--device", "cuda:1"], &[])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("cuda:1: SIMULATED"), "{text}");
}

#[test]
fn the_window_of_a_device_is_bounded_by_its_memory() {
    let folder = folder();
    let path = file(&folder, "f", &bytes(LENGTH));
    let small = [("TOKIO_CUFILE_SIM_MEMORY", "4194304")];
    let report = report_of(&mut simulated(
        "read",
        &path,
        &["--device", "cuda:0"],
        &small,
    ));
    assert_eq!(report["window"], 2 << 20, "half of what it has");
    assert_eq!(report["bytes"], LENGTH);
}

#[test]
fn a_device_that_is_not_there_is_told_with_those_that_are() {
    let folder = folder();
    let content = bytes(10_000);
    let path = file(&folder, "f", &content);
    for (verb, more) in [
        ("read", [].as_slice()),
        ("write", ["--size", "1"].as_slice()),
    ] {
        let options = [["--device", "cuda:7"].as_slice(), more].concat();
        let line = failure(verb, &path, &options, &[]);
        assert!(line.contains("no such device: there are 2"), "{line}");
        assert!(line.contains("cuda:1 is SIMULATED"), "{line}");
        let none = failure(verb, &path, &options, &[("TOKIO_CUFILE_SIM_DEVICES", "0")]);
        assert!(none.contains("CUDA sees none"), "{none}");
        let refused = [("TOKIO_CUFILE_SIM_FAULTS", "cuInit:fail=NO_DEVICE")];
        let off = failure(verb, &path, &options, &refused);
        assert!(off.contains("no CUDA"), "{off}");
    }
    assert!(fs::read(&path).unwrap() == content, "nothing was written");
}

#[test]
fn memory_that_cannot_be_had_asks_for_a_smaller_window() {
    let folder = folder();
    let path = file(&folder, "f", &bytes(LENGTH));
    let small = [("TOKIO_CUFILE_SIM_MEMORY", "1048576")];
    let options = ["--device", "cuda:0", "--window", "2MiB"];
    let line = failure("read", &path, &options, &small);
    assert!(
        line.contains("out of memory") && line.contains("--window"),
        "{line}"
    );
    let new = folder.path().join("new");
    let options = [options.as_slice(), &["--size", "3000001"]].concat();
    let line = failure("write", &new, &options, &small);
    assert!(
        line.contains("out of memory") && line.contains("--window"),
        "{line}"
    );
    assert!(!new.exists());
}

#[test]
fn a_device_that_fails_ends_the_command_and_a_new_file_is_removed() {
    let folder = folder();
    let path = file(&folder, "f", &bytes(LENGTH));
    let broken = [("TOKIO_CUFILE_SIM_FAULTS", "@*:fail=700,from=1")];
    let line = failure("read", &path, &["--device", "cuda:0"], &broken);
    // Nothing proves any more that the device is done with the memory.
    assert!(line.contains("quarantined"), "{line}");
    let new = folder.path().join("new");
    let broken = [("TOKIO_CUFILE_SIM_FAULTS", "@dtoh:fail=700,from=1")];
    let line = failure(
        "write",
        &new,
        &["--size", "3000001", "--device", "cuda:0"],
        &broken,
    );
    assert!(
        line.contains("quarantined") && line.contains("was removed"),
        "{line}"
    );
    assert!(!new.exists());
}
