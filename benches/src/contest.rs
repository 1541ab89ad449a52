//! Runs the contestants of one workload, interleaved, and reports.

use std::collections::BTreeMap;
use std::fs::File;

use measure::environment::{self, Environment};
use measure::pairs::{self, Schedule, Turn};
use measure::report::{Contestant, Figure, Report, Sample, Skipped};
use measure::residency::{self, Residency};

use crate::Result;
use crate::args::Args;
use crate::job::Job;

/// An engine that is set up for a job: threads run, memory is touched, files are open.
pub(crate) trait Runner {
    /// Does the job once. Whatever is not the job lies outside the sample's window.
    fn run(&mut self, round: u64) -> Result<Sample>;

    /// Whether the bytes of the last run are right, where the contestant keeps them.
    fn check(&mut self) -> Result<()> {
        Ok(())
    }

    /// What belongs to the figures and only the contestant knows: a name and a text.
    fn about(&self) -> Option<(String, String)> {
        None
    }
}

/// Sets a contestant up, or says why it cannot take part.
type Prepare = Box<dyn Fn(&Job) -> Result<Box<dyn Runner>>>;

/// Who may take part.
pub(crate) struct Entry {
    pub(crate) name: String,
    prepare: Prepare,
}

/// Who takes part.
struct Competitor {
    name: String,
    runner: Box<dyn Runner>,
}

impl Entry {
    pub(crate) fn new(
        name: impl Into<String>,
        prepare: impl Fn(&Job) -> Result<Box<dyn Runner>> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            prepare: Box::new(prepare),
        }
    }
}

/// What must hold of the file before every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// Not in the page cache.
    Cold,
    /// All of it in the page cache.
    Warm,
    /// The file is written.
    Whatever,
}

impl Before {
    fn establish(self, job: &Job) -> Result<Option<Residency>> {
        Ok(match self {
            Self::Cold => Some(residency::evict(&File::open(&job.path)?)?),
            Self::Warm => Some(residency::warm(&File::open(&job.path)?)?),
            Self::Whatever => None,
        })
    }
}

pub(crate) struct Contest {
    pub(crate) workload: &'static str,
    pub(crate) job: Job,
    pub(crate) before: Before,
    pub(crate) figures: Vec<Figure>,
    /// The first is the reference.
    pub(crate) entries: Vec<Entry>,
    /// Names of contestants that ours are compared to as well.
    pub(crate) also_to: Vec<&'static str>,
    /// What else belongs to the figures: the device, for example.
    pub(crate) circumstances: Vec<(String, String)>,
}

impl Contest {
    pub(crate) fn run(self, args: &Args) -> Result<Report> {
        let environment = Environment::of(&args.file_dir)?;
        let (mut field, skipped) = self.set_up(args);
        if field.is_empty() {
            return Err("nobody can take part".into());
        }
        let schedule = Schedule {
            rounds: args.pairs,
            warm_up: 1,
            seed: args.seed,
        };
        let results = pairs::interleave(field.len(), schedule, |turn| {
            let last = turn.round.is_some_and(|round| round + 1 == schedule.rounds);
            self.turn(&mut field, turn, last)
        })?;
        eprintln!();
        let mut settings = self.settings();
        settings.extend(field.iter().filter_map(|one| one.runner.about()));
        let contestants = field.into_iter().zip(results);
        let mut report = Report {
            workload: self.workload.to_owned(),
            settings,
            seed: args.seed,
            environment,
            load_after: environment::load(),
            figures: self.figures,
            contestants: contestants
                .map(|(Competitor { name, .. }, samples)| Contestant { name, samples })
                .collect(),
            skipped,
            comparisons: Vec::new(),
        };
        report.compare();
        for name in &self.also_to {
            report.compare_to(name);
        }
        // How the others compare among each other is for who asks the JSON.
        let first = report.contestants[0].name.clone();
        report
            .comparisons
            .retain(|one| one.reference == first || one.contestant.starts_with("ours"));
        Ok(report)
    }

    fn set_up(&self, args: &Args) -> (Vec<Competitor>, Vec<Skipped>) {
        let mut field = Vec::new();
        let mut skipped = Vec::new();
        for (index, entry) in self.entries.iter().enumerate() {
            let any = |names: &[String]| names.iter().any(|name| entry.name.contains(name));
            let wanted = args.only.is_empty() || any(&args.only);
            if index > 0 && (!wanted || any(&args.except)) {
                continue;
            }
            let name = entry.name.clone();
            match (entry.prepare)(&self.job) {
                Ok(runner) => field.push(Competitor { name, runner }),
                Err(reason) => {
                    eprintln!("SKIPPED {name}: {reason}");
                    let reason = reason.to_string();
                    skipped.push(Skipped { name, reason });
                }
            }
        }
        (field, skipped)
    }

    /// The bytes are checked in the first round and in the last.
    fn turn(&self, field: &mut [Competitor], turn: Turn, last: bool) -> Result<Sample> {
        let Competitor { name, runner } = &mut field[turn.contestant];
        let residency = self.before.establish(&self.job)?;
        let round = turn.round.map_or(0, |round| round as u64 + 1);
        let named = |error| format!("{name}: {error}");
        let mut sample = runner.run(round).map_err(named)?;
        sample.residency = residency;
        if turn.round.is_none() || last {
            runner.check().map_err(named)?;
        }
        eprint!(".");
        Ok(sample)
    }

    fn settings(&self) -> BTreeMap<String, String> {
        let job = &self.job;
        let settings = [
            ("block", format!("{} KiB", job.block >> 10)),
            ("depth", job.depth.to_string()),
            ("file", format!("{} MiB", job.length >> 20)),
        ];
        settings
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .chain(self.circumstances.iter().cloned())
            .collect()
    }
}
