//! Which way bytes went, as far as it can be seen.
//!
//! cuFile does not say it of a call. Its counters are the process's, by path and GPU; those of
//! nvidia-fs are the whole machine's. So a path is claimed for a request only where no other path was
//! counted while it ran. That a request is counted before its call returns is taken for
//! granted: the counts of single requests were there at once when they were looked at. Counts that somebody
//! resets meanwhile (`cuFileStatsReset`) are seen where one has become less, and else not.

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};

use nvidia_dl::cufile::PathCounts;

use super::Absent;
use super::leaving::{Guarded, Purpose};
use crate::plan::Kind;
use crate::receipt::DataPath;

/// How a session tells paths.
#[derive(Debug)]
pub(super) struct Proof {
    library: Guarded,
    /// Whether the library counts, or why it does not.
    told: Result<(), Absent>,
    /// nvidia-fs's counters, where its absence from them proves something.
    nvidia_fs: Option<PathBuf>,
}

/// What had been counted when a request began.
#[derive(Debug)]
pub(super) struct Window<'a> {
    proof: &'a Proof,
    kind: Kind,
    library: Option<PathCounts>,
    nvidia_fs: Option<u64>,
}

impl Proof {
    pub(super) fn new(
        library: Guarded,
        told: Result<(), Absent>,
        proc_dir: &Path,
        p2pdma: Option<bool>,
    ) -> Self {
        let stats = proc_dir.join("driver/nvidia-fs/stats");
        // Where P2PDMA is not known to be off, what did not go by nvidia-fs may have gone by it. A library
        // that was opened without nvidia-fs never goes by it, and to look for it at every call costs more
        // than a call for few bytes.
        let tells = p2pdma == Some(false) && stats.exists();
        Self {
            library,
            told,
            nvidia_fs: tells.then_some(stats),
        }
    }

    /// A request for device memory begins.
    pub(super) fn begin(&self, kind: Kind) -> Window<'_> {
        Window {
            proof: self,
            kind,
            library: self.library_counts(kind),
            nvidia_fs: self.nvidia_fs_count(kind),
        }
    }

    /// Over all GPUs: which of the library's is which of CUDA's is not known.
    fn library_counts(&self, kind: Kind) -> Option<PathCounts> {
        let ask = || self.library.call(Purpose::Ask).stats_l3();
        let stats = self.told.is_ok().then(ask)?.ok()?;
        Some(match kind {
            Kind::Read => stats.reads_by_path(),
            Kind::Write => stats.writes_by_path(),
        })
    }

    fn nvidia_fs_count(&self, kind: Kind) -> Option<u64> {
        if self.told.is_ok() {
            return None; // The better witness is there.
        }
        let text = fs::read_to_string(self.nvidia_fs.as_ref()?).ok()?;
        requests_counted(&text, kind)
    }
}

impl Window<'_> {
    /// The path of what was moved since, and why no other is named.
    pub(super) fn end(self) -> (DataPath, Option<Cow<'static, str>>) {
        if let (Some(before), Some(now)) = (self.library, self.proof.library_counts(self.kind)) {
            return judge(before, now);
        }
        match (self.nvidia_fs, self.proof.nvidia_fs_count(self.kind)) {
            (Some(before), Some(now)) if now == before => (
                DataPath::CufilePosix,
                Some("nvidia-fs counted nothing meanwhile, and there is no P2PDMA".into()),
            ),
            (Some(_), Some(_)) => (
                DataPath::CufileUnverified,
                Some("nvidia-fs counted requests meanwhile, and does not say whose".into()),
            ),
            _ => {
                let why = self.proof.told.clone().err();
                let why = why.unwrap_or_else(|| "cuFile did not tell its counts".into());
                (DataPath::CufileUnverified, Some(why))
            }
        }
    }
}

