//! Futures of reads and writes of device memory, a third of them dropped at any time: is every byte
//! what it may be, and everything home at the end?

mod field;
mod fly;

use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use measure::data::{self, DataFile, Draws};
use measure::residency;
use tokio_cufile::{
    AsyncCuFile, CacheMode, DeviceBuffer, DeviceInfo, Engine, ErrorKind, OpenOptions, Permits,
    Stats,
};

use super::builders;
use crate::Result;
use crate::args::Args;
use field::Layout;
use fly::{Counts, fly};

const OPERATIONS: usize = 10_000;
/// After so many, every byte on the devices is looked at: before most places are overwritten.
const EPOCH: usize = 250;
const TASKS: usize = 48;
const BUFFERS: usize = 4;
/// Of the data file, at most.
const DATA_MIB: u64 = 64;
/// How long nothing may end.
const STUCK_MAX: Duration = Duration::from_secs(10);
/// After the last buffer is home, how long the census may take to say so.
const SETTLE_MAX: Duration = Duration::from_secs(10);

/// Seeds of the first bytes, so that none of them is the data file's.
const DEVICE_BYTES: u64 = 0xde71_ce00_0000_0000;
const FILE_BYTES: u64 = 0xf11e_0000_0000_0000;

/// One buffer, and what is known of it.
struct Buffer {
    /// None while it is looked at, and once it has not come home.
    memory: Option<DeviceBuffer>,
    layout: Layout,
}

/// What the tasks share.
struct Storm {
    seed: u64,
    /// Where the tasks stop for now.
    operations: usize,
    data: DataFile,
    written: PathBuf,
    engine: Engine,
    /// Opened in every way: what the page cache has must not matter.
    readers: Vec<AsyncCuFile>,
    writers: Vec<AsyncCuFile>,
    buffers: Vec<Mutex<Buffer>>,
    counts: Counts,
}

pub(super) fn run(args: &Args, _first: &DeviceInfo) -> Result<()> {
    let length = args.size.min(DATA_MIB) << 20;
    let data = DataFile::provide(&args.file_dir, length, args.seed)?;
    let operations = args.operations.unwrap_or(OPERATIONS);
    let mut failed = false;
    for (name, builder) in builders() {
        if !args.only.is_empty() && !args.only.iter().any(|only| name.contains(only)) {
            continue;
        }
        let engine = match builder.build_blocking() {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                println!("SKIPPED gpu-drop-storm, {name}: {}", error.reason());
                continue;
            }
            engine => engine?,
        };
        // The bytes between may come from the disk or not.
        residency::evict(&File::open(&data.path)?)?;
        let verdict = storm(args, engine, data.clone(), operations)?;
        let word = if verdict.is_good(args.failures_allowed) {
            "PASS"
        } else {
            failed = true;
            "FAIL"
        };
        println!("{word} gpu-drop-storm, {name}: {verdict}");
    }
    if failed {
        let (operations, seed) = (operations, args.seed);
        let again = format!("gpu-drop-storm --operations {operations} --seed {seed}");
        return Err(format!("the storm did harm; again: {again}").into());
    }
    Ok(())
}

fn storm(args: &Args, engine: Engine, data: DataFile, operations: usize) -> Result<Verdict> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_time()
        .build()?;
    runtime.block_on(async {
        let devices = engine.devices().await?;
        let written = args.file_dir.join("storm.bin");
        let mut storm = prepare(args, engine, data, written, &devices).await?;
        let since = Instant::now();
        let mut harm = Vec::new();
        for start in (0..operations).step_by(EPOCH) {
            storm.operations = operations.min(start + EPOCH);
            storm.counts.begin_at(start);
            storm = blow(storm).await?;
            storm.look(&mut harm).await?;
            if !harm.is_empty() {
                break;
            }
        }
        let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        storm.judge(names.join(" and "), since, harm).await
    })
}

