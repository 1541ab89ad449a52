//! Failure looked for: any, in any order of calls. Method: random steps on one thread, invariants
//! after each (I3, I5, I9), everything drained at the end (I7, I8, I10). A failing run prints its
//! seed and the command that repeats it.

#![cfg(not(any(completion_loom, completion_shuttle)))]

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use support::hardware::{Started, outcome};
use support::policies::{DropLedger, ForgetPermit, FreeOnCancel, FreeOnDeadline, FreeOnDrop};
use support::simulation::{Choices, Fate, File, Seeded, assert_end, random_end, random_want};
use support::{Job, World, ledger, limit};
use tokio_cufile_completion::{IssuedPart, Limits, PartKey, ReleasePolicy, WhenQuiet};

const RUNS: u64 = if cfg!(miri) { 3 } else { 5000 };
const STEPS: u64 = if cfg!(miri) { 60 } else { 1000 };

struct Simulation<P: ReleasePolicy> {
    world: World<P>,
    file: File,
    choices: Seeded,
    jobs: Vec<Job<P>>,
    granted: Vec<IssuedPart<support::Fake<P>>>,
    started: Vec<Started<P>>,
    stale: Vec<PartKey>,
    fates: Vec<Fate>,
}

impl<P: ReleasePolicy> Simulation<P> {
    fn new(seed: u64) -> Self {
        let limits = Limits {
            bytes: limit(1000, 300),
            parts: limit(40, 2),
            slots: limit(20, 1),
            small_slots: limit(0, 0),
            queued_max: 20,
            ..support::limits()
        };
        Self {
            world: World::new(limits),
            file: ledger(),
            choices: Seeded(seed),
            jobs: Vec::new(),
            granted: Vec::new(),
            started: Vec::new(),
            stale: Vec::new(),
            fates: Vec::new(),
        }
    }

    fn step(&mut self) {
        match self.choices.below(24) {
            0..=2 => self.prepare(),
            3 => self.submit(),
            4..=7 => self.granted.extend(self.world.take_part()),
            8..=11 => self.start(),
            12..=15 => self.finish(),
            16..=17 => self.stop(),
            18..=20 => self.poll(),
            21 => self.let_go(),
            22 => self.pass_time(),
            _ => drop(self.world.dispose()),
        }
        self.audit();
    }

    fn pick<T>(choices: &mut Seeded, from: &mut Vec<T>) -> Option<T> {
        let count = u64::try_from(from.len()).expect("small");
        let index = usize::try_from(choices.below(count.max(1))).expect("small");
        (index < from.len()).then(|| from.swap_remove(index))
    }

    fn prepare(&mut self) {
        let now = self.world.now();
        let want = random_want(&mut self.choices, &self.file, now);
        self.jobs.push(self.world.prepare(want));
        if !self.choices.one_in(4) {
            self.submit();
        }
    }

    /// Submits the youngest, if it was not.
    fn submit(&mut self) {
        let Some(job) = self.jobs.last_mut() else {
            return;
        };
        if !job.submitted {
            job.submitted = true;
            job.submit();
        }
    }

    fn start(&mut self) {
        let Some(part) = Self::pick(&mut self.choices, &mut self.granted) else {
            return;
        };
        if self.choices.one_in(30) {
            return drop(part);
        }
        let started = part.start();
        self.started
            .extend(started.map(|(ticket, task)| Started::new(ticket, task)));
    }

    fn finish(&mut self) {
        if let Some(&key) = self.stale.last()
            && self.choices.one_in(10)
        {
            self.world.core.finish(key, outcome(1, Some("stale")));
        }
        let Some(started) = Self::pick(&mut self.choices, &mut self.started) else {
            return;
        };
        if self.choices.one_in(3) {
            let _ = started.advance();
        }
        let stale = random_end(&self.world, &mut self.choices, started);
        self.stale.extend(stale);
    }

