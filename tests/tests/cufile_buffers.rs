//! Device memory that is registered with cuFile.
//!
//! Failure: bytes at another place of a buffer; memory that is freed while it is registered, which can
//! hang nvidia-fs; a buffer that cannot be used because it could not be registered.
//! Mechanism: what is registered is known by its start, and pinned within limits that all share.
//! Method: the simulator finds the memory by the start that it was given, refuses what does not fit, and
//! counts buffers that end in use, or whose memory is gone.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use tokio_cufile::{DeviceBuffer, ErrorKind, VendorCode};
use tokio_cufile_tests::bench::{self, block_on};
use tokio_cufile_tests::cufile::{enqueue, enter_each};
use tokio_cufile_tests::life::until;
use tokio_cufile_tests::{Bed, Sim, World, pattern};

const PAGE: usize = 4096;
const LEN: usize = 16 * PAGE;

fn home() -> tempfile::TempDir {
    tempfile::tempdir_in(bench::disk()).unwrap()
}

fn registered(bed: &Bed, content: &[u8]) -> DeviceBuffer {
    let buffer = bed.buffer(content);
    assert!(!buffer.is_registered());
    block_on(buffer.register(&bed.engine)).unwrap();
    assert!(buffer.is_registered());
    buffer
}

#[test]
fn parts_of_a_registered_buffer_are_told_by_its_start() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| builder.task_size(3 * PAGE));
    let content = pattern::bytes(1, LEN);
    let file = bed.file("file", &content);
    let mut buffer = registered(&bed, &vec![0xee; LEN]);
    // In a stream the library takes memory within a buffer only where that is registered.
    let stream = bed.device.user().stream();
    let [one, two] = [(PAGE, 5000), (9 * PAGE + 3, 3 * PAGE)].map(|(at, len)| {
        let part = buffer.part(at..at + len).unwrap();
        (at, len, file.read_exact_at(part, at as u64))
    });
    let in_stream = block_on(enqueue(two.2, stream)).unwrap();
    block_on(one.2).unwrap();
    block_on(in_stream).unwrap();
    let found = bed.content(buffer);
    for (at, len) in [(one.0, one.1), (two.0, two.1)] {
        pattern::assert_same(&found[at..at + len], &content[at..at + len]);
    }
    assert!(found[..PAGE].iter().all(|&byte| byte == 0xee));
    assert!(found[13 * PAGE..].iter().all(|&byte| byte == 0xee));
    bed.device.user().destroy(stream);
    drop(file);
    bed.end();
}

#[test]
fn a_buffer_is_registered_once_however_often_that_is_asked_for() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| builder);
    let buffer = bed.buffer(&[0; LEN]);
    let asked: Vec<_> = (0..8)
        .map(|_| buffer.register(&bed.engine).start())
        .collect();
    for one in asked {
        block_on(one).unwrap();
    }
    assert_eq!(bed.calls("cuFileBufRegister"), 1);
    let empty = bed.buffer(&[]);
    block_on(empty.register(&bed.engine)).unwrap();
    assert!(!empty.is_registered());
    assert_eq!(bed.calls("cuFileBufRegister"), 1);
    drop((buffer, empty));
    until(|| bed.cufile.report().buffers == 0);
    bed.end();
}

#[test]
fn a_buffer_that_is_refused_is_served_unregistered() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| builder);
    let content = pattern::bytes(1, LEN);
    let file = bed.file("file", &content);
    for (code, kind) in [
        (5016, ErrorKind::OutOfMemory),
        (5017, ErrorKind::OutOfMemory),
        (5036, ErrorKind::OutOfMemory),
        (5030, ErrorKind::Io),
    ] {
        bed.cufile.fault(&format!("cuFileBufRegister:fail={code}"));
        let buffer = bed.buffer(&[0; LEN]);
        let error = block_on(buffer.register(&bed.engine)).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(error.vendor_code(), Some(VendorCode::CuFile(code)));
        assert_eq!(error.device(), Some(bed.device.ordinal));
        assert!(!buffer.is_registered());
        let done = block_on(file.read_exact_at(buffer, 0)).unwrap();
        pattern::assert_same(&bed.content(done.buf), &content);
        bed.cufile.clear();
        // Asked again, it may be had.
        drop(registered(&bed, &content));
    }
    drop(file);
    bed.end();
}

