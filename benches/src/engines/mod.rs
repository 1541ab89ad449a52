//! The contestants.

pub(crate) mod blocking;
pub(crate) mod channel_ring;
pub(crate) mod fio;
pub(crate) mod hash;
pub(crate) mod ours;
pub(crate) mod plain;
pub(crate) mod ring;
mod source;
pub(crate) mod tokio_fs;
pub(crate) mod tokio_uring;

use measure::report::Sample;
use measure::statistics::Latencies;
use measure::usage::Usage;
use tokio_cufile::{Engine, HostBuffer};

use crate::Result;
use crate::job::Job;

/// Memory like that of our own reads, for everyone: aligned, on large pages where it is large
/// enough, and touched.
pub(crate) fn memory(engine: &Engine, length: usize) -> Result<HostBuffer> {
    let mut buffer = HostBuffer::new(engine, length)?;
    buffer.prefault()?;
    Ok(buffer)
}

/// An engine only to allocate by: it starts one thread that does nothing.
pub(crate) fn allocator() -> Result<Engine> {
    Ok(Engine::builder().num_threads(1).build_blocking()?)
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().build()?)
}

/// A sample of `operations` whole blocks.
pub(crate) fn sample(job: &Job, operations: u64, usage: Usage, nanos: Vec<u64>) -> Sample {
    Sample {
        bytes: operations * job.block as u64,
        operations,
        usage,
        latency: Latencies::new(nanos).quantiles(),
        residency: None,
    }
}

pub(crate) fn nanos(since: std::time::Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Everyone moves whole blocks: a short one is an error of the bench.
pub(crate) fn whole(job: &Job, bytes: usize) -> Result<()> {
    if bytes == job.block {
        Ok(())
    } else {
        Err(format!("{bytes} bytes instead of {}", job.block).into())
    }
}
