//! Failure: the simulator is taken for the real library, another version does not differ from the
//! latest, or the end of a process is gentler than it was measured. Method: a process for each, as
//! loading, opening and ending happen once.
#![allow(
    unsafe_code,
    reason = "asks to be called when the process ends, and closes then"
)]

mod support;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Output;
use std::sync::OnceLock;

use nvidia_dl::cufile::{
    BoolParameter, Code, Failure, OPTIONAL_SYMBOLS, SizeParameter, StatsLevel, StringParameter,
    Version,
};
use support::{LATEST, Sims, file, whole};
use xtask::again::{self, is_again, printed, succeeds};
use xtask::simulator;

const ON: (&str, &str) = ("TOKIO_CUFILE_SIMULATE", "1");

#[test]
fn every_version_has_its_symbols_and_says_which_it_is() {
    let mut last = 0;
    for name in simulator::CUFILE_VERSIONS {
        let library = Sims::load(name).library;
        let version = library
            .version()
            .expect("a version")
            .expect("it has the call");
        assert_eq!(version.to_string(), name);
        let missing = library.missing_symbols();
        for symbol in OPTIONAL_SYMBOLS {
            let since = Version::since(symbol).expect("it came with a version");
            assert_eq!(
                missing.contains(symbol),
                since > version,
                "{symbol} in {name}"
            );
        }
        last = version.0;
    }
    assert_eq!(Version(last).to_string(), LATEST);
    assert!(simulator::cufile_of("1.12", None).is_err());
}

#[test]
fn a_function_can_be_missing() {
    let symbol = "cuFileReadAsync";
    let folder = simulator::cufile_of("1.15", Some(symbol)).expect("it can be made");
    let path = folder.join("libcufile.so.0");
    // SAFETY: this is the simulator.
    let search = unsafe { nvidia_dl::Search::named([path]) };
    let library = nvidia_dl::cufile::Library::load(&search).expect("it loads");
    assert!(library.missing_symbols().contains(&symbol));
    let whole = Sims::load("1.15").library.missing_symbols();
    assert_eq!(library.missing_symbols().len(), whole.len() + 1);
    // One that cannot be left out is named.
    let folder = simulator::cufile_of("1.15", Some("cuFileRead")).expect("it can be made");
    // SAFETY: as above.
    let search = unsafe { nvidia_dl::Search::named([folder.join("libcufile.so.0")]) };
    let error = nvidia_dl::cufile::Library::load(&search).expect_err("it is required");
    assert!(
        error.to_string().contains("no symbol cuFileRead"),
        "{error}"
    );
    assert!(simulator::cufile_of("1.15", Some("cuFileNoSuchCall")).is_err());
}

#[test]
fn without_being_asked_for_there_is_no_cufile() {
    const NAME: &str = "without_being_asked_for_there_is_no_cufile";
    if !is_again() {
        let text = succeeds(NAME, &[]);
        assert!(text.contains("SIMULATED: this is a simulator"), "{text}");
        return;
    }
    let library = Sims::load(LATEST).library;
    assert_eq!(library.version(), Ok(Some(Version(1200))));
    let error = library.driver_open().expect_err("nobody has asked for it");
    assert_eq!(error.failure(), Some(Failure::Code(Code::NVFS_SETUP_ERROR)));
    assert_eq!(library.use_count(), 0);
}

/// As measured: noise on the standard output, at every attempt.
#[test]
fn before_1_16_there_is_no_opening_without_a_driver() {
    const NAME: &str = "before_1_16_there_is_no_opening_without_a_driver";
    if !is_again() {
        let output = again::run(NAME, &[ON]);
        assert!(output.status.success(), "{}", printed(&output));
        let noise = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            noise.matches("SIMULATED libcufile: no libcuda").count(),
            6,
            "{noise}"
        );
        return;
    }
    let folder = simulator::cufile_of("1.15", None).expect("it can be made");
    // SAFETY: this is the simulator.
    let search = unsafe { nvidia_dl::Search::named([folder.join("libcufile.so.0")]) };
    let library = nvidia_dl::cufile::Library::load(&search).expect("it loads");
    for _ in 0..2 {
        let error = library.driver_open().expect_err("there is no driver");
        assert_eq!(error.failure(), Some(Failure::Code(Code::NVFS_SETUP_ERROR)));
    }
}

