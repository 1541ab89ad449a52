//! What is in force of libcufile's own settings, and who said so.
//!
//! Failure: a user who is told a value that is not in force, or another one's doing; a log that was
//! asked for and is not there.
//! Mechanism: an engine sets, the environment and a file say, and the library keeps what it takes.
//! Method: a process for each way of saying. The simulated library takes the real one's variables and
//! reads no file, so that what a file says is not in force.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "the parent says what is said")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use tokio_cufile::{CuFileInfo, CuFileSetting, CuFileSource, CuFileStats, DataPath, Receipt};
use tokio_cufile_tests::bench::{self, block_on};
use tokio_cufile_tests::collector::Collector;
use tokio_cufile_tests::cufile::enter_each;
use tokio_cufile_tests::{Bed, World};
use tracing::Level;

const LEN: usize = 4096;

fn setting<'a>(info: &'a CuFileInfo, key: &str) -> &'a CuFileSetting {
    let found = info.settings.iter().find(|setting| setting.key == key);
    found.unwrap_or_else(|| panic!("{key} in {info:?}"))
}

fn is(info: &CuFileInfo, key: &str, value: &str, source: CuFileSource) {
    let found = setting(info, key);
    assert_eq!((&*found.value, &found.source), (value, &source), "{key}");
}

fn bed(here: &Path, stats: CuFileStats) -> Bed {
    let mut config = bench::simulated_cufile();
    config.stats = stats;
    Bed::new(here, |builder| builder.cufile(config))
}

/// What is said of a read.
fn read(bed: &Bed) -> Receipt {
    let file = bed.file("file", &[7; LEN]);
    let done = block_on(file.read_exact_at(bed.buffer(&[0; LEN]), 0)).unwrap();
    done.receipt.clone()
}

#[test]
fn what_is_in_force_is_told_with_where_it_came_from() {
    let folder = tempfile::tempdir_in(bench::disk()).unwrap();
    let file = folder.path().join("cufile.json");
    let text = r#"{ "properties": { /* no */ "use_poll_mode": true, "io_batchsize": 128 } }"#;
    fs::write(&file, text).unwrap();
    let world = World::new()
        .with("CUFILE_ENV_PATH_JSON", file.to_str().unwrap())
        .with("CUFILE_LOGGING_LEVEL", "TRACE");
    let Some(here) = world.enter() else {
        return;
    };
    let collector = Collector::install();
    let bed = bed(&here, CuFileStats::On);
    let info = block_on(bed.engine.cufile()).unwrap();
    // To operators too, as they see nothing else of it.
    collector.find(Level::INFO, &["cuFile is open", &format!("{info:?}")]);
    let file = env::var_os("CUFILE_ENV_PATH_JSON").unwrap();
    assert_eq!(info.config_file, Some(file.clone().into()));
    let by_file = CuFileSource::File(file.into());
    is(&info, "logging.path", "/dev/null", CuFileSource::Engine);
    let by_variable = CuFileSource::Environment("CUFILE_LOGGING_LEVEL");
    is(&info, "logging.level", "TRACE", by_variable);
    is(&info, "properties.io_batchsize", "128", by_file.clone());
    is(&info, "properties.use_poll_mode", "false", by_file);
    let other = CuFileSource::Default;
    is(&info, "properties.allow_compat_mode", "true", other);
    is(&info, "profile.cufile_stats", "3", CuFileSource::Engine);
    let note = "properties.use_poll_mode was asked to be true, and is false";
    assert_eq!(info.notes, [note]);
    bed.end();
}

