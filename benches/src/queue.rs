//! Many operations wait for a small budget: is memory bounded, and how much of a tokio worker's
//! time does one poll take?

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use measure::data::{self, Draws};
use measure::environment::Environment;
use measure::poll::PollTimes;
use measure::statistics::{Latencies, Quantiles};
use measure::usage::{self, Usage, Window};
use serde::Serialize;
use tokio_cufile::{AsyncCuFile, Engine, ErrorKind, HostPart, IoEngine, OpenOptions};

use crate::Result;
use crate::args::Args;
use crate::engines::{self, ours::IO_ENGINES};
use crate::workloads::data_file;

const BLOCK: usize = 16 << 10;
const BUDGET: usize = 64 << 20;
/// What a poll may take.
const POLL_MAX: Duration = Duration::from_micros(50);

#[derive(Debug, Serialize)]
struct QueueReport {
    engine: &'static str,
    environment: Environment,
    operations: usize,
    block: usize,
    budget: usize,
    usage: Usage,
    /// Memory that the process gained over what the buffers took, at its peak.
    memory_gained: u64,
    memory_per_operation: u64,
    /// The same without engine: so many tasks that wait for a permit.
    memory_of_tasks: u64,
    polls: usize,
    poll_cpu: Quantiles,
    polls_above_50_us: usize,
    /// Of futures that do nothing, on the same runtime: what the clock and the machine add.
    empty_polls: usize,
    empty_poll_cpu: Quantiles,
    empty_polls_above_50_us: usize,
    /// Most bytes in flight that were seen.
    in_flight_max: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut reports = Vec::new();
    for (io, name) in IO_ENGINES {
        match Engine::builder().io(io).budget(BUDGET).build_blocking() {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                eprintln!("SKIPPED {name}: {}", error.reason());
            }
            engine => reports.push(measure(args, &engine?, io, name)?),
        }
    }
    if args.json {
        println!("{}", serde_json::to_string(&reports)?);
    } else {
        for report in &reports {
            println!("{report}");
        }
    }
    Ok(())
}

fn measure(args: &Args, engine: &Engine, io: IoEngine, name: &'static str) -> Result<QueueReport> {
    let environment = Environment::of(&args.file_dir)?;
    let file = data_file(args)?;
    let runtime = engines::runtime()?;
    let (empty, memory_of_tasks) = runtime.block_on(empty_tasks(args.operations))?;

    let options = OpenOptions::new().read(true).io(io);
    let opened = Arc::new(runtime.block_on(options.open(engine, &file.path))?);
    let mut buffer = engines::memory(engine, args.operations * BLOCK)?;
    let mut draws = Draws::new(args.seed);
    let mut parts = Vec::with_capacity(args.operations);
    for index in 0..args.operations {
        let offset = draws.below(file.length / BLOCK as u64) * BLOCK as u64;
        parts.push((offset, buffer.part(index * BLOCK..(index + 1) * BLOCK)?));
    }
    let times = PollTimes::with_capacity(4 * args.operations);
    usage::reset_peak_memory()?;
    let before = usage::memory()?;
    let (usage, in_flight_max) =
        runtime.block_on(all(engine, opened, parts, args.seed, times.clone()))?;
    let memory_gained = usage::memory()?.peak.saturating_sub(before.resident);
    drop(buffer);

    let polls = times.latencies();
    Ok(QueueReport {
        engine: name,
        environment,
        operations: args.operations,
        block: BLOCK,
        budget: BUDGET,
        usage,
        memory_gained,
        memory_per_operation: memory_gained / args.operations as u64,
        memory_of_tasks,
        polls: polls.count(),
        polls_above_50_us: polls.above(POLL_MAX),
        poll_cpu: polls.quantiles().ok_or("no poll")?,
        empty_polls: empty.count(),
        empty_polls_above_50_us: empty.above(POLL_MAX),
        empty_poll_cpu: empty.quantiles().ok_or("no poll")?,
        in_flight_max,
    })
}

/// All operations at once, one task each.
async fn all(
    engine: &Engine,
    file: Arc<AsyncCuFile>,
    parts: Vec<(u64, HostPart)>,
    seed: u64,
    times: PollTimes,
) -> Result<(Usage, u64)> {
    let window = Window::open();
    let tasks: Vec<_> = parts
        .into_iter()
        .map(|(offset, part)| {
            let read = times.time(file.read_exact_at(part, offset));
            tokio::spawn(async move { (offset, read.await) })
        })
        .collect();
    let mut in_flight_max = 0;
    let mut usage = None;
    let mut window = Some(window);
    let count = tasks.len();
    for (index, task) in tasks.into_iter().enumerate() {
        let (offset, done) = task.await?;
        let done = done?;
        in_flight_max = in_flight_max.max(engine.stats().bytes.in_flight);
        if index + 1 == count {
            usage = window.take().map(Window::close);
        }
        // Every hundredth: checking all would be most of the work.
        if index % 100 == 0 && data::first_difference(seed, offset, done.buf.as_slice()).is_some() {
            return Err(format!("wrong bytes at offset {offset}").into());
        }
    }
    Ok((usage.ok_or("no operation")?, in_flight_max))
}

/// The same number of tasks on the same runtime that wait once and do nothing.
async fn empty_tasks(count: usize) -> Result<(Latencies, u64)> {
    let times = PollTimes::with_capacity(2 * count);
    usage::reset_peak_memory()?;
    let before = usage::memory()?;
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let tasks: Vec<_> = (0..count)
        .map(|_| {
            let gate = Arc::clone(&gate);
            let wait = times.time(async move { gate.acquire().await.is_ok() });
            tokio::spawn(wait)
        })
        .collect();
    gate.add_permits(1);
    for task in tasks {
        if !task.await? {
            return Err("the gate is closed".into());
        }
    }
    let gained = usage::memory()?.peak.saturating_sub(before.resident);
    Ok((times.latencies(), gained))
}

impl fmt::Display for QueueReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        writeln!(f, "## queue: {}\n", self.engine)?;
        writeln!(f, "{}\n", self.environment)?;
        writeln!(
            f,
            "{} reads of {} KiB at once over a budget of {} MiB: {:.2} s, {:.2} CPU s",
            self.operations,
            self.block >> 10,
            self.budget >> 20,
            self.usage.wall_s,
            self.usage.cpu_s,
        )?;
        writeln!(
            f,
            "memory: {:.1} MiB above the buffers at the peak, {} bytes an operation ({:.1} MiB for as \
             many tasks without engine); at most {:.1} MiB in flight",
            mib(self.memory_gained),
            self.memory_per_operation,
            mib(self.memory_of_tasks),
            mib(self.in_flight_max),
        )?;
        let line = |quantiles: &Quantiles| {
            format!(
                "p50 {:.1}, p99 {:.1}, p99.9 {:.1}, max {:.1} us",
                quantiles.p50_us, quantiles.p99_us, quantiles.p999_us, quantiles.max_us
            )
        };
        writeln!(
            f,
            "thread CPU time of a poll: {}; {} of {} above 50 us",
            line(&self.poll_cpu),
            self.polls_above_50_us,
            self.polls,
        )?;
        writeln!(
            f,
            "of a poll that does nothing:  {}; {} of {} above 50 us",
            line(&self.empty_poll_cpu),
            self.empty_polls_above_50_us,
            self.empty_polls,
        )
    }
}
