//! Failure: an order of operations that no test thought of loses, corrupts or invents bytes, loses a
//! permit, or ends in an error that it should not.
//! Mechanism: what is under way, dropped, cancelled or late meets what comes next.
//! Method: lists of operations out of bytes, on an engine and on a model (`fuzz.rs`): those that a
//! fuzzer found worth keeping (`fuzz/corpus/operations`), and as many made from a seed.
//! `FUZZ_INPUTS=… FUZZ_SEED=…` chooses how many, and which.
#![allow(
    clippy::disallowed_methods,
    reason = "variables choose how many inputs, and which"
)]

use std::env;
use std::fs;
use std::path::Path;

use tokio_cufile_tests::fuzz::{Mistake, run};
use tokio_cufile_tests::pattern;

const INPUTS: u64 = 500;
const SEED: u64 = 1;
const INPUT_LEN_MAX: usize = 600;

fn number(variable: &str, default: u64) -> u64 {
    match env::var(variable) {
        Ok(text) => text.parse().expect("a number"),
        Err(_) => default,
    }
}

fn corpus() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/operations");
    let files = fs::read_dir(folder).expect("the corpus");
    let read = |file: std::io::Result<fs::DirEntry>| {
        let path = file.expect("a file").path();
        (path.display().to_string(), fs::read(&path).expect("a file"))
    };
    files.map(read).collect()
}

/// Inputs of many lengths, the same for the same seed.
fn made(seed: u64, index: u64) -> Vec<u8> {
    let seed = seed.wrapping_mul(0x9e37_79b9).wrapping_add(index);
    let len = usize::try_from(index).unwrap_or(0) * 37 % INPUT_LEN_MAX;
    pattern::bytes(seed << 32, len)
}

#[test]
fn inputs_that_were_worth_keeping() {
    let corpus = corpus();
    assert!(!corpus.is_empty());
    for (name, bytes) in corpus {
        let ran = run(&bytes, Mistake::None);
        assert_eq!(ran, Ok(()), "{name}");
    }
}

#[test]
fn inputs_from_a_seed() {
    let (inputs, seed) = (number("FUZZ_INPUTS", INPUTS), number("FUZZ_SEED", SEED));
    eprintln!("{inputs} inputs, FUZZ_SEED={seed}");
    for index in 0..inputs {
        let ran = run(&made(seed, index), Mistake::None);
        assert_eq!(ran, Ok(()), "input {index} of FUZZ_SEED={seed}");
    }
}

/// The controls: each error that is made on purpose is found.
#[test]
fn mistakes_are_found() {
    for mistake in [
        Mistake::LosesWrites,
        Mistake::ReadsBeside,
        Mistake::WritesLate,
    ] {
        let found = (0..INPUTS).find_map(|index| run(&made(SEED, index), mistake).err());
        let found = found.unwrap_or_else(|| panic!("{mistake:?} was not found"));
        eprintln!("{mistake:?}: {found}");
    }
}
