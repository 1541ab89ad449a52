//! A whole run: epoch after epoch, each with an engine of its own, and the verdict.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio_cufile::{Engine, Permits, ShutdownReport, Stats};

use super::args::Args;
use super::counts::{Counts, Fault, Harm, Point, add, read};
use super::devices::{self, Devices, Leases, Role};
use super::field::{self, Epoch, Files, Plan, text};
use super::fly::fly;
use super::{Backend, Device, lock, model, slow};
use crate::Sim;
use crate::sim::Lease;

/// Operations of one engine.
const EPOCH: usize = 4000;
const TASKS: usize = 64;
/// How long nothing may end.
const STUCK_MAX: Duration = Duration::from_secs(20);
/// How long what was dropped may take to come back before an orderly end.
const QUIET_MAX: Duration = Duration::from_secs(2);
/// Of the engines. Longer than any delay that is injected, on a machine that is busy elsewhere.
const QUIET_LIMIT: Duration = Duration::from_secs(1);
/// What a shutdown may take beside that.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(4);

/// Does what was asked for, prints what came of it, and says whether all was well.
///
/// # Errors
///
/// When the machine does not let it run.
pub fn run(args: &Args) -> Result<bool, String> {
    if args.backend == Backend::Model {
        return run_model(args);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .map_err(text)?;
    let sim = match args.device {
        Device::Host => None,
        Device::Sim => {
            Some(Sim::need().ok_or("simulated devices: run it by `cargo xtask stress`")?)
        }
    };
    let counts = Arc::new(Counts::default());
    let since = Instant::now();
    let missed = runtime.block_on(epochs(args, sim, &counts, since))?;
    Ok(report(args, &counts, &missed, since))
}

fn run_model(args: &Args) -> Result<bool, String> {
    let (counts, since) = (Arc::new(Counts::default()), Instant::now());
    let Some(name) = &args.broken else {
        let missed = model::run(args, &counts);
        return Ok(report(args, &counts, &missed, since));
    };
    let by = model::run_broken(args, name, &counts)?;
    let is_caught = model::is_caught(&counts, by);
    println!("{counts}");
    for message in counts.messages().iter().take(3) {
        println!("  {message}");
    }
    let word = if is_caught { "CAUGHT" } else { "NOT CAUGHT" };
    println!("{word} {name} by {by:?}; again: {}", args.again());
    Ok(is_caught)
}

fn report(args: &Args, counts: &Counts, missed: &[&str], since: Instant) -> bool {
    let well = counts.is_clean() && missed.is_empty();
    println!("{counts}\n{}", counts.details());
    for message in counts.messages() {
        println!("  {message}");
    }
    if !missed.is_empty() {
        println!("  never happened: {}", missed.join(", "));
    }
    let seconds = since.elapsed().as_secs_f64();
    let word = if well { "PASS" } else { "FAIL" };
    let (seed, again) = (args.seed, args.again());
    println!("{word} seed {seed} in {seconds:.1} s; again: {again}");
    well
}

async fn epochs(
    args: &Args,
    sim: Option<&'static Sim>,
    counts: &Arc<Counts>,
    since: Instant,
) -> Result<Vec<&'static str>, String> {
    let files = Arc::new(Files::new(args.seed, &args.faults, counts)?);
    let mut leases = sim.map(Leases::new);
    let until = args.time.map(|time| since + time);
    let is_over = || until.is_some_and(|until| Instant::now() >= until);
    for (number, start) in (0..args.ops).step_by(EPOCH).enumerate() {
        let plan = Plan {
            builder: field::engine(args.backend, QUIET_LIMIT),
            files: Arc::clone(&files),
            counts: Arc::clone(counts),
            seed: args.seed,
            faults: args.faults.clone(),
            operations: start..args.ops.min(start + EPOCH),
            until,
            tasks: TASKS,
            rest: rest_of(args),
        };
        let leases = leases.as_mut().map(|leases| leases.for_epoch(&args.faults));
        one_epoch(args, leases.unwrap_or_default(), plan, number).await?;
        if is_over() || !counts.is_clean() {
            break;
        }
    }
    let is_file_fault = |fault: &Fault| slow::FAULTS.contains(fault);
    let mut expected = args.faults.clone();
    if files.slow.is_none() {
        expected.retain(|fault| !is_file_fault(fault));
    }
    let points = &Point::ALL[..5];
    Ok(counts.missed(&expected, points))
}

/// Longer than the slowest delay.
fn rest_of(args: &Args) -> Duration {
    let slowest = slow::DELAY_MAX.max(devices::DELAY_MAX);
    let is_slow = args.faults.contains(&Fault::Slow) || args.device == Device::Sim;
    let rest = if is_slow { 2 * slowest } else { Duration::ZERO };
    rest + Duration::from_millis(5)
}

