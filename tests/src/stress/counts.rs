//! What a run has done, what it has found, and the lines that say so.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio_cufile::{DataPath, PathBytes};

use super::acts::Acts;
use super::lock;
use super::pulse::Pulse;

/// Messages that are kept; all are counted.
const MESSAGES_MAX: usize = 12;

/// Where a future was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Before its first poll.
    Unpolled,
    /// Submitted, and nothing of it granted.
    Queued,
    /// With something of it at the disk.
    Issued,
    /// When the disk was done and the copy was not; of a write, the other way round.
    Between,
    /// Settled: it had woken its task, which did not ask it.
    Settled,
    /// Somewhere on the way: it had been polled, and more is not known.
    UnderWay,
}

impl Point {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Unpolled,
        Self::Queued,
        Self::Issued,
        Self::Between,
        Self::Settled,
        Self::UnderWay,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Unpolled => "unpolled",
            Self::Queued => "queued",
            Self::Issued => "issued",
            Self::Between => "between",
            Self::Settled => "settled",
            Self::UnderWay => "under_way",
        }
    }
}

/// What goes wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A request moves less than it was asked to.
    Short,
    /// The file system says `EIO`.
    Eio,
    /// The file system says `EINVAL`.
    Einval,
    /// The file system says `ENOSPC`.
    Enospc,
    /// A request, or a copy, takes long.
    Slow,
    /// The device refuses a copy.
    CopyError,
    /// The context of a device is in error from then on.
    ContextLost,
    /// The event of a copy never completes.
    EventNever,
    /// The hardware never says what became of a part.
    Silent,
    /// cuFile refuses a call, is interrupted, or does less than it was asked to.
    CufileError,
    /// One bit of a copy is wrong: only on request, since a run must fail of it.
    Flip,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Short,
        Self::Eio,
        Self::Einval,
        Self::Enospc,
        Self::Slow,
        Self::CopyError,
        Self::ContextLost,
        Self::EventNever,
        Self::Silent,
        Self::CufileError,
        Self::Flip,
    ];

    /// What it is called on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Eio => "eio",
            Self::Einval => "einval",
            Self::Enospc => "enospc",
            Self::Slow => "slow",
            Self::CopyError => "copy-error",
            Self::ContextLost => "context-lost",
            Self::EventNever => "event-never",
            Self::Silent => "silent",
            Self::CufileError => "cufile-error",
            Self::Flip => "flip",
        }
    }
}

/// What must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// An issued operation without an outcome, or a lost write that nobody was told of.
    Lost,
    /// Bytes that should not be there.
    Corrupt,
    /// Memory or an outcome that came twice.
    Double,
    /// Memory that was changed after it was given back.
    LateWrite,
    /// Memory, slots or permits that are neither free nor quarantined.
    Leaked,
    /// Something else that was not to be.
    Other,
}

impl Harm {
    const ALL: usize = 6;
}

/// Counted by all threads.
#[derive(Debug, Default)]
pub struct Counts {
    pub(super) ops: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) cancelled: AtomicU64,
    pub(super) timed_out: AtomicU64,
    pub(super) done: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) quarantined: AtomicU64,
    pub(super) expected: AtomicU64,
    pub(super) rounds: AtomicU64,
    pub(super) shutdown_ms_max: AtomicU64,
    dropped: [AtomicU64; Point::ALL.len()],
    faults: [AtomicU64; Fault::ALL.len()],
    harm: [AtomicU64; Harm::ALL],
    pub(super) slots_bad: AtomicU64,
    pub(super) permits_bad: AtomicU64,
    pub(super) acts: Acts,
    messages: Mutex<Vec<String>>,
    /// Bytes by the path that they took, of all engines.
    paths: Mutex<BTreeMap<DataPath, u64>>,
    /// Where real time matters.
    pulse: Option<Arc<Pulse>>,
}

pub(super) fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