/// Opens a version with statistics at a level, and ends without closing, or with.
fn end_of(version: &str, level: StatsLevel, closes: bool) {
    let sims = Sims::load(version);
    sims.opt_in();
    sims.quiet();
    sims.enter(0);
    sims.library.set_stats_level(level).expect("a level");
    sims.library.driver_open().expect("it opens");
    if closes {
        // SAFETY: nothing is registered.
        unsafe { sims.library.driver_close() }.expect("it closes");
    }
}

#[test]
fn the_end_of_a_process_is_as_measured() {
    const NAME: &str = "the_end_of_a_process_is_as_measured";
    let versions = ["1.15", "1.20"];
    let levels = [StatsLevel::BASIC, StatsLevel::PER_GPU];
    if is_again() {
        let case = xtask::place::setting("SIM_CUFILE_CASE", "0");
        let case: usize = case.parse().expect("a number");
        return end_of(versions[case & 1], levels[case >> 1 & 1], case >> 2 == 1);
    }
    for case in 0..8 {
        let output = again::run(NAME, &[("SIM_CUFILE_CASE", &case.to_string())]);
        // 1.15, level 3, left open.
        let crashes = case == 0b010;
        assert_eq!(
            output.status.success(),
            !crashes,
            "{case}: {}",
            printed(&output)
        );
        assert_eq!(is_crash(&output), crashes, "{case}: {}", output.status);
    }
}

fn is_crash(output: &Output) -> bool {
    output.status.signal() == Some(libc::SIGABRT)
}

#[test]
fn closing_while_the_process_exits_crashes() {
    const NAME: &str = "closing_while_the_process_exits_crashes";
    static SIMS: OnceLock<Sims> = OnceLock::new();
    extern "C" fn last() {
        let sims = SIMS.get().expect("set before the end");
        // SAFETY: that it is too late is what is tested.
        let closed = unsafe { sims.library.driver_close() };
        println!("closed: {closed:?}");
    }
    if !is_again() {
        let output = again::run(NAME, &[]);
        assert!(is_crash(&output), "{}", printed(&output));
        assert!(
            printed(&output).contains("cuFileDriverClose_v2 was called while the process exits")
        );
        return;
    }
    // SAFETY: the function is there until the end. It runs last, as it is the first to be given.
    assert_eq!(unsafe { libc::atexit(last) }, 0);
    let sims = SIMS.get_or_init(|| Sims::load("1.20"));
    sims.opt_in();
    sims.quiet();
    sims.enter(0);
    sims.library.driver_open().expect("it opens");
}

/// Measured on 1.15 and 1.20, with nothing that keeps the process.
#[test]
fn leaving_while_the_library_is_in_use_crashes() {
    const NAME: &str = "leaving_while_the_library_is_in_use_crashes";
    if !is_again() {
        for (version, how) in ["1.15", "1.20"]
            .into_iter()
            .flat_map(|version| ["call", "stream"].map(|how| (version, how)))
        {
            let case = format!("{version} {how}");
            let output = again::run(NAME, &[("SIM_CUFILE_CASE", &case)]);
            assert!(is_crash(&output), "{case}: {}", printed(&output));
            let said = match how {
                "call" => "SIMULATED: exit with 1 calls running",
                _ => "SIMULATED: exit with 1 requests in streams",
            };
            let printed = printed(&output);
            assert!(printed.contains(said), "{case}: {printed}");
        }
        return;
    }
    let case = xtask::place::setting("SIM_CUFILE_CASE", "");
    let (version, how) = case.split_once(' ').expect("a version and a word");
    let sims: &'static Sims = Box::leak(Box::new(Sims::load(version)));
    sims.opt_in();
    sims.quiet();
    sims.enter(0);
    sims.library.driver_open().expect("it opens");
    sims.faults("cuFileRead:never;@read:never");
    let file = file(&[1; 4096]);
    let handle = sims.register(file.as_file());
    let memory = sims.memory(4096);
    if how == "call" {
        std::thread::spawn(move || {
            sims.enter(0);
            sims.read(handle, &whole(memory, 4096))
        });
    } else {
        sims.put(sims.stream(), handle, memory, support::cells(4096, 0, 0));
    }
    while sims.stats().faults_fired == 0 {
        std::thread::yield_now();
    }
}

