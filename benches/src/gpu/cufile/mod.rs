//! Workloads by cuFile: its plain calls beside ours.
//!
//! | module | concept |
//! |---|---|
//! | `session` | the process's one libcufile |
//! | `target` | a registered file and memory of the device, and which blocks are moved |
//! | `threads` | threads that block in calls |
//! | `streams` | calls in CUDA streams |
//! | `batch` | batches |

mod batch;
mod session;
mod streams;
mod target;
mod threads;

use std::sync::Arc;

use measure::report::Figure;
use tokio_cufile::{
    CacheMode, CompatMode, Config, CuFileCalls, CuFileConfig, CuFileStats, DeviceInfo,
    EngineBuilder,
};

use self::batch::Batches;
use self::session::{Session, builder};
use self::streams::Streams;
use self::target::{Settings, Shared};
use self::threads::Threads;
use super::ours::{self, Shape};
use super::{LARGE_BLOCK, LARGE_DEPTH};
use crate::Result;
use crate::args::{Args, Workload};
use crate::contest::{Before, Contest, Entry};
use crate::job::{Access, Job};
use crate::workloads::{BY_BYTES, contests};

const RANGES_MAX: usize = 4096;
const RANGE_BLOCKS: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
const BY_RANGES: [Figure; 4] = [
    Figure::Operations,
    Figure::CpuPerOperation,
    Figure::Throughput,
    Figure::CpuPerGib,
];

/// Blocks of the whole file, as the job says.
const PLAIN: Settings = Settings {
    ranges: None,
    direct: None,
    registered: false,
};
const REGISTERED: Settings = Settings {
    registered: true,
    ..PLAIN
};

/// By threads, the reference first: ours are compared to all of them.
const READS: [(&str, usize); 4] = [
    ("cuFileRead, 8 threads", 8),
    ("cuFileRead, 1 thread", 1),
    ("cuFileRead, 4 threads", 4),
    ("cuFileRead, 16 threads", 16),
];
const WRITES: [(&str, usize); 4] = [
    ("cuFileWrite, 8 threads", 8),
    ("cuFileWrite, 1 thread", 1),
    ("cuFileWrite, 4 threads", 4),
    ("cuFileWrite, 16 threads", 16),
];

/// How many, and of how many entries.
const BATCHES: [(&str, usize, usize); 4] = [
    ("cuFileBatchIO, 32", 1, 32),
    ("cuFileBatchIO, 64", 1, 64),
    ("cuFileBatchIO, 128", 1, 128),
    ("cuFileBatchIO, 2 x 32", 2, 32),
];

/// Who takes part, all with the same libcufile.
struct Field<'a> {
    args: &'a Args,
    device: &'a DeviceInfo,
    config: CuFileConfig,
    session: Shared,
}

pub(super) fn run(args: &Args, device: &DeviceInfo) -> Result<()> {
    // `TOKIO_CUFILE_LIBCUFILE` chooses the library. It does not count: nobody shuts it down.
    let mut config = Config::from_env()?.cufile;
    config.stats = CuFileStats::Off;
    config.proc_dir.clone_from(&args.proc_dir);
    let session = Session::open(device.ordinal, &config).map_err(|error| error.to_string());
    let field = Field {
        args,
        device,
        config,
        session: session.map(Arc::new),
    };
    match args.workload {
        Workload::GpuCufileWarmRead => contests(args, [field.warm_read()]),
        Workload::GpuCufileWrite => contests(args, [field.write()]),
        Workload::GpuCufileRanges => {
            let blocks = args
                .block
                .map_or_else(|| RANGE_BLOCKS.into(), |block| vec![block]);
            contests(args, blocks.into_iter().map(|block| field.ranges(block)))
        }
        _ => contests(args, [field.cold_read()]),
    }
}

