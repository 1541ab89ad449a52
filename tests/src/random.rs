//! Random tests that say how to repeat them.
#![allow(
    clippy::disallowed_methods,
    reason = "the seed and the number of cases are proptest's own variables"
)]

use measure::data;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngSeed, TestRunner};

const PAGE: usize = 4096;

/// Lengths and offsets that follow from a seed.
#[derive(Clone, Debug)]
pub struct Draws(data::Draws);

impl Draws {
    /// Those of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(data::Draws::new(seed))
    }

    /// A seed for something else.
    pub fn seed(&mut self) -> u64 {
        self.0.below(u64::MAX)
    }

    /// Below `max`.
    ///
    /// # Panics
    ///
    /// When nothing is below it.
    pub fn below(&mut self, max: usize) -> usize {
        usize::try_from(self.0.below(max as u64)).expect("below a number that fits")
    }

    /// Below `max`, near the edges of pages or anywhere.
    ///
    /// # Panics
    ///
    /// When nothing is below it.
    pub fn near_pages(&mut self, max: usize) -> usize {
        let any = self.below(max);
        match self.below(3) {
            0 => any / PAGE * PAGE,
            1 => (any / PAGE * PAGE + self.below(3)).min(max - 1),
            _ => any,
        }
    }
}

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
