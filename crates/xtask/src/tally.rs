//! Counting tests from what the runners print.

use std::ops::AddAssign;

/// Counts of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// Tests that the runner left out, such as those marked `#[ignore]`.
    pub(crate) ignored: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

impl Tally {
    /// Reads the closing line of `cargo nextest run`, or adds up those of `cargo test`.
    pub(crate) fn of(output: &str) -> Self {
        let summaries: Vec<Self> = output.lines().filter_map(counts_of_nextest).collect();
        let counts = if summaries.is_empty() {
            output.lines().filter_map(counts_of_libtest).collect()
        } else {
            summaries
        };
        let mut tally = Self::default();
        for counts in counts {
            tally += counts;
        }
        tally
    }

    fn add(&mut self, count: u64, what: &str) {
        match what {
            "passed" => self.passed += count,
            "skipped" | "ignored" => self.ignored += count,
            "measured" | "filtered out" => {}
            // "failed", "timed out", "exec failed" and what a later runner may invent.
            _ => self.failed += count,
        }
    }
}

/// `Summary [   5.003s] 12 tests run: 10 passed (1 slow), 1 failed, 1 timed out, 2 skipped`
fn counts_of_nextest(line: &str) -> Option<Tally> {
    let rest = line.trim_start().strip_prefix("Summary [")?;
    let (_, counts) = rest.split_once(" run: ")?;
    let mut tally = Tally::default();
    for item in without_parentheses(counts).split(',') {
        let (count, what) = item.trim().split_once(' ')?;
        tally.add(count.parse().ok()?, what.trim());
    }
    Some(tally)
}

/// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s`
fn counts_of_libtest(line: &str) -> Option<Tally> {
    let rest = line.strip_prefix("test result: ")?;
    let (_, counts) = rest.split_once(". ")?;
    let mut tally = Tally::default();
    for item in counts.split(';') {
        let (count, what) = item.trim().split_once(' ')?;
        if what.starts_with("in ") || count == "finished" {
            continue;
        }
        tally.add(count.parse().ok()?, what);
    }
    Some(tally)
}

fn without_parentheses(text: &str) -> String {
    let mut depth = 0u32;
    text.chars()
        .filter(|&c| {
            match c {
                '(' => depth += 1,
                ')' => {
                    depth = depth.saturating_sub(1);
                    return false;
                }
                _ => {}
            }
            depth == 0
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(passed: u64, failed: u64, ignored: u64) -> Tally {
        Tally {
            passed,
            failed,
            ignored,
        }
    }

    #[test]
    fn counts_of_nextest_are_read() {
        let line = "     Summary [   5.003s] 13 tests run: 10 passed (1 slow, 1 leaky), \
                    2 failed, 1 timed out, 2 skipped";
        assert_eq!(Tally::of(line), tally(10, 3, 2));
        let one = "     Summary [   0.004s] 1 test run: 1 passed, 0 skipped";
        assert_eq!(Tally::of(one), tally(1, 0, 0));
        let cut = "     Summary [   0.004s] 3/9 tests run: 2 passed, 1 failed, 0 skipped";
        assert_eq!(Tally::of(cut), tally(2, 1, 0));
    }

    #[test]
    fn counts_of_cargo_test_are_added_up() {
        let output = "running 3 tests\n\
            test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 4 filtered out; finished in 0.10s\n";
        assert_eq!(Tally::of(output), tally(4, 2, 1));
    }

    #[test]
    fn what_nextest_shows_of_single_tests_is_not_counted_again() {
        let output = "    test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; \
                      0 filtered out; finished in 0.12s\n\
                      test result: ok. 1 passed; 0 failed; 0 ignored\n\
                      \x20    Summary [   0.127s] 1 test run: 1 passed, 0 skipped\n";
        assert_eq!(Tally::of(output), tally(1, 0, 0));
    }

    #[test]
    fn other_lines_count_nothing() {
        assert_eq!(
            Tally::of("test a ... ok\nSummary of things\n"),
            tally(0, 0, 0)
        );
    }
}
