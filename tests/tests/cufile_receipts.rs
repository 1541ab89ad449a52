//! What receipts say of the way that bytes went, and what is refused for want of proof.
//!
//! Failure: a receipt that claims GPUDirect for bytes that went through host memory; a requirement
//! that is silently not kept.
//! Mechanism: cuFile falls back without a word, and counts by path for the whole process only.
//! Method: the simulator is told which way bytes go, from the beginning, for single calls, or from
//! some call on, and counts them as the real library does, in both of its layouts.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use tokio_cufile::{
    AsyncCuFile, CuFileStats, DataPath, Error, ErrorKind, PathClass, Receipt, VendorCode,
};
use tokio_cufile_tests::bench::block_on;
use tokio_cufile_tests::cufile::{self, enqueue, enter_each};
use tokio_cufile_tests::life::until;
use tokio_cufile_tests::{Bed, World, pattern};

const LEN: usize = 64 << 10;
const PART: usize = 16 << 10;

fn bed(directory: &Path, stats: CuFileStats) -> Bed {
    let mut config = cufile::with_nvidia_fs(directory);
    config.stats = stats;
    Bed::new(directory, |builder| {
        builder.cufile(config).task_size(PART).num_threads(1)
    })
}

fn content() -> Vec<u8> {
    pattern::bytes(8, LEN)
}

fn read(bed: &Bed, file: &AsyncCuFile) -> Receipt {
    let buffer = bed.buffer(&vec![0; LEN]);
    let done = block_on(file.read_exact_at(buffer, 0)).unwrap();
    let receipt = done.receipt.clone();
    pattern::assert_same(&bed.content(done.buf), &content());
    assert_eq!(receipt.paths.total(), LEN as u64);
    receipt
}

fn refused(bed: &Bed, file: &AsyncCuFile, class: PathClass) -> Error {
    let buffer = bed.buffer(&vec![0; LEN]);
    let reads = bed.calls("cuFileRead");
    let failed = block_on(file.read_at(buffer, 0).require(class)).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::PathRefused, "{failed}");
    assert_eq!(bed.calls("cuFileRead"), reads, "nothing is issued");
    let writes = bed.calls("cuFileWrite");
    let source = failed.into_parts().1.unwrap();
    let failed = block_on(file.write_at(source, 0).require(class)).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::PathRefused, "{failed}");
    assert_eq!(bed.calls("cuFileWrite"), writes, "nothing is issued");
    failed.error().clone()
}

#[test]
fn with_statistics_the_one_path_that_was_taken_is_claimed() {
    let mut worlds = Vec::new();
    for version in ["1.16", "1.18", "1.19", "1.20"] {
        for path in ["nvidia-fs", "p2pdma", "posix"] {
            let world = World::new().version(version).by(path);
            worlds.push(world.with("EXPECTED", path));
        }
    }
    let Some(here) = enter_each(&worlds) else {
        return;
    };
    #[expect(clippy::disallowed_methods, reason = "the parent says which it is")]
    let (path, class) = match std::env::var("EXPECTED").unwrap().as_str() {
        "nvidia-fs" => (DataPath::NvidiaFs, PathClass::Gds),
        "p2pdma" => (DataPath::P2pDma, PathClass::Gds),
        _ => (
            DataPath::CufilePosix,
            PathClass::Exactly(DataPath::CufilePosix),
        ),
    };
    let bed = bed(&here, CuFileStats::On);
    let file = bed.file("file", &content());
    let receipt = read(&bed, &file);
    assert_eq!(receipt.paths.get(path), LEN as u64, "{receipt:?}");
    for class in [class, PathClass::Exactly(path)] {
        let buffer = bed.buffer(&content());
        let done = block_on(file.read_exact_at(buffer, 0).require(class)).unwrap();
        let done = block_on(file.write_all_at(done.buf, 0).require(class)).unwrap();
        assert_eq!(done.receipt.paths.get(path), LEN as u64);
        let empty = bed.buffer(&[]);
        block_on(file.read_at(empty, 0).require(class)).unwrap();
    }
    assert_eq!(bed.engine.stats().paths.get(path), 5 * LEN as u64);
    for other in [
        DataPath::UringDirect,
        DataPath::PoolDirect,
        DataPath::Buffered,
    ] {
        refused(&bed, &file, PathClass::Exactly(other));
    }
    drop(file);
    bed.end();
}

