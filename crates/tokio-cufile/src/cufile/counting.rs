//! Whether the library counts by which way bytes go, who asked for that, and what it means at exit.
//!
//! The level of its statistics is the process's. An engine asks for it before the library opens, which is
//! when `cufile.json` comes over that (measured); so it asks again afterwards.

use std::sync::{Mutex, PoisonError};

use nvidia_dl::cufile::{Library, SizeParameter, StatsLevel, Version};

use super::effective::Set;
use super::{Absent, leaving};
use crate::config::CuFileStats;

/// From this version on the library counts.
const HAS_STATS: Version = Version(1150);

/// From this version on a process may exit with the library open and counting by GPU (measured).
const EXITS_WITH_STATS: Version = Version(1160);

/// Where somebody else asks for what makes the exit crash.
const ENDS_EARLY: &str = "libcufile counts by GPU, as cufile.json or somebody else in this process asks for: \
     at the exit of a process that has it open this version crashes. So the process ends before that, \
     without the rest of its exit, unless every engine is shut down: some exit handlers do not run, and what \
     C's streams hold is not written";

/// The level before an engine of this process asked for another. On 1.15 closing the library does not end
/// what was asked for (measured).
static LEVEL_BEFORE: Mutex<Option<StatsLevel>> = Mutex::new(None);

/// What came of it.
pub(super) struct Counting {
    /// Why it does not count.
    pub(super) told: Result<(), Absent>,
    /// What this engine has set.
    pub(super) set: Option<Set>,
    /// What its user ought to know.
    pub(super) note: Option<String>,
}

/// Before the library opens.
///
/// # Errors
///
/// Why it is not asked to count.
pub(super) fn ask(
    library: &Library,
    stats: CuFileStats,
    version: Option<Version>,
) -> Result<(), Absent> {
    let mut before = LEVEL_BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
    let reason = match stats {
        CuFileStats::Off => "cuFile's statistics were not asked for",
        CuFileStats::On if crashes(version) => {
            "with its statistics this version of cuFile crashes at exit without a shutdown"
        }
        CuFileStats::On | CuFileStats::OnWithShutdown => {
            let now = || library.stats_level().unwrap_or(StatsLevel::OFF);
            before.get_or_insert_with(now);
            let set = library.set_stats_level(StatsLevel::PER_GPU);
            return set.map_err(|error| error.to_string().into());
        }
    };
    if let Some(level) = before.take()
        && let Err(error) = library.set_stats_level(level)
    {
        tracing::warn!(%error, "libcufile may still count, as an engine before asked for");
    }
    Err(reason.into())
}

/// Once the library is open.
pub(super) fn settle(
    library: &Library,
    asked: Result<(), Absent>,
    (stats, version): (CuFileStats, Option<Version>),
) -> Counting {
    if asked.is_ok() && level(library) < StatsLevel::PER_GPU.0 {
        // What it answers is looked at below.
        let _ = library.set_stats_level(StatsLevel::PER_GPU);
    }
    let level = level(library);
    let is_counting = level >= StatsLevel::PER_GPU.0;
    if is_counting {
        // Whoever asked for the level may have begun already; whether it counts is seen below.
        let _ = library.stats_start();
    }
    let crashes = is_counting && crashes(version);
    leaving::crashes_at_exit(crashes);
    let told = match (library.stats_l3(), &asked) {
        (Ok(_), _) => Ok(()),
        (Err(_), Err(reason)) => Err(reason.clone()),
        (Err(error), Ok(())) => Err(format!(
            "level {} of cuFile's statistics was asked for, {level} is in force: {error}",
            StatsLevel::PER_GPU.0
        )
        .into()),
    };
    let key = SizeParameter::PROFILE_STATS.key();
    let is_ours = asked.is_ok() && is_counting;
    Counting {
        told,
        set: key.filter(|_| is_ours).map(|key| (key, level.to_string())),
        note: (crashes && stats != CuFileStats::OnWithShutdown).then(|| ENDS_EARLY.to_owned()),
    }
}

fn level(library: &Library) -> i32 {
    library.stats_level().unwrap_or(StatsLevel::OFF).0
}

/// Whether the exit crashes with the library open and counting by GPU.
fn crashes(version: Option<Version>) -> bool {
    // Before, there are no counts.
    version.is_some_and(|version| (HAS_STATS..EXITS_WITH_STATS).contains(&version))
}