#[test]
fn a_log_that_somebody_asks_for_is_theirs() {
    let folder = tempfile::tempdir_in(bench::disk()).unwrap();
    let file = folder.path().join("cufile.json");
    fs::write(&file, r#"{ "logging": { "dir": "/tmp" } }"#).unwrap();
    let broken = folder.path().join("broken.json");
    fs::write(&broken, "{ logging ").unwrap();
    let log = folder.path().join("log");
    let worlds = [
        ("CUFILE_LOGFILE_PATH", &log),
        ("CUFILE_ENV_PATH_JSON", &file),
        // What the library makes of it is not known.
        ("CUFILE_ENV_PATH_JSON", &broken),
    ];
    let world = |(name, path): (_, &PathBuf)| World::new().with(name, path.to_str().unwrap());
    let Some(here) = enter_each(&worlds.map(world)) else {
        return;
    };
    let bed = Bed::new(&here, |builder| builder);
    let info = block_on(bed.engine.cufile()).unwrap();
    match env::var("CUFILE_LOGFILE_PATH") {
        Ok(log) => {
            let by_variable = CuFileSource::Environment("CUFILE_LOGFILE_PATH");
            is(&info, "logging.path", &log, by_variable);
            assert!(fs::read_to_string(&log).unwrap().contains("SIMULATED"));
        }
        Err(_) => {
            let mut sources = info.settings.iter().map(|setting| &setting.source);
            assert!(
                sources.all(|source| *source != CuFileSource::Engine),
                "{info:?}"
            );
        }
    }
    let is_told = info.notes.iter().any(|note| note.contains("broken.json"));
    let named = env::var("CUFILE_ENV_PATH_JSON").unwrap_or_default();
    assert_eq!(is_told, named.contains("broken"), "{info:?}");
    bed.end();
}

#[test]
fn statistics_that_a_file_asks_for_are_used_and_what_they_mean_at_exit_is_told() {
    let world = |version| {
        let world = World::new().version(version).with("VERSION", version);
        world.with("TOKIO_CUFILE_SIM_CUFILE_STATS", "3")
    };
    let Some(here) = enter_each(&["1.15", "1.20"].map(world)) else {
        return;
    };
    let bed = bed(&here, CuFileStats::Off);
    let info = block_on(bed.engine.cufile()).unwrap();
    assert_eq!(setting(&info, "profile.cufile_stats").value, "3");
    assert_eq!(info.not_told, None);
    let crashes = env::var("VERSION").unwrap() == "1.15";
    let mut told = info.notes.iter().filter(|note| note.contains("exit"));
    assert_eq!(told.next().is_some(), crashes, "{info:?}");
    assert_eq!(read(&bed).paths.get(DataPath::CufilePosix), LEN as u64);
    bed.end();
}

#[test]
fn a_standard_descriptor_that_the_opening_closes_leads_nowhere_afterwards() {
    let world = |number| World::new().with("TOKIO_CUFILE_SIM_CUFILE_CLOSES", number);
    let Some(here) = enter_each(&["0", "2"].map(world)) else {
        return;
    };
    let number = env::var("TOKIO_CUFILE_SIM_CUFILE_CLOSES").unwrap();
    let bed = Bed::new(&here, |builder| builder);
    let info = block_on(bed.engine.cufile()).unwrap();
    let leads_to = fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
    assert_eq!(leads_to, Path::new("/dev/null"));
    let [note] = &*info.notes else {
        panic!("{info:?}")
    };
    assert!(
        note.contains(&format!("closed descriptor {number}")),
        "{note}"
    );
    bed.end();
}

/// As NVIDIA's own `cufile.json` has it: what it says comes over what was set before the open.
#[test]
fn statistics_that_a_file_leaves_out_are_asked_for_again() {
    let world = |level| World::new().with("TOKIO_CUFILE_SIM_CUFILE_STATS", level);
    let Some(here) = enter_each(&["0", "1"].map(world)) else {
        return;
    };
    let bed = bed(&here, CuFileStats::On);
    let info = block_on(bed.engine.cufile()).unwrap();
    is(&info, "profile.cufile_stats", "3", CuFileSource::Engine);
    assert_eq!(info.not_told, None);
    assert_eq!(read(&bed).paths.get(DataPath::CufilePosix), LEN as u64);
    bed.end();
}

#[test]
fn statistics_that_are_not_in_force_are_told_as_such() {
    let world = World::new().with("TOKIO_CUFILE_SIM_CUFILE_STATS", "1");
    let Some(here) = world.enter() else {
        return;
    };
    let bed = bed(&here, CuFileStats::On);
    bed.cufile.fault("cuFileSetStatsLevel:fail=5022,from=2");
    let info = block_on(bed.engine.cufile()).unwrap();
    let level = setting(&info, "profile.cufile_stats");
    assert_eq!(
        (&*level.value, &level.source),
        ("1", &CuFileSource::Default)
    );
    let reason = info.not_told.unwrap();
    assert!(reason.contains("level 3"), "{reason}");
    assert!(reason.contains("1 is in force"), "{reason}");
    assert_eq!(read(&bed).paths.get(DataPath::CufileUnverified), LEN as u64);
    bed.end();
}
