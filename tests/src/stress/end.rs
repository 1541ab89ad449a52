//! The end of an epoch: its engine is shut down, and everything that was in it is accounted for.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio_cufile::{Permits, ShutdownReport, Stats};

use super::counts::{Harm, add};
use super::field::{Epoch, Files};
use super::lock;

/// What a shutdown may take beside the quiet limit, on a machine that is busy elsewhere.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(4);
/// How long memory may take to come back after a shutdown.
const ORPHANS_MAX: Duration = Duration::from_secs(4);

impl Epoch {
    /// Shuts the engine down. `None`, which is counted, when it does not end in time.
    pub(super) async fn shut_down(&self, quiet_limit: Duration) -> Option<ShutdownReport> {
        self.ending.store(true, Ordering::Release);
        let (since, limit) = (Instant::now(), quiet_limit + SHUTDOWN_MARGIN);
        let report = tokio::time::timeout(limit, self.engine.shutdown()).await;
        let took = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.counts
            .shutdown_ms_max
            .fetch_max(took, Ordering::Relaxed);
        if report.is_err() {
            let stats = self.engine.stats();
            let message = || format!("no end of the shutdown in {limit:?}: {stats:?}");
            self.counts.harm(Harm::Lost, 1, message);
        }
        report.ok()
    }

    /// All tasks have ended. Accounts for what they left, and ends the engine.
    pub(super) async fn account(self: Arc<Self>, report: &ShutdownReport) -> Result<(), String> {
        self.wait_for_all(report).await;
        self.count(report);
        // What was held back goes on, and must find its memory.
        self.devices.end(&self.counts, &self.faults);
        if let Some(slow) = &self.files.slow {
            drop(slow.pass());
        }
        self.rest().await;
        let late = std::mem::take(&mut *lock(&self.late));
        let (files, counts) = (Arc::clone(&self.files), Arc::clone(&self.counts));
        let (threads, backend) = (Arc::clone(&self.threads), self.backend);
        let epoch = Arc::into_inner(self).ok_or("a task goes on")?;
        drop(epoch);
        let threads = threads.left_by(backend).await;
        counts.harm(Harm::Leaked, threads, || "threads of an engine".to_owned());
        for late in late {
            let mut content = lock(&files.all[late.subject].content);
            match late.written {
                Some(written) => content.wrote(&late.claim, written),
                None => content.release(&late.claim),
            }
        }
        files.look_at_all(|wrong| counts.harm(Harm::Corrupt, 1, || wrong))
    }

    /// What is dropped after the report is dropped by the engine's thread, soon; and a part that was
    /// withdrawn before its start gives its permits back when its backend comes to it.
    async fn wait_for_all(&self, report: &ShutdownReport) {
        let until = Instant::now() + ORPHANS_MAX;
        loop {
            self.gather();
            let noted = self.quarantined.load(Ordering::Relaxed);
            let left = lock(&self.orphans).len() as u64;
            let is_back = noted + left <= report.quarantined;
            let is_home = self.engine.stats().parts.in_flight == 0;
            if (is_back && is_home) || Instant::now() >= until {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn count(&self, report: &ShutdownReport) {
        let orphans = self.close_orphans();
        let expected = self.quarantined.load(Ordering::Relaxed) + orphans;
        let stats = self.engine.stats();
        self.counts.moved(&stats.paths);
        add(&self.counts.rounds, 1);
        add(&self.counts.quarantined, report.quarantined);
        add(&self.counts.expected, expected);
        let differ = report.quarantined.abs_diff(expected);
        let quarantined = report.quarantined;
        let message = || format!("{quarantined} quarantined, {expected} expected; {stats:?}");
        self.counts.harm(Harm::Leaked, differ, message);
        let slots = [stats.slots, stats.small_slots];
        let permits = [stats.bytes, stats.parts, stats.workers];
        let none_lost = expected == 0;
        let bad = |all: &[Permits]| all.iter().any(|one| !is_home(one, none_lost));
        for (count, is_bad) in [
            (&self.counts.slots_bad, bad(&slots)),
            (&self.counts.permits_bad, bad(&permits)),
        ] {
            add(count, u64::from(is_bad));
            let message = || format!("not all home: {stats:?}");
            self.counts.harm(Harm::Leaked, u64::from(is_bad), message);
        }
        self.check_strays(&stats);
    }

    /// What has not come back by now never will. Its claims end with the epoch.
    fn close_orphans(&self) -> u64 {
        let orphans = std::mem::take(&mut *lock(&self.orphans));
        let count = orphans.len() as u64;
        lock(&self.late).extend(orphans.into_iter().map(|orphan| orphan.late()));
        count
    }

    /// A completion that names nobody may only be one of a part that was given up.
    fn check_strays(&self, stats: &Stats) {
        let more = stats
            .stray_completions
            .saturating_sub(stats.parts.quarantined);
        let message = || format!("completions of nobody: {stats:?}");
        self.counts.harm(Harm::Double, more, message);
    }

    /// Watches all memory for as long as it has to rest.
    async fn rest(&self) {
        let pinned = self.pinned.as_ref();
        let rested = [
            self.host.rested_at(),
            pinned.and_then(|pinned| pinned.rested_at()),
        ];
        let devices = self
            .devices
            .all
            .iter()
            .map(|device| device.arena.rested_at());
        if let Some(last) = rested.into_iter().chain(devices).flatten().max() {
            tokio::time::sleep_until(last.into()).await;
        }
        self.host.sweep();
        let mut late = self.host.harm().late;
        if let Some(pinned) = pinned {
            pinned.sweep();
            late += pinned.harm().late;
        }
        for device in &self.devices.all {
            device.arena.sweep();
            late += device.arena.harm().late;
        }
        let message = || "memory changed after it was given back".to_owned();
        self.counts.harm(Harm::LateWrite, late, message);
    }
}

impl Files {
    fn look_at_all(&self, wrong: impl Fn(String)) -> Result<(), String> {
        for (index, subject) in self.all.iter().enumerate() {
            let found = self.bytes_of(index)?;
            let inspection = lock(&subject.content).inspect_alone(&found);
            if let Some(what) = inspection.corrupt {
                wrong(format!("{}: {what}", subject.path.display()));
            }
        }
        Ok(())
    }
}

fn is_home(permits: &Permits, none_lost: bool) -> bool {
    let all = permits.free + permits.quarantined == permits.capacity;
    all && permits.in_flight == 0 && !(none_lost && permits.quarantined > 0)
}
