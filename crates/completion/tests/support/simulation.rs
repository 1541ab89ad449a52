//! Random choices over the whole model, for the shuttle tests and the state machine.

use std::sync::Arc;

use tokio_cufile_completion::{Class, Ending, Ledger, PartKey, ReleasePolicy};

use super::hardware::{Memory, Started, outcome};
use super::{Job, Want, World};

pub(crate) type File = Arc<Ledger<&'static str>>;

/// Where choices come from: numbers below a bound.
pub(crate) trait Choices {
    fn below(&mut self, bound: u64) -> u64;

    fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

/// A small generator of its own, so that a seed means the same run for ever.
pub(crate) struct Seeded(pub(crate) u64);

impl Choices for Seeded {
    fn below(&mut self, bound: u64) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// An operation of any kind.
pub(crate) fn random_want(choices: &mut impl Choices, file: &File, now: u64) -> Want {
    let parts: Vec<u64> = (0..choices.below(4))
        .map(|_| 1 + choices.below(300))
        .collect();
    let mut want = match choices.below(8) {
        0..=3 => Want::read(&parts),
        4..=6 => Want::write(file, choices.below(10_000), &parts),
        _ => Want::sync(file),
    };
    want.class = [Class::Urgent, Class::Normal, Class::Bulk]
        [usize::try_from(choices.below(3)).expect("below 3")];
    if choices.one_in(4) {
        want = want.deadline(now + choices.below(60));
    }
    if choices.one_in(3) {
        want = want.through_slot(2);
    }
    want
}

/// What hardware makes of a part. Gives the key of one that ended by name, which is stale then.
pub(crate) fn random_end<P: ReleasePolicy>(
    world: &World<P>,
    choices: &mut impl Choices,
    started: Started<P>,
) -> Option<PartKey> {
    let len = started.task.len;
    if choices.one_in(4) {
        started.ticket.let_go();
    }
    match choices.below(40) {
        0 => drop(started),
        1 => started.finish_with(len + 1, None),
        2..=4 => started.fail(choices.below(len + 1), "EIO"),
        5..=7 => started.finish_with(choices.below(len + 1), None),
        8..=11 => {
            started.task.hit();
            started.task.count(len);
            let (key, _) = started.into_key();
            world.core.finish(key, outcome(len, None));
            return Some(key);
        }
        _ => started.finish(),
    }
    None
}

/// What must be true of an operation when everything has ended.
pub(crate) struct Fate {
    memory: Memory,
    write: bool,
    total: u64,
    awaited: bool,
    quarantined: bool,
}

impl Fate {
    /// Of an operation whose outcome was taken.
    pub(crate) fn awaited<P: ReleasePolicy>(job: &Job<P>, ending: &Ending<&'static str>) -> Self {
        Self {
            awaited: true,
            quarantined: *ending == Ending::Quarantined,
            ..Self::dropped(job)
        }
    }

    /// Of an operation whose future was dropped.
    pub(crate) fn dropped<P: ReleasePolicy>(job: &Job<P>) -> Self {
        Self {
            memory: job.memory.clone(),
            write: job.want.write.is_some(),
            total: job.want.parts.iter().sum(),
            awaited: false,
            quarantined: false,
        }
    }

    /// Whether nobody was told that this write did not write everything (I8).
    fn is_lost_write(&self) -> bool {
        // A quarantined write is lost whatever its parts are heard to have done later.
        let doubtful = self.memory.moved() < self.total || self.memory.releases() == 0;
        self.write && !self.awaited && self.memory.was_started() && doubtful
    }
}

/// How everything has ended, once nothing is in flight and all was disposed of.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    /// What was left behind, in words.
    pub(crate) left: Vec<String>,
    /// Memories that were released more than once.
    pub(crate) doubled: u64,
    /// Awaited payloads that did not come back, or came back from quarantine.
    pub(crate) strayed: u64,
    /// Memories that were not released, and how many of them the engine knows of.
    pub(crate) leaked: u64,
    pub(crate) quarantined: u64,
    /// Writes that nobody was told of, and how many of them the ledger knows of.
    pub(crate) lost: u64,
    pub(crate) recorded: u64,
}

impl Ends {
    pub(crate) fn of<P: ReleasePolicy>(world: &World<P>, fates: &[Fate], file: &File) -> Self {
        let census = world.check();
        let mut ends = Self {
            quarantined: census.quarantined_operations,
            lost: fates.iter().filter(|fate| fate.is_lost_write()).count() as u64,
            recorded: file.doubt().map_or(0, |doubt| doubt.writes),
            ..Self::default()
        };
        let parts = census.parts;
        for (is_left, what) in [
            (!census.is_idle(), "something is in flight"),
            (census.queued > 0, "something is queued"),
            (
                parts.free + parts.quarantined != parts.capacity,
                "permits are missing",
            ),
            (file.outstanding() > 0, "a write is still outstanding"),
        ] {
            if is_left {
                ends.left.push(format!("{what}: {census:?}"));
            }
        }
        for fate in fates {
            let releases = fate.memory.releases();
            ends.doubled += u64::from(releases > 1);
            ends.leaked += u64::from(releases == 0);
            ends.strayed += u64::from(fate.awaited && fate.quarantined != (releases == 0));
        }
        ends
    }
}

/// Asserts that everything has ended well.
pub(crate) fn assert_end<P: ReleasePolicy>(world: &World<P>, fates: &[Fate], file: &File) {
    let ends = Ends::of(world, fates, file);
    assert!(ends.left.is_empty(), "{}", ends.left.join("; "));
    assert_eq!(ends.doubled, 0, "memory was released more than once");
    assert_eq!(
        ends.strayed, 0,
        "an awaited payload comes back unless it is quarantined"
    );
    assert_eq!(ends.leaked, ends.quarantined, "leaks are counted");
    assert_eq!(
        ends.recorded, ends.lost,
        "lost writes are recorded, each once"
    );
}
