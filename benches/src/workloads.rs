//! Which contestants do what, and which figures matter.

use std::time::Duration;

use measure::data::DataFile;
use measure::report::Figure;
use tokio_cufile::{CacheMode, DigestKind};

use crate::Result;
use crate::args::{Args, Workload};
use crate::contest::{Before, Contest, Entry};
use crate::engines::{blocking, channel_ring, fio, hash, ours, plain, ring, tokio_fs, tokio_uring};
use crate::gpu;
use crate::job::{Access, Job};
use crate::queue;
use ours::Shape;

const LARGE_BLOCK: usize = 2 << 20;
const SMALL_BLOCK: usize = 4 << 10;
/// As long as a part is by default.
const DIGEST_CHUNK: usize = 4 << 20;
const LARGE_DEPTH: usize = 8;

pub(crate) const BY_BYTES: [Figure; 2] = [Figure::Throughput, Figure::CpuPerGib];
pub(crate) const BY_OPERATIONS: [Figure; 4] = [
    Figure::P50,
    Figure::P99,
    Figure::Operations,
    Figure::CpuPerOperation,
];

pub(crate) fn run(args: &Args) -> Result<()> {
    match args.workload {
        Workload::Queue => queue::run(args),
        Workload::Random4k => {
            let depths = args.depth.map_or_else(|| vec![1, 32], |depth| vec![depth]);
            let contest = |depth| random(args, "random-4k", fio::entry(), depth);
            contests(args, depths.into_iter().map(contest))
        }
        Workload::Overhead => {
            let depths = args.depth.map_or_else(|| vec![8, 32], |depth| vec![depth]);
            let contest = |depth| random(args, "overhead", ring::entry(), depth);
            contests(args, depths.into_iter().map(contest))
        }
        Workload::Digest => contests(args, [digest_memory(args), digest_read(args)]),
        Workload::ColdRead => contests(args, [cold_read(args)]),
        Workload::WarmRead => contests(args, [warm_read(args)]),
        Workload::DurableWrite => contests(args, [durable_write(args, false)]),
        Workload::DurableWriteNew => contests(args, [durable_write(args, true)]),
        Workload::GpuColdRead
        | Workload::GpuWarmRead
        | Workload::GpuDurableWrite
        | Workload::GpuRandom4k
        | Workload::GpuCufileWarmRead
        | Workload::GpuCufileColdRead
        | Workload::GpuCufileWrite
        | Workload::GpuCufileRanges
        | Workload::GpuDropStorm => gpu::run(args),
    }
}

pub(crate) fn contests(
    args: &Args,
    contests: impl IntoIterator<Item = Result<Contest>>,
) -> Result<()> {
    let mut reports = Vec::new();
    for contest in contests {
        let report = contest?.run(args)?;
        if !args.json {
            println!("{report}");
        }
        reports.push(report);
        if let Some(path) = &args.json_file {
            std::fs::write(path, serde_json::to_string(&reports)?)?;
        }
    }
    if args.json {
        println!("{}", serde_json::to_string(&reports)?);
    }
    Ok(())
}

/// The job on the data file, which is made or checked first.
fn job(args: &Args, access: Access, block: usize, depth: usize) -> Result<Job> {
    let file = data_file(args)?;
    Ok(Job {
        access,
        path: file.path,
        length: file.length,
        block,
        depth,
        direct: true,
        seed: args.seed,
    })
}

pub(crate) fn data_file(args: &Args) -> Result<DataFile> {
    // Whole blocks of every size in use.
    let length = (args.size << 20) / DIGEST_CHUNK as u64 * DIGEST_CHUNK as u64;
    Ok(DataFile::provide(&args.file_dir, length, args.seed)?)
}

fn cold_read(args: &Args) -> Result<Contest> {
    let depth = args.depth.unwrap_or(LARGE_DEPTH);
    let mut entries = vec![fio::entry(), fio::entry_on_large_pages(), ring::entry()];
    entries.push(channel_ring::entry());
    entries.extend(ours::entries(Shape::Requests, CacheMode::Auto));
    entries.extend(ours::entries(Shape::Whole, CacheMode::Auto));
    entries.extend([tokio_uring::entry(), blocking::entry(), tokio_fs::entry()]);
    Ok(Contest {
        workload: "cold-read",
        job: job(args, Access::Read, LARGE_BLOCK, depth)?,
        before: Before::Cold,
        figures: BY_BYTES.to_vec(),
        entries,
        also_to: Vec::new(),
        circumstances: Vec::new(),
    })
}

