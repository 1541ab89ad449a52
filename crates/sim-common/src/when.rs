//! When a fault fires: the words of a script that every simulator takes.
//!
//! ```text
//! word = "nth=" N           the N-th time only, from 1
//!      | "from=" N          the N-th time and always after it
//!      | "every=" N         each N-th time
//!      | "chance=" A "/" B  A times in B, by the seed
//!      | "times=" N         no more than N times
//! ```

use crate::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Always,
    Nth(u64),
    From(u64),
    Every(u64),
    Chance(u64, u64),
}

/// When a rule of a script fires. Without a word about it, each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    when: When,
    times: u64,
}

impl Timing {
    /// Reads the words of a rule that stand behind its action.
    ///
    /// # Errors
    ///
    /// The text says which word is wrong.
    pub fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut timing = Self {
            when: When::Always,
            times: u64::MAX,
        };
        for word in words {
            match word.split_once('=') {
                Some(("times", n)) => timing.times = positive(n)?,
                _ if timing.when != When::Always => return Err("it says twice when".into()),
                Some(("nth", n)) => timing.when = When::Nth(positive(n)?),
                Some(("from", n)) => timing.when = When::From(positive(n)?),
                Some(("every", n)) => timing.when = When::Every(positive(n)?),
                Some(("chance", odds)) => timing.when = chance(odds)?,
                _ => return Err(format!("`{word}` is not known")),
            }
        }
        Ok(timing)
    }
}

/// Counts how often the subject of a rule has come, and how often the rule has fired.
#[derive(Debug)]
pub struct Meter {
    timing: Timing,
    seen: u64,
    fired: u64,
    rng: Rng,
}

impl Meter {
    /// A rule that has not been met yet.
    #[must_use]
    pub fn new(timing: Timing, rng: Rng) -> Self {
        Self {
            timing,
            seen: 0,
            fired: 0,
            rng,
        }
    }

    /// Its subject has come; whether it fires.
    pub fn meet(&mut self) -> bool {
        self.seen += 1;
        let due = match self.timing.when {
            When::Always => true,
            When::Nth(n) => self.seen == n,
            When::From(n) => self.seen >= n,
            When::Every(n) => self.seen.is_multiple_of(n),
            When::Chance(a, b) => self.rng.below(b) < a,
        };
        let fires = due && self.fired < self.timing.times;
        self.fired += u64::from(fires);
        fires
    }

    /// How often it has fired.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.fired
    }
}

fn chance(odds: &str) -> Result<When, String> {
    let (a, b) = odds.split_once('/').ok_or("a chance is A/B")?;
    Ok(When::Chance(number(a)?, positive(b)?))
}

fn positive(text: &str) -> Result<u64, String> {
    match number(text)? {
        0 => Err("0 is too small".into()),
        n => Ok(n),
    }
}

/// A number of a script.
///
/// # Errors
///
/// The text says what is no number.
pub fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fires(words: &str) -> Vec<u32> {
        let timing = Timing::parse(words.split(',').filter(|word| !word.is_empty())).unwrap();
        let mut meter = Meter::new(timing, Rng::new(1, 1));
        (1..=8).filter(|_| meter.meet()).collect()
    }

    #[test]
    fn words_say_which_times_it_fires() {
        assert_eq!(fires(""), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(fires("nth=3"), [3]);
        assert_eq!(fires("from=6"), [6, 7, 8]);
        assert_eq!(fires("every=3"), [3, 6]);
        assert_eq!(fires("times=2"), [1, 2]);
        assert_eq!(fires("from=4,times=2"), [4, 5]);
        assert_eq!(fires("chance=0/3"), [0; 0]);
        assert_eq!(fires("chance=3/3"), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for word in ["nth=0", "nth=x", "soon", "chance=1", "chance=1/0"] {
            assert!(Timing::parse([word].into_iter()).is_err(), "`{word}`");
        }
        assert!(Timing::parse(["nth=1", "every=2"].into_iter()).is_err());
    }
}
