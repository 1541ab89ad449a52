//! The completion model itself, on threads, with simulated hardware: a million operations in the
//! time that a disk takes for some thousands.
//!
//! The world, its release policies and its judgement are those of the tests of `completion`, by
//! path. What is added here are bytes: hardware stores into memory that the harness fences, fills and
//! watches, so that a broken policy is caught by what it would do to a program.

mod ground;
mod hardware;
#[path = "../../../../crates/completion/tests/support/mod.rs"]
mod support;
mod user;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use measure::data::Draws;
use tokio_cufile_completion::{Limits, ReleasePolicy, WhenQuiet};

use self::ground::{Arena, SLOTS};
use self::support::simulation::{Ends, Fate};
use self::support::{World, ledger, limit, limits, policies};
use super::acts::Act;
use super::args::Args;
use super::content::Content;
use super::counts::{Counts, Fault, Harm, Point, add, read};
use super::lock;

/// Operations until a broken policy must be caught; most are in the first thousands.
const BROKEN_OPS: usize = 200_000;
/// Operations of one world. It ends with a shutdown.
const WORLD: usize = 2000;
const USERS: usize = 2;
/// Bytes of each user's file.
const FILE_LEN: u64 = 16 << 10;
/// How long nothing may be submitted.
const STUCK_MAX: Duration = Duration::from_secs(10);
/// How long a world may take to end.
const END_MAX: Duration = Duration::from_secs(10);

/// What the threads of a world share.
pub(super) struct Shared {
    arena: Arc<Arena>,
    counts: Arc<Counts>,
    faults: Vec<Fault>,
    /// Users that have submitted all they will.
    through: AtomicUsize,
    /// Nothing is live any more, as the engine says.
    drained: AtomicBool,
    /// The hardware may end.
    over: AtomicBool,
    /// Nothing has moved for long, or a thread has panicked: everybody ends.
    given_up: AtomicBool,
    /// Is woken when there is work.
    hardware: OnceLock<Thread>,
}

/// Turns of the hardware between two looks at the clock.
const TICK: u64 = 8;

/// What a thread waits for at most that finds nothing to do. Nobody spins: on a machine that is busy
/// elsewhere, threads that give way again and again do not get far.
const PAUSE: Duration = Duration::from_micros(50);

impl Shared {
    fn wake_hardware(&self) {
        if let Some(hardware) = self.hardware.get() {
            hardware.unpark();
        }
    }

    fn give_up(&self, why: impl FnOnce() -> String) {
        self.counts.harm(Harm::Lost, 1, why);
        self.given_up.store(true, Ordering::Release);
    }

    /// Waits for so many steps of the users.
    fn wait_for(&self, through: usize) {
        let mut seen = (Instant::now(), 0);
        while self.through.load(Ordering::Acquire) < through && !is_set(&self.given_up) {
            let ops = read(&self.counts.ops);
            if ops != seen.1 {
                seen = (Instant::now(), ops);
            } else if seen.0.elapsed() > STUCK_MAX {
                self.give_up(|| format!("stuck after {ops} operations"));
            }
            thread::park_timeout(PAUSE);
        }
    }
}

/// A thread of a world. One that panics ends the world.
fn guarded(shared: &Shared, work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        shared.give_up(|| "a thread has panicked".to_owned());
    }
}

fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Acquire)
}

/// When a run ends early.
#[derive(Clone, Copy)]
enum Enough {
    AnyHarm,
    /// Other harm goes with it, and may be seen first.
    CaughtBy(&'static [Harm]),
}

impl Enough {
    fn is_seen(self, counts: &Counts) -> bool {
        match self {
            Self::AnyHarm => !counts.is_clean(),
            Self::CaughtBy(by) => by.iter().any(|harm| counts.harmed(*harm) > 0),
        }
    }
}

/// A release policy that is broken, and what it must be caught by.
pub(super) struct Broken {
    pub(super) name: &'static str,
    pub(super) by: &'static [Harm],
    run: fn(&Args, &Arc<Counts>, Enough),
}

/// Those that random operations can tell from the right one.
pub(super) const BROKEN: [Broken; 9] = [
    Broken {
        name: "free-on-cancel",
        by: &[Harm::LateWrite],
        run: worlds::<policies::FreeOnCancel>,
    },
    Broken {
        name: "free-on-deadline",
        by: &[Harm::LateWrite],
        run: worlds::<policies::FreeOnDeadline>,
    },
    Broken {
        name: "free-on-drop",
        by: &[Harm::LateWrite],
        run: worlds::<policies::FreeOnDrop>,
    },
    Broken {
        name: "ignore-generation",
        // Or by the model's own assertion that permits add up, whose panic loses operations.
        by: &[Harm::Double, Harm::LateWrite, Harm::Lost],
        run: worlds::<policies::IgnoreGeneration>,
    },
    Broken {
        name: "drop-ledger",
        by: &[Harm::Lost],
        run: worlds::<policies::DropLedger>,
    },
    Broken {
        name: "free-slot-early",
        by: &[Harm::Corrupt],
        run: worlds::<policies::FreeSlotEarly>,
    },
    Broken {
        name: "free-payload-early",
        // A source that is used for something else while a part still has to read it.
        by: &[Harm::Corrupt],
        run: worlds::<policies::FreePayloadEarly>,
    },
    Broken {
        name: "wake-before-publish",
        by: &[Harm::Lost],
        run: worlds::<policies::WakeBeforePublish>,
    },
    Broken {
        name: "forget-permit",
        by: &[Harm::Leaked],
        run: worlds::<policies::ForgetPermit>,
    },
];

/// Operations with the shipped policy. Says what never happened, and should have.
pub(super) fn run(args: &Args, counts: &Arc<Counts>) -> Vec<&'static str> {
    worlds::<WhenQuiet>(args, counts, Enough::AnyHarm);
    let mut missed = counts.acts.missed(&[Act::Staged], false);
    missed.append(&mut counts.missed(&args.faults, &Point::ALL[..5]));
    missed
}

