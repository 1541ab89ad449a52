//! Positive controls: what is broken on purpose must be caught, and by what is there to catch it.
#![allow(
    unsafe_code,
    reason = "closes a ring with a read in flight, as a broken engine would"
)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::panic;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, squeue, types};
use measure::data::Draws;
use tokio_cufile::{Engine, HostBuffer};

use super::arena::{self, Arena, InHost};
use super::args::Args;
use super::counts::{Counts, Harm, read};
use super::field::text;
use super::model;
use crate::SlowFs;
use crate::skip::skip;
use crate::slow_fs::Kind;

const RING_CLOSED: &str = "ring-closed";
const BLOCK: usize = 4096;
/// How long the late write may take.
const LATE_MAX: Duration = Duration::from_secs(5);

/// Runs the control of that name, or all. Says whether all of them were caught.
pub(super) fn run(args: &Args, name: &str) -> Result<bool, String> {
    let wanted = |of: &str| name == "all" || name == of;
    let (mut ran, mut caught) = (0, 0);
    for broken in model::BROKEN.iter().filter(|broken| wanted(broken.name)) {
        let counts = Arc::new(Counts::default());
        println!(
            "control {}: what is printed until its verdict is part of it",
            broken.name
        );
        quietly(|| broken.run(args, &counts));
        ran += 1;
        caught += u64::from(judge(broken.name, &counts, broken.by));
    }
    if wanted(RING_CLOSED) {
        match ring_closed(args.seed)? {
            Some(late_writes) => {
                let counts = Counts::default();
                counts.harm(Harm::LateWrite, late_writes, || "as above".to_owned());
                super::counts::add(&counts.ops, 1);
                ran += 1;
                caught += u64::from(judge(RING_CLOSED, &counts, &[Harm::LateWrite]));
            }
            None => println!("SKIPPED {RING_CLOSED}: it needs FUSE and io_uring"),
        }
    }
    if ran == 0 {
        let names: Vec<&str> = model::BROKEN.iter().map(|broken| broken.name).collect();
        let names = names.join(", ");
        return Err(format!(
            "no control is called `{name}`: {names}, {RING_CLOSED}, all"
        ));
    }
    println!(
        "{caught} of {ran} controls were caught; again: {}",
        args.again()
    );
    Ok(caught == ran)
}

/// Broken code panics, often many times: a line each, without the stack that would fill a log.
fn quietly(work: impl FnOnce()) {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string);
        eprintln!("  a panic at {}", place.unwrap_or_default());
    }));
    work();
    panic::set_hook(hook);
}

/// Whether it was caught, and for the right reason.
fn judge(name: &str, counts: &Counts, by: &[Harm]) -> bool {
    let is_caught = read(&counts.ops) > 0 && by.iter().any(|harm| counts.harmed(*harm) > 0);
    println!("  {counts}");
    for message in counts.messages().iter().take(2) {
        let short: String = message.chars().take(160).collect();
        println!("  {short}");
    }
    let word = if is_caught { "CAUGHT" } else { "NOT CAUGHT" };
    println!("{word} {name} by {by:?}");
    is_caught
}

/// A ring is closed with a read in flight, and its memory counts as free: how many cells the arena
/// finds changed. `None` where the machine lacks what it takes.
fn ring_closed(seed: u64) -> Result<Option<u64>, String> {
    let Some(fs) = SlowFs::mount(4 * BLOCK) else {
        return Ok(None);
    };
    let Ok(mut ring) = IoUring::new(8) else {
        skip("needs-io-uring", "no ring can be made");
        return Ok(None);
    };
    let engine = Engine::builder().build_blocking().map_err(text)?;
    let ground = HostBuffer::new(&engine, arena::length(arena::FEW)).map_err(text)?;
    let arena = Arena::new(ground, InHost(()), arena::FEW, Duration::ZERO);
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(fs.path())
        .map_err(text)?;
    // Of a cell with room enough for the part to begin at a page, as direct I/O wants it.
    let mut draws = Draws::new(seed);
    let (held, mut part) = loop {
        let taken = arena.take(&mut draws, 3 * BLOCK).ok_or("no cell is free")?;
        if taken.1.as_slice().as_ptr().addr().is_multiple_of(BLOCK) {
            break taken;
        }
        arena.give_back(taken.0, taken.1);
    };
    let address = part.as_mut_slice().as_mut_ptr();
    let length = u32::try_from(BLOCK).map_err(text)?;
    let read = opcode::Read::new(types::Fd(file.as_raw_fd()), address, length);
    // By a thread of the kernel's: this one would wait for the file system.
    let entry = read.build().flags(squeue::Flags::ASYNC);
    fs.hold(Kind::Read);
    // SAFETY: the memory belongs to the arena, which outlives the read: it is held until the write
    // was seen or has not come for long, and leaked with the buffer otherwise.
    unsafe { ring.submission().push(&entry) }.map_err(text)?;
    ring.submit().map_err(text)?;
    let in_flight = fs.next_held();
    drop(ring);
    arena.give_back(held, part);
    fs.pass(Kind::Read);
    in_flight.release();
    let until = Instant::now() + LATE_MAX;
    while arena.is_resting_whole() && Instant::now() < until {
        std::thread::yield_now();
    }
    arena.sweep();
    Ok(Some(arena.harm().late))
}