/// Measured on 1.15 and 1.20.
#[test]
fn a_write_to_a_file_for_reading_is_told_by_version() {
    const NAME: &str = "a_write_to_a_file_for_reading_is_told_by_version";
    if !is_again() {
        for version in ["1.15", "1.16", "1.20"] {
            succeeds(NAME, &[("SIM_CUFILE_CASE", version)]);
        }
        return;
    }
    let version = xtask::place::setting("SIM_CUFILE_CASE", "");
    let sims = Sims::load(&version);
    sims.opt_in();
    sims.quiet();
    sims.enter(0);
    let file = file(&[1; 4096]);
    let read_only = std::fs::File::open(file.path()).expect("it opens");
    let handle = sims.register(&read_only);
    let memory = sims.memory(4096);
    // SAFETY: file and memory stay until the test ends.
    let refused = unsafe { sims.library.write(handle, &whole(memory, 4096)) };
    let expected = if version == "1.15" {
        Failure::Os(libc::EPERM)
    } else {
        Failure::Code(Code::INVALID_FILE_OPEN_FLAG)
    };
    let refused = refused.expect_err("it is for reading");
    assert_eq!(refused.failure(), Some(expected), "{version}");
}

/// The folder that the process is in is the package's, unless it is told otherwise.
#[test]
fn a_log_is_made_in_the_current_folder_unless_it_is_sent_elsewhere() {
    const NAME: &str = "a_log_is_made_in_the_current_folder_unless_it_is_sent_elsewhere";
    const LOG: &str = "SIMULATED-cufile.log";
    if is_again() {
        let sims = Sims::load(LATEST);
        sims.opt_in();
        sims.enter(0);
        if xtask::place::setting("SIM_CUFILE_CASE", "") == "folder" {
            let folder = sims
                .library
                .set_string_parameter(StringParameter::LOG_DIR, "logs");
            folder.expect("a folder");
        }
        return sims.library.driver_open().expect("it opens");
    }
    let run = |variables: &[(&str, &str)]| {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("logs")).expect("a folder in it");
        let mut command = again::command(NAME);
        command
            .envs(variables.iter().copied())
            .current_dir(folder.path());
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{}", printed(&output));
        let made = |path: &Path| std::fs::read_dir(path).expect("a folder").count();
        let here = folder.path().join(LOG).exists();
        (here, made(folder.path()), made(&folder.path().join("logs")))
    };
    assert_eq!(run(&[]), (true, 2, 0));
    assert_eq!(run(&[("CUFILE_LOGFILE_PATH", "/dev/null")]), (false, 1, 0));
    assert_eq!(run(&[("SIM_CUFILE_CASE", "folder")]), (false, 1, 1));
}

#[test]
fn compatibility_mode_is_forced_and_forbidden_by_the_librarys_own_settings() {
    const NAME: &str = "compatibility_mode_is_forced_and_forbidden_by_the_librarys_own_settings";
    let forced = ("CUFILE_FORCE_COMPAT_MODE", "true");
    let forbidden = ("CUFILE_ALLOW_COMPAT_MODE", "false");
    if !is_again() {
        let direct = ("TOKIO_CUFILE_SIM_CUFILE_PATH", "nvidia-fs");
        succeeds(NAME, &[ON, direct, forced, ("SIM_CUFILE_CASE", "forced")]);
        let case = ("SIM_CUFILE_CASE", "forbidden");
        succeeds(NAME, &[ON, forbidden, case]);
        return;
    }
    if xtask::place::setting("SIM_CUFILE_CASE", "") == "forbidden" {
        // Later versions do not look at the variable.
        for (version, is_looked_at) in [("1.16", true), ("1.20", false)] {
            let sims = Sims::load(version);
            sims.opt_in();
            sims.quiet();
            sims.enter(0);
            assert_eq!(
                sims.library.driver_open().is_err(),
                is_looked_at,
                "{version}"
            );
        }
        return;
    }
    let sims = support::sims();
    let forced = sims
        .library
        .bool_parameter(BoolParameter::FORCE_COMPAT_MODE);
    assert_eq!(forced, Ok(true));
    let file = file(&[1; 4096]);
    let handle = sims.register(file.as_file());
    assert_eq!(sims.read(handle, &whole(sims.memory(4096), 4096)), Ok(4096));
    let paths = sims.reads_by_path();
    assert_eq!((paths.posix, paths.nvidia_fs), (1, 0));
}