#[test]
fn parts_that_go_different_ways_are_told_apart() {
    let Some(here) = World::new().by("nvidia-fs").enter() else {
        return;
    };
    let bed = bed(&here, CuFileStats::On);
    let file = bed.file("file", &content());
    bed.cufile.fault("cuFileRead:path=posix,nth=2");
    let receipt = read(&bed, &file);
    let part = PART as u64;
    assert_eq!(receipt.paths.get(DataPath::NvidiaFs), LEN as u64 - part);
    assert_eq!(receipt.paths.get(DataPath::CufilePosix), part);
    drop(file);
    bed.end();
}

#[test]
fn bytes_that_went_both_ways_in_one_window_are_claimed_for_neither() {
    let Some(here) = World::new().by("nvidia-fs").enter() else {
        return;
    };
    let bed = bed(&here, CuFileStats::On);
    let file = bed.file("file", &content());
    // The first part takes two calls, of which the first falls back.
    bed.cufile
        .fault("cuFileRead:short=4096,nth=1;cuFileRead:path=posix,nth=1");
    let receipt = read(&bed, &file);
    let unverified = receipt.paths.get(DataPath::CufileUnverified);
    assert_eq!(unverified, PART as u64, "{receipt:?}");
    let told = receipt
        .notes
        .iter()
        .any(|note| note.contains("several paths"));
    assert!(told, "{receipt:?}");
    assert_eq!(receipt.retries, 1);
    drop(file);
    bed.end();
}

#[test]
fn a_path_that_changes_in_mid_run_is_a_violation_of_what_was_required() {
    let Some(here) = World::new().by("nvidia-fs").enter() else {
        return;
    };
    let bed = bed(&here, CuFileStats::On);
    let file = bed.file("file", &content());
    // nvidia-fs is unloaded.
    bed.cufile
        .fault("cuFileRead:path=posix,from=3;cuFileWrite:path=posix,from=3");
    let buffer = bed.buffer(&vec![0; LEN]);
    let read = file.read_at(buffer, 0).require(PathClass::Gds);
    let failed = block_on(read).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::PathViolated, "{failed}");
    assert!(failed.to_string().contains("cufile-posix"), "{failed}");
    assert_eq!(failed.error().offset(), Some(3 * PART as u64));
    let receipt = failed.receipt().unwrap();
    assert_eq!(receipt.paths.get(DataPath::NvidiaFs), 2 * PART as u64);
    let buffer = failed.into_parts().1.unwrap();
    let write = file.write_at(buffer, 0).require(PathClass::Gds);
    let failed = block_on(write).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::PathViolated, "{failed}");
    drop((failed, file));
    bed.end();
}

#[test]
fn without_statistics_nothing_is_claimed_and_nothing_that_needs_proof_is_issued() {
    let Some(here) = World::new().by("nvidia-fs").enter() else {
        return;
    };
    let bed = bed(&here, CuFileStats::Off);
    let file = bed.file("file", &content());
    let receipt = read(&bed, &file);
    let unverified = receipt.paths.get(DataPath::CufileUnverified);
    assert_eq!(unverified, LEN as u64);
    assert_eq!(receipt.notes, ["cuFile's statistics were not asked for"]);
    for class in [
        PathClass::Gds,
        PathClass::DirectIo,
        PathClass::Exactly(DataPath::NvidiaFs),
        PathClass::Exactly(DataPath::CufilePosix),
    ] {
        let error = refused(&bed, &file, class);
        assert!(error.reason().contains("were not asked for"), "{error}");
    }
    let any = PathClass::Exactly(DataPath::CufileUnverified);
    let buffer = bed.buffer(&vec![0; LEN]);
    block_on(file.read_exact_at(buffer, 0).require(any)).unwrap();
    drop(file);
    bed.end();
}

