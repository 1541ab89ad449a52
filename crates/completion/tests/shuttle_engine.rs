//! Failure looked for: any, on several threads. Method: the whole model on shuttle threads: users
//! that submit, await, cancel and drop; a backend that starts, advances, fails, loses and finishes
//! parts; a clock; a disposer; a shutdown. Schedules are chosen at random and by PCT; shuttle prints
//! the schedule of a failing run. Run in the release profile:
//!
//! ```text
//! RUSTFLAGS="--cfg completion_shuttle" cargo test --release -p tokio-cufile-completion --test 'shuttle_*'
//! ```
//!
//! Sequentially consistent only: weak memory is loom's. No failure in N schedules bounds the rate
//! of failing schedules by 3/N with 95 % confidence, for these choices and no others.

#![cfg(completion_shuttle)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use shuttle::rand::{Rng as _, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::atomic::AtomicBool;
use shuttle::thread;
use support::hardware::Started;
use support::policies::{
    DropLedger, ForgetPermit, FreeOnCancel, FreeOnDeadline, WakeBeforePublish,
};
use support::simulation::{Choices, Fate, File, assert_end, random_end, random_want};
use support::wakers::block_on;
use support::{Job, World, assert_panics, ledger, limit, limits};
use tokio_cufile_completion::{Limits, ReleasePolicy, WhenQuiet};

const USERS: usize = 2;
const OPERATIONS: usize = 3;
const RANDOM_SCHEDULES: usize = 150_000;
const PCT_SCHEDULES: usize = 50_000;
const CONTROL_SCHEDULES: usize = 5_000;
/// The controls always run the same schedules: that they catch must not be luck.
const CONTROL_SEED: u64 = 1;

/// Shuttle's own generator, so that a schedule replays the choices too.
struct Shuttled;

impl Choices for Shuttled {
    fn below(&mut self, bound: u64) -> u64 {
        thread_rng().gen_range(0..bound)
    }
}

/// Set once the users are through.
type Through = Arc<AtomicBool>;

fn is_through(through: &Through) -> bool {
    through.load(Ordering::SeqCst)
}

fn user<P: ReleasePolicy>(world: &World<P>, file: &File) -> Vec<Fate> {
    let choices = &mut Shuttled;
    let mut fates = Vec::new();
    for _ in 0..OPERATIONS {
        let mut job = world.prepare(random_want(choices, file, world.now()));
        if choices.one_in(10) {
            job.cancel();
        }
        if choices.one_in(10) {
            job.drop_future();
            fates.push(Fate::dropped(&job));
            continue;
        }
        job.submit();
        if choices.one_in(3) {
            job.cancel();
        }
        if choices.one_in(3) {
            thread::yield_now();
            job.drop_future();
            fates.push(Fate::dropped(&job));
        } else {
            fates.push(wait_for(&mut job));
        }
    }
    fates
}

fn wait_for<P: ReleasePolicy>(job: &mut Job<P>) -> Fate {
    let mut handle = job.handle.take().expect("there");
    let outcome = block_on(std::future::poll_fn(move |cx| handle.poll_settled(cx)));
    Fate::awaited(job, &outcome.ending)
}

fn backend<P: ReleasePolicy>(world: &World<P>, through: &Through) {
    let choices = &mut Shuttled;
    loop {
        let last_round = is_through(through);
        while let Some(part) = world.take_part() {
            if choices.one_in(30) {
                drop(part);
                continue;
            }
            let Some((ticket, task)) = part.start() else {
                continue;
            };
            let started = Started::new(ticket, task);
            if choices.one_in(2) {
                let _ = started.advance();
            }
            if let Some(key) = random_end(world, choices, started)
                && choices.one_in(4)
            {
                world.core.lose(key);
            }
        }
        if last_round {
            return;
        }
        thread::yield_now();
    }
}

fn clock_and_disposer<P: ReleasePolicy>(world: &World<P>, through: &Through) {
    let choices = &mut Shuttled;
    while !is_through(through) {
        if choices.one_in(2) {
            world.advance_to(world.now() + choices.below(20));
        }
        world.dispose();
        thread::yield_now();
    }
}

fn whole<P: ReleasePolicy>() {
    let world = World::<P>::new(Limits {
        bytes: limit(900, 300),
        parts: limit(12, 1),
        slots: limit(9, 1),
        small_slots: limit(0, 0),
        queued_max: 4,
        ..limits()
    });
    let file = ledger();
    let through: Through = Arc::new(AtomicBool::new(false));
    let users: Vec<_> = (0..USERS)
        .map(|_| {
            let (world, file) = (world.clone(), Arc::clone(&file));
            thread::spawn(move || user(&world, &file))
        })
        .collect();
    let workers = [backend, clock_and_disposer].map(|work: fn(&World<P>, &Through)| {
        let (world, through) = (world.clone(), Arc::clone(&through));
        thread::spawn(move || work(&world, &through))
    });
    if Shuttled.one_in(2) {
        world.core.stop_all();
    }
    let mut fates = Vec::new();
    for user in users {
        fates.extend(user.join().expect("a user"));
    }
    world.core.close_admission();
    block_on(std::future::poll_fn(|cx| world.core.poll_drained(cx)));
    through.store(true, Ordering::SeqCst);
    for worker in workers {
        worker.join().expect("a worker");
    }
    while let Some(part) = world.take_part() {
        drop(part);
    }
    world.dispose();
    assert!(world.core.is_finished());
    assert_end(&world, &fates, &file);
}

fn check<P: ReleasePolicy>(scheduler: impl Scheduler + 'static) {
    let mut config = shuttle::Config::new();
    // A lost wake-up leaves the workers turning for ever: that ends here.
    config.max_steps = shuttle::MaxSteps::FailAfter(50_000);
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&runs);
    shuttle::Runner::new(scheduler, config).run(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        whole::<P>();
    });
    // Counted by `cargo xtask test`.
    println!("schedules run: {}", runs.load(Ordering::Relaxed));
}

#[test]
fn random_schedules_keep_every_invariant() {
    check::<WhenQuiet>(RandomScheduler::new(RANDOM_SCHEDULES));
}

#[test]
fn schedules_by_pct_keep_every_invariant() {
    check::<WhenQuiet>(PctScheduler::new(3, PCT_SCHEDULES));
}

/// What an operation that ends in flight does: its memory goes back too early, and, where it was a
/// write that somebody dropped, its outcome is lost with it. Either may be seen first.
const ENDED_IN_FLIGHT: [&str; 2] = ["memory was released in flight", "lost writes are recorded"];

fn assert_caught<P: ReleasePolicy>(reasons: &[&str]) {
    assert_panics(reasons, || {
        check::<P>(RandomScheduler::new_from_seed(
            CONTROL_SEED,
            CONTROL_SCHEDULES,
        ));
    });
}

#[test]
fn control_free_on_cancel_is_caught() {
    assert_caught::<FreeOnCancel>(&ENDED_IN_FLIGHT);
}

#[test]
fn control_free_on_deadline_is_caught() {
    assert_caught::<FreeOnDeadline>(&ENDED_IN_FLIGHT);
}

#[test]
fn control_a_dropped_ledger_is_caught() {
    assert_caught::<DropLedger>(&["lost writes are recorded"]);
}

#[test]
fn control_a_forgotten_permit_is_caught() {
    // Or, where the lost permits were the last, by operations that wait for them for ever.
    assert_caught::<ForgetPermit>(&["something is in flight", "exceeded max_steps"]);
}

#[test]
fn control_wake_before_publish_is_caught() {
    assert_caught::<WakeBeforePublish>(&["exceeded max_steps"]);
}
