//! Opening the one libcufile of a process: by whom, with which settings, and when it goes wrong.
//!
//! Failure: an engine or a shutdown that hangs with the library; a library that is closed while
//! somebody uses it, or closed twice, or opened twice; settings that silently do not apply.
//! Mechanism: the library is one for a process, cannot be asked to stop opening, and its last close
//! ends every registration.
//! Method: a process for each test, since nothing else brings the library back to its beginning; the
//! simulator counts opens, closes and registrations, and says when a close ended some.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use tokio_cufile::{
    AsyncCuFile, CompatMode, CuFileConfig, CuFileStats, Engine, ErrorKind, OpenOptions,
};
use tokio_cufile_tests::bench::{self, block_on};
use tokio_cufile_tests::cufile::{self, enter_each};
use tokio_cufile_tests::life::{engine_threads, poll_once, until};
use tokio_cufile_tests::{Bed, World, pattern};

const LEN: usize = 20_000;
/// Long enough for every test, and for whoever reads its failure.
const FOREVER: Duration = Duration::from_secs(3600);

fn engine(config: CuFileConfig, compat_mode: CompatMode) -> Engine {
    let builder = Engine::builder().cufile(config).compat_mode(compat_mode);
    let builder = builder.quiet_limit(Duration::from_millis(20));
    builder.build_blocking().unwrap()
}

fn strict() -> Engine {
    engine(bench::simulated_cufile(), CompatMode::Off)
}

fn create(engine: &Engine, directory: &Path, name: &str) -> tokio_cufile::Result<AsyncCuFile> {
    let options = OpenOptions::new().read(true).write(true).create(true);
    block_on(options.open(engine, directory.join(name)))
}

/// Why an engine cannot have cuFile.
fn refusal(engine: &Engine, directory: &Path) -> String {
    let error = create(engine, directory, "refused").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(!directory.join("refused").exists());
    error.to_string()
}

#[test]
fn a_library_that_does_not_open_is_asked_once() {
    let Some(here) = World::new().enter() else {
        return;
    };
    let sim = cufile::sim();
    sim.fault("cuFileDriverOpen:fail=5033");
    let first = strict();
    for _ in 0..3 {
        let reason = refusal(&first, &here);
        assert!(reason.contains("NVFS_SETUP_ERROR (5033)"), "{reason}");
    }
    assert_eq!(sim.calls("cuFileDriverOpen"), 1);
    block_on(first.shutdown());
    // It may be there for another engine.
    sim.clear();
    let bed = Bed::new(&here, |builder| builder);
    drop(bed.file("file", b"content"));
    bed.end();
    assert_eq!(sim.calls("cuFileDriverClose_v2"), 1);
}

#[test]
fn a_library_that_fails_after_it_was_opened_is_closed_again() {
    let Some(here) = World::new().enter() else {
        return;
    };
    let sim = cufile::sim();
    sim.fault("cuFileDriverGetProperties:fail=5030");
    let first = strict();
    let reason = refusal(&first, &here);
    assert!(reason.contains("5030"), "{reason}");
    assert_eq!(sim.report().opens, 0);
    block_on(first.shutdown());
}

#[test]
fn a_library_that_never_opens_is_given_up_by_all_and_holds_up_nobody() {
    let Some(here) = World::new().enter() else {
        return;
    };
    let sim = cufile::sim();
    sim.fault("cuFileDriverOpen:never");
    let mut config = bench::simulated_cufile();
    config.open_limit = Duration::from_millis(30);
    let first = engine(config, CompatMode::Off);
    let reason = refusal(&first, &here);
    assert!(reason.contains("did not open within 30ms"), "{reason}");
    // A limit that nobody would wait for.
    let mut patient = cufile::with_nvidia_fs(&here);
    patient.open_limit = FOREVER;
    let second = engine(patient.clone(), CompatMode::Off);
    assert!(refusal(&second, &here).contains("did not open within 30ms"));
    let third = engine(patient, CompatMode::Auto);
    let file = create(&third, &here, "file").unwrap();
    let route = file.route();
    assert!(route.reason.contains("did not open within 30ms"), "{route}");
    block_on(file.write_all_at(pattern::bytes(1, LEN), 0)).unwrap();
    assert_eq!(sim.calls("cuFileDriverOpen"), 1);
    drop(file);
    for engine in [first, second, third] {
        assert_eq!(block_on(engine.shutdown()).quarantined, 0);
    }
    // It opens after all, for nobody.
    sim.clear();
    until(|| sim.calls("cuFileDriverClose_v2") == 1 && sim.report().opens == 0);
}

#[test]
fn a_shutdown_does_not_wait_for_a_library_that_opens() {
    let Some(here) = World::new().enter() else {
        return;
    };
    let sim = cufile::sim();
    sim.fault("cuFileDriverOpen:never");
    let mut config = bench::simulated_cufile();
    config.open_limit = FOREVER;
    let first = engine(config, CompatMode::Off);
    let mut opening = AsyncCuFile::create(&first, here.join("file")).start();
    until(|| sim.report().faults_fired == 1);
    assert!(poll_once(&mut opening).is_pending());
    // Another engine, which would wait for the first.
    let second = strict();
    let mut waiting = AsyncCuFile::create(&second, here.join("file")).start();
    assert!(poll_once(&mut waiting).is_pending());
    for engine in [&first, &second] {
        assert_eq!(block_on(engine.shutdown()).quarantined, 1);
    }
    for late in [opening, waiting] {
        assert_eq!(block_on(late).unwrap_err().kind(), ErrorKind::Quarantined);
    }
    // It opens after all, for engines that have ended.
    sim.clear();
    drop((first, second));
    until(|| sim.calls("cuFileDriverClose_v2") > 0 && engine_threads() == 0);
    assert_eq!(sim.report().opens, 0);
    assert!(!here.join("file").exists());
}