#[test]
fn what_no_count_tells_is_unverified_with_the_reason() {
    let Some(here) = World::new().by("nvidia-fs").enter() else {
        return;
    };
    let bed = bed(&here, CuFileStats::On);
    let file = bed.file("file", &content());
    let in_host = block_on(file.read_exact_at(vec![0; LEN], 0)).unwrap();
    let stream = bed.device.user().stream();
    let read = enqueue(file.read_exact_at(bed.buffer(&vec![0; LEN]), 0), stream);
    let in_stream = block_on(async { read.await?.await }).unwrap();
    for (receipt, word) in [(&in_host.receipt, "host"), (&in_stream.receipt, "stream")] {
        let unverified = receipt.paths.get(DataPath::CufileUnverified);
        assert_eq!(unverified, LEN as u64, "{receipt:?}");
        let [note] = &*receipt.notes else {
            panic!("{receipt:?}")
        };
        assert!(note.contains(word), "{note}");
    }
    bed.device.user().destroy(stream);
    drop((file, in_host, in_stream));
    bed.end();
}

#[test]
fn a_version_whose_statistics_would_crash_the_exit_counts_for_who_shuts_down_only() {
    let world = World::new().version("1.15").by("nvidia-fs");
    let worlds = [
        (CuFileStats::On, "crashes at exit"),
        (CuFileStats::OnWithShutdown, ""),
    ];
    let [asked, promised] = worlds.map(|(_, reason)| world.clone().with("REASON", reason));
    let Some(here) = enter_each(&[asked, promised]) else {
        return;
    };
    #[expect(clippy::disallowed_methods, reason = "the parent says which it is")]
    let reason = std::env::var("REASON").unwrap();
    let (stats, path) = match reason.as_str() {
        "" => (CuFileStats::OnWithShutdown, DataPath::NvidiaFs),
        _ => (CuFileStats::On, DataPath::CufileUnverified),
    };
    let bed = bed(&here, stats);
    let file = bed.file("file", &content());
    let receipt = read(&bed, &file);
    assert_eq!(receipt.paths.get(path), LEN as u64, "{receipt:?}");
    if !reason.is_empty() {
        let error = refused(&bed, &file, PathClass::Gds);
        assert!(error.reason().contains(&reason), "{error}");
    }
    drop(file);
    bed.end();
}

#[test]
fn a_version_without_statistics_says_so() {
    let worlds = ["1.11", "1.14"].map(|version| World::new().version(version).by("nvidia-fs"));
    let Some(here) = enter_each(&worlds) else {
        return;
    };
    let bed = bed(&here, CuFileStats::On);
    let file = bed.file("file", &content());
    let error = refused(&bed, &file, PathClass::Gds);
    assert!(error.reason().contains("came with version 1.15"), "{error}");
    let receipt = read(&bed, &file);
    let unverified = receipt.paths.get(DataPath::CufileUnverified);
    assert_eq!(unverified, LEN as u64);
    drop(file);
    bed.end();
}

#[test]
fn statistics_that_fail_claim_nothing() {
    let worlds = [
        "cuFileSetStatsLevel:fail=5030",
        "cuFileStatsStart:fail=5030",
        // The first at the open, and two for the first part.
        "cuFileGetStatsL3:fail=5030,from=4",
    ];
    let world = |script: &&str| {
        let world = World::new().by("nvidia-fs");
        world.with("SCRIPT", script)
    };
    let worlds: Vec<_> = worlds.iter().map(world).collect();
    let Some(here) = enter_each(&worlds) else {
        return;
    };
    #[expect(clippy::disallowed_methods, reason = "the parent says what fails")]
    let script = std::env::var("SCRIPT").unwrap();
    let bed = bed(&here, CuFileStats::On);
    bed.cufile.fault(&script);
    let file = bed.file("file", &content());
    let receipt = read(&bed, &file);
    assert!(bed.fired() > 0, "{script}");
    let part = if script.contains("L3") { PART } else { 0 };
    let claimed = receipt.paths.get(DataPath::NvidiaFs);
    assert_eq!(claimed, part as u64, "{script}: {receipt:?}");
    drop(file);
    bed.end();
}