pub(super) fn read(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

impl Counts {
    /// Of a run in which silence is judged.
    pub(super) fn with_pulse() -> Self {
        Self {
            pulse: Some(Pulse::start()),
            ..Self::default()
        }
    }

    /// For how long the machine stood still, if it did.
    pub(super) fn stood_still(&self) -> Option<Duration> {
        self.pulse.as_ref().and_then(|pulse| pulse.stood_still())
    }

    /// Whether it did after `since`.
    pub(super) fn stood_still_since(&self, since: Instant) -> bool {
        let pulse = self.pulse.as_ref();
        pulse.is_some_and(|pulse| pulse.stood_still_since(since))
    }

    pub(super) fn dropped(&self, point: Point) {
        add(&self.dropped[point as usize], 1);
    }

    pub(super) fn fired(&self, fault: Fault, times: u64) {
        add(&self.faults[fault as usize], times);
    }

    pub(super) fn fired_so_far(&self, fault: Fault) -> u64 {
        read(&self.faults[fault as usize])
    }

    /// Something that must not be.
    pub(super) fn harm(&self, harm: Harm, times: u64, message: impl FnOnce() -> String) {
        if times == 0 {
            return;
        }
        add(&self.harm[harm as usize], times);
        let mut messages = lock(&self.messages);
        if messages.len() < MESSAGES_MAX {
            messages.push(format!("{harm:?}: {}", message()));
        }
    }

    /// What an engine has moved in its life.
    pub(super) fn moved(&self, paths: &PathBytes) {
        let mut sums = lock(&self.paths);
        for (path, bytes) in paths.iter() {
            *sums.entry(path).or_default() += bytes;
        }
    }

    /// Bytes that went by cuFile, in whichever of its ways.
    pub(super) fn by_cufile(&self) -> u64 {
        let paths = lock(&self.paths);
        let is_cufiles = |path: &DataPath| {
            matches!(
                path,
                DataPath::NvidiaFs
                    | DataPath::P2pDma
                    | DataPath::CufilePosix
                    | DataPath::CufileUnverified
            )
        };
        let bytes = paths.iter().filter(|(path, _)| is_cufiles(path));
        bytes.map(|(_, bytes)| bytes).sum()
    }

    /// Engines that were to use cuFile have ended: some of them must have.
    pub(super) fn judge_cufile(&self) {
        let bytes = self.by_cufile();
        println!("by cuFile: {bytes} bytes");
        let message = || "no byte went by cuFile".to_owned();
        self.harm(Harm::Other, u64::from(bytes == 0), message);
    }

    /// How often.
    pub fn harmed(&self, harm: Harm) -> u64 {
        read(&self.harm[harm as usize])
    }

    /// What was found, in words.
    pub fn messages(&self) -> Vec<String> {
        lock(&self.messages).clone()
    }

    /// Whether nothing was found that must not be.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let harmed = self.harm.iter().any(|harm| read(harm) > 0);
        let accounts = read(&self.slots_bad) + read(&self.permits_bad);
        !harmed && accounts == 0 && read(&self.quarantined) == read(&self.expected)
    }

    /// The faults and drop points that were to be hit and were not.
    #[must_use]
    pub fn missed(&self, faults: &[Fault], points: &[Point]) -> Vec<&'static str> {
        let faults = faults
            .iter()
            .filter(|fault| self.fired_so_far(**fault) == 0)
            .map(|fault| fault.name());
        let points = points
            .iter()
            .filter(|point| read(&self.dropped[**point as usize]) == 0)
            .map(|point| point.name());
        faults.chain(points).collect()
    }

    /// How many operations of each kind there were, how often each fault fired, and each drop point
    /// was hit.
    #[must_use]
    pub fn details(&self) -> String {
        let faults = Fault::ALL
            .iter()
            .map(|fault| (fault.name(), self.fired_so_far(*fault)))
            .filter(|(_, times)| *times > 0);
        let points = Point::ALL
            .iter()
            .map(|point| (point.name(), read(&self.dropped[*point as usize])));
        let list = |items: Vec<(&str, u64)>| {
            let items = items.iter().map(|(name, times)| format!("{name}={times}"));
            items.collect::<Vec<_>>().join(" ")
        };
        let paths = lock(&self.paths);
        let paths = paths.iter().map(|(path, bytes)| (path.name(), *bytes));
        format!(
            "{}\nfaults fired: {}\ndropped: {}\nbytes by path: {}\n\
             awaited: done={} failed={} bytes={} shutdowns={}",
            self.acts,
            list(faults.collect()),
            list(points.collect()),
            list(paths.filter(|(_, bytes)| *bytes > 0).collect()),
            read(&self.done),
            read(&self.failed),
            read(&self.bytes),
            read(&self.rounds),
        )
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |counts: &[AtomicU64]| counts.iter().map(read).sum::<u64>();
        let word = |bad: &AtomicU64| if read(bad) == 0 { "ok" } else { "BAD" };
        write!(
            f,
            "ops={} dropped={} cancelled={} timed_out={} faults={} lost={} corrupt={} double={} \
             late_writes={} leaked={} quarantined={} expected={} slots={} permits={}",
            read(&self.ops),
            sum(&self.dropped),
            read(&self.cancelled),
            read(&self.timed_out),
            sum(&self.faults),
            self.harmed(Harm::Lost),
            self.harmed(Harm::Corrupt),
            self.harmed(Harm::Double),
            self.harmed(Harm::LateWrite),
            self.harmed(Harm::Leaked),
            read(&self.quarantined),
            read(&self.expected),
            word(&self.slots_bad),
            word(&self.permits_bad),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_by_cufile_in_which_it_moved_nothing_has_failed() {
        let counts = Counts::default();
        assert!(counts.is_clean());
        counts.judge_cufile();
        assert_eq!(counts.harmed(Harm::Other), 1);
        assert!(!counts.is_clean());
    }

    #[test]
    fn only_bytes_by_cufile_count_as_such() {
        let counts = Counts::default();
        lock(&counts.paths).insert(DataPath::PoolCached, 5);
        assert_eq!(counts.by_cufile(), 0);
        lock(&counts.paths).insert(DataPath::NvidiaFs, 7);
        counts.judge_cufile();
        assert_eq!(counts.by_cufile(), 7);
        assert!(counts.is_clean());
    }
}
