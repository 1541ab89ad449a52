//! What one comparison found, as one value: for JSON, and for a table.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::environment::Environment;
use crate::pairs::{self, PAIRS_MIN};
use crate::residency::Residency;
use crate::statistics::{Quantiles, Summary, median};
use crate::usage::Usage;

const GIB: f64 = (1_u64 << 30) as f64;

/// One run of one contestant.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    /// Bytes moved in the window.
    pub bytes: u64,
    /// Operations done in the window.
    pub operations: u64,
    /// What they cost.
    #[serde(flatten)]
    pub usage: Usage,
    /// How long each took, where that was measured.
    pub latency: Option<Quantiles>,
    /// What was in the page cache before the run, where that was looked at.
    pub residency: Option<Residency>,
}

/// A figure that every sample has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// GiB a second.
    Throughput,
    /// Operations a second.
    Operations,
    /// CPU seconds for a GiB.
    CpuPerGib,
    /// CPU microseconds for an operation.
    CpuPerOperation,
    /// Median latency in microseconds.
    P50,
    /// 99 % of the operations took at most this many microseconds.
    P99,
}

impl Figure {
    /// Its value; 0 where a sample lacks it.
    #[must_use]
    pub fn of(self, sample: &Sample) -> f64 {
        let over = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        let (gib, operations) = (sample.bytes as f64 / GIB, sample.operations as f64);
        let Usage { wall_s, cpu_s, .. } = sample.usage;
        match self {
            Self::Throughput => over(gib, wall_s),
            Self::Operations => over(operations, wall_s),
            Self::CpuPerGib => over(cpu_s, gib),
            Self::CpuPerOperation => over(cpu_s * 1e6, operations),
            Self::P50 => sample.latency.map_or(0.0, |latency| latency.p50_us),
            Self::P99 => sample.latency.map_or(0.0, |latency| latency.p99_us),
        }
    }

    /// For the head of a column.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Throughput => "GiB/s",
            Self::Operations => "op/s",
            Self::CpuPerGib => "CPU s/GiB",
            Self::CpuPerOperation => "CPU us/op",
            Self::P50 => "p50 us",
            Self::P99 => "p99 us",
        }
    }

    fn text(self, value: f64) -> String {
        match self {
            Self::Throughput => format!("{value:.2}"),
            Self::Operations => format!("{value:.0}"),
            Self::CpuPerGib => format!("{value:.4}"),
            Self::CpuPerOperation | Self::P50 | Self::P99 => format!("{value:.1}"),
        }
    }
}

/// One engine in one set-up, with all its runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Contestant {
    /// What it is.
    pub name: String,
    /// One for each round.
    pub samples: Vec<Sample>,
}

impl Contestant {
    fn values(&self, figure: Figure) -> Vec<f64> {
        self.samples
            .iter()
            .map(|sample| figure.of(sample))
            .collect()
    }
}

/// A contestant that did not run, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// What it is.
    pub name: String,
    /// Why it did not run.
    pub reason: String,
}

/// One figure of one contestant against that of the reference, pair by pair.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Who is compared.
    pub contestant: String,
    /// To whom.
    pub reference: String,
    /// By what.
    pub figure: Figure,
    /// Contestant over reference.
    pub ratio: Option<Summary>,
    /// Contestant minus reference.
    pub difference: Option<Summary>,
}

impl Comparison {
    fn text(&self) -> String {
        match self.ratio {
            None => "-".to_owned(),
            Some(ratio) => match ratio.interval {
                None => format!("{:.2}", ratio.median),
                Some((low, high)) => format!("{:.2} [{low:.2}-{high:.2}]", ratio.median),
            },
        }
    }
}

/// Everything about one comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What was done.
    pub workload: String,
    /// With which settings.
    pub settings: BTreeMap<String, String>,
    /// Of the data and of the orders.
    pub seed: u64,
    /// On what.
    pub environment: Environment,
    /// Load average of the last minute, after the run.
    pub load_after: Option<f64>,
    /// The figures that matter here, in their order.
    pub figures: Vec<Figure>,
    /// Who took part; the first is the reference.
    pub contestants: Vec<Contestant>,
    /// Who did not.
    pub skipped: Vec<Skipped>,
    /// Each contestant against the first, by each figure; then against others, where asked.
    pub comparisons: Vec<Comparison>,
}

