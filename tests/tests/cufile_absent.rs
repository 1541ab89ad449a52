//! Machines without libcufile, with half of one, or with one that has no GPU to work with.
//!
//! Failure: a panic, a hang, or files that cannot be opened at all where cuFile is not to be had.
//! Mechanism: a library, a function or a device that is taken for granted; a first call that
//! never returns, or that writes a log.
//! Method: a process for each way in which something can be missing. Where cuFile was insisted on,
//! a typed error that names what is missing, and nothing created; elsewhere the compat backend, with
//! the reason in the route.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use tokio_cufile::{
    AsyncCuFile, CompatMode, DeviceBuffer, Engine, EngineBuilder, ErrorKind, OpenOptions,
};
use tokio_cufile_tests::bench::{self, block_on};
use tokio_cufile_tests::cufile::{self, enter_each};
use tokio_cufile_tests::{Bed, World, pattern};
use xtask::simulator;

const LEN: usize = 100_003;

fn builder(directory: &Path, compat_mode: CompatMode) -> EngineBuilder {
    let builder = Engine::builder().cufile(cufile::with_nvidia_fs(directory));
    builder.compat_mode(compat_mode)
}

/// What an engine that insists says, twice; and that one which does not insist reads all the same.
fn assert_absent(directory: &Path, reasons: &[&str]) {
    let path = directory.join("file");
    fs::write(&path, pattern::bytes(1, LEN)).unwrap();
    let strict = builder(directory, CompatMode::Off)
        .build_blocking()
        .unwrap();
    for _ in 0..2 {
        let new = directory.join("new");
        let error = block_on(AsyncCuFile::create(&strict, &new)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        for reason in reasons {
            assert!(error.to_string().contains(reason), "{error}");
        }
        assert!(!new.exists(), "nothing is created");
        block_on(AsyncCuFile::create(&strict, &path)).unwrap_err();
        assert_eq!(fs::metadata(&path).unwrap().len(), LEN as u64, "nor cut");
    }
    assert_eq!(block_on(strict.shutdown()).quarantined, 0);

    let open = builder(directory, CompatMode::Auto)
        .build_blocking()
        .unwrap();
    let file = block_on(AsyncCuFile::open(&open, &path)).unwrap();
    for reason in reasons {
        let route = file.route();
        assert!(route.reason.contains(reason), "{route}");
    }
    let done = block_on(file.read_exact_at(vec![0; LEN], 0)).unwrap();
    pattern::assert_same(&done.buf, &pattern::bytes(1, LEN));
    assert_eq!(block_on(open.shutdown()).quarantined, 0);
}

/// A folder with the simulated driver, and in the place of libcufile what is not one, or nothing.
fn folder_of_driver(library: Option<&str>) -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(bench::disk()).unwrap();
    let driver = simulator::cuda().unwrap().join("libcuda.so.1");
    fs::copy(driver, folder.path().join("libcuda.so.1")).unwrap();
    for name in ["libcufile.so.0", "libcufile.so", "libcufile.so.1"] {
        if let Some(content) = library {
            fs::write(folder.path().join(name), content).unwrap();
        }
    }
    folder
}

#[test]
fn without_a_library_every_name_that_was_tried_is_told() {
    let folder = folder_of_driver(None);
    let Some(here) = World::new().loaded_from(folder.path()).enter() else {
        return;
    };
    assert_absent(
        &here,
        &["libcufile.so.0", "libcufile.so.1", "/usr/local/cuda"],
    );
}

#[test]
fn a_file_that_is_no_library_is_told_with_what_the_loader_says() {
    let folder = folder_of_driver(Some("no library"));
    let Some(here) = World::new().loaded_from(folder.path()).enter() else {
        return;
    };
    assert_absent(&here, &["libcufile.so.0", "file too short"]);
}

