//! What was asked for.

use std::time::Duration;

use super::{Backend, Device, Fault};

/// How to call the program.
pub const USAGE: &str = "\
stress [--ops N] [--seconds T] [--seed S] [--backend model|compat|pool|cufile|cufile-streams]
       [--device host|sim|cuda] [--faults all|none|LIST] [--shutdown-rounds N] [--broken NAME|all]

  --ops              operations, 20000 unless said
  --seconds          ends earlier, after so many
  --seed             chooses the operations; drawn and printed unless said
  --backend          model: the completion model on simulated hardware, in this process;
                     compat: the engine on io_uring, unless said; pool: the engine on its pool;
                     cufile: the engine by cuFile, with --device sim or cuda;
                     cufile-streams: the same, by its calls in streams
  --device           whose memory: host, unless said; sim: of simulated devices as well; cuda: of
                     the first device that CUDA has as well, with the real cuFile
  --faults           all that the backend and device can have, unless said; or some of
                     short,eio,einval,enospc,slow,copy-error,context-lost,event-never,silent,cufile-error,flip
  --shutdown-rounds  instead of operations: engines that are shut down with up to 256 in flight
  --broken           a positive control: a broken release policy on the model, or `ring-closed`, or
                     `all`; succeeds when it is caught

  TOKIO_CUFILE_TEST_FOLDER  where files are made, unless beside the program
  TOKIO_CUFILE_LIBCUFILE    the real libcufile, where the loader does not find it";

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Args {
    /// How many operations.
    pub ops: usize,
    /// What chooses them.
    pub seed: u64,
    /// What executes them.
    pub backend: Backend,
    /// Whose memory they work on.
    pub device: Device,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// When to end, if not earlier.
    pub time: Option<Duration>,
    /// Engines to be shut down, instead of operations.
    pub shutdown_rounds: Option<usize>,
    /// A broken release policy.
    pub broken: Option<String>,
}

impl Args {
    /// Reads words; `seed` is taken where none is said.
    ///
    /// # Errors
    ///
    /// What cannot be understood, or not be done.
    pub fn parse(words: impl IntoIterator<Item = String>, seed: u64) -> Result<Self, String> {
        let mut args = Self {
            ops: 20_000,
            seed,
            backend: Backend::Compat,
            device: Device::Host,
            faults: Vec::new(),
            time: None,
            shutdown_rounds: None,
            broken: None,
        };
        let mut faults = "all".to_owned();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let value = words
                .next()
                .ok_or_else(|| format!("{word} needs a value"))?;
            match word.as_str() {
                "--ops" => args.ops = number(&word, &value)?,
                "--seed" => args.seed = number(&word, &value)?,
                "--seconds" => args.time = Some(Duration::from_secs(number(&word, &value)?)),
                "--shutdown-rounds" => args.shutdown_rounds = Some(number(&word, &value)?),
                "--backend" => args.backend = backend(&value)?,
                "--device" => args.device = device(&value)?,
                "--faults" => faults = value,
                "--broken" => {
                    args.broken = Some(value);
                    args.backend = Backend::Model;
                }
                other => return Err(format!("`{other}` is not known")),
            }
        }
        args.faults = faults_of(&args, &faults)?;
        args.check()?;
        Ok(args)
    }

    fn check(&self) -> Result<(), String> {
        let is_model = self.backend == Backend::Model;
        if is_model && self.device != Device::Host {
            return Err("the model has hardware of its own, and no device".to_owned());
        }
        if self.backend.is_cufile() && self.device == Device::Host {
            return Err("cuFile needs --device sim or cuda".to_owned());
        }
        if is_model && self.shutdown_rounds.is_some() {
            return Err("each epoch of the model ends with a shutdown anyhow".to_owned());
        }
        Ok(())
    }

    /// The faults that the backend and device can have.
    fn possible(&self) -> Vec<Fault> {
        let mut possible = match self.backend {
            Backend::Model => vec![Fault::Short, Fault::Eio, Fault::Slow, Fault::Silent],
            _ => super::slow::FAULTS.to_vec(),
        };
        match (self.device, self.backend) {
            // Nobody tells a real device or the real cuFile to fail.
            (Device::Host | Device::Cuda, _) => {}
            // No copies of the engine's but for the edges of writes.
            (Device::Sim, backend) if backend.is_cufile() => possible.push(Fault::CufileError),
            (Device::Sim, _) => {
                possible.extend([Fault::CopyError, Fault::ContextLost, Fault::EventNever]);
            }
        }
        possible
    }

    /// The command that repeats the run.
    #[must_use]
    pub fn again(&self) -> String {
        let (ops, seed) = (self.ops, self.seed);
        let backend = name_of(self.backend);
        let device = format!("{:?}", self.device).to_lowercase();
        let names: Vec<&str> = self.faults.iter().map(|fault| fault.name()).collect();
        let faults = match names.as_slice() {
            [] => "none".to_owned(),
            names => names.join(","),
        };
        let program = match self.device {
            // Also where there is no repository.
            Device::Cuda => "stress",
            Device::Host | Device::Sim => "cargo xtask stress",
        };
        let mut again = format!(
            "{program} --ops {ops} --seed {seed} --backend {backend} --device {device} \
             --faults {faults}"
        );
        if let Some(rounds) = self.shutdown_rounds {
            again += &format!(" --shutdown-rounds {rounds}");
        }
        if let Some(broken) = &self.broken {
            again += &format!(" --broken {broken}");
        }
        if let Some(time) = self.time {
            again += &format!(" --seconds {}", time.as_secs());
        }
        again
    }
}

