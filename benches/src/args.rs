//! What can be asked for on the command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

#[derive(Debug, Parser)]
#[command(about = "Engines side by side on one file, interleaved")]
pub(crate) struct Args {
    /// What to do
    pub(crate) workload: Workload,

    /// Where the data file is kept, on the disk to be measured; it stays there for the next run
    #[arg(long, default_value = "target/bench-data")]
    pub(crate) file_dir: PathBuf,

    /// MiB of the data file
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..))]
    pub(crate) size: u64,

    /// Interleaved pairs; fewer than 15 make no figure to publish
    #[arg(long, default_value_t = 15)]
    pub(crate) pairs: usize,

    /// Seconds of one run of a random workload
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: u64,

    /// Requests in flight; the workload's own number if left out
    #[arg(long)]
    pub(crate) depth: Option<usize>,

    /// cuFile: KiB of a plain call and of a part of ours, or of a range; a power of two, the workload's
    /// own if left out
    #[arg(long, value_parser = block)]
    pub(crate) block: Option<usize>,

    /// cuFile: where the list of kernel modules and nvidia-fs are looked for; beside the simulated
    /// libcufile a folder with an empty `modules`, where the system has no such list
    #[arg(long, default_value = "/proc")]
    pub(crate) proc_dir: PathBuf,

    /// Operations of the queue workload (100,000 if left out) and of the drop storm (10,000)
    #[arg(long)]
    pub(crate) operations: Option<usize>,

    /// Seed of the data, of the offsets and of the order of runs
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Only contestants whose name contains one of these; the reference always runs
    #[arg(long)]
    pub(crate) only: Vec<String>,

    /// None of the contestants whose name contains one of these
    #[arg(long)]
    pub(crate) except: Vec<String>,

    /// Print JSON, with every sample
    #[arg(long)]
    pub(crate) json: bool,

    /// Also write the JSON into this file
    #[arg(long)]
    pub(crate) json_file: Option<PathBuf>,

    /// Drop storm: operations may fail, for a driver that is told to
    #[arg(long)]
    pub(crate) failures_allowed: bool,

    /// CUDA ordinal of the device of the workloads that have one
    #[arg(long, default_value_t = 0)]
    pub(crate) device: u32,

    /// The interpreter that KvikIO is to be found in; `PYTHONPATH` is handed on
    #[arg(long, default_value = "python3")]
    pub(crate) python: PathBuf,
}

/// Bytes of so many KiB.
fn block(kib: &str) -> Result<usize, String> {
    match kib.parse::<usize>() {
        Ok(kib) if kib.is_power_of_two() && (4..=64 << 10).contains(&kib) => Ok(kib << 10),
        _ => Err("it is a power of two, from 4 to 65536".to_owned()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// A file that is not in the page cache, 2 MiB x 8, around the cache
    ColdRead,
    /// A file that is in the page cache
    WarmRead,
    /// Over the blocks of a file that exists, 2 MiB x 8, and fdatasync
    DurableWrite,
    /// Into a new file, 2 MiB x 8, and fdatasync
    DurableWriteNew,
    /// 4 KiB at random offsets, around the cache
    #[value(name = "random-4k")]
    Random4k,
    /// Checksums: of memory, and of what is read
    Digest,
    /// CPU time for each operation over the bare ring's
    Overhead,
    /// Many operations waiting for a small budget: memory, and CPU time of each poll
    Queue,
    /// To the GPU: a file that is not in the page cache, 4 MiB x 8
    GpuColdRead,
    /// To the GPU: a file that is in the page cache
    GpuWarmRead,
    /// From the GPU over the blocks of a file that exists, and fdatasync
    GpuDurableWrite,
    /// To the GPU: 4 KiB at random offsets
    #[value(name = "gpu-random-4k")]
    GpuRandom4k,
    /// To the GPU by cuFile: a file that is in the page cache, 4 MiB a call
    GpuCufileWarmRead,
    /// To the GPU by cuFile: a file that is not in the page cache, 4 MiB a call
    GpuCufileColdRead,
    /// From the GPU by cuFile over the blocks of a file that exists, 4 MiB a call, and fdatasync
    GpuCufileWrite,
    /// To the GPU by cuFile: many blocks at random offsets of a file that is in the page cache, of
    /// 4 KiB, 64 KiB and 1 MiB
    GpuCufileRanges,
    /// Reads and writes of device memory whose futures are dropped at any time: is every other byte
    /// what it was, and everything home?
    GpuDropStorm,
}
