//! `cuf read` gives the bytes of the range that was asked for, and says what it did.

mod common;

use std::fs::{self, File};
use std::io::IoSliceMut;

use common::{bytes, cuf, file, folder, json, sha256, sum_of_paths};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

const LENGTH: usize = 3_000_001;

#[test]
fn the_hash_is_that_of_the_file() {
    let folder = folder();
    let content = bytes(LENGTH);
    let path = file(&folder, "f", &content);
    let report = json("read", &path, &["--hash"]);
    assert_eq!(report["sha256"], sha256(&content));
    assert_eq!(report["bytes"], LENGTH);
    assert_eq!(
        report["window"], LENGTH,
        "a small file goes through memory at once"
    );
}

#[test]
fn every_cache_mode_and_part_size_gives_the_same_bytes() {
    let folder = folder();
    let content = bytes(LENGTH);
    let path = file(&folder, "f", &content);
    for cache in ["auto", "cached"] {
        for task_size in ["4KiB", "12KiB", "1MiB", "1GiB"] {
            let options = [
                "--hash",
                "--cache",
                cache,
                "--task-size",
                task_size,
                "--io",
                "pool",
            ];
            let report = json("read", &path, &options);
            assert_eq!(report["sha256"], sha256(&content), "{options:?}");
        }
    }
}

#[test]
fn a_window_below_the_range_changes_nothing_but_the_window() {
    let folder = folder();
    let content = bytes(LENGTH);
    let path = file(&folder, "f", &content);
    for window in ["8KiB", "100000", "1MiB", "1GiB"] {
        for offset in [0, 1, 4096, 777_777] {
            let options = [
                "--hash",
                "--window",
                window,
                "--offset",
                &offset.to_string(),
            ];
            let report = json("read", &path, &options);
            assert_eq!(report["sha256"], sha256(&content[offset..]), "{options:?}");
            assert_eq!(report["bytes"], LENGTH - offset);
            assert_eq!(sum_of_paths(&report), (LENGTH - offset) as u64);
        }
    }
    assert_eq!(
        json("read", &path, &["--window", "100000"])["window"],
        98_304
    );
}

#[test]
fn offset_and_length_choose_the_bytes() {
    let folder = folder();
    let content = bytes(LENGTH);
    let path = file(&folder, "f", &content);
    for (offset, length) in [
        (0, 0),
        (0, 1),
        (4095, 2),
        (4096, 4096),
        (1_000_000, 999_999),
    ] {
        let options = [
            "--hash",
            "--offset",
            &offset.to_string(),
            "--length",
            &length.to_string(),
            "--cache",
            "cached",
        ];
        let report = json("read", &path, &options);
        assert_eq!(
            report["sha256"],
            sha256(&content[offset..offset + length]),
            "{options:?}"
        );
        assert_eq!(report["bytes"], length);
        assert_eq!(report["offset"], offset);
        assert_eq!(report["notes"].as_array().unwrap().len(), 0, "{report}");
    }
}

#[test]
fn a_range_beyond_the_end_is_what_is_there_and_says_so() {
    let folder = folder();
    let path = file(&folder, "f", &bytes(10_000));
    let cases: [(&[&str], u64); 4] = [
        (&["--length", "20000"], 10_000),
        (&["--offset", "9999", "--length", "1GiB"], 1),
        (&["--offset", "10000", "--length", "1"], 0),
        (&["--offset", "10001"], 0),
    ];
    for (options, expected) in cases {
        let options = [options, &["--cache", "cached"]].concat();
        let report = json("read", &path, &options);
        assert_eq!(report["bytes"], expected, "{options:?}");
        assert_eq!(report["notes"].as_array().unwrap().len(), 1, "{report}");
    }
}

#[test]
fn an_empty_file_is_no_failure() {
    let folder = folder();
    let path = file(&folder, "f", b"");
    let report = json("read", &path, &["--hash"]);
    assert_eq!(report["bytes"], 0);
    assert_eq!(report["sha256"], sha256(b""));
    assert_eq!(report["gb_per_s"], 0.0);
    assert!(report["cpu_s_per_gib"].is_null());
}

