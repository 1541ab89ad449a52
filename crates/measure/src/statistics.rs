//! Medians, intervals and quantiles, exact and without assumptions about the noise.

use std::time::Duration;

use serde::Serialize;

/// How sure an interval of a median is to hold the true one.
pub const CONFIDENCE: f64 = 0.95;

/// The middle value, or the mean of the two middle ones; `None` of nothing.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    median_of_sorted(&sorted(values))
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some(sorted[middle - 1].midpoint(upper))
}

/// A median with what is known about it.
///
/// # The interval
///
/// With the values in order, x(1) to x(n), the interval is x(k) to x(n+1-k) with the largest k for
/// which 2 · P(B ≤ k-1) ≤ 1 - [`CONFIDENCE`], B being the number of heads in n tosses of a fair coin.
/// The true median lies outside only when fewer than k values fall on one side of it, so whatever
/// the distribution of the values, the interval holds it with probability 1 - 2 · P(B ≤ k-1). For 15
/// values k is 4 and the coverage 0.965. Below 6 values there is no such interval.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// How many values.
    pub count: usize,
    /// Their median.
    pub median: f64,
    /// Lower and upper end of the median's interval.
    pub interval: Option<(f64, f64)>,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// Half of the values lie within this much of each other: third minus first quartile.
    pub spread: f64,
}

impl Summary {
    /// Of at least one value; `None` of nothing.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let sorted = sorted(values);
        let rank = |share| sorted[nearest_rank(sorted.len(), share)];
        Some(Self {
            count: sorted.len(),
            median: median_of_sorted(&sorted)?,
            interval: interval_ranks(sorted.len())
                .map(|(low, high)| (sorted[low - 1], sorted[high - 1])),
            min: *sorted.first()?,
            max: *sorted.last()?,
            spread: rank(0.75) - rank(0.25),
        })
    }
}

/// The ranks (from 1) of the ends of the median's interval among `count` values in order.
fn interval_ranks(count: usize) -> Option<(usize, usize)> {
    let tail_max = (1.0 - CONFIDENCE) / 2.0;
    // P(B = 0), then each P(B = i) from the one before; a count that underflows has no need of us.
    let mut term = 0.5_f64.powi(i32::try_from(count).ok()?);
    let mut tail = term;
    let mut k = 0;
    while tail <= tail_max && k < count / 2 {
        k += 1;
        term *= (count + 1 - k) as f64 / k as f64;
        tail += term;
    }
    (k > 0 && term > 0.0).then_some((k, count + 1 - k))
}

/// The index of the smallest value with at least `share` of all values at or below it.
fn nearest_rank(count: usize, share: f64) -> usize {
    let wanted = share.clamp(0.0, 1.0) * count as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and count"
    )]
    let rank = wanted.ceil() as usize;
    rank.clamp(1, count.max(1)) - 1
}

/// Every latency of a run, in order. Quantiles are values that were seen, not interpolated.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    nanos: Vec<u64>,
}

impl Latencies {
    /// Of any number of latencies in any order.
    #[must_use]
    pub fn new(mut nanos: Vec<u64>) -> Self {
        nanos.sort_unstable();
        Self { nanos }
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> usize {
        self.nanos.len()
    }

    /// The smallest latency that at least `share` (0 to 1) of all do not exceed; `None` of nothing.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let nanos = self.nanos.get(nearest_rank(self.nanos.len(), share))?;
        Some(Duration::from_nanos(*nanos))
    }

    /// How many exceed `limit`.
    #[must_use]
    pub fn above(&self, limit: Duration) -> usize {
        let within = self
            .nanos
            .partition_point(|&nanos| Duration::from_nanos(nanos) <= limit);
        self.nanos.len() - within
    }

    /// The usual quantiles; `None` of nothing.
    #[must_use]
    pub fn quantiles(&self) -> Option<Quantiles> {
        let micros = |share| Some(self.quantile(share)?.as_nanos() as f64 / 1e3);
        Some(Quantiles {
            p50_us: micros(0.5)?,
            p99_us: micros(0.99)?,
            p999_us: micros(0.999)?,
            max_us: micros(1.0)?,
        })
    }
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Quantiles {
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_the_middle_two() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[]), None);
    }

    /// Against the published table of order-statistic intervals for the median.
    #[test]
    fn interval_ranks_are_those_of_the_tables() {
        for (count, ranks) in [
            (0, None),
            (5, None),
            (6, Some((1, 6))),
            (8, Some((1, 8))),
            (9, Some((2, 8))),
            (15, Some((4, 12))),
            (20, Some((6, 15))),
            (25, Some((8, 18))),
            (50, Some((18, 33))),
            (100, Some((40, 61))),
        ] {
            assert_eq!(interval_ranks(count), ranks, "{count} values");
        }
    }

    #[test]
    fn an_interval_covers_what_its_formula_says() {
        // P(B <= 3) for 15 tosses is (1 + 15 + 105 + 455) / 2^15; with 4 it would be above 2.5 %.
        let outside = 2.0 * 576.0 / f64::from(1 << 15);
        assert!(outside <= 1.0 - CONFIDENCE);
        assert!(2.0 * f64::from(576 + 1365) / f64::from(1 << 15) > 1.0 - CONFIDENCE);
    }

    #[test]
    fn a_summary_is_exact_on_known_values() {
        let values: Vec<f64> = (1..=15).rev().map(f64::from).collect();
        let summary = Summary::of(&values).unwrap();
        assert_eq!(summary.count, 15);
        assert_eq!(summary.median, 8.0);
        assert_eq!(summary.interval, Some((4.0, 12.0)));
        assert_eq!((summary.min, summary.max), (1.0, 15.0));
        assert_eq!(summary.spread, 12.0 - 4.0);
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[2.0]).unwrap().interval, None);
    }

    #[test]
    fn quantiles_are_values_that_were_seen() {
        let latencies = Latencies::new((1..=1000).rev().map(|micros| micros * 1000).collect());
        let at = |share| latencies.quantile(share).unwrap().as_micros();
        assert_eq!((at(0.0), at(0.5), at(0.99), at(1.0)), (1, 500, 990, 1000));
        let quantiles = latencies.quantiles().unwrap();
        assert_eq!((quantiles.p50_us, quantiles.p999_us), (500.0, 999.0));
        assert_eq!(latencies.above(Duration::from_micros(990)), 10);
        assert_eq!(Latencies::default().quantile(0.5), None);
    }
}
