//! Machines without a device, or with half a driver.
//!
//! Failure: a panic, or a machine without a GPU on which host I/O does not work either.
//! Mechanism: a library, a function or a device that is taken for granted.
//! Method: a process for each way in which something can be missing; typed errors, and host I/O
//! that knows nothing of it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use tokio_cufile::{AsyncCuFile, DeviceBuffer, Engine, ErrorKind};
use tokio_cufile_tests::bench::block_on;
use tokio_cufile_tests::child::{self, Child};
use tokio_cufile_tests::{bench, pattern, sim};
use xtask::simulator;

const LEN: usize = 100_003;

/// In a process of its own: what asking for a device gives, and that host memory is read as ever.
fn assert_absent(directory: &Path, kind: ErrorKind, devices: Option<usize>, reason: &str) {
    let engine = Engine::builder().build_blocking().unwrap();
    let path = directory.join("file");
    std::fs::write(&path, pattern::bytes(1, LEN)).unwrap();
    // Twice: the second time, the failure is known.
    for _ in 0..2 {
        let found = block_on(engine.devices());
        match devices {
            Some(count) => assert_eq!(found.unwrap().len(), count),
            None => assert_eq!(found.unwrap_err().kind(), ErrorKind::Unsupported),
        }
        let error = block_on(DeviceBuffer::new(&engine, 0, LEN)).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        let file = block_on(AsyncCuFile::open(&engine, &path)).unwrap();
        let done = block_on(file.read_exact_at(vec![0; LEN], 0)).unwrap();
        pattern::assert_same(&done.buf, &pattern::bytes(1, LEN));
    }
    assert_eq!(block_on(engine.shutdown()).quarantined, 0);
}

/// A child that finds its driver in `folder`, and has as many simulated devices.
fn child_with(home: &Path, folder: &Path, devices: &str) -> Child {
    Child::new::<&str>(&[], home)
        .with("LD_LIBRARY_PATH", folder)
        .with(sim::VARIABLE, "1")
        .with("TOKIO_CUFILE_SIM_DEVICES", devices)
        .without("TOKIO_CUFILE_SIM_FAULTS")
}

fn home() -> tempfile::TempDir {
    tempfile::tempdir_in(bench::disk()).unwrap()
}

#[test]
fn a_library_that_is_none_is_no_cuda() {
    if let Some(directory) = child::directory() {
        return assert_absent(&directory, ErrorKind::Unsupported, None, "no CUDA");
    }
    let (home, folder) = (home(), home());
    for name in ["libcuda.so.1", "libcuda.so"] {
        std::fs::write(folder.path().join(name), "no library").unwrap();
    }
    child_with(home.path(), folder.path(), "2").run();
}

#[test]
fn a_driver_without_a_device_is_no_cuda() {
    if let Some(directory) = child::directory() {
        return assert_absent(&directory, ErrorKind::Unsupported, None, "no CUDA");
    }
    let home = home();
    let child = child_with(home.path(), &simulator::cuda().unwrap(), "2");
    // The simulator plays such a driver where nobody asked for it.
    child.without(sim::VARIABLE).run();
}

#[test]
fn a_driver_that_counts_no_device_has_none() {
    if let Some(directory) = child::directory() {
        return assert_absent(
            &directory,
            ErrorKind::DeviceNotFound,
            Some(0),
            "no device 0",
        );
    }
    child_with(home().path(), &simulator::cuda().unwrap(), "0").run();
}

#[test]
fn a_driver_without_a_needed_function_is_named_with_it() {
    if let Some(directory) = child::directory() {
        return assert_absent(&directory, ErrorKind::Unsupported, None, "cuEventQuery");
    }
    let folder = simulator::cuda_without("cuEventQuery").unwrap();
    child_with(home().path(), &folder, "2").run();
}

#[test]
fn a_driver_without_a_function_that_can_be_spared_works() {
    if child::directory().is_some() {
        let engine = Engine::builder().build_blocking().unwrap();
        let devices = block_on(engine.devices()).unwrap();
        assert_eq!(devices.len(), 2);
        assert!(devices[1].name.starts_with("SIMULATED"));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, pattern::bytes(2, LEN)).unwrap();
        let file = block_on(AsyncCuFile::open(&engine, &path)).unwrap();
        let buffer = block_on(DeviceBuffer::new(&engine, 1, LEN)).unwrap();
        let done = block_on(file.read_exact_at(buffer, 0)).unwrap();
        let copied = block_on(done.buf.copy_to_host(&engine, 0..LEN)).unwrap();
        pattern::assert_same(&copied.1, &pattern::bytes(2, LEN));
        return;
    }
    for symbol in ["cuMemGetAddressRange_v2", "cuMemRetainAllocationHandle"] {
        let folder = simulator::cuda_without(symbol).unwrap();
        child_with(home().path(), &folder, "2").run();
    }
}

#[test]
fn a_device_that_is_not_there_is_not_found_and_the_others_are() {
    if child::directory().is_some() {
        let engine = Engine::builder().build_blocking().unwrap();
        for ordinal in [2, 3, u32::MAX] {
            let error = block_on(DeviceBuffer::new(&engine, ordinal, LEN)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DeviceNotFound, "{error}");
            assert_eq!(error.device(), Some(ordinal));
        }
        for ordinal in [0, 1] {
            let buffer = block_on(DeviceBuffer::new(&engine, ordinal, LEN)).unwrap();
            assert_eq!(buffer.device(), ordinal);
        }
        return;
    }
    child_with(home().path(), &simulator::cuda().unwrap(), "2").run();
}