async fn one_epoch(
    args: &Args,
    leases: Vec<(Role, Arc<Lease>)>,
    plan: Plan,
    number: usize,
) -> Result<(), String> {
    let devices =
        async |engine: &Engine, rest| Devices::new(engine, leases, &args.faults, rest).await;
    let epoch = Arc::new(Epoch::new(plan, devices).await?);
    fly_all(&epoch).await?;
    if number.is_multiple_of(2) {
        epoch.settle().await?;
    }
    epoch.end(QUIET_LIMIT).await
}

/// Lets the tasks do their operations.
async fn fly_all(epoch: &Arc<Epoch>) -> Result<(), String> {
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| tokio::spawn(fly(Arc::clone(epoch), task)))
        .collect();
    let all = async {
        for task in tasks {
            task.await.map_err(text)??;
        }
        Ok::<_, String>(())
    };
    tokio::select! {
        ended = all => ended,
        stuck = watch(epoch) => {
            epoch.counts.harm(Harm::Lost, 1, || stuck);
            Ok(())
        }
    }
}

/// Resolves, to what it knows, when nothing has ended for too long.
async fn watch(epoch: &Epoch) -> String {
    let mut seen = (Instant::now(), 0);
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let ended = read(&epoch.counts.ops);
        if ended != seen.1 {
            seen = (Instant::now(), ended);
        } else if seen.0.elapsed() > STUCK_MAX {
            let stats = epoch.engine.stats();
            return format!("stuck after {ended} operations: {}; {stats:?}", epoch.at());
        }
    }
}

impl Epoch {
    /// An orderly end: what was dropped comes back, and every file is looked at.
    async fn settle(&self) -> Result<(), String> {
        let until = Instant::now() + QUIET_MAX;
        while !lock(&self.orphans).is_empty() && Instant::now() < until {
            self.gather();
            let stuck = self.devices.all.iter().any(|device| device.is_doomed());
            if stuck && self.engine.stats().operations_live <= lock(&self.orphans).len() {
                break;
            }
            tokio::task::yield_now().await;
        }
        for index in 0..self.files.all.len() {
            self.inspect(index).await?;
        }
        Ok(())
    }

    /// Shuts the engine down, and accounts for everything.
    pub(super) async fn end(&self, quiet_limit: Duration) -> Result<(), String> {
        self.ending.store(true, Ordering::Release);
        let limit = quiet_limit + SHUTDOWN_MARGIN;
        let report = tokio::time::timeout(limit, self.engine.shutdown()).await;
        let Ok(report) = report else {
            let stats = self.engine.stats();
            let message = || format!("no end of the shutdown in {limit:?}: {stats:?}");
            self.counts.harm(Harm::Lost, 1, message);
            return Ok(());
        };
        self.account(&report);
        self.let_go();
        self.rest().await;
        self.look_at_files()
    }

    fn account(&self, report: &ShutdownReport) {
        self.gather();
        let orphans = std::mem::take(&mut *lock(&self.orphans)).len() as u64;
        let expected = self.quarantined.load(Ordering::Relaxed) + orphans;
        let stats = self.engine.stats();
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

    /// A completion that names nobody may only be one of a part that was given up.
    fn check_strays(&self, stats: &Stats) {
        let more = stats
            .stray_completions
            .saturating_sub(stats.parts.quarantined);
        let message = || format!("completions of nobody: {stats:?}");
        self.counts.harm(Harm::Double, more, message);
    }

    /// What was held back goes on, and must find its memory.
    fn let_go(&self) {
        self.devices.end(&self.counts, &self.faults);
        if let Some(slow) = &self.files.slow {
            drop(slow.pass());
        }
        for late in std::mem::take(&mut *lock(&self.late)) {
            self.end_claim(late.subject, &late.claim, late.written);
        }
    }

    /// Watches all memory for as long as it has to rest.
    async fn rest(&self) {
        let mut harms = vec![];
        let rested = [self.host.rested_at()].into_iter();
        let devices = self
            .devices
            .all
            .iter()
            .map(|device| device.arena.rested_at());
        if let Some(last) = rested.chain(devices).flatten().max() {
            tokio::time::sleep_until(last.into()).await;
        }
        self.host.sweep();
        harms.push(self.host.harm());
        for device in &self.devices.all {
            device.arena.sweep();
            harms.push(device.arena.harm());
        }
        let late = harms.iter().map(|harm| harm.late).sum();
        let message = || "memory changed after it was given back".to_owned();
        self.counts.harm(Harm::LateWrite, late, message);
    }

    fn look_at_files(&self) -> Result<(), String> {
        for (index, subject) in self.files.all.iter().enumerate() {
            let found = self.files.bytes_of(index)?;
            let inspection = {
                let mut content = lock(&subject.content);
                content.close_accounts();
                content.inspect(&found)
            };
            if let Some(wrong) = inspection.corrupt {
                let message = || format!("{}: {wrong}", subject.path.display());
                self.counts.harm(Harm::Corrupt, 1, message);
            }
        }
        Ok(())
    }
}

fn is_home(permits: &Permits, none_lost: bool) -> bool {
    let all = permits.free + permits.quarantined == permits.capacity;
    all && permits.in_flight == 0 && !(none_lost && permits.quarantined > 0)
}
