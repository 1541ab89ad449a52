//! Many operations wait for a small budget: is memory bounded, and how much of a tokio worker's
//! time does one poll take?

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use measure::data::{self, DataFile, Draws};
use measure::environment::Environment;
use measure::poll::PollTimes;
use measure::statistics::{Latencies, Quantiles};
use measure::usage::{self, Usage, Window};
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio_cufile::{AsyncCuFile, Engine, ErrorKind, HostPart, IoEngine, OpenOptions};

use crate::Result;
use crate::args::Args;
use crate::engines::{self, ours::IO_ENGINES, ring};
use crate::job::{Access, Job};
use crate::workloads::data_file;

const BLOCK: usize = 16 << 10;
const OPERATIONS: usize = 100_000;
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
    /// First polls, which submit.
    first_polls: PollCosts,
    /// The polls after them, which collect.
    later_polls: PollCosts,
    /// Of futures that wait for a semaphore, on the same runtime, while a bare ring reads beside
    /// them: what the clock adds, and the interrupts of reads that end while a poll runs.
    empty_first_polls: PollCosts,
    empty_later_polls: PollCosts,
    /// Most bytes in flight that were seen.
    in_flight_max: u64,
}

#[derive(Debug, Serialize)]
struct PollCosts {
    polls: usize,
    cpu: Quantiles,
    above_50_us: usize,
}

impl PollCosts {
    fn new(latencies: &Latencies) -> Result<Self> {
        Ok(Self {
            polls: latencies.count(),
            cpu: latencies.quantiles().ok_or("no poll")?,
            above_50_us: latencies.above(POLL_MAX),
        })
    }
}

impl fmt::Display for PollCosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Quantiles {
            p50_us,
            p99_us,
            p999_us,
            max_us,
        } = self.cpu;
        write!(
            f,
            "p50 {p50_us:.1}, p99 {p99_us:.1}, p99.9 {p999_us:.1}, max {max_us:.1} us; {} of {} \
             above 50 us",
            self.above_50_us, self.polls
        )
    }
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
    let operations = args.operations.unwrap_or(OPERATIONS);
    let environment = Environment::of(&args.file_dir)?;
    let file = data_file(args)?;
    let runtime = engines::runtime()?;
    let (empty, memory_of_tasks) = beside_reads(args, &runtime, &file)?;

    let options = OpenOptions::new().read(true).io(io);
    let opened = Arc::new(runtime.block_on(options.open(engine, &file.path))?);
    let mut buffer = engines::memory(engine, operations * BLOCK)?;
    let mut draws = Draws::new(args.seed);
    let mut parts = Vec::with_capacity(operations);
    for index in 0..operations {
        let offset = draws.below(file.length / BLOCK as u64) * BLOCK as u64;
        parts.push((offset, buffer.part(index * BLOCK..(index + 1) * BLOCK)?));
    }
    let times = PollTimes::with_capacity(operations);
    usage::reset_peak_memory()?;
    let before = usage::memory()?;
    let (usage, in_flight_max) =
        runtime.block_on(all(engine, opened, parts, args.seed, times.clone()))?;
    let memory_gained = usage::memory()?.peak.saturating_sub(before.resident);
    drop(buffer);

    Ok(QueueReport {
        engine: name,
        environment,
        operations,
        block: BLOCK,
        budget: BUDGET,
        usage,
        memory_gained,
        memory_per_operation: memory_gained / operations as u64,
        memory_of_tasks,
        first_polls: PollCosts::new(&times.first())?,
        later_polls: PollCosts::new(&times.later())?,
        empty_first_polls: PollCosts::new(&empty.first())?,
        empty_later_polls: PollCosts::new(&empty.later())?,
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

/// Polls that do nothing, as long as a bare ring reads random blocks beside them; and the memory of
/// as many tasks as there are operations.
fn beside_reads(args: &Args, runtime: &Runtime, file: &DataFile) -> Result<(PollTimes, u64)> {
    let job = Job {
        access: Access::Random {
            duration: Duration::from_secs(2),
        },
        path: file.path.clone(),
        length: file.length,
        block: BLOCK,
        depth: 32,
        direct: true,
        seed: args.seed,
    };
    let operations = args.operations.unwrap_or(OPERATIONS);
    let times = PollTimes::with_capacity(operations);
    let mut memory = 0;
    thread::scope(|scope| {
        let reads = scope.spawn(|| ring::run(&job).map(drop));
        while !reads.is_finished() {
            let gained = runtime.block_on(empty_tasks(operations, &times))?;
            memory = gained.max(memory);
        }
        reads.join().map_err(|_| "the reading thread panicked")?
    })?;
    Ok((times, memory))
}

/// The same number of tasks on the same runtime that wait once and do nothing.
async fn empty_tasks(count: usize, times: &PollTimes) -> Result<u64> {
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
    Ok(usage::memory()?.peak.saturating_sub(before.resident))
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
        writeln!(
            f,
            "thread CPU time of a poll that submits: {}",
            self.first_polls
        )?;
        writeln!(f, "of a poll that collects: {}", self.later_polls)?;
        writeln!(
            f,
            "of a first poll without engine, beside a bare ring's reads: {}",
            self.empty_first_polls
        )?;
        writeln!(
            f,
            "of a later poll without engine, likewise: {}",
            self.empty_later_polls
        )
    }
}