/// As measured: what was not set is told as nothing until the library is open, what was set is told
/// as it was set, and what is out of its range gives way then, without a word.
#[test]
fn parameters_are_told_as_they_are_once_the_library_is_open() {
    const NAME: &str = "parameters_are_told_as_they_are_once_the_library_is_open";
    if !is_again() {
        succeeds(NAME, &[]);
        return;
    }
    let sims = Sims::load("1.20");
    sims.opt_in();
    sims.enter(0);
    let library = sims.library;
    let (batch, cache) = (
        SizeParameter::IO_BATCHSIZE,
        SizeParameter::PER_BUFFER_CACHE_SIZE_KB,
    );
    let (allow, log) = (
        BoolParameter::ALLOW_COMPAT_MODE,
        StringParameter::LOG_FILE_PATH,
    );
    assert_eq!(library.size_parameter(batch), Ok(0));
    assert_eq!(library.bool_parameter(allow), Ok(false));
    assert_eq!(library.size_parameter(SizeParameter::MAX_IO_THREADS), Ok(8));
    assert!(library.string_parameter(log).is_err());
    assert_eq!(library.size_parameter_range(batch), Ok((1, 256)));
    assert_eq!(library.set_size_parameter(batch, 257), Ok(()));
    assert_eq!(library.set_size_parameter(cache, 2048), Ok(()));
    assert_eq!(library.size_parameter(batch), Ok(257));
    assert!(library.set_size_parameter(SizeParameter(99), 1).is_err());
    sims.quiet();
    library.set_posix_pool(&[8], &[16]).expect("slabs");
    library.driver_open().expect("it opens");
    assert_eq!(library.size_parameter(batch), Ok(128));
    assert_eq!(library.size_parameter(cache), Ok(2048));
    assert_eq!(library.bool_parameter(allow), Ok(true));
    assert_eq!(library.posix_pool(1), Ok((vec![8], vec![16])));
    let late = library
        .set_size_parameter(batch, 128)
        .expect_err("too late");
    assert_eq!(
        late.failure(),
        Some(Failure::Code(Code::DRIVER_ALREADY_OPEN))
    );
    assert_eq!(library.string_parameter(log).as_deref(), Ok("/dev/null"));
}

#[test]
fn a_version_does_not_know_the_parameters_of_later_ones() {
    const NAME: &str = "a_version_does_not_know_the_parameters_of_later_ones";
    if !is_again() {
        succeeds(NAME, &[ON]);
        return;
    }
    let later = BoolParameter::GDS_FALLBACK_IO;
    assert!(Sims::load("1.18").library.bool_parameter(later).is_err());
    assert_eq!(Sims::load("1.19").library.bool_parameter(later), Ok(false));
    let nvtx = BoolParameter::NVTX;
    assert_eq!(Sims::load("1.15").library.bool_parameter(nvtx), Ok(false));
    assert!(Sims::load("1.16").library.bool_parameter(nvtx).is_err());
}

#[test]
fn a_thread_without_a_context_cannot_open_it() {
    const NAME: &str = "a_thread_without_a_context_cannot_open_it";
    if !is_again() {
        succeeds(NAME, &[]);
        return;
    }
    let sims = Sims::load("1.20");
    sims.opt_in();
    sims.quiet();
    let error = sims.library.driver_open().expect_err("it has none");
    let refused = Failure::Code(Code::DRIVER_NOT_INITIALIZED);
    assert_eq!(error.failure(), Some(refused));
    sims.enter(0);
    assert_eq!(sims.library.driver_open(), Ok(()));
}