impl Report {
    /// Works out the comparisons of all contestants to the first.
    pub fn compare(&mut self) {
        self.comparisons.clear();
        self.compare_to_index(0);
    }

    /// Adds the comparisons to another contestant, if it took part and is not the first.
    pub fn compare_to(&mut self, name: &str) {
        let found = self.contestants.iter().position(|one| one.name == name);
        if let Some(index) = found.filter(|&index| index > 0) {
            self.compare_to_index(index);
        }
    }

    fn compare_to_index(&mut self, index: usize) {
        let Some(reference) = self.contestants.get(index) else {
            return;
        };
        let others = self.contestants.iter().enumerate();
        for (_, other) in others.filter(|(other, _)| *other != index) {
            for &figure in &self.figures {
                let (a, b) = (other.values(figure), reference.values(figure));
                self.comparisons.push(Comparison {
                    contestant: other.name.clone(),
                    reference: reference.name.clone(),
                    figure,
                    ratio: pairs::ratio(&a, &b),
                    difference: pairs::difference(&a, &b),
                });
            }
        }
    }

    /// How many pairs each ratio rests on.
    #[must_use]
    pub fn pairs(&self) -> usize {
        let counts = self.contestants.iter().map(|one| one.samples.len());
        counts.min().unwrap_or(0)
    }

    fn ratio_text(&self, contestant: &str, figure: Figure) -> String {
        let found = self
            .comparisons
            .iter()
            .find(|one| one.contestant == contestant && one.figure == figure);
        found.map_or_else(|| "-".to_owned(), Comparison::text)
    }

    /// One line for each pair of contestants that the table does not compare.
    fn other_ratios(&self) -> impl Iterator<Item = String> {
        let first = self.contestants.first().map(|one| one.name.as_str());
        let others = self
            .comparisons
            .chunk_by(|a, b| (&a.contestant, &a.reference) == (&b.contestant, &b.reference));
        others
            .filter(move |chunk| Some(chunk[0].reference.as_str()) != first)
            .map(|chunk| {
                let ratios: Vec<String> = chunk
                    .iter()
                    .map(|one| format!("{} {}", one.figure.name(), one.text()))
                    .collect();
                let Comparison {
                    contestant,
                    reference,
                    ..
                } = &chunk[0];
                format!("{contestant} over {reference}: {}", ratios.join(", "))
            })
    }

    /// What an operation costs above the reference, which a ratio does not say.
    fn cpu_differences(&self) -> impl Iterator<Item = String> {
        let first = self.contestants.first().map(|one| one.name.as_str());
        let by_operation = move |one: &&Comparison| {
            one.figure == Figure::CpuPerOperation && Some(one.reference.as_str()) == first
        };
        let lines = self.comparisons.iter().filter(by_operation);
        lines.filter_map(|one| {
            let difference = one.difference?;
            let (low, high) = difference.interval?;
            let (name, reference) = (&one.contestant, &one.reference);
            Some(format!(
                "{name} over {reference}: {:+.1} [{low:+.1} to {high:+.1}] CPU us for an operation",
                difference.median
            ))
        })
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let mut head = vec!["contestant".to_owned()];
        for figure in &self.figures {
            head.extend([figure.name().to_owned(), "ratio".to_owned()]);
        }
        let mut rows = vec![head];
        for (index, contestant) in self.contestants.iter().enumerate() {
            let mut row = vec![contestant.name.clone()];
            for &figure in &self.figures {
                let middle = median(&contestant.values(figure)).unwrap_or_default();
                row.push(figure.text(middle));
                row.push(if index == 0 {
                    "1".to_owned()
                } else {
                    self.ratio_text(&contestant.name, figure)
                });
            }
            rows.push(row);
        }
        rows
    }
}