const BACKENDS: [Backend; 5] = [
    Backend::Model,
    Backend::Compat,
    Backend::Pool,
    Backend::Cufile,
    Backend::CufileStreams,
];

const fn name_of(backend: Backend) -> &'static str {
    match backend {
        Backend::Model => "model",
        Backend::Compat => "compat",
        Backend::Pool => "pool",
        Backend::Cufile => "cufile",
        Backend::CufileStreams => "cufile-streams",
    }
}

fn backend(name: &str) -> Result<Backend, String> {
    let mut all = BACKENDS.into_iter();
    let found = all.find(|&backend| name_of(backend) == name);
    found.ok_or_else(|| format!("no backend is called `{name}`"))
}

fn device(name: &str) -> Result<Device, String> {
    match name {
        "host" => Ok(Device::Host),
        "sim" => Ok(Device::Sim),
        "cuda" => Ok(Device::Cuda),
        other => Err(format!("no kind of device is called `{other}`")),
    }
}

fn faults_of(args: &Args, list: &str) -> Result<Vec<Fault>, String> {
    let possible = args.possible();
    match list {
        "all" => return Ok(possible),
        "none" => return Ok(Vec::new()),
        _ => {}
    }
    let named = |name: &str| {
        let fault = Fault::ALL.into_iter().find(|fault| fault.name() == name);
        let fault = fault.ok_or_else(|| format!("no fault is called `{name}`"))?;
        let has_copies = args.device == Device::Sim && !args.backend.is_cufile();
        let on_request = fault == Fault::Flip && has_copies;
        if possible.contains(&fault) || on_request {
            Ok(fault)
        } else {
            Err(format!(
                "`{name}` cannot happen with that backend and device"
            ))
        }
    };
    list.split(',').map(named).collect()
}

fn number<T: std::str::FromStr>(option: &str, text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{option} takes a number, not `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Args, String> {
        Args::parse(line.split_whitespace().map(str::to_owned), 7)
    }

    #[test]
    fn the_command_that_repeats_a_run_means_the_same() {
        for line in [
            "",
            "--ops 5 --seed 9 --backend pool --device sim",
            "--backend model --broken free-on-cancel --seconds 3",
            "--faults none --shutdown-rounds 10",
            "--faults eio,slow --device sim",
            "--backend cufile --device sim --faults cufile-error",
            "--backend cufile-streams --device sim",
            "--device cuda",
            "--backend cufile-streams --device cuda --faults none",
        ] {
            let args = parsed(line).unwrap();
            let again = args.again();
            let (_, words) = again.split_once("stress ").unwrap();
            assert_eq!(parsed(words), Ok(args), "`{line}`");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for line in [
            "--ops",
            "--ops many",
            "--backend cufile",
            "--backend cufile-streams",
            "--backend model --device sim",
            "--backend model --device cuda",
            "--device cuda --faults copy-error",
            "--device cuda --faults flip",
            "--backend cufile --device cuda --faults cufile-error",
            "--device gpu",
            "--faults copy-error",
            "--faults flip",
            "--broken free-on-cancel --device sim",
            "--quickly 1",
        ] {
            assert!(parsed(line).is_err(), "`{line}` was accepted");
        }
    }
}