impl Field<'_> {
    fn block(&self) -> usize {
        self.args.block.unwrap_or(LARGE_BLOCK)
    }

    fn depth(&self) -> usize {
        self.args.depth.unwrap_or(LARGE_DEPTH)
    }

    fn circumstances(&self) -> Vec<(String, String)> {
        let mut all = super::circumstances(self.device);
        match &self.session {
            Ok(session) => all.extend(session.circumstances()),
            Err(reason) => all.push(("libcufile".to_owned(), format!("none: {reason}"))),
        }
        all
    }

    fn threads(&self, rows: &[(&str, usize)], settings: Settings) -> Vec<Entry> {
        let entry = |(name, threads): &(&str, usize)| {
            settings.entry(name, &self.session, Threads(*threads))
        };
        rows.iter().map(entry).collect()
    }

    fn streams(&self, name: &str, count: usize, registered: bool, settings: Settings) -> Entry {
        settings.entry(name, &self.session, Streams { count, registered })
    }

    fn batches(
        &self,
        rows: &[(&str, usize, usize)],
        settings: Settings,
    ) -> impl Iterator<Item = Entry> {
        rows.iter().map(move |&(name, count, entries)| {
            settings.entry(name, &self.session, Batches { count, entries })
        })
    }

    /// The smallest. With the larger ones, of 4 MiB blocks, libcufile stood still beside operations in streams.
    fn batch_beside_streams(&self) -> impl Iterator<Item = Entry> {
        self.batches(&BATCHES[..1], PLAIN)
    }

    /// The engine with the block as its part; all else is default.
    fn engine(&self, compat_mode: CompatMode) -> EngineBuilder {
        builder(&self.config, compat_mode).task_size(self.block())
    }

    /// By cuFile in streams of the engine's own, where they are to be had.
    fn in_streams(&self, engine: EngineBuilder) -> EngineBuilder {
        let mut config = self.config.clone();
        config.calls = CuFileCalls::Stream;
        engine.cufile(config)
    }

    fn ours(&self, name: &str, engine: EngineBuilder, shape: Shape) -> Entry {
        ours::entry(name, self.device.ordinal, engine, shape)
    }

    fn ours_cached(&self, name: &str, engine: EngineBuilder, shape: Shape) -> Entry {
        let settings = ours::Settings {
            cache: CacheMode::Cached,
            ..ours::Settings::new(engine, shape)
        };
        settings.entry(name, self.device.ordinal)
    }

    fn ours_registered(&self, name: &str, engine: EngineBuilder, cache: CacheMode) -> Entry {
        let settings = ours::Settings {
            cache,
            registered: true,
            ..ours::Settings::new(engine, Shape::Whole)
        };
        settings.entry(name, self.device.ordinal)
    }

    /// For a cold file and for a durable one.
    fn ours_around_the_cache(&self) -> [Entry; 5] {
        let (off, whole) = (self.engine(CompatMode::Off), Shape::Whole);
        let wide = off.clone().num_threads(16);
        [
            self.ours("ours, cuFile", off.clone(), whole),
            self.ours("ours, cuFile, 16 threads", wide, whole),
            self.ours_registered("ours, cuFile, registered", off, CacheMode::Auto),
            self.ours("ours, compat", self.engine(CompatMode::On), whole),
            self.ours("ours, auto", self.engine(CompatMode::Auto), whole),
        ]
    }

    fn contest(&self, workload: &'static str, job: Job, entries: Vec<Entry>) -> Contest {
        let rows = if job.is_write() { WRITES } else { READS };
        Contest {
            workload,
            job,
            before: Before::Cold,
            figures: BY_BYTES.to_vec(),
            entries,
            also_to: rows[1..].iter().map(|row| row.0).collect(),
            circumstances: self.circumstances(),
        }
    }

    fn warm_read(&self) -> Result<Contest> {
        let (off, whole) = (self.engine(CompatMode::Off), Shape::Whole);
        let direct = Settings {
            direct: Some(true),
            ..PLAIN
        };
        let mut entries = self.threads(&READS, PLAIN);
        entries.extend(self.threads(&[("cuFileRead, 8 threads, registered", 8)], REGISTERED));
        entries.extend(self.threads(&[("cuFileRead, 8 threads, direct", 8)], direct));
        entries.extend([
            self.streams("cuFileReadAsync, 1 stream", 1, false, PLAIN),
            self.streams("cuFileReadAsync, 1 registered stream", 1, true, PLAIN),
            self.streams("cuFileReadAsync, 4 streams", 4, false, PLAIN),
            self.streams("cuFileReadAsync, 4 registered streams", 4, true, PLAIN),
            self.streams(
                "cuFileReadAsync, 4 streams, registered",
                4,
                false,
                REGISTERED,
            ),
        ]);
        entries.extend(self.batch_beside_streams());
        let wide = off.clone().num_threads(16);
        entries.extend([
            self.ours("ours, cuFile", off.clone(), whole),
            self.ours_cached("ours, cuFile, cached", off.clone(), whole),
            self.ours_cached("ours, cuFile, cached, 16 threads", wide, whole),
            self.ours_cached(
                "ours, cuFile, cached, streams",
                self.in_streams(off.clone()),
                whole,
            ),
            self.ours_registered("ours, cuFile, cached, registered", off, CacheMode::Cached),
            self.ours("ours, compat", self.engine(CompatMode::On), whole),
            self.ours("ours, auto", self.engine(CompatMode::Auto), whole),
        ]);
        let job = super::job(self.args, Access::Read, self.block(), self.depth())?;
        let job = Job {
            direct: false,
            ..job
        };
        Ok(Contest {
            before: Before::Warm,
            ..self.contest("gpu-cufile-warm-read", job, entries)
        })
    }

    fn cold_read(&self) -> Result<Contest> {
        let cached = Settings {
            direct: Some(false),
            ..PLAIN
        };
        let mut entries = self.threads(&READS, PLAIN);
        entries.extend(self.threads(&[("cuFileRead, 8 threads, registered", 8)], REGISTERED));
        entries.extend(self.threads(&[("cuFileRead, 8 threads, cached", 8)], cached));
        entries.extend([
            self.streams("cuFileReadAsync, 1 stream", 1, false, PLAIN),
            self.streams("cuFileReadAsync, 4 streams", 4, false, PLAIN),
            self.streams("cuFileReadAsync, 4 registered streams", 4, true, PLAIN),
        ]);
        entries.extend(self.batch_beside_streams());
        entries.extend(self.ours_around_the_cache());
        let job = super::job(self.args, Access::Read, self.block(), self.depth())?;
        Ok(self.contest("gpu-cufile-cold-read", job, entries))
    }

    fn write(&self) -> Result<Contest> {
        let mut entries = self.threads(&WRITES, PLAIN);
        entries.extend(self.threads(&[("cuFileWrite, 8 threads, registered", 8)], REGISTERED));
        entries.extend(self.ours_around_the_cache());
        let job = super::write_job(self.args, self.block(), self.depth())?;
        Ok(self.contest("gpu-cufile-write", job, entries))
    }

    /// Few of the file's blocks, so that hardly any lie side by side.
    fn ranges(&self, block: usize) -> Result<Contest> {
        let job = super::job(self.args, Access::Read, block, self.depth())?;
        let job = Job {
            direct: false,
            ..job
        };
        let count = RANGES_MAX.min(usize::try_from(job.blocks() / 4)?);
        let (plain, shape) = (
            Settings {
                ranges: Some(count),
                ..PLAIN
            },
            Shape::Ranges(count),
        );
        let registered = Settings {
            registered: true,
            ..plain
        };
        // Their parts are of the default size.
        let engine = |compat_mode| builder(&self.config, compat_mode);
        let off = engine(CompatMode::Off);
        let mut entries = self.threads(&READS, plain);
        entries.extend(self.threads(&[("cuFileRead, 8 threads, registered", 8)], registered));
        entries.extend(self.batches(&BATCHES, plain));
        let wide = off.clone().num_threads(16);
        entries.extend([
            self.ours("ours, cuFile", off.clone(), shape),
            self.ours_cached("ours, cuFile, cached", off.clone(), shape),
            self.ours_cached("ours, cuFile, cached, 16 threads", wide, shape),
            self.ours_cached("ours, cuFile, cached, streams", self.in_streams(off), shape),
            self.ours("ours, compat", engine(CompatMode::On), shape),
            self.ours(
                "ours, compat, copy threads",
                engine(CompatMode::On).copy_threads(true),
                shape,
            ),
            self.ours("ours, auto", engine(CompatMode::Auto), shape),
        ]);
        let mut contest = self.contest("gpu-cufile-ranges", job, entries);
        contest.before = Before::Warm;
        contest.figures = BY_RANGES.to_vec();
        contest
            .circumstances
            .push(("ranges".to_owned(), count.to_string()));
        Ok(contest)
    }
}
