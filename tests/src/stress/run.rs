//! A whole run: epoch after epoch, each with an engine of its own, and the verdict.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::acts::Act;
use super::args::Args;
use super::counts::{Counts, Fault, Harm, Point, read};
use super::devices::{self, Leases, Role};
use super::field::{self, Epoch, Files, Plan, text};
use super::fly::fly;
use super::footprint::Footprint;
use super::hardware::Hardware;
use super::threads::Threads;
use super::{Backend, Device, arena, controls, library, lock, model, rounds, slow};

/// Operations of one engine.
const EPOCH: usize = 4000;
const TASKS: usize = 64;
/// How long nothing may end.
const STUCK_MAX: Duration = Duration::from_secs(20);
/// How long what was dropped may take to come back before an orderly end.
const QUIET_MAX: Duration = Duration::from_secs(2);
/// Of engines whose devices fall silent on purpose: runs wait this long for each. A machine that is
/// busy elsewhere may keep threads from running for a second or two; what is given up then is no
/// failure, but it looks like one.
const QUIET_LIMIT: Duration = Duration::from_secs(3);
/// Of engines in which nothing falls silent.
pub(super) const QUIET_LIMIT_WITHOUT_SILENCE: Duration = Duration::from_secs(10);

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
    let leases = Leases::new(args.device)?;
    let counts = Arc::new(Counts::with_pulse());
    let since = Instant::now();
    let missed = match args.shutdown_rounds {
        None => runtime.block_on(epochs(args, leases, &counts, since))?,
        Some(rounds) => {
            runtime.block_on(rounds::run(args, rounds, &leases, &counts))?;
            Vec::new()
        }
    };
    Ok(report(args, &counts, &missed, since))
}

fn run_model(args: &Args) -> Result<bool, String> {
    if let Some(name) = &args.broken {
        return controls::run(args, name);
    }
    let (counts, since) = (Arc::new(Counts::default()), Instant::now());
    let missed = model::run(args, &counts);
    Ok(report(args, &counts, &missed, since))
}

fn report(args: &Args, counts: &Counts, missed: &[&str], since: Instant) -> bool {
    let well = counts.is_clean() && missed.is_empty();
    println!("{counts}\n{}", counts.details());
    for message in counts.messages() {
        println!("  {message}");
    }
    if let Some(time) = counts.stood_still() {
        println!("the machine stood still for {time:?}: what was given up meanwhile is no failure");
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
    mut leases: Leases,
    counts: &Arc<Counts>,
    since: Instant,
) -> Result<Vec<&'static str>, String> {
    let files = Arc::new(Files::new(args.seed, &args.faults, counts)?);
    let library = args.cufile();
    let threads = Arc::new(Threads::default());
    let until = args.time.map(|time| since + time);
    let is_over = || until.is_some_and(|until| Instant::now() >= until);
    let quiet_limit = quiet_limit_of(args);
    let mut footprint = Footprint::default();
    for (number, start) in (0..args.ops).step_by(EPOCH).enumerate() {
        let plan = Plan {
            builder: field::engine(args.backend, args.device, quiet_limit),
            backend: args.backend,
            threads: Arc::clone(&threads),
            files: Arc::clone(&files),
            counts: Arc::clone(counts),
            seed: args.seed,
            faults: args.faults.clone(),
            operations: start..args.ops.min(start + EPOCH),
            until,
            tasks: TASKS,
            is_stuck: false,
            sizes: arena::MANY,
            rest: rest_of(args),
            cuda: leases.cuda(),
        };
        let leases = leases.for_epoch(&args.faults);
        one_epoch(
            leases,
            plan,
            number,
            (args.backend.is_cufile(), quiet_limit),
        )
        .await?;
        footprint.look(read(&counts.quarantined))?;
        if is_over() || !counts.is_clean() {
            break;
        }
    }
    footprint.judge(counts);
    println!("{footprint}");
    if args.backend.is_cufile() {
        counts.judge_cufile();
    }
    if let Some(library) = library {
        library.end(counts);
    }
    Ok(never_happened(args, &files, counts))
}

/// The kinds of operations, faults and drop points that were to be hit and were not.
fn never_happened(args: &Args, files: &Files, counts: &Counts) -> Vec<&'static str> {
    let is_file_fault = |fault: &Fault| slow::FAULTS.contains(fault);
    let mut expected = args.faults.clone();
    if files.slow.is_none() {
        expected.retain(|fault| !is_file_fault(fault));
    }
    let mut points = Point::ALL[..5].to_vec();
    // Between disk and copy is inside of cuFile.
    points.retain(|&point| !args.backend.is_cufile() || point != Point::Between);
    // Where nothing is slow on purpose, nothing may ever have to wait.
    let has_slow = files.slow.is_some() || args.device == Device::Sim;
    points.retain(|&point| has_slow || point != Point::Queued);
    let mut missed = counts.acts.missed(&Act::ALL, args.device != Device::Host);
    missed.append(&mut counts.missed(&expected, &points));
    missed
}

fn quiet_limit_of(args: &Args) -> Duration {
    let silent = [Fault::EventNever, Fault::ContextLost];
    if silent.iter().any(|fault| args.faults.contains(fault)) {
        QUIET_LIMIT
    } else {
        QUIET_LIMIT_WITHOUT_SILENCE
    }
}

/// Longer than the slowest delay.
pub(super) fn rest_of(args: &Args) -> Duration {
    let slowest = slow::DELAY_MAX.max(devices::DELAY_MAX);
    let is_slow = args.faults.contains(&Fault::Slow) || args.device != Device::Host;
    let rest = if is_slow { 2 * slowest } else { Duration::ZERO };
    rest + Duration::from_millis(5)
}

async fn one_epoch(
    leases: Vec<(Role, Hardware)>,
    plan: Plan,
    number: usize,
    (is_cufile, quiet_limit): (bool, Duration),
) -> Result<(), String> {
    let epoch = Arc::new(Epoch::new(plan, leases).await?);
    if number == 0 && is_cufile {
        println!("{}", library::tell(&epoch.engine).await?);
    }
    fly_all(&epoch).await?;
    if number.is_multiple_of(2) {
        epoch.settle().await?;
    }
    match epoch.shut_down(quiet_limit).await {
        Some(report) => epoch.account(&report).await,
        None => Ok(()),
    }
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
}