    /// Cancels any operation, and often looks at once whether it has ended.
    fn stop(&mut self) {
        let Some(job) = Self::pick(&mut self.choices, &mut self.jobs) else {
            return;
        };
        job.cancel();
        self.jobs.push(job);
        if self.choices.one_in(2) {
            self.poll_last();
        }
    }

    fn poll(&mut self) {
        if let Some(job) = Self::pick(&mut self.choices, &mut self.jobs) {
            self.jobs.push(job);
            self.poll_last();
        }
    }

    fn poll_last(&mut self) {
        let Some(mut job) = self.jobs.pop() else {
            return;
        };
        match job.poll() {
            None => self.jobs.push(job),
            Some(outcome) => self.fates.push(Fate::awaited(&job, &outcome.ending)),
        }
    }

    fn let_go(&mut self) {
        if let Some(mut job) = Self::pick(&mut self.choices, &mut self.jobs) {
            job.drop_future();
            self.fates.push(Fate::dropped(&job));
        }
    }

    fn pass_time(&mut self) {
        let now = self.world.now();
        let rarely_long = if self.choices.one_in(20) { 150 } else { 20 };
        self.world.advance_to(now + self.choices.below(rarely_long));
    }

    fn audit(&self) {
        self.world.check();
        for started in &self.started {
            started.task.hit();
        }
    }

    /// Ends everything: the backend first or the users first, with or without a stop.
    fn end(mut self) {
        if self.choices.one_in(2) {
            self.world.core.close_admission();
        } else {
            self.world.core.stop_all();
        }
        while !self.jobs.is_empty() || !self.started.is_empty() || !self.granted.is_empty() {
            match self.choices.below(5) {
                0 => self.let_go(),
                1 => self.poll(),
                2 => self.start(),
                3 => drop(self.world.dispose()),
                _ => self.finish(),
            }
            self.granted.extend(self.world.take_part());
            self.audit();
        }
        self.world.dispose();
        while let Some(started) = self.world.try_start() {
            started.finish();
            self.world.dispose();
        }
        assert!(self.world.poll_drained().is_ready(), "never drained");
        assert!(self.world.core.is_finished());
        assert_end(&self.world, &self.fates, &self.file);
    }
}

fn run<P: ReleasePolicy>(seed: u64) {
    let mut simulation = Simulation::<P>::new(seed);
    for _ in 0..STEPS {
        simulation.step();
    }
    simulation.end();
}

#[test]
fn random_steps_keep_every_invariant() {
    #[expect(clippy::disallowed_methods, reason = "the way to repeat a run")]
    let wanted = std::env::var("COMPLETION_SEED").ok();
    let wanted = wanted.map(|seed| seed.parse::<u64>().expect("a number"));
    let seeds = wanted.map_or(0..RUNS, |seed| seed..seed + 1);
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run::<WhenQuiet>(seed))) {
            eprintln!("seed {seed}; repeat with");
            eprintln!(
                "COMPLETION_SEED={seed} cargo test -p tokio-cufile-completion --test state_machine"
            );
            resume_unwind(panic);
        }
    }
}

/// How many of `RUNS` seeds catch a broken engine.
fn catches<P: ReleasePolicy>() -> usize {
    let caught = |seed: &u64| catch_unwind(AssertUnwindSafe(|| run::<P>(*seed))).is_err();
    (0..RUNS.min(50)).filter(caught).count()
}

#[test]
fn broken_engines_do_not_survive_random_steps() {
    if cfg!(miri) {
        return;
    }
    assert!(catches::<FreeOnCancel>() > 0, "free on cancel");
    assert!(catches::<FreeOnDeadline>() > 0, "free on deadline");
    assert!(catches::<FreeOnDrop>() > 0, "free on drop");
    assert!(catches::<DropLedger>() > 0, "ledger dropped");
    assert!(catches::<ForgetPermit>() > 0, "permit forgotten");
}
