//! What the process holds of the system, looked at whenever no engine lives: in a long run none of it
//! may grow.

use std::fmt;
use std::fs;

use super::counts::{Counts, Harm};
use super::field::text;

/// Looks before the first that counts: pools, buffers and the allocator fill.
const WARM_UP: usize = 8;
/// Looks after those, from which on they are judged.
const LOOKS_MIN: usize = 16;
/// By how many bytes the resident memory of the last half may lie above that of the first one: what
/// an allocator keeps wanders. In an hour that is one byte for about seven operations.
const GROWTH_MAX: u64 = 2 << 20;

/// One of the things that could leak.
type Figure = fn(&Look) -> u64;

/// All of them, once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Look {
    /// Bytes.
    resident: u64,
    /// Bytes, also those that a ring has pinned.
    locked: u64,
    descriptors: u64,
    threads: u64,
    /// Operations whose memory was kept for good by then.
    quarantined: u64,
}

impl Look {
    fn take(quarantined: u64) -> Result<Self, String> {
        let status = fs::read_to_string("/proc/self/status").map_err(text)?;
        let said = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let word = line.and_then(|line| line.split_whitespace().next());
            word.and_then(|word| word.parse::<u64>().ok())
        };
        let number = |name: &str| said(name).ok_or_else(|| format!("/proc/self/status: {name}"));
        // Not every kernel that a container runs on says it.
        let locked = |name: &str| said(name).unwrap_or(0) << 10;
        let descriptors = fs::read_dir("/proc/self/fd").map_err(text)?.count();
        Ok(Self {
            resident: number("VmRSS:")? << 10,
            locked: locked("VmLck:") + locked("VmPin:"),
            descriptors: u64::try_from(descriptors).map_err(text)?,
            threads: number("Threads:")?,
            quarantined,
        })
    }
}

/// All looks of a run.
#[derive(Debug, Default)]
pub(super) struct Footprint(Vec<Look>);

impl Footprint {
    /// Looks once more. No engine lives.
    pub(super) fn look(&mut self, quarantined: u64) -> Result<(), String> {
        self.0.push(Look::take(quarantined)?);
        Ok(())
    }

    /// Counts what has grown as leaked, if the run was long enough to tell.
    pub(super) fn judge(&self, counts: &Counts) {
        for grown in grown(&self.0) {
            counts.harm(Harm::Leaked, 1, || grown);
        }
    }
}

/// What is larger in the second half than in the first, though nothing was given up in between: what
/// is kept for good is accounted for elsewhere.
fn grown(looks: &[Look]) -> Vec<String> {
    let Some(judged) = looks.get(WARM_UP..).filter(|all| all.len() >= LOOKS_MIN) else {
        return Vec::new();
    };
    let (early, late) = judged.split_at(judged.len() / 2);
    let kept = |looks: &[Look]| looks.last().map_or(0, |look| look.quarantined);
    if kept(late) > looks[WARM_UP].quarantined {
        return Vec::new();
    }
    let figures: [(&str, Figure, u64); 4] = [
        ("resident bytes", |look| look.resident, GROWTH_MAX),
        ("locked bytes", |look| look.locked, 0),
        ("descriptors", |look| look.descriptors, 0),
        ("threads", |look| look.threads, 0),
    ];
    let mut grown = Vec::new();
    for (what, of, more_max) in figures {
        let (before, after) = (median(early, of), median(late, of));
        if after > before + more_max {
            grown.push(format!("{what} grew from {before} to {after}"));
        }
    }
    grown
}

fn median(looks: &[Look], of: Figure) -> u64 {
    let mut all: Vec<u64> = looks.iter().map(of).collect();
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or(0)
}

impl fmt::Display for Footprint {
    /// Each figure after the warm-up, at a quarter, half and three quarters of the run, and at its end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(last) = self.0.len().checked_sub(1) else {
            return f.write_str("footprint: not looked at");
        };
        let first = WARM_UP.min(last);
        let at = [0, 1, 2, 3, 4].map(|quarter| first + (last - first) * quarter / 4);
        let figures: [(&str, Figure); 4] = [
            ("rss_kib", |look| look.resident >> 10),
            ("locked", |look| look.locked),
            ("fds", |look| look.descriptors),
            ("threads", |look| look.threads),
        ];
        write!(f, "footprint after {} engines:", self.0.len())?;
        for (name, of) in figures {
            let values = at.map(|at| of(&self.0[at]).to_string());
            write!(f, " {name}={}", values.join(","))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(change: impl Fn(usize, &mut Look)) -> Vec<Look> {
        let mut looks = vec![
            Look {
                resident: 100 << 20,
                descriptors: 9,
                threads: 3,
                ..Look::default()
            };
            WARM_UP + LOOKS_MIN
        ];
        for (index, look) in looks.iter_mut().enumerate() {
            change(index, look);
        }
        looks
    }

    #[test]
    fn what_stays_has_not_grown() {
        let wander = |index, look: &mut Look| look.resident += (index as u64 % 3) << 20;
        assert_eq!(grown(&looks(wander)), Vec::<String>::new());
    }

    #[test]
    fn everything_that_grows_is_named() {
        let all = looks(|index, look| {
            let more = index as u64;
            look.resident += more << 20;
            look.locked += more;
            look.descriptors += more;
            look.threads += more;
        });
        assert_eq!(grown(&all).len(), 4, "{:?}", grown(&all));
    }

    #[test]
    fn a_short_run_and_one_that_keeps_memory_for_good_are_not_judged() {
        let grows = |index, look: &mut Look| look.threads += index as u64;
        assert!(grown(&looks(grows)[1..]).is_empty());
        let keeps = |index, look: &mut Look| {
            grows(index, look);
            look.quarantined = index as u64;
        };
        assert!(grown(&looks(keeps)).is_empty());
    }

    #[test]
    fn this_process_has_memory_descriptors_and_threads() {
        let look = Look::take(0).unwrap();
        assert!(look.resident > 0 && look.descriptors > 2 && look.threads > 0);
    }
}
