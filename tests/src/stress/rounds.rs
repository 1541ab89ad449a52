//! Shutdown after shutdown, each with up to 256 operations in flight.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join;
use measure::data::Draws;
use tokio::task::JoinHandle;

use super::args::Args;
use super::counts::{Counts, Harm, read};
use super::devices::{Leases, Role};
use super::field::{self, Epoch, Files, Plan, text};
use super::hardware::Hardware;
use super::run::{QUIET_LIMIT_WITHOUT_SILENCE, rest_of};
use super::threads::Threads;
use super::{Backend, arena, fly};

/// Operations that a round wants in flight, at most.
const IN_FLIGHT_MAX: u64 = 256;
/// One round in so many has hardware that does not answer before the engine has ended.
const STUCK_EVERY: usize = 12;
/// The quiet limit of such a round: it takes as long.
const QUIET_LIMIT_STUCK: Duration = Duration::from_millis(60);
/// Rounds by cuFile of which one at least moves a byte: some end before.
const BY_CUFILE_MIN: usize = 4;
/// How long a task may take that was told that the engine has ended.
const TASK_MAX: Duration = Duration::from_secs(10);
/// How long a round waits for as many operations as it wants in flight.
const FILL_MAX: Duration = Duration::from_millis(20);

/// Ends so many engines. Stops at the first that does not end well.
pub(super) async fn run(
    args: &Args,
    rounds: usize,
    leases: &Leases,
    counts: &Arc<Counts>,
) -> Result<(), String> {
    let files = Arc::new(Files::new(args.seed, &args.faults, counts)?);
    let threads = Arc::new(Threads::default());
    let mut first = 0;
    let (mut fewest, mut most) = (usize::MAX, 0);
    let mut counted = 0;
    let mut by_cufile = 0;
    // Some have few operations, and find nothing in flight.
    for round in 0..2 * rounds {
        let mut draws = Draws::new(args.seed ^ ((round as u64 + 1) << 24));
        let enough = 1 + usize::try_from(draws.below(IN_FLIGHT_MAX)).unwrap_or(0);
        let operations = enough + enough / 2 + 4;
        let backend = match draws.below(2) {
            0 => Backend::Pool,
            _ => args.backend,
        };
        let is_stuck = round % STUCK_EVERY == STUCK_EVERY - 1;
        let quiet_limit = if is_stuck {
            QUIET_LIMIT_STUCK
        } else {
            QUIET_LIMIT_WITHOUT_SILENCE
        };
        let plan = Plan {
            builder: field::engine(backend, args.device, quiet_limit),
            backend,
            threads: Arc::clone(&threads),
            files: Arc::clone(&files),
            counts: Arc::clone(counts),
            seed: args.seed,
            faults: args.faults.clone(),
            operations: first..first + operations,
            until: None,
            tasks: operations,
            is_stuck,
            sizes: arena::FEW,
            rest: rest_of(args),
            cuda: leases.cuda(),
        };
        first += operations;
        by_cufile += usize::from(backend.is_cufile());
        let in_flight = one(plan, leases.kept(), enough, quiet_limit).await?;
        if in_flight > 0 {
            counted += 1;
            (fewest, most) = (fewest.min(in_flight), most.max(in_flight));
        }
        if !counts.is_clean() || counted == rounds {
            break;
        }
    }
    let few = counted < rounds && files.slow.is_some() && counts.is_clean();
    let message = "too few shutdowns had anything in flight";
    counts.harm(Harm::Other, u64::from(few), || message.to_owned());
    if by_cufile >= BY_CUFILE_MIN {
        counts.judge_cufile();
    }
    let took = read(&counts.shutdown_ms_max);
    println!(
        "rounds={counted} in_flight={fewest}..={most} slowest_ms={took} quarantined={} expected={}",
        read(&counts.quarantined),
        read(&counts.expected)
    );
    Ok(())
}

/// One engine. Gives how many operations were in flight when its shutdown began.
async fn one(
    plan: Plan,
    leases: Vec<(Role, Hardware)>,
    enough: usize,
    quiet_limit: Duration,
) -> Result<usize, String> {
    let operations = plan.operations.clone();
    let epoch = Arc::new(Epoch::new(plan, leases).await?);
    // So that something is in flight, however fast the disk is.
    if let Some(slow) = &epoch.files.slow {
        slow.hold();
    }
    if epoch.is_stuck {
        epoch.devices.hang();
    }
    let tasks: Vec<_> = operations
        .enumerate()
        .map(|(task, index)| {
            let epoch = Arc::clone(&epoch);
            tokio::spawn(async move { fly::number(&epoch, task, index).await })
        })
        .collect();
    let until = Instant::now() + FILL_MAX;
    let is_short = || epoch.engine.stats().operations_live < enough;
    while is_short() && Instant::now() < until && !tasks.iter().all(JoinHandle::is_finished) {
        std::thread::yield_now();
    }
    let in_flight = epoch.engine.stats().operations_live;
    let go_on = async {
        tokio::task::yield_now().await;
        if let Some(slow) = epoch.files.slow.as_ref().filter(|_| !epoch.is_stuck) {
            drop(slow.pass());
        }
    };
    let (report, ()) = join(epoch.shut_down(quiet_limit), go_on).await;
    let Some(report) = report else {
        return Ok(in_flight);
    };
    let until = Instant::now() + TASK_MAX;
    for task in tasks {
        match tokio::time::timeout_at(until.into(), task).await {
            Ok(ended) => ended.map_err(text)??,
            Err(_) => {
                let message = || format!("a task goes on after the shutdown: {}", epoch.at());
                epoch.counts.harm(Harm::Lost, 1, message);
                return Ok(in_flight);
            }
        }
    }
    epoch.account(&report).await?;
    Ok(in_flight)
}
