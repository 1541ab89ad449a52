//! What an operation is, and how many there were of each kind.

use std::fmt;
use std::sync::atomic::AtomicU64;

use measure::data::Draws;

use super::counts::{add, read};

/// What is done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Read,
    /// A read of which checksums are made.
    Digest,
    Ranges,
    /// Chunks in order, in memory of the library's.
    Stream,
    Write,
    /// A write whose source may be changed before its bytes are on the disk.
    Staged,
    /// A sink of pieces that lie one behind the other.
    Writer,
    /// Waits for writes, and looks at the whole file.
    Inspect,
}

impl Act {
    pub(super) const ALL: [Self; 8] = [
        Self::Read,
        Self::Digest,
        Self::Ranges,
        Self::Stream,
        Self::Write,
        Self::Staged,
        Self::Writer,
        Self::Inspect,
    ];

    pub(super) fn draw(draws: &mut Draws) -> Self {
        match draws.below(100) {
            0..32 => Self::Read,
            32..40 => Self::Digest,
            40..50 => Self::Ranges,
            50..58 => Self::Stream,
            58..82 => Self::Write,
            82..90 => Self::Staged,
            90..98 => Self::Writer,
            _ => Self::Inspect,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Digest => "digest",
            Self::Ranges => "ranges",
            Self::Stream => "stream",
            Self::Write => "write",
            Self::Staged => "staged",
            Self::Writer => "writer",
            Self::Inspect => "inspect",
        }
    }

    pub(super) const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Staged | Self::Writer)
    }

    /// One like it by whose memory each quarantine can be seen. A stream has memory of its own, what
    /// a staged write leaves lies in a slot, and a sink is many operations.
    pub(super) const fn visible(self) -> Self {
        match self {
            Self::Stream => Self::Read,
            Self::Staged | Self::Writer => Self::Write,
            act => act,
        }
    }
}

/// Of one kind.
#[derive(Debug, Default)]
struct Tally {
    begun: AtomicU64,
    /// Awaited to its end, which was well, and checked.
    well: AtomicU64,
}

/// Of each kind.
#[derive(Debug, Default)]
pub(super) struct Acts {
    each: [Tally; Act::ALL.len()],
    /// Those of them that worked on memory of other owners.
    foreign: Tally,
}

impl Acts {
    pub(super) fn begun(&self, act: Act) {
        add(&self.each[act as usize].begun, 1);
    }

    pub(super) fn ended_well(&self, act: Act) {
        add(&self.each[act as usize].well, 1);
    }

    pub(super) fn begun_on_foreign(&self) {
        add(&self.foreign.begun, 1);
    }

    pub(super) fn ended_well_on_foreign(&self) {
        add(&self.foreign.well, 1);
    }

    /// Those of `wanted` of which none has ended well, and foreign memory where that is wanted.
    pub(super) fn missed(&self, wanted: &[Act], has_foreign: bool) -> Vec<&'static str> {
        let named = wanted.iter().map(|&act| self.named(act));
        named
            .chain(has_foreign.then_some(("foreign", &self.foreign)))
            .filter(|(_, tally)| read(&tally.well) == 0)
            .map(|(name, _)| name)
            .collect()
    }

    const fn named(&self, act: Act) -> (&'static str, &Tally) {
        (act.name(), &self.each[act as usize])
    }
}

/// A line of those begun, and one of those that ended well.
impl fmt::Display for Acts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = || Act::ALL.into_iter().map(|act| self.named(act));
        let all = || each().chain([("foreign", &self.foreign)]);
        let list = |count: fn(&Tally) -> &AtomicU64| {
            let items = all().map(|(name, tally)| (name, read(count(tally))));
            let items = items.filter(|(_, times)| *times > 0);
            let items = items.map(|(name, times)| format!("{name}={times}"));
            items.collect::<Vec<_>>().join(" ")
        };
        let (begun, well) = (list(|tally| &tally.begun), list(|tally| &tally.well));
        write!(f, "acts: {begun}\nended well: {well}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_never_ended_well_is_missed() {
        let acts = Acts::default();
        for act in Act::ALL {
            acts.begun(act);
            if act != Act::Stream {
                acts.ended_well(act);
            }
        }
        assert_eq!(acts.missed(&Act::ALL, false), ["stream"]);
        assert_eq!(acts.missed(&Act::ALL, true), ["stream", "foreign"]);
        acts.ended_well(Act::Stream);
        acts.ended_well_on_foreign();
        assert_eq!(acts.missed(&Act::ALL, true), [""; 0]);
    }

    #[test]
    fn every_kind_is_drawn_and_has_its_own_place() {
        let mut draws = Draws::new(1);
        let drawn: Vec<Act> = (0..2000).map(|_| Act::draw(&mut draws)).collect();
        for (index, act) in Act::ALL.into_iter().enumerate() {
            assert_eq!(act as usize, index);
            assert!(drawn.contains(&act), "{act:?}");
        }
    }
}