#[test]
fn a_library_that_is_forced_into_its_compatibility_mode_is_found_out() {
    let force = |world: World| world.with("CUFILE_FORCE_COMPAT_MODE", "true");
    let worlds = ["1.16", "1.20"].map(|version| force(World::new().version(version)));
    let worlds = worlds.map(|world| world.by("nvidia-fs"));
    let Some(here) = enter_each(&worlds) else {
        return;
    };
    let bed = bed(&here, CuFileStats::On);
    let file = bed.file("file", &content());
    let route = file.route();
    assert!(route.reason.contains("forced into its own"), "{route}");
    for class in [PathClass::Gds, PathClass::Exactly(DataPath::NvidiaFs)] {
        let error = refused(&bed, &file, class);
        assert!(error.reason().contains("forced into its own"), "{error}");
    }
    let receipt = read(&bed, &file);
    let posix = receipt.paths.get(DataPath::CufilePosix);
    assert_eq!(posix, LEN as u64, "{receipt:?}");
    drop(file);
    bed.end();
}

#[test]
fn a_machine_without_gpudirect_refuses_it() {
    let worlds = ["1.15", "1.16", "1.20"].map(|version| World::new().version(version));
    let Some(here) = enter_each(&worlds) else {
        return;
    };
    let bed = bed(&here, CuFileStats::OnWithShutdown);
    let file = bed.file("file", &content());
    let error = refused(&bed, &file, PathClass::Gds);
    let reason = error.reason();
    assert!(reason.contains("neither nvidia-fs nor P2PDMA"), "{error}");
    assert_eq!(error.vendor_code(), None::<VendorCode>);
    drop(file);
    bed.end();
}

const COUNTS: &str = "GDS Version: 1.7.0.149\nIO stats: Enabled, peer IO stats: Enabled\n\
                      Reads     : n=12 ok=11 err=1\nWrites    : n=5 ok=5 err=0\n";

/// The kernel module's own counts, where the library has none. It has to tell whether P2PDMA is off.
#[test]
fn nvidia_fs_can_show_that_it_was_not_used() {
    let Some(here) = World::new().version("1.14").enter() else {
        return;
    };
    let bed = bed(&here, CuFileStats::Off);
    let shown = here.join("proc/driver/nvidia-fs/stats");
    fs::write(&shown, COUNTS).unwrap();
    let file = bed.file("file", &content());
    let receipt = read(&bed, &file);
    let posix = receipt.paths.get(DataPath::CufilePosix);
    assert_eq!(posix, LEN as u64, "{receipt:?}");

    bed.cufile.fault("cuFileRead:never,nth=1");
    let reading = file.read_at(bed.buffer(&vec![0; LEN]), 0).start();
    until(|| bed.fired() == 1);
    fs::write(&shown, COUNTS.replace("n=12", "n=13")).unwrap();
    bed.cufile.clear();
    let receipt = block_on(reading).unwrap().receipt;
    let unverified = receipt.paths.get(DataPath::CufileUnverified);
    assert_eq!(unverified, PART as u64, "the first part: {receipt:?}");
    let told = receipt.notes.iter().any(|note| note.contains("nvidia-fs"));
    assert!(told, "{receipt:?}");
    drop(file);
    bed.end();
}

/// Bytes that went by P2PDMA are not in nvidia-fs's counts either.
#[test]
fn where_p2pdma_is_not_known_to_be_off_nvidia_fs_shows_nothing() {
    let Some(here) = World::new().version("1.13").enter() else {
        return;
    };
    let bed = bed(&here, CuFileStats::Off);
    fs::write(here.join("proc/driver/nvidia-fs/stats"), COUNTS).unwrap();
    let file = bed.file("file", &content());
    let receipt = read(&bed, &file);
    let unverified = receipt.paths.get(DataPath::CufileUnverified);
    assert_eq!(unverified, LEN as u64, "{receipt:?}");
    drop(file);
    bed.end();
}
