//! fio as a process of its own, by its own figures: `runtime` and CPU shares of its one job.

use std::collections::BTreeMap;
use std::process::Command;

use measure::report::Sample;
use measure::statistics::Quantiles;
use measure::usage::Usage;
use serde::Deserialize;

use crate::Result;
use crate::contest::{Entry, Runner};
use crate::job::{Access, Job};

/// As it comes: its buffers lie on small pages.
pub(crate) fn entry() -> Entry {
    on_pages("fio io_uring", false)
}

/// On large pages where the system grants them to who asks, as all other contestants here.
pub(crate) fn entry_on_large_pages() -> Entry {
    on_pages("fio io_uring, 2 MiB pages", true)
}

fn on_pages(name: &str, large: bool) -> Entry {
    Entry::new(name, move |job| {
        let version = Command::new("fio").arg("--version").output();
        version.map_err(|error| format!("fio cannot be run: {error}"))?;
        Ok(Box::new(Fio {
            job: job.clone(),
            large_pages: large,
        }))
    })
}

struct Fio {
    job: Job,
    large_pages: bool,
}

impl Fio {
    fn command(&self, round: u64) -> Result<Command> {
        let job = &self.job;
        let mut command = Command::new("fio");
        if self.large_pages {
            // The C library's own setting: its allocator then asks for them.
            command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
        }
        command.args([
            "--name=bench",
            "--ioengine=io_uring",
            "--fixedbufs",
            "--output-format=json",
            "--lat_percentiles=1",
            "--clat_percentiles=0",
            "--percentile_list=50:99:99.9:100",
            "--randrepeat=0",
            "--norandommap",
            // What is in the page cache is our business.
            "--invalidate=0",
        ]);
        command.arg(format!("--filename={}", job.path.display()));
        command.arg(format!("--size={}", job.length));
        command.arg(format!("--bs={}", job.block));
        command.arg(format!("--iodepth={}", job.depth));
        command.arg(format!("--direct={}", u8::from(job.direct)));
        match job.access {
            Access::Read => command.arg("--rw=read"),
            Access::Write { new_file } => {
                if new_file {
                    job.remove()?;
                    command.arg("--fallocate=none");
                }
                // The sync is within the job's run time. The others do not make new bytes either.
                command.args(["--rw=write", "--end_fsync=1", "--scramble_buffers=0"])
            }
            Access::Random { duration } => {
                command.args(["--rw=randread", "--time_based"]);
                command.arg(format!("--runtime={}", duration.as_secs()));
                command.arg(format!("--randseed={}", job.seed + round))
            }
        };
        Ok(command)
    }
}

#[derive(Deserialize)]
struct Output {
    jobs: Vec<JobOutput>,
}

#[derive(Deserialize)]
struct JobOutput {
    read: Direction,
    write: Direction,
    usr_cpu: f64,
    sys_cpu: f64,
    /// Milliseconds that the CPU shares refer to.
    job_runtime: f64,
    error: i32,
}

#[derive(Deserialize)]
struct Direction {
    io_bytes: u64,
    total_ios: u64,
    /// Milliseconds, at a grain of one.
    runtime: f64,
    lat_ns: Latency,
}

#[derive(Deserialize)]
struct Latency {
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

impl Latency {
    fn quantiles(&self) -> Option<Quantiles> {
        let micros = |name: &str| Some(self.percentile.get(name)? / 1e3);
        Some(Quantiles {
            p50_us: micros("50.000000")?,
            p99_us: micros("99.000000")?,
            p999_us: micros("99.900000")?,
            max_us: micros("100.000000")?,
        })
    }
}

impl Runner for Fio {
    fn run(&mut self, round: u64) -> Result<Sample> {
        let output = self.command(round)?.output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        // Notes may stand before the JSON.
        let start = output.stdout.iter().position(|&byte| byte == b'{');
        let json = &output.stdout[start.ok_or("no JSON")?..];
        let parsed: Output = serde_json::from_slice(json)?;
        let job = parsed.jobs.first().ok_or("no job")?;
        if job.error != 0 {
            return Err(format!("error {}", job.error).into());
        }
        let direction = if self.job.is_write() {
            &job.write
        } else {
            &job.read
        };
        let share = |percent: f64| percent / 100.0 * job.job_runtime / 1e3;
        let (user_s, system_s) = (share(job.usr_cpu), share(job.sys_cpu));
        Ok(Sample {
            bytes: direction.io_bytes,
            operations: direction.total_ios,
            usage: Usage {
                wall_s: direction.runtime / 1e3,
                cpu_s: user_s + system_s,
                user_s,
                system_s,
            },
            latency: direction.lat_ns.quantiles(),
            residency: None,
        })
    }
}