#[test]
fn without_a_driver_the_library_is_not_called() {
    let folder = tempfile::tempdir_in(bench::disk()).unwrap();
    let library = simulator::cufile().unwrap().join("libcufile.so.0");
    fs::copy(library, folder.path().join("libcufile.so.0")).unwrap();
    fs::write(folder.path().join("libcuda.so.1"), "no library").unwrap();
    fs::write(folder.path().join("libcuda.so"), "no library").unwrap();
    let Some(here) = World::new().loaded_from(folder.path()).enter() else {
        return;
    };
    assert_absent(&here, &["no CUDA"]);
    assert_eq!(cufile::sim().report().calls, 0);
}

#[test]
fn without_a_device_the_library_is_not_called() {
    let Some(here) = World::new().with("TOKIO_CUFILE_SIM_DEVICES", "0").enter() else {
        return;
    };
    assert_absent(&here, &["no device 0"]);
    assert_eq!(cufile::sim().report().calls, 0);
}

#[test]
fn without_a_list_of_modules_a_library_that_reads_it_is_not_called() {
    let Some(here) = World::new().enter() else {
        return;
    };
    drop(cufile::with_nvidia_fs(&here));
    fs::remove_file(here.join("proc/modules")).unwrap();
    let mut config = bench::simulated_cufile();
    config.proc_dir = here.join("proc");
    let engine = Engine::builder().cufile(config);
    let engine = engine
        .compat_mode(CompatMode::Off)
        .build_blocking()
        .unwrap();
    let error = block_on(AsyncCuFile::create(&engine, here.join("new"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("proc/modules"), "{error}");
    assert_eq!(cufile::sim().report().calls, 0);
}

/// It closes, or takes for its own, what has the number.
#[test]
fn without_a_standard_input_the_library_is_not_called() {
    let Some(here) = World::new().enter() else {
        return;
    };
    let engine = builder(&here, CompatMode::Off).build_blocking().unwrap();
    cufile::close_stdin();
    let error = block_on(AsyncCuFile::create(&engine, here.join("new"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.to_string().contains("descriptor 0 is closed"),
        "{error}"
    );
    assert_eq!(cufile::sim().report().calls, 0);
}

const REQUIRED: [&str; 14] = [
    "cuFileDriverOpen",
    "cuFileDriverGetProperties",
    "cuFileDriverSetPollMode",
    "cuFileDriverSetMaxDirectIOSize",
    "cuFileDriverSetMaxCacheSize",
    "cuFileDriverSetMaxPinnedMemSize",
    "cuFileUseCount",
    "cuFileHandleRegister",
    "cuFileHandleDeregister",
    "cuFileBufRegister",
    "cuFileBufDeregister",
    "cuFileRead",
    "cuFileWrite",
    "cuFileDriverClose_v2",
];

#[test]
fn a_library_without_a_needed_function_is_named_with_it() {
    let worlds = REQUIRED.map(|symbol| World::new().lacking(symbol).with("LACKING", symbol));
    // Its older name does as well.
    let [needed @ .., _close] = &worlds;
    let Some(here) = enter_each(needed) else {
        return;
    };
    #[expect(clippy::disallowed_methods, reason = "the parent says what is missing")]
    let symbol = std::env::var("LACKING").unwrap();
    assert_absent(&here, &[&symbol]);
}

/// Reads, writes and registers by cuFile in a process that has it, and ends in order.
fn assert_works(directory: &Path) {
    let bed = Bed::new(directory, |builder| builder);
    let content = pattern::bytes(3, LEN);
    let file = bed.file("works", &content);
    let buffer = bed.buffer(&vec![0; LEN]);
    block_on(buffer.register(&bed.engine)).unwrap();
    let done = block_on(file.read_exact_at(buffer, 0)).unwrap();
    let done = block_on(file.write_all_at(done.buf, 77)).unwrap();
    pattern::assert_same(&bed.content(done.buf), &content);
    pattern::assert_same(&fs::read(file.path()).unwrap()[77..], &content);
    assert!(bed.cufile.calls("cuFileRead") > 0 && bed.cufile.calls("cuFileWrite") > 0);
    drop(file);
    bed.end();
}

#[test]
fn a_library_without_a_function_that_can_be_spared_works() {
    let optional = [
        "cuFileDriverClose_v2",
        "cuFileGetVersion",
        "cuFileReadAsync",
        "cuFileWriteAsync",
        "cuFileStreamRegister",
        "cuFileBatchIOSetUp",
        "cuFileGetParameterBool",
        "cuFileGetParameterString",
        "cuFileSetParameterString",
        "cuFileSetStatsLevel",
        "cuFileStatsStart",
        "cuFileGetStatsL3",
        "cuFileGetBARSizeInKB",
        "cuFileDriverGetP2PFlags",
        "cuFileReadv",
    ];
    let worlds = optional.map(|symbol| World::new().lacking(symbol));
    if let Some(here) = enter_each(&worlds) {
        assert_works(&here);
    }
}

#[test]
fn every_version_works() {
    let worlds = simulator::CUFILE_VERSIONS.map(|version| World::new().version(version));
    if let Some(here) = enter_each(&worlds) {
        assert_works(&here);
    }
}

#[test]
fn a_library_without_streams_refuses_them_and_does_the_rest() {
    let world = World::new().lacking("cuFileReadAsync");
    let Some(here) = world.enter() else { return };
    let bed = Bed::new(&here, |builder| builder);
    let file = bed.file("file", &pattern::bytes(1, 8192));
    let stream = bed.device.user().stream();
    let enqueue = cufile::enqueue(file.read_at(bed.buffer(&[0; 8192]), 0), stream);
    let failed = block_on(async { enqueue.await?.await }).unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::Unsupported, "{failed}");
    let text = failed.to_string();
    assert!(text.contains("cuFileReadAsync"), "{text}");
    let buffer = failed.into_parts().1.unwrap();
    let done = block_on(file.read_exact_at(buffer, 0)).unwrap();
    pattern::assert_same(&bed.content(done.buf), &pattern::bytes(1, 8192));
    bed.device.user().destroy(stream);
    drop(file);
    bed.end();
}

#[test]
fn no_log_is_written_into_the_current_folder() {
    let worlds = ["1.14", "1.15", "1.20"].map(|version| World::new().version(version));
    let Some(here) = enter_each(&worlds) else {
        return;
    };
    std::env::set_current_dir(&here).unwrap();
    let bed = Bed::new(&here, |builder| builder);
    let file = bed.file("file", b"content");
    let names = fs::read_dir(&here).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["file"]);
    drop(file);
    bed.end();
}

#[test]
fn an_engine_that_never_meets_cufile_never_loads_it() {
    let Some(here) = World::new().enter() else {
        return;
    };
    for compat_mode in [CompatMode::Auto, CompatMode::On] {
        let engine = Engine::builder().compat_mode(compat_mode);
        let engine = engine.cufile(bench::simulated_cufile());
        let engine = engine.build_blocking().unwrap();
        let options = OpenOptions::new().read(true).write(true).create(true);
        let file = block_on(options.open(&engine, here.join("file"))).unwrap();
        let buffer = block_on(DeviceBuffer::new(&engine, 0, 1 << 20)).unwrap();
        let done = block_on(file.write_all_at(buffer, 0)).unwrap();
        block_on(file.read_exact_at(done.buf, 0)).unwrap();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        assert!(
            maps.contains("libcuda.so"),
            "the test looks in the right place"
        );
        assert!(!maps.contains("libcufile"), "{compat_mode:?}");
        if compat_mode == CompatMode::Auto {
            let reason = &file.route().reason;
            assert!(reason.contains("no nvidia-fs"), "{reason}");
        }
        drop(file);
        block_on(engine.shutdown());
    }
}