/// Lets the tasks do operations up to the storm's number.
async fn blow(storm: Storm) -> Result<Storm> {
    let storm = Arc::new(storm);
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| tokio::spawn(fly(Arc::clone(&storm), task)))
        .collect();
    let all = async {
        for task in tasks {
            task.await?;
        }
        Ok::<_, tokio::task::JoinError>(())
    };
    tokio::select! {
        ended = all => ended?,
        stuck = watch(&storm) => return Err(stuck.into()),
    }
    Ok(Arc::into_inner(storm).ok_or("a task goes on")?)
}

/// Resolves, to what it knows, when nothing has ended for too long.
async fn watch(storm: &Storm) -> String {
    let mut seen = (Instant::now(), 0);
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let ended = storm.counts.ended();
        if ended != seen.1 {
            seen = (Instant::now(), ended);
        } else if seen.0.elapsed() > STUCK_MAX {
            let stats = storm.engine.stats();
            let flying = storm.counts.flying();
            return format!("STUCK after {ended} operations: {flying}; {stats:?}");
        }
    }
}

async fn prepare(
    args: &Args,
    engine: Engine,
    data: DataFile,
    written: PathBuf,
    devices: &[DeviceInfo],
) -> Result<Storm> {
    let mut draws = Draws::new(args.seed ^ DEVICE_BYTES);
    let mut file_end = 0;
    let mut buffers = Vec::new();
    for index in 0..BUFFERS {
        let seed = args.seed ^ DEVICE_BYTES ^ ((index as u64 + 1) << 32);
        let layout = Layout::new(&mut draws, seed, &mut file_end);
        let device = devices[index % devices.len()].ordinal;
        let memory = DeviceBuffer::new(&engine, device, layout.length).await?;
        let mut bytes = vec![0; layout.length];
        data::fill(seed, 0, &mut bytes);
        let memory = memory.copy_from_host(&engine, 0, bytes).await?;
        buffers.push(Mutex::new(Buffer {
            memory: Some(memory),
            layout,
        }));
    }
    // A fence behind the last region, too.
    write_first_bytes(&written, args.seed, file_end + 100)?;
    let (mut readers, mut writers) = (Vec::new(), Vec::new());
    for cache in [CacheMode::Auto, CacheMode::Direct, CacheMode::Cached] {
        let options = OpenOptions::new().cache(cache);
        readers.push(options.clone().read(true).open(&engine, &data.path).await?);
        writers.push(options.write(true).open(&engine, &written).await?);
    }
    Ok(Storm {
        seed: args.seed,
        operations: OPERATIONS,
        data,
        written,
        engine,
        readers,
        writers,
        buffers,
        counts: Counts::new(TASKS),
    })
}

fn write_first_bytes(path: &Path, seed: u64, length: u64) -> Result<()> {
    let mut bytes = vec![0; usize::try_from(length)?];
    data::fill(seed ^ FILE_BYTES, 0, &mut bytes);
    let mut file = File::create(path)?;
    file.write_all(&bytes)?;
    Ok(file.sync_all()?)
}

impl Storm {
    /// Waits until the buffers are home, and looks at every byte of them.
    async fn look(&mut self, harm: &mut Vec<String>) -> Result<()> {
        for (index, buffer) in self.buffers.iter_mut().enumerate() {
            let Buffer { memory, layout } =
                buffer.get_mut().unwrap_or_else(PoisonError::into_inner);
            let Some(held) = memory.take() else {
                continue;
            };
            // What is quarantined never comes home.
            if tokio::time::timeout(SETTLE_MAX, held.idle()).await.is_err() {
                harm.push(format!("{} parts of {held:?} are out", held.parts_out()));
                continue;
            }
            let all = 0..held.len();
            let (held, bytes) = held.copy_to_host(&self.engine, all).await?;
            *memory = Some(held);
            if let Err(wrong) = layout.check(&bytes, self.data.seed) {
                harm.push(format!("buffer {index}: {wrong}"));
            }
        }
        Ok(())
    }