#[test]
fn a_file_that_reports_no_length_is_read_to_its_end() {
    let path = "/proc/version".as_ref();
    let content = fs::read(path).unwrap();
    assert_eq!(json("read", path, &["--hash"])["sha256"], sha256(&content));
    let report = json("read", path, &["--hash", "--offset", "3", "--length", "4"]);
    assert_eq!(report["sha256"], sha256(&content[3..7]));
}

#[test]
fn a_range_beyond_4_gib_of_a_sparse_file_is_read() {
    const OFFSET: u64 = (4 << 30) + 5;
    let folder = folder();
    let path = folder.path().join("sparse");
    File::create(&path)
        .unwrap()
        .set_len(OFFSET + 100_000)
        .unwrap();
    let report = json("read", &path, &["--hash", "--offset", &OFFSET.to_string()]);
    assert_eq!(report["bytes"], 100_000);
    assert_eq!(report["sha256"], sha256(&[0; 100_000]));
}

#[test]
fn the_json_object_has_every_promised_field() {
    let folder = folder();
    let path = file(&folder, "f", &bytes(LENGTH));
    let report = json("read", &path, &[]);
    for field in [
        "seconds",
        "gb_per_s",
        "cpu_s_per_gib",
        "process_seconds",
        "process_cpu_seconds",
    ] {
        assert!(report[field].as_f64().unwrap() >= 0.0, "{field}: {report}");
    }
    assert!(report["seconds"].as_f64().unwrap() > 0.0);
    assert!(report["seconds"].as_f64().unwrap() < report["process_seconds"].as_f64().unwrap());
    assert_eq!(sum_of_paths(&report), LENGTH as u64);
    assert!(!report["route_reason"].as_str().unwrap().is_empty());
    assert_eq!(report["device"], "host");
    assert_eq!(report["operation"], "read");
    assert_eq!(report["file"], path.to_str().unwrap());
    assert!(report["retries"].is_u64() && report["parts"].as_u64().unwrap() >= 1);
    assert!(report.get("sha256").is_none(), "nobody asked for a hash");
    assert!(report.get("runs").is_none(), "nobody asked for repeats");
}

#[test]
fn repeats_are_one_object_with_medians_on_top_and_every_run_inside() {
    let folder = folder();
    let content = bytes(LENGTH);
    let path = file(&folder, "f", &content);
    let report = json("read", &path, &["--repeat", "3", "--hash", "--drop-cache"]);
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3);
    let mut seconds: Vec<f64> = runs
        .iter()
        .map(|run| run["seconds"].as_f64().unwrap())
        .collect();
    seconds.sort_by(f64::total_cmp);
    assert_eq!(report["seconds"], seconds[1]);
    for run in runs {
        assert_eq!(run["sha256"], sha256(&content));
        assert_eq!(sum_of_paths(run), LENGTH as u64);
    }
}

#[test]
fn people_are_told_bytes_time_cost_path_and_reason() {
    let folder = folder();
    let content = bytes(LENGTH);
    let path = file(&folder, "f", &content);
    let output = cuf("read", &path, &["--hash"]).output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let text = String::from_utf8(output.stdout).unwrap();
    for word in [
        "3000001",
        " s, ",
        "GB/s",
        "CPU s/GiB",
        "path ",
        "why ",
        &sha256(&content),
    ] {
        assert!(text.contains(word), "{word:?} is not in:\n{text}");
    }
}

#[test]
fn dropping_the_cache_evicts_dirty_pages_too() {
    let folder = folder();
    // Just written, so dirty.
    let path = file(&folder, "f", &bytes(64 << 10));
    let probe = File::open(&path).unwrap();
    let cached = || {
        let mut page = [0; 4096];
        preadv2(
            &probe,
            &mut [IoSliceMut::new(&mut page)],
            8192,
            ReadWriteFlags::NOWAIT,
        )
    };
    let before = cached();
    json("read", &path, &["--length", "0", "--drop-cache"]);
    // A file system that cannot read without waiting cannot be asked what it caches.
    if before == Ok(4096) {
        assert_eq!(cached(), Err(Errno::AGAIN));
    } else {
        assert_eq!(before, Err(Errno::OPNOTSUPP));
    }
}