/// Chunks in memory that holds them, without I/O.
fn digest_memory(args: &Args) -> Result<Contest> {
    Ok(Contest {
        workload: "digest-memory",
        job: job(args, Access::Read, DIGEST_CHUNK, 1)?,
        before: Before::Whatever,
        figures: BY_BYTES.to_vec(),
        entries: DigestKind::ALL.map(hash::entry).into(),
        also_to: Vec::new(),
        circumstances: Vec::new(),
    })
}

/// A cold file in one request, against the same without a digest.
fn digest_read(args: &Args) -> Result<Contest> {
    let mut entries: Vec<Entry> = ours::entries(Shape::Whole, CacheMode::Direct).collect();
    for kind in DigestKind::ALL {
        // Whatever engine is asked for, its digests are the pool's.
        entries.extend(ours::entries(Shape::Digested(kind), CacheMode::Direct).take(1));
    }
    Ok(Contest {
        workload: "digest-read",
        job: job(args, Access::Read, DIGEST_CHUNK, LARGE_DEPTH)?,
        before: Before::Cold,
        figures: BY_BYTES.to_vec(),
        entries,
        also_to: Vec::new(),
        circumstances: Vec::new(),
    })
}

fn warm_read(args: &Args) -> Result<Contest> {
    let depth = args.depth.unwrap_or(LARGE_DEPTH);
    let mut entries: Vec<Entry> = [2, 1, 4, 8].map(plain::entry).into();
    entries.extend(ours::entries(Shape::Whole, CacheMode::Auto));
    entries.extend(ours::entries(Shape::Whole, CacheMode::Cached));
    entries.extend(ours::entries(Shape::Requests, CacheMode::Cached));
    entries.push(tokio_fs::entry());
    Ok(Contest {
        workload: "warm-read",
        job: Job {
            direct: false,
            ..job(args, Access::Read, LARGE_BLOCK, depth)?
        },
        before: Before::Warm,
        figures: BY_BYTES.to_vec(),
        entries,
        also_to: Vec::new(),
        circumstances: Vec::new(),
    })
}

fn durable_write(args: &Args, new_file: bool) -> Result<Contest> {
    let depth = args.depth.unwrap_or(LARGE_DEPTH);
    let mut job = job(args, Access::Write { new_file }, LARGE_BLOCK, depth)?;
    // Not over the data that others read.
    let target = job.path.with_file_name("written.bin");
    if !new_file {
        std::fs::copy(&job.path, &target)?;
    }
    job.path = target;
    let mut entries = vec![fio::entry(), fio::entry_on_large_pages(), ring::entry()];
    entries.extend(ours::entries(Shape::Requests, CacheMode::Auto));
    entries.extend(ours::entries(Shape::Whole, CacheMode::Auto));
    entries.extend([tokio_uring::entry(), blocking::entry(), tokio_fs::entry()]);
    Ok(Contest {
        workload: if new_file {
            "durable-write-new"
        } else {
            "durable-write"
        },
        job,
        before: Before::Whatever,
        figures: BY_BYTES.to_vec(),
        entries,
        also_to: Vec::new(),
        circumstances: Vec::new(),
    })
}

fn random(args: &Args, workload: &'static str, reference: Entry, depth: usize) -> Result<Contest> {
    let access = Access::Random {
        duration: Duration::from_secs(args.seconds),
    };
    let mut entries = vec![reference];
    if workload == "random-4k" {
        entries.push(ring::entry());
    } else {
        entries.push(fio::entry());
    }
    entries.push(channel_ring::entry());
    entries.extend(ours::entries(Shape::Requests, CacheMode::Direct));
    entries.push(ours::spin());
    if depth > 1 {
        entries.push(ours::wide_pool());
    }
    entries.extend([tokio_uring::entry(), blocking::entry()]);
    Ok(Contest {
        workload,
        job: job(args, access, SMALL_BLOCK, depth)?,
        before: Before::Cold,
        figures: BY_OPERATIONS.to_vec(),
        entries,
        also_to: Vec::new(),
        circumstances: Vec::new(),
    })
}