    /// Waits until all is home, and looks at the files.
    async fn judge(
        self,
        devices: String,
        since: Instant,
        mut harm: Vec<String>,
    ) -> Result<Verdict> {
        for writer in &self.writers {
            // Lost writes are what was dropped; the bytes are looked at below.
            let _lost = writer.sync_data().await;
        }
        drop((self.readers, self.writers));
        let took = since.elapsed();
        let not_home = wait_until_home(&self.engine).await;
        let layouts: Vec<Layout> = self
            .buffers
            .into_iter()
            .map(|buffer| buffer.into_inner().unwrap_or_else(PoisonError::into_inner))
            .map(|buffer| buffer.layout)
            .collect();
        harm.extend(check_file(&self.written, &layouts, self.seed)?);
        self.data.verify()?;
        let report = self.engine.shutdown().await;
        Ok(Verdict {
            devices,
            seed: self.seed,
            took,
            counts: self.counts,
            harm,
            not_home,
            quarantined: report.quarantined,
        })
    }
}

fn check_file(path: &Path, layouts: &[Layout], seed: u64) -> Result<Option<String>> {
    let file = fs::read(path)?;
    let mut first = vec![0; file.len()];
    data::fill(seed ^ FILE_BYTES, 0, &mut first);
    let mut fences = vec![true; file.len()];
    for layout in layouts {
        if let Err(wrong) = layout.check_regions(&file, &first, &mut fences) {
            return Ok(Some(wrong));
        }
    }
    let bytes = file.iter().zip(&first).zip(&fences).enumerate();
    let mut wrong = bytes.filter(|(_, ((found, first), fence))| **fence && found != first);
    Ok(wrong
        .next()
        .map(|(at, _)| format!("canary {at} of the file")))
}

/// What is still not home when it should be.
async fn wait_until_home(engine: &Engine) -> Option<String> {
    let end = Instant::now() + SETTLE_MAX;
    loop {
        let stats = engine.stats();
        let missing = missing(&stats)?;
        if Instant::now() >= end {
            return Some(missing);
        }
        tokio::task::yield_now().await;
    }
}

fn missing(stats: &Stats) -> Option<String> {
    let home = |permits: &Permits| permits.free == permits.capacity;
    let resources = [
        ("bytes", stats.bytes),
        ("parts", stats.parts),
        ("workers", stats.workers),
        ("slots", stats.slots),
        ("small slots", stats.small_slots),
    ];
    let mut missing: Vec<String> = resources
        .iter()
        .filter(|(_, permits)| !home(permits))
        .map(|(name, permits)| format!("{name} {permits:?}"))
        .collect();
    if stats.operations_live > 0 {
        missing.push(format!("{} operations live", stats.operations_live));
    }
    if stats.stray_completions > 0 {
        missing.push(format!("{} stray completions", stats.stray_completions));
    }
    (!missing.is_empty()).then(|| missing.join(", "))
}

struct Verdict {
    devices: String,
    seed: u64,
    took: Duration,
    counts: Counts,
    harm: Vec<String>,
    not_home: Option<String>,
    quarantined: u64,
}

impl Verdict {
    fn is_good(&self, failures_allowed: bool) -> bool {
        self.harm.is_empty()
            && self.not_home.is_none()
            && self.quarantined == 0
            && (failures_allowed || self.counts.failures() == 0)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, seed {}, {:.1} s: {}; ",
            self.devices,
            self.seed,
            self.took.as_secs_f64(),
            self.counts
        )?;
        match self.harm.as_slice() {
            [] => f.write_str("every other byte whole, ")?,
            harm => write!(f, "WRONG: {}, ", harm.join(", "))?,
        }
        match &self.not_home {
            None => f.write_str("all home, ")?,
            Some(missing) => write!(f, "NOT HOME: {missing}, ")?,
        }
        write!(f, "{} quarantined", self.quarantined)
    }
}