#[test]
fn engines_that_agree_share_the_library_and_the_last_closes_it() {
    let Some(here) = World::new().enter() else {
        return;
    };
    let sim = cufile::sim();
    let first = strict();
    let second = strict();
    let content = pattern::bytes(7, LEN);
    let one = create(&first, &here, "one").unwrap();
    let two = create(&second, &here, "two").unwrap();
    block_on(one.write_all_at(content.clone(), 0)).unwrap();
    block_on(two.write_all_at(content.clone(), 0)).unwrap();
    assert_eq!((sim.calls("cuFileDriverOpen"), sim.report().files), (1, 2));
    // With its file still open.
    block_on(first.shutdown());
    assert_eq!((sim.report().opens, sim.report().files), (1, 1));
    let read = block_on(two.read_exact_at(vec![0; LEN], 0)).unwrap();
    pattern::assert_same(&read.buf, &content);
    block_on(second.shutdown());
    assert_eq!((sim.report().opens, sim.report().files), (0, 0));
    drop((one, two, first, second));
    until(|| engine_threads() == 0);
    sim.assert_no_harm();
    assert_eq!(sim.calls("cuFileDriverClose_v2"), 1);
}

#[test]
fn an_engine_that_is_dropped_leaves_the_library_open_for_the_next() {
    let Some(here) = World::new().enter() else {
        return;
    };
    let sim = cufile::sim();
    let first = strict();
    drop(create(&first, &here, "one").unwrap());
    drop(first);
    until(|| engine_threads() == 0);
    assert_eq!((sim.report().opens, sim.report().files), (1, 0));
    let second = strict();
    drop(create(&second, &here, "two").unwrap());
    assert_eq!(sim.calls("cuFileDriverOpen"), 1);
    block_on(second.shutdown());
    assert_eq!(sim.report().opens, 0);
    sim.assert_no_harm();
}

#[test]
fn an_engine_that_wants_other_settings_is_told_and_served_by_compat() {
    let Some(here) = World::new().by("nvidia-fs").enter() else {
        return;
    };
    let first = engine(cufile::with_nvidia_fs(&here), CompatMode::Off);
    let file = create(&first, &here, "file").unwrap();
    let mut other = cufile::with_nvidia_fs(&here);
    other.stats = CuFileStats::On;
    let second = engine(other.clone(), CompatMode::Off);
    let reason = refusal(&second, &here);
    assert!(reason.contains("set once for a process"), "{reason}");
    let third = engine(other.clone(), CompatMode::Auto);
    let by_compat = create(&third, &here, "file").unwrap();
    let route = by_compat.route();
    assert!(route.reason.contains("set once for a process"), "{route}");
    block_on(by_compat.write_all_at(vec![5; LEN], 0)).unwrap();
    assert_eq!(cufile::sim().report().files, 1);
    drop((file, by_compat));
    for engine in [first, second, third] {
        block_on(engine.shutdown());
    }
    // Closed, it can be opened otherwise.
    let fourth = engine(other, CompatMode::Off);
    drop(create(&fourth, &here, "file").unwrap());
    block_on(fourth.shutdown());
    cufile::sim().assert_no_harm();
}

#[test]
fn a_close_that_fails_is_no_hang_and_the_library_stays_in_use() {
    let Some(here) = World::new().enter() else {
        return;
    };
    let sim = cufile::sim();
    sim.fault("cuFileDriverClose_v2:fail=5006");
    for _ in 0..2 {
        let engine = strict();
        drop(create(&engine, &here, "file").unwrap());
        assert_eq!(block_on(engine.shutdown()).quarantined, 0);
    }
    assert_eq!((sim.report().opens, sim.calls("cuFileDriverOpen")), (1, 1));
    sim.assert_no_harm();
}

#[test]
fn a_library_without_gpudirect_is_not_chosen_by_itself_and_says_so_where_it_was() {
    let worlds = ["1.11", "1.15", "1.20"].map(|version| World::new().version(version));
    let Some(here) = enter_each(&worlds) else {
        return;
    };
    // nvidia-fs is loaded, so the library is asked, and knows nothing of it.
    let open = engine(cufile::with_nvidia_fs(&here), CompatMode::Auto);
    let file = create(&open, &here, "file").unwrap();
    let route = file.route();
    assert!(
        route.reason.contains("neither nvidia-fs nor P2PDMA"),
        "{route}"
    );
    assert!(!route.resolved.contains("cufile"), "{route}");
    assert_eq!(cufile::sim().report().files, 0);
    let options = OpenOptions::new().read(true).compat_mode(CompatMode::Off);
    let by_cufile = block_on(options.open(&open, here.join("file"))).unwrap();
    let route = by_cufile.route();
    assert!(route.reason.contains("not direct"), "{route}");
    assert_eq!(route.resolved, "cufile");
    drop((file, by_cufile));
    block_on(open.shutdown());
    cufile::sim().assert_no_harm();
}
