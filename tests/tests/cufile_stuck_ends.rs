//! Ends of cuFile's that do not come, or fail.
//!
//! Failure: a shutdown that waits for ever, or memory that is freed while the library keeps it.
//! Mechanism: deregistering and closing are calls into the library, and can hang or fail as any other.
//! Method: a process for each, in which the call does not return or returns an error.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use tokio_cufile_tests::bench::{self, block_on};
use tokio_cufile_tests::cufile::enter_each;
use tokio_cufile_tests::life::until;
use tokio_cufile_tests::{Bed, World};

const PAGE: usize = 4096;

#[test]
fn a_shutdown_goes_on_without_a_library_that_does_not_let_go() {
    let calls = [
        "cuFileHandleDeregister",
        "cuFileBufDeregister",
        "cuFileDriverClose_v2",
    ];
    let worlds = calls.map(|call| World::new().with("CALL", call));
    let Some(here) = enter_each(&worlds) else {
        return;
    };
    #[expect(clippy::disallowed_methods, reason = "the parent says which it is")]
    let call = std::env::var("CALL").unwrap();
    let mut config = bench::simulated_cufile();
    config.open_limit = Duration::from_millis(30);
    let bed = Bed::new(&here, |builder| builder.cufile(config));
    let file = bed.file("file", &[1; PAGE]);
    let buffer = bed.buffer(&[0; PAGE]);
    block_on(buffer.register(&bed.engine)).unwrap();
    let done = block_on(file.read_exact_at(buffer, 0)).unwrap();
    bed.cufile.fault(&format!("{call}:never"));
    assert_eq!(block_on(bed.engine.shutdown()).quarantined, 0);
    // On a busy machine the limit may be over before the call is made.
    until(|| bed.fired() == 1);
    assert_eq!(bed.cufile.report().opens, 1);
    // It ends after all.
    bed.cufile.clear();
    until(|| bed.cufile.report().opens == 0);
    let report = bed.cufile.report();
    assert_eq!((report.files, report.buffers), (0, 0), "{report:?}");
    drop((file, done));
    bed.cufile.assert_no_harm();
}

#[test]
fn memory_that_the_library_keeps_is_not_freed() {
    let Some(here) = World::new().enter() else {
        return;
    };
    let bed = Bed::new(&here, |builder| builder);
    let buffer = bed.buffer(&[7; PAGE]);
    let address = buffer.address();
    block_on(buffer.register(&bed.engine)).unwrap();
    let frees = bed.device.calls("cuMemFree_v2");
    bed.cufile.fault("cuFileBufDeregister:fail=5030");
    drop(buffer);
    until(|| bed.fired() == 1);
    assert_eq!(block_on(bed.engine.shutdown()).quarantined, 0);
    assert_eq!(bed.device.calls("cuMemFree_v2"), frees);
    assert_eq!(bed.device.peek(address, PAGE), [7; PAGE]);
    bed.device.assert_no_harm();
}