/// A table in Markdown, with its circumstances: medians, and medians of the pairs' ratios to the
/// first row with their intervals.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings: Vec<String> = self
            .settings
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        writeln!(f, "## {}: {}\n", self.workload, settings.join(", "))?;
        writeln!(f, "{}; seed {}", self.environment, self.seed)?;
        let pairs = self.pairs();
        let few = if pairs < PAIRS_MIN {
            format!(" (FEWER THAN {PAIRS_MIN}: not a figure to publish)")
        } else {
            String::new()
        };
        let load = self.load_after.unwrap_or_default();
        writeln!(f, "{pairs} interleaved pairs{few}; load after {load:.2}\n")?;
        for (index, row) in self.rows().iter().enumerate() {
            writeln!(f, "| {} |", row.join(" | "))?;
            if index == 0 {
                writeln!(f, "|{}", "---|".repeat(row.len()))?;
            }
        }
        for line in self.cpu_differences() {
            writeln!(f, "\n{line}")?;
        }
        for (index, line) in self.other_ratios().enumerate() {
            let space = if index == 0 { "\n" } else { "" };
            writeln!(f, "{space}- {line}")?;
        }
        for skipped in &self.skipped {
            writeln!(f, "\nSKIPPED {}: {}", skipped.name, skipped.reason)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64) -> Sample {
        Sample {
            bytes: 2 << 30,
            operations: 1000,
            usage: Usage {
                wall_s: seconds,
                cpu_s: 0.5,
                ..Usage::default()
            },
            latency: None,
            residency: None,
        }
    }

    fn report() -> Report {
        let contestant = |name: &str, seconds: f64| Contestant {
            name: name.to_owned(),
            samples: vec![sample(seconds); 6],
        };
        let mut report = Report {
            workload: "cold-read".to_owned(),
            settings: BTreeMap::from([("block".to_owned(), "2 MiB".to_owned())]),
            seed: 1,
            environment: Environment::of(&std::env::temp_dir()).unwrap(),
            load_after: None,
            figures: vec![Figure::Throughput, Figure::CpuPerGib],
            contestants: vec![contestant("one", 1.0), contestant("two", 2.0)],
            skipped: vec![Skipped {
                name: "three".to_owned(),
                reason: "not there".to_owned(),
            }],
            comparisons: Vec::new(),
        };
        report.compare();
        report
    }

    #[test]
    fn figures_are_what_their_names_say() {
        let sample = sample(2.0);
        assert_eq!(Figure::Throughput.of(&sample), 1.0);
        assert_eq!(Figure::Operations.of(&sample), 500.0);
        assert_eq!(Figure::CpuPerGib.of(&sample), 0.25);
        assert_eq!(Figure::CpuPerOperation.of(&sample), 500.0);
        assert_eq!(Figure::P50.of(&sample), 0.0);
        assert_eq!(Figure::Throughput.of(&Sample::default()), 0.0);
    }

    #[test]
    fn everyone_is_compared_to_the_first() {
        let report = report();
        assert_eq!(report.comparisons.len(), 2);
        assert_eq!(report.comparisons[0].ratio.unwrap().median, 0.5);
        assert_eq!(report.comparisons[1].ratio.unwrap().median, 1.0);
        assert_eq!(report.pairs(), 6);
    }

    #[test]
    fn a_second_reference_is_compared_to_below_the_table() {
        let mut report = report();
        report.compare_to("two");
        report.compare_to("three");
        assert_eq!(report.comparisons.len(), 4);
        let text = report.to_string();
        assert!(text.contains("| two | 1.00 | 0.50 [0.50-0.50] |"), "{text}");
        let line = "one over two: GiB/s 2.00 [2.00-2.00], CPU s/GiB 1.00 [1.00-1.00]";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn the_table_says_who_was_skipped_and_that_pairs_are_few() {
        let text = report().to_string();
        assert!(text.contains("| two | 1.00 | 0.50 [0.50-0.50] |"), "{text}");
        assert!(text.contains("SKIPPED three: not there"), "{text}");
        assert!(text.contains("FEWER THAN 15"), "{text}");
    }

    #[test]
    fn json_has_every_sample_and_the_comparisons() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["contestants"][1]["samples"][5]["wall_s"], 2.0);
        assert_eq!(json["comparisons"][0]["figure"], "throughput");
        assert_eq!(json["comparisons"][0]["ratio"]["median"], 0.5);
    }
}