#[test]
fn what_does_not_fit_the_window_to_the_bus_is_not_asked_for() {
    let world = World::new().with("TOKIO_CUFILE_SIM_CUFILE_BAR_KB", "128");
    // Before 1.15 the window is not told, and the library refuses by itself.
    let worlds = ["1.14", "1.20"].map(|version| world.clone().version(version));
    let Some(here) = enter_each(&worlds) else {
        return;
    };
    let bed = Bed::new(&here, |builder| builder);
    let first = registered(&bed, &[0; LEN]);
    let second = registered(&bed, &[0; LEN]);
    let third = bed.buffer(&[0; LEN]);
    let error = block_on(third.register(&bed.engine)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    // By the library where it was asked.
    let is_told = error.to_string().contains("the GPU's window to the bus");
    let asked = bed.calls("cuFileBufRegister");
    assert_eq!(asked, if is_told { 2 } else { 3 }, "{error}");
    assert_ne!(is_told, error.vendor_code().is_some(), "{error}");
    let has_call = bed.cufile.calls("cuFileGetBARSizeInKB") > 0;
    assert_eq!(is_told, has_call, "{error}");
    drop(first);
    until(|| bed.cufile.report().buffers == 1);
    block_on(third.register(&bed.engine)).unwrap();
    drop((second, third));
    bed.end();
}

#[test]
fn a_buffer_that_is_dropped_in_flight_is_deregistered_and_freed_afterwards() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| builder.num_threads(4));
    let content = pattern::bytes(1, LEN);
    let file = bed.file("file", &content);
    bed.cufile.fault("cuFileRead:never;cuFileWrite:never");
    let read = registered(&bed, &vec![0xee; LEN]);
    let write = registered(&bed, &pattern::bytes(2, LEN));
    let reading = file.read_at(read, 0).start();
    let writing = file.write_at(write, LEN as u64).start();
    until(|| bed.fired() == 2);
    let frees = bed.device.calls("cuMemFree_v2");
    drop((reading, writing));
    assert_eq!(bed.cufile.report().buffers, 2);
    assert_eq!(bed.device.calls("cuMemFree_v2"), frees);
    bed.cufile.clear();
    until(|| bed.cufile.report().buffers == 0);
    block_on(file.sync_data()).unwrap();
    let written = fs::read(file.path()).unwrap();
    pattern::assert_same(&written[LEN..], &pattern::bytes(2, LEN));
    drop(file);
    bed.end();
}

#[test]
fn buffers_that_outlive_their_engine_are_deregistered_by_the_shutdown() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| builder);
    let buffers: Vec<_> = (0..20).map(|_| registered(&bed, &[1; PAGE])).collect();
    assert_eq!(bed.cufile.report().buffers, 20);
    block_on(bed.engine.shutdown());
    assert_eq!(bed.cufile.report().buffers, 0);
    let error = block_on(buffers[0].register(&bed.engine)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ShuttingDown);
    drop(buffers);
    bed.end();
}

#[test]
fn a_buffer_that_outlives_a_dropped_engine_is_deregistered_before_it_is_freed() {
    let Some(here) = World::new().enter() else {
        return;
    };
    let bed = Bed::new(&here, |builder| builder);
    let buffer = registered(&bed, &[1; PAGE]);
    let Bed {
        cufile,
        device,
        engine,
        ..
    } = bed;
    drop(engine);
    assert_eq!(cufile.report().buffers, 1);
    drop(buffer);
    device.assert_all_gone();
    until(|| cufile.report().buffers == 0);
    cufile.assert_no_harm();
}

#[test]
fn memory_of_another_engine_is_not_registered() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| builder);
    let other = tokio_cufile::Engine::builder().build_blocking().unwrap();
    let buffer = bed.buffer(&[0; PAGE]);
    let error = block_on(buffer.register(&other)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongEngine);
    assert_eq!(bed.calls("cuFileBufRegister"), 0);
    block_on(other.shutdown());
    drop(buffer);
    bed.end();
}

/// Parts are in a stream and wait, while their buffer is registered.
#[test]
fn a_buffer_that_is_registered_in_flight_gets_its_bytes_in_their_place() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| builder.num_threads(4));
    let content = pattern::bytes(6, LEN);
    let file = bed.file("file", &content);
    for round in 0..20 {
        let mut buffer = bed.buffer(&vec![0xee; LEN]);
        let stream = bed.device.user().stream();
        let part = buffer.part(8 * PAGE..LEN).unwrap();
        let read = file.read_exact_at(part, 8 * PAGE as u64);
        let mut registering = buffer.register(&bed.engine);
        if round % 2 == 0 {
            registering = registering.start();
        }
        let in_stream = block_on(enqueue(read, stream)).unwrap();
        block_on(registering).unwrap();
        block_on(in_stream).unwrap();
        let found = bed.content(buffer);
        pattern::assert_same(&found[8 * PAGE..], &content[8 * PAGE..]);
        assert!(found[..8 * PAGE].iter().all(|&byte| byte == 0xee));
        bed.device.user().destroy(stream);
    }
    drop(file);
    bed.end();
}
