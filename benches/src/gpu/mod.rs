//! The workloads with a GPU: which contestants do what, and which figures matter.

mod bytes;
mod cufile;
mod kvikio;
mod ours;
mod pinned;
mod storm;

use std::time::Duration;

use tokio_cufile::{DeviceInfo, Engine, EngineBuilder, IoEngine};

use crate::Result;
use crate::args::{Args, Workload};
use crate::contest::{Before, Contest, Entry};
use crate::engines::{self, ring};
use crate::job::{Access, Job};
use crate::workloads::{BY_BYTES, BY_OPERATIONS, contests, data_file};
use kvikio::KvikIo;
use ours::Shape;

/// From here on a copy to the GPU is close to as fast as any.
const LARGE_BLOCK: usize = 4 << 20;
const SMALL_BLOCK: usize = 4 << 10;
const LARGE_DEPTH: usize = 8;

/// As it comes: through the page cache, one thread.
const KVIKIO: KvikIo = KvikIo::new("KvikIO");
/// Its least CPU time for a cold file.
const KVIKIO_DIRECT: KvikIo = KvikIo {
    direct: true,
    ..KvikIo::new("KvikIO, direct")
};
const KVIKIO_DIRECT_16: KvikIo = KvikIo {
    direct: true,
    threads: Some(16),
    ..KvikIo::new("KvikIO, direct, 16 threads")
};
const KVIKIO_16: KvikIo = KvikIo {
    threads: Some(16),
    ..KvikIo::new("KvikIO, 16 threads")
};
/// Its most speed for a warm file.
const KVIKIO_16_LARGE: KvikIo = KvikIo {
    threads: Some(16),
    task_mib: Some(16),
    ..KvikIo::new("KvikIO, 16 threads, 16 MiB tasks")
};
const KVIKIO_8: KvikIo = KvikIo {
    threads: Some(8),
    ..KvikIo::new("KvikIO, 8 threads")
};

pub(crate) fn run(args: &Args) -> Result<()> {
    let device = device(args)?;
    match args.workload {
        Workload::GpuWarmRead => contests(args, [warm_read(args, &device)]),
        Workload::GpuDurableWrite => contests(args, [durable_write(args, &device)]),
        Workload::GpuRandom4k => {
            let depths = args.depth.map_or_else(|| vec![1, 64], |depth| vec![depth]);
            let contest = |depth| random(args, &device, depth);
            contests(args, depths.into_iter().map(contest))
        }
        Workload::GpuDropStorm => storm::run(args, &device),
        Workload::GpuCufileWarmRead
        | Workload::GpuCufileColdRead
        | Workload::GpuCufileWrite
        | Workload::GpuCufileRanges => cufile::run(args, &device),
        _ => contests(args, [cold_read(args, &device)]),
    }
}

/// The device asked for. The name of a simulated one says so.
fn device(args: &Args) -> Result<DeviceInfo> {
    let engine = engines::allocator()?;
    let devices = engines::runtime()?.block_on(engine.devices())?;
    let found = devices
        .into_iter()
        .find(|device| device.ordinal == args.device);
    found.ok_or_else(|| format!("CUDA sees no device {}", args.device).into())
}

fn circumstances(device: &DeviceInfo) -> Vec<(String, String)> {
    let gib = device.total_memory >> 30;
    let text = format!("{}, {gib} GiB, driver {}", device.name, pinned::driver());
    vec![(format!("device {}", device.ordinal), text)]
}