impl Broken {
    /// Operations with the broken policy, as many as it takes.
    pub(super) fn run(&self, args: &Args, counts: &Arc<Counts>) {
        let args = Args {
            ops: args.ops.max(BROKEN_OPS),
            ..args.clone()
        };
        (self.run)(&args, counts, Enough::CaughtBy(self.by));
    }
}

fn worlds<P: ReleasePolicy>(args: &Args, counts: &Arc<Counts>, enough: Enough) {
    let arena = Arena::new(counts);
    let until = args.time.map(|time| Instant::now() + time);
    for (number, start) in (0..args.ops).step_by(WORLD).enumerate() {
        let operations = WORLD.min(args.ops - start);
        let seed = args.seed ^ ((number as u64 + 1) << 32);
        arena.reset();
        let shared = Shared {
            arena: Arc::clone(&arena),
            counts: Arc::clone(counts),
            faults: args.faults.clone(),
            through: AtomicUsize::new(0),
            drained: AtomicBool::new(false),
            over: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            hardware: OnceLock::new(),
        };
        one_world::<P>(&shared, operations, seed);
        let is_late = until.is_some_and(|until| Instant::now() >= until);
        if is_late || enough.is_seen(counts) {
            break;
        }
    }
}

/// Small, so that operations wait; but large enough for what is lost in one world.
fn limits_of_a_world() -> Limits {
    Limits {
        bytes: limit(40 * 512, 2048),
        parts: limit(40, 4),
        slots: limit(SLOTS as u64, 1),
        small_slots: limit(0, 0),
        queued_max: 64,
        ..limits()
    }
}

fn one_world<P: ReleasePolicy>(shared: &Shared, operations: usize, seed: u64) {
    let world = World::<P>::new(limits_of_a_world());
    let file = ledger();
    let fates = Mutex::new(Vec::<Fate>::new());
    let world = &world;
    thread::scope(|scope| {
        for user in 0..USERS {
            let (file, fates) = (&file, &fates);
            let seed = seed ^ (user as u64) << 60;
            let mut draws = Draws::new(seed);
            let content = Content::new(seed, &mut draws, FILE_LEN, |draws| 8 + draws.below(300));
            let operations = operations / USERS;
            let fly = move || {
                let mut user = user::User::new(world, shared, file, content, draws);
                user.fly(operations);
                lock(fates).append(&mut user.into_fates());
            };
            scope.spawn(move || guarded(shared, fly));
        }
        let (hardware, time) = (seed ^ 0xda, seed ^ 0x7e);
        scope.spawn(move || guarded(shared, || hardware::work(world, shared, hardware)));
        scope.spawn(move || guarded(shared, || keep_time(world, shared, time)));
        end(world, shared);
    });
    world.dispose();
    shared.arena.sweep(true);
    let slots = world.check().slots;
    let is_home = slots.free + slots.quarantined == slots.capacity;
    add(&shared.counts.slots_bad, u64::from(!is_home));
    judge(&Ends::of(world, &lock(&fates), &file), shared);
    add(&shared.counts.rounds, 1);
}

/// The clock and the disposer.
fn keep_time<P: ReleasePolicy>(world: &World<P>, shared: &Shared, seed: u64) {
    let mut draws = Draws::new(seed);
    let mut last = 0;
    while !is_set(&shared.over) {
        // Time goes with the hardware, however slow the machine makes that.
        let turns = shared.arena.turns.load(Ordering::Acquire);
        if turns >= last + TICK {
            last = turns;
            world.advance_to(world.now() + draws.below(20));
        }
        world.dispose();
        thread::park_timeout(PAUSE);
    }
}

/// Shuts the world down once the users have submitted all they will.
fn end<P: ReleasePolicy>(world: &World<P>, shared: &Shared) {
    shared.wait_for(USERS);
    world.core.stop_all();
    let until = Instant::now() + END_MAX;
    while world.poll_drained().is_pending() {
        if Instant::now() >= until {
            let message = || format!("no end of the shutdown: {:?}", world.core.census());
            shared.counts.harm(Harm::Lost, 1, message);
            break;
        }
        thread::park_timeout(PAUSE);
    }
    shared.drained.store(true, Ordering::Release);
    shared.wait_for(2 * USERS);
    let is_over = || world.core.is_finished() && matches!(world.poll_drained(), Poll::Ready(_));
    while !is_over() && Instant::now() < until {
        thread::park_timeout(PAUSE);
    }
    shared.over.store(true, Ordering::Release);
}

fn judge(ends: &Ends, shared: &Shared) {
    let counts = &shared.counts;
    let message = || format!("{ends:?}");
    add(&counts.quarantined, ends.quarantined);
    add(&counts.expected, ends.leaked);
    add(&counts.permits_bad, u64::from(!ends.left.is_empty()));
    counts.harm(Harm::Leaked, ends.left.len() as u64, message);
    let differ = ends.leaked.abs_diff(ends.quarantined);
    counts.harm(Harm::Leaked, differ, message);
    counts.harm(Harm::Double, ends.doubled + ends.strayed, message);
    let unknown = ends.recorded.abs_diff(ends.lost);
    counts.harm(Harm::Lost, unknown, message);
}
