//! KvikIO, in a Python process of its own that measures itself: `peers/kvikio_peer.py`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use measure::report::Sample;
use measure::statistics::Latencies;
use measure::usage::Usage;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Result;
use crate::contest::{Entry, Runner};
use crate::job::{Access, Job};

/// Handed to the interpreter as text, so that this program is all one has to carry.
const SCRIPT: &str = include_str!("../../peers/kvikio_peer.py");

/// What is set for one contestant; all else is KvikIO's default.
#[derive(Clone, Copy, Debug)]
pub(super) struct KvikIo {
    pub(super) name: &'static str,
    pub(super) threads: Option<u32>,
    pub(super) task_mib: Option<u64>,
    /// Reads around the page cache where it can. Writes do by default.
    pub(super) direct: bool,
}

impl KvikIo {
    pub(super) const fn new(name: &'static str) -> Self {
        Self {
            name,
            threads: None,
            task_mib: None,
            direct: false,
        }
    }

    pub(super) fn entry(&self, python: &Path, device: u32) -> Entry {
        let (settings, python) = (*self, python.to_owned());
        Entry::new(self.name, move |job| {
            Ok(Box::new(Peer::start(job, settings, &python, device)?))
        })
    }

    fn environment(&self, job: &Job) -> BTreeMap<&'static str, String> {
        let mut set = BTreeMap::new();
        if let Some(threads) = self.threads {
            set.insert("KVIKIO_NTHREADS", threads.to_string());
        }
        if let Some(mib) = self.task_mib {
            set.insert("KVIKIO_TASK_SIZE", (mib << 20).to_string());
        }
        if self.direct {
            set.insert("KVIKIO_AUTO_DIRECT_IO_READ", "ON".to_owned());
        }
        if matches!(job.access, Access::Random { .. }) && job.depth > 1 {
            // Else a small read is done in the caller's thread, and there is one in flight.
            set.insert("KVIKIO_GDS_THRESHOLD", "0".to_owned());
        }
        set
    }
}

struct Peer {
    job: Job,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// Which KvikIO it is.
    version: String,
}

/// What the peer says of a run.
#[derive(Deserialize)]
struct Answer {
    wall_s: f64,
    cpu_s: f64,
    user_s: f64,
    system_s: f64,
    operations: u64,
    bytes: u64,
    #[serde(default)]
    latencies_ns: Vec<u64>,
}

impl Peer {
    fn start(job: &Job, settings: KvikIo, python: &Path, device: u32) -> Result<Self> {
        let mut command = Command::new(python);
        // The caller's settings stay out of it, but for the mode, which a machine may call for.
        for name in ["NTHREADS", "NUM_THREADS", "TASK_SIZE", "GDS_THRESHOLD"] {
            command.env_remove(format!("KVIKIO_{name}"));
        }
        for name in [
            "BOUNCE_BUFFER_SIZE",
            "AUTO_DIRECT_IO_READ",
            "AUTO_DIRECT_IO_WRITE",
        ] {
            command.env_remove(format!("KVIKIO_{name}"));
        }
        let environment = settings.environment(job);
        command.envs(&environment);
        command.args(["-u", "-c", SCRIPT]);
        command.arg(what(job, settings.name, device)?.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let cannot = |error| format!("{} cannot be run: {error}", python.display());
        let mut child = command.spawn().map_err(cannot)?;
        let stdin = child.stdin.take().ok_or("no way in")?;
        let stdout = child.stdout.take().ok_or("no way out")?;
        let mut peer = Self {
            job: job.clone(),
            child,
            stdin,
            stdout: BufReader::new(stdout),
            version: String::new(),
        };
        let ready = peer.answer()?;
        let text = |name: &str| ready[name].as_str().unwrap_or("unknown").to_owned();
        peer.version = format!("{} into {}", text("kvikio"), text("memory"));
        eprintln!("{}: {ready}, {environment:?}", settings.name);
        Ok(peer)
    }

    fn ask(&mut self, command: &Value) -> Result<Value> {
        writeln!(self.stdin, "{command}")?;
        self.stdin.flush()?;
        self.answer()
    }

    /// Its next line. One with `error` is an error.
    fn answer(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            let status = self.child.wait()?;
            return Err(format!("the peer ended: {status}").into());
        }
        let answer: Value = serde_json::from_str(&line)?;
        match answer.get("error").and_then(Value::as_str) {
            Some(error) => Err(error.into()),
            None => Ok(answer),
        }
    }
}

/// The job, as the peer takes it.
fn what(job: &Job, name: &str, device: u32) -> Result<Value> {
    let (access, seconds) = match job.access {
        Access::Read => ("read", 0.0),
        Access::Write { new_file: false } => ("write", 0.0),
        Access::Write { new_file: true } => return Err("it does not write new files here".into()),
        Access::Random { duration } => ("random", duration.as_secs_f64()),
    };
    Ok(json!({
        "name": name,
        "access": access,
        "path": fs::canonicalize(&job.path)?,
        "length": job.length,
        "block": job.block,
        "depth": job.depth,
        "seconds": seconds,
        "seed": job.seed,
        "device": device,
    }))
}

impl Runner for Peer {
    fn run(&mut self, round: u64) -> Result<Sample> {
        let answer = self.ask(&json!({"do": "run", "round": round}))?;
        let answer: Answer = serde_json::from_value(answer)?;
        let expected = match self.job.access {
            Access::Random { .. } => answer.operations * self.job.block as u64,
            Access::Read | Access::Write { .. } => self.job.length,
        };
        if answer.bytes != expected {
            return Err(format!("{} bytes instead of {expected}", answer.bytes).into());
        }
        Ok(Sample {
            bytes: answer.bytes,
            operations: answer.operations,
            usage: Usage {
                wall_s: answer.wall_s,
                cpu_s: answer.cpu_s,
                user_s: answer.user_s,
                system_s: answer.system_s,
            },
            latency: Latencies::new(answer.latencies_ns).quantiles(),
            residency: None,
        })
    }

    fn check(&mut self) -> Result<()> {
        self.ask(&json!({"do": "check"})).map(drop)
    }

    fn about(&self) -> Option<(String, String)> {
        Some(("KvikIO".to_owned(), self.version.clone()))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It has no work of ours in flight that anybody waits for.
        let _already_gone = self.child.kill();
        let _already_waited_for = self.child.wait();
    }
}