fn job(args: &Args, access: Access, block: usize, depth: usize) -> Result<Job> {
    let file = data_file(args)?;
    if !file.length.is_multiple_of(block as u64) {
        return Err("--size is not a whole number of blocks".into());
    }
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

/// The job of writing over a copy of the data file.
fn write_job(args: &Args, block: usize, depth: usize) -> Result<Job> {
    let access = Access::Write { new_file: false };
    let mut job = job(args, access, block, depth)?;
    let data = job.path.clone();
    // Not over the data that others read. The copy has all its blocks.
    job.path = data.with_file_name("written.bin");
    std::fs::copy(&data, &job.path)?;
    Ok(job)
}

/// The engine at its defaults, with threads for copies, and without a ring.
fn builders() -> [(&'static str, EngineBuilder); 3] {
    [
        ("ours", Engine::builder()),
        ("ours, copy threads", Engine::builder().copy_threads(true)),
        ("ours, pool", Engine::builder().io(IoEngine::Pool)),
    ]
}

/// One request for all bytes by each engine, and requests of a block by the default one.
fn sequential(device: u32) -> Vec<Entry> {
    let whole = |(name, builder)| ours::entry(name, device, builder, Shape::Whole);
    let mut entries: Vec<Entry> = builders().into_iter().map(whole).collect();
    entries.push(ours::entry(
        "ours, 4 MiB requests",
        device,
        Engine::builder(),
        Shape::Requests,
    ));
    entries
}

fn kvikio(args: &Args, settings: &[KvikIo]) -> Vec<Entry> {
    let entry = |settings: &KvikIo| settings.entry(&args.python, args.device);
    settings.iter().map(entry).collect()
}

fn cold_read(args: &Args, device: &DeviceInfo) -> Result<Contest> {
    let depth = args.depth.unwrap_or(LARGE_DEPTH);
    let mut entries = vec![ring::entry()];
    entries.extend(sequential(device.ordinal));
    entries.push(pinned::entry(device.ordinal, LARGE_BLOCK));
    let peers = [KVIKIO, KVIKIO_DIRECT, KVIKIO_DIRECT_16, KVIKIO_16];
    entries.extend(kvikio(args, &peers));
    Ok(Contest {
        workload: "gpu-cold-read",
        job: job(args, Access::Read, LARGE_BLOCK, depth)?,
        before: Before::Cold,
        figures: BY_BYTES.to_vec(),
        entries,
        also_to: vec![KVIKIO.name, KVIKIO_DIRECT.name],
        circumstances: circumstances(device),
    })
}

fn warm_read(args: &Args, device: &DeviceInfo) -> Result<Contest> {
    let depth = args.depth.unwrap_or(LARGE_DEPTH);
    let mut entries = vec![
        pinned::entry(device.ordinal, LARGE_BLOCK),
        pinned::entry(device.ordinal, LARGE_BLOCK * 16),
    ];
    entries.extend(sequential(device.ordinal));
    let pool = Engine::builder().io(IoEngine::Pool).num_threads(16);
    entries.push(ours::entry(
        "ours, pool, 16 threads",
        device.ordinal,
        pool,
        Shape::Whole,
    ));
    entries.extend(kvikio(args, &[KVIKIO, KVIKIO_16_LARGE]));
    Ok(Contest {
        workload: "gpu-warm-read",
        job: Job {
            direct: false,
            ..job(args, Access::Read, LARGE_BLOCK, depth)?
        },
        before: Before::Warm,
        figures: BY_BYTES.to_vec(),
        entries,
        also_to: vec![KVIKIO_16_LARGE.name],
        circumstances: circumstances(device),
    })
}

fn durable_write(args: &Args, device: &DeviceInfo) -> Result<Contest> {
    let depth = args.depth.unwrap_or(LARGE_DEPTH);
    let job = write_job(args, LARGE_BLOCK, depth)?;
    let mut entries = vec![ring::entry()];
    entries.extend(sequential(device.ordinal));
    entries.push(pinned::entry(device.ordinal, LARGE_BLOCK));
    entries.extend(kvikio(args, &[KVIKIO, KVIKIO_8]));
    Ok(Contest {
        workload: "gpu-durable-write",
        job,
        // What the page cache has of the file would have to be dropped by who writes around it.
        before: Before::Cold,
        figures: BY_BYTES.to_vec(),
        entries,
        also_to: vec![KVIKIO.name],
        circumstances: circumstances(device),
    })
}

fn random(args: &Args, device: &DeviceInfo, depth: usize) -> Result<Contest> {
    let access = Access::Random {
        duration: Duration::from_secs(args.seconds),
    };
    let ordinal = device.ordinal;
    let requests = |(name, builder)| ours::entry(name, ordinal, builder, Shape::Requests);
    let mut entries = vec![ring::entry()];
    entries.extend(builders().into_iter().map(requests));
    entries.push(ours::direct("ours, direct", ordinal, Engine::builder()));
    let spin = Engine::builder().spin_limit(Duration::from_micros(100));
    entries.push(ours::direct("ours, direct, 100 us spin", ordinal, spin));
    let peers = if depth == 1 {
        vec![KVIKIO, KVIKIO_DIRECT]
    } else {
        vec![KVIKIO_16, KVIKIO_DIRECT_16]
    };
    entries.extend(kvikio(args, &peers));
    Ok(Contest {
        workload: "gpu-random-4k",
        job: job(args, access, SMALL_BLOCK, depth)?,
        before: Before::Cold,
        figures: BY_OPERATIONS.to_vec(),
        entries,
        also_to: peers.iter().map(|peer| peer.name).collect(),
        circumstances: circumstances(device),
    })
}
