//! Lists of operations, on an engine and on a model: see `tests/src/fuzz`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokio_cufile_tests::fuzz::{Mistake, run};

fuzz_target!(|bytes: &[u8]| {
    if let Err(why) = run(bytes, Mistake::None) {
        panic!("{why}");
    }
});
