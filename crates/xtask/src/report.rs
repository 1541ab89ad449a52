//! Steps, their times, and the closing lines.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::skips::{self, Skip};
use crate::tally::Tally;
use crate::{Result, facts, place};

/// How one step ended: its tests, and the reason if it failed.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) tally: Tally,
    pub(crate) failure: Option<String>,
    /// The end of what it printed, where it failed and its output was kept.
    pub(crate) last_lines: String,
}

impl From<Result<()>> for Outcome {
    fn from(result: Result<()>) -> Self {
        Self {
            failure: result.err(),
            ..Self::default()
        }
    }
}

#[derive(Debug)]
struct Step {
    name: String,
    time: Duration,
    outcome: Outcome,
}

/// All that one run of xtask has seen.
#[derive(Debug)]
pub(crate) struct Report {
    steps: Vec<Step>,
    /// Steps that could not run here.
    skipped_steps: Vec<Skip>,
    /// Tests that need simulated devices have run on them.
    simulated: bool,
}

impl Report {
    /// Starts a report and an empty skip log.
    pub(crate) fn new() -> Result<Self> {
        skips::start_log()?;
        Ok(Self {
            steps: Vec::new(),
            skipped_steps: Vec::new(),
            simulated: false,
        })
    }

    /// Runs one step. A failed step does not keep the others from running.
    pub(crate) fn step<T: Into<Outcome>>(&mut self, name: &str, work: impl FnOnce() -> T) {
        println!("\n==> {name}");
        let start = Instant::now();
        let outcome = work().into();
        if let Some(failure) = &outcome.failure {
            println!("==> {name} FAILED: {failure}");
        }
        self.steps.push(Step {
            name: name.to_owned(),
            time: start.elapsed(),
            outcome,
        });
    }

    /// Notes that a step cannot run here. The list of expected skips decides whether it may.
    pub(crate) fn skip_step(&mut self, name: &str, id: &str, text: &str) {
        println!("\n==> {name} SKIPPED ({id}): {text}");
        self.skipped_steps.push(Skip {
            test: format!("step {name}"),
            id: id.to_owned(),
            text: text.to_owned(),
        });
    }

    /// Notes that the tests that use devices have run on simulated ones: without, they note a skip.
    pub(crate) const fn ran_simulated(&mut self) {
        self.simulated = true;
    }

    /// Judges the skips, prints the closing lines, and says whether all is well.
    pub(crate) fn finish(mut self) -> Result<bool> {
        let all_noted = skips::read_log()?;
        let (elsewhere, noted) = skips::split_elsewhere(all_noted, self.simulated);
        if elsewhere > 0 {
            println!("\n{elsewhere} tests ran on simulated GPUs only");
        }
        let skipped: Vec<&Skip> = noted.iter().chain(&self.skipped_steps).collect();
        println!("\nskipped: {}", skipped.len());
        for skip in &skipped {
            println!("  {} ({}): {}", skip.test, skip.id, skip.text);
        }
        let rules = skips::read_rules(&place::root())?;
        let complaints = skips::unexpected(skipped, &rules, &facts_of(self.simulated))?;
        let mut total = closing_counts(&self.steps, &noted, &self.skipped_steps, complaints.len());
        // Their runner counted them as passed where they returned early, too.
        total.passed = total.passed.saturating_sub(count(elsewhere));
        if !complaints.is_empty() {
            self.steps.push(Step {
                name: "skips".to_owned(),
                time: Duration::ZERO,
                outcome: Err(format!("not expected here: {}", complaints.join("; "))).into(),
            });
        }
        self.print_last_lines();
        self.print_steps();
        let Tally {
            passed,
            failed,
            ignored,
        } = total;
        println!("\n{passed} passed, {failed} failed, {ignored} skipped");
        Ok(failed == 0)
    }

    /// Prints once more what failed steps ended with: whoever reads only the end of a log is told, too.
    fn print_last_lines(&self) {
        for step in &self.steps {
            if !step.outcome.last_lines.is_empty() {
                println!("\n{} FAILED; it ended with:", step.name);
                println!("{}", step.outcome.last_lines);
            }
        }
    }

    fn print_steps(&self) {
        println!("\nsteps:");
        for Step {
            name,
            time,
            outcome,
        } in &self.steps
        {
            let seconds = time.as_secs_f64();
            match &outcome.failure {
                None => println!("  {seconds:7.1} s  ok      {name}"),
                Some(failure) => println!("  {seconds:7.1} s  FAILED  {name}: {failure}"),
            }
        }
    }
}

/// The facts that rules may name: those of the machine, and one of the run.
pub(crate) fn facts_of(simulated: bool) -> impl Fn(&str) -> Option<bool> {
    move |fact| match fact {
        "simulated" => Some(simulated),
        fact => facts::holds(fact),
    }
}

/// The counts of the last line. Nothing that failed may end in `0 failed`.
fn closing_counts(
    steps: &[Step],
    noted: &BTreeSet<Skip>,
    skipped_steps: &[Skip],
    complaints: usize,
) -> Tally {
    let mut total = Tally::default();
    for step in steps {
        total += step.outcome.tally;
        if step.outcome.failure.is_some() && step.outcome.tally.failed == 0 {
            total.failed += 1;
        }
    }
    // A test that skips itself returns early, and its runner counts it as passed.
    let tests: BTreeSet<&str> = noted.iter().map(|skip| skip.test.as_str()).collect();
    total.passed = total.passed.saturating_sub(count(tests.len()));
    total.ignored += count(tests.len()) + count(skipped_steps.len());
    total.failed += count(complaints);
    total
}

fn count(len: usize) -> u64 {
    u64::try_from(len).expect("a count fits 64 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(passed: u64, failed: u64, failure: Option<&str>) -> Step {
        Step {
            name: "a step".into(),
            time: Duration::ZERO,
            outcome: Outcome {
                tally: Tally {
                    passed,
                    failed,
                    ignored: 0,
                },
                failure: failure.map(str::to_owned),
                ..Outcome::default()
            },
        }
    }

    fn skip(test: &str, id: &str) -> Skip {
        Skip {
            test: test.into(),
            id: id.into(),
            text: String::new(),
        }
    }

    #[test]
    fn a_skipped_test_is_not_counted_as_passed() {
        let noted = BTreeSet::from([skip("a", "needs-root"), skip("a", "needs-fuse")]);
        let total = closing_counts(&[step(5, 0, None)], &noted, &[skip("s", "no-miri")], 0);
        assert_eq!((total.passed, total.failed, total.ignored), (4, 0, 2));
    }

    #[test]
    fn a_failed_step_without_a_failed_test_counts_as_failed() {
        let steps = [step(0, 0, Some("format")), step(3, 2, Some("tests"))];
        let total = closing_counts(&steps, &BTreeSet::new(), &[], 0);
        assert_eq!((total.passed, total.failed), (3, 3));
    }

    #[test]
    fn an_unexpected_skip_counts_as_failed() {
        let total = closing_counts(&[step(1, 0, None)], &BTreeSet::new(), &[], 1);
        assert_eq!(total.failed, 1);
    }
}
