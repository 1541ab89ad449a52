//! Random tests that say how to repeat them.
#![allow(
    clippy::disallowed_methods,
    reason = "the seed and the number of cases are proptest's own variables"
)]

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngSeed, TestRunner};

/// Runs `test` on `cases` random values, or on as many as `PROPTEST_CASES` says, and prints the
/// seed that repeats the run when set as `PROPTEST_RNG_SEED`.
///
/// # Panics
///
/// When a value fails, with the simplest one found that does.
pub fn check<S: Strategy>(cases: u32, values: &S, test: impl Fn(S::Value)) {
    let mut config = Config {
        failure_persistence: None,
        max_shrink_iters: 500,
        ..Config::default()
    };
    // proptest's own default is 256, the same whether or not it was asked for.
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    if let RngSeed::Random = config.rng_seed {
        let entropy = std::hash::RandomState::new();
        config.rng_seed = RngSeed::Fixed(std::hash::BuildHasher::hash_one(&entropy, 0));
    }
    eprintln!(
        "{} cases, {:?}: set PROPTEST_RNG_SEED to repeat",
        config.cases, config.rng_seed
    );
    let result = TestRunner::new(config).run(values, |value| {
        test(value);
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