/// What counts say of everything that was under way meanwhile.
fn judge(before: PathCounts, now: PathCounts) -> (DataPath, Option<Cow<'static, str>>) {
    let fell =
        now.nvidia_fs < before.nvidia_fs || now.p2pdma < before.p2pdma || now.posix < before.posix;
    if fell {
        // What was counted before that is not known.
        let why = "somebody reset cuFile's counts at that time";
        return (DataPath::CufileUnverified, Some(why.into()));
    }
    let moved = now.since(before);
    let paths = [
        (DataPath::NvidiaFs, moved.nvidia_fs),
        (DataPath::P2pDma, moved.p2pdma),
        (DataPath::CufilePosix, moved.posix),
    ];
    let mut counted = paths.iter().filter(|(_, requests)| *requests > 0);
    match (counted.next(), counted.next()) {
        (Some(&(path, _)), None) => (path, None),
        (Some(_), Some(_)) => (
            DataPath::CufileUnverified,
            Some("cuFile moved bytes by several paths at that time".into()),
        ),
        (None, _) => (
            DataPath::CufileUnverified,
            Some("cuFile counted nothing meanwhile".into()),
        ),
    }
}

/// Requests that nvidia-fs has counted, from the text that it shows; `None` where it does not count.
fn requests_counted(text: &str, kind: Kind) -> Option<u64> {
    if !text.contains("IO stats: Enabled") {
        return None;
    }
    let name = match kind {
        Kind::Read => "Reads",
        Kind::Write => "Writes",
    };
    text.lines().find_map(|line| {
        let (label, values) = line.split_once(':')?;
        let count = values
            .split_whitespace()
            .find_map(|value| value.strip_prefix("n="))?;
        (label.trim() == name).then(|| count.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(p2pdma: u64, nvidia_fs: u64, posix: u64) -> PathCounts {
        let mut counts = PathCounts::default();
        (counts.p2pdma, counts.nvidia_fs, counts.posix) = (p2pdma, nvidia_fs, posix);
        counts
    }

    #[test]
    fn a_path_is_claimed_only_where_no_other_was_counted() {
        let before = counts(1, 2, 3);
        let judge = |moved: PathCounts| {
            let (p2pdma, nvidia_fs) = (1 + moved.p2pdma, 2 + moved.nvidia_fs);
            judge(before, counts(p2pdma, nvidia_fs, 3 + moved.posix))
        };
        let path = |moved| judge(moved).0;
        assert_eq!(path(counts(0, 7, 0)), DataPath::NvidiaFs);
        assert_eq!(path(counts(1, 0, 0)), DataPath::P2pDma);
        assert_eq!(path(counts(0, 0, 4)), DataPath::CufilePosix);
        for mixed in [
            counts(0, 7, 1),
            counts(1, 1, 0),
            counts(1, 1, 1),
            counts(0, 0, 0),
        ] {
            let (path, why) = judge(mixed);
            assert!(
                path == DataPath::CufileUnverified && why.is_some(),
                "{mixed:?}"
            );
        }
    }

    #[test]
    fn no_path_is_claimed_where_counts_were_reset() {
        for (before, now) in [
            // Some of the bytes went by host memory, and that is not counted any more.
            (counts(0, 0, 1), counts(0, 1, 0)),
            (counts(0, 0, 1), counts(1, 0, 0)),
            (counts(0, 1, 0), counts(0, 0, 1)),
            (counts(2, 0, 0), counts(1, 0, 0)),
        ] {
            let (path, why) = judge(before, now);
            assert_eq!(path, DataPath::CufileUnverified, "{before:?} to {now:?}");
            assert!(why.unwrap().contains("reset"));
        }
    }

    #[test]
    fn what_nvidia_fs_counts_is_read_from_its_text() {
        let text = "GDS Version: 1.7.0.149\nNVFS statistics(ver: 4.0)\n\
                    IO stats: Enabled, peer IO stats: Enabled\n\n\
                    Reads     : n=12 ok=11 err=1 readMiB=40 io_state_err=0\n\
                    Reads     : Bandwidth(MiB/s)=3 Avg-Latency(usec)=5\n\
                    Sparse Reads : n=3 io=0 holes=0 pages=0\n\
                    Writes    : n=5 ok=5 err=0 writeMiB=20\n";
        assert_eq!(requests_counted(text, Kind::Read), Some(12));
        assert_eq!(requests_counted(text, Kind::Write), Some(5));
        let off = text.replace("IO stats: Enabled", "IO stats: Disabled");
        assert_eq!(requests_counted(&off, Kind::Read), None);
    }
}
