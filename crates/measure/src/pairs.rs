//! Contestants run interleaved, and their ratios.
//!
//! A shared machine has slow minutes. What ran in them must not decide, so every contestant runs
//! once a round, and a ratio is always between two runs of one round: a pair.

use crate::data::Draws;
use crate::statistics::Summary;

/// Fewer pairs make no figure to publish.
pub const PAIRS_MIN: usize = 15;

/// How runs are interleaved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Rounds that count: pairs of any two contestants.
    pub rounds: usize,
    /// Rounds before them that do not, in which threads start and pages are touched.
    pub warm_up: usize,
    /// Of the orders within the rounds.
    pub seed: u64,
}

/// One run: which contestant, in which round. Rounds of the warm-up are `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Which of the contestants.
    pub contestant: usize,
    /// Which round, from 0.
    pub round: Option<usize>,
}

impl Schedule {
    /// All runs in their order, for `contestants` of them.
    fn turns(self, contestants: usize) -> impl Iterator<Item = Turn> {
        let mut draws = Draws::new(self.seed);
        (0..self.warm_up + self.rounds).flat_map(move |index| {
            let mut order: Vec<usize> = (0..contestants).collect();
            draws.shuffle(&mut order);
            let round = index.checked_sub(self.warm_up);
            order
                .into_iter()
                .map(move |contestant| Turn { contestant, round })
        })
    }
}

/// Runs every contestant once a round; gives the results of each, in the order of the rounds.
///
/// # Errors
///
/// The first error of a run: a round with a hole in it is no round.
pub fn interleave<T, E>(
    contestants: usize,
    schedule: Schedule,
    mut run: impl FnMut(Turn) -> Result<T, E>,
) -> Result<Vec<Vec<T>>, E> {
    let empty = || Vec::with_capacity(schedule.rounds);
    let mut results: Vec<Vec<T>> = (0..contestants).map(|_| empty()).collect();
    for turn in schedule.turns(contestants) {
        let result = run(turn)?;
        if turn.round.is_some() {
            results[turn.contestant].push(result);
        }
    }
    Ok(results)
}

/// The ratios `a / b`, pair by pair, summarised. `None` without pairs, or where a `b` is not above 0.
#[must_use]
pub fn ratio(a: &[f64], b: &[f64]) -> Option<Summary> {
    let pairs = a.iter().zip(b);
    let ratios: Option<Vec<f64>> = pairs.map(|(a, b)| (*b > 0.0).then(|| a / b)).collect();
    Summary::of(&ratios?)
}

/// The differences `a - b`, pair by pair, summarised. `None` without pairs.
#[must_use]
pub fn difference(a: &[f64], b: &[f64]) -> Option<Summary> {
    let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    Summary::of(&differences)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEDULE: Schedule = Schedule {
        rounds: 15,
        warm_up: 1,
        seed: 9,
    };

    #[test]
    fn every_round_has_every_contestant_once_in_changing_order() {
        let turns: Vec<Turn> = SCHEDULE.turns(3).collect();
        assert_eq!(turns.len(), 16 * 3);
        let mut orders = Vec::new();
        for (index, round) in turns.chunks(3).enumerate() {
            assert!(round.iter().all(|turn| turn.round == index.checked_sub(1)));
            let order: Vec<usize> = round.iter().map(|turn| turn.contestant).collect();
            let mut all = order.clone();
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2]);
            orders.push(order);
        }
        orders.sort();
        orders.dedup();
        assert!(orders.len() > 1, "the order is drawn for each round");
    }

    #[test]
    fn results_are_those_of_the_rounds_without_the_warm_up() {
        let results = interleave(2, SCHEDULE, |turn| {
            Ok::<_, ()>((turn.contestant, turn.round))
        })
        .unwrap();
        for (contestant, results) in results.iter().enumerate() {
            let expected: Vec<_> = (0..15).map(|round| (contestant, Some(round))).collect();
            assert_eq!(results, &expected);
        }
    }

    #[test]
    fn the_first_failure_ends_it() {
        let mut runs = 0;
        let result = interleave(2, SCHEDULE, |_| {
            runs += 1;
            if runs == 3 { Err(runs) } else { Ok(()) }
        });
        assert_eq!((result, runs), (Err(3), 3));
    }

    #[test]
    fn ratios_are_taken_within_pairs() {
        // A machine that slows down eightfold over the run: each pair still says 2.
        let b: Vec<f64> = (0..15).map(|round| 1.0 + f64::from(round) / 2.0).collect();
        let a: Vec<f64> = b.iter().map(|b| 2.0 * b).collect();
        let summary = ratio(&a, &b).unwrap();
        assert_eq!((summary.median, summary.interval), (2.0, Some((2.0, 2.0))));
        assert_eq!(difference(&a, &b).unwrap().median, 4.5);
        assert_eq!(ratio(&[1.0], &[0.0]), None);
        assert_eq!(ratio(&[], &[]), None);
    }
}
