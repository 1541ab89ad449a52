//! `tokio::fs`: through the page cache, one request after the other.

use measure::report::Sample;
use measure::usage::Window;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

use super::sample;
use crate::Result;
use crate::contest::{Entry, Runner};
use crate::job::{Access, Job};

pub(crate) fn entry() -> Entry {
    Entry::new("tokio::fs, buffered", |job| {
        if matches!(job.access, Access::Random { .. }) {
            return Err("it has no positional calls".into());
        }
        let job = Job {
            direct: false,
            ..job.clone()
        };
        let mut memory = vec![0; job.block];
        measure::data::fill(job.seed, 0, &mut memory);
        Ok(Box::new(TokioFs {
            job,
            runtime: super::runtime()?,
            memory,
        }))
    })
}

struct TokioFs {
    job: Job,
    runtime: Runtime,
    memory: Vec<u8>,
}

impl Runner for TokioFs {
    fn run(&mut self, _round: u64) -> Result<Sample> {
        let mut file = tokio::fs::File::from_std(self.job.open()?);
        let (job, memory) = (&self.job, &mut self.memory);
        let usage = self.runtime.block_on(async {
            let window = Window::open();
            for _ in 0..job.blocks() {
                if job.is_write() {
                    file.write_all(memory).await?;
                } else {
                    file.read_exact(memory).await?;
                }
            }
            if job.is_write() {
                file.sync_data().await?;
            }
            Ok::<_, std::io::Error>(window.close())
        })?;
        Ok(sample(job, job.blocks(), usage, Vec::new()))
    }
}
