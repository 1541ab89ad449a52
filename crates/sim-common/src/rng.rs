//! Random numbers from a seed: splitmix64, so that a run can be repeated without a dependency.

/// A sequence of random numbers.
#[derive(Debug)]
pub struct Rng(u64);

impl Rng {
    /// A sequence of its own for each place that is given a name.
    #[must_use]
    pub fn new(seed: u64, place: u64) -> Self {
        let mut rng = Self(seed ^ place.wrapping_mul(0xD134_2543_DE82_EF95));
        rng.next();
        rng
    }

    /// The next number.
    #[allow(
        clippy::should_implement_trait,
        reason = "it never ends, so there is no option to unwrap"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
