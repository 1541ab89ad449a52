//! Batches: each submission is a thread that does one request after the other, in an order that the
//! seed chooses.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sim_common::Rng;
use sim_common::monitor::{self, lock};

use crate::code::{self, Fail, Result};
use crate::cuda;
use crate::faults::script::{Place, Subject};
use crate::state::State;
use crate::transfer::{self, InFlight, Request};

static BATCHES: Mutex<BTreeMap<usize, Arc<Batch>>> = Mutex::new(BTreeMap::new());
static SERIAL: AtomicUsize = AtomicUsize::new(1);
/// Handles are numbers that no pointer can be.
const HANDLE: usize = 0xBA7C << 48;

#[derive(Debug)]
struct Batch {
    room: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    submitted: usize,
    is_cancelled: bool,
    ended: VecDeque<Ended>,
}

/// What is told of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) cookie: usize,
    pub(crate) status: u32,
    pub(crate) ret: isize,
}

const CANCELED: u32 = 0x8;
const COMPLETE: u32 = 0x10;
const FAILED: u32 = 0x40;

pub(crate) fn set_up(room: usize) -> usize {
    let handle = HANDLE | SERIAL.fetch_add(1, Ordering::Relaxed);
    let batch = Batch {
        room,
        inner: Mutex::default(),
    };
    lock(&BATCHES).insert(handle, Arc::new(batch));
    handle
}

fn find(handle: usize) -> Result<Arc<Batch>> {
    let found = lock(&BATCHES).get(&handle).cloned();
    found.ok_or(Fail::Code(code::INVALID_VALUE))
}

pub(crate) fn submit(
    state: &'static State,
    handle: usize,
    mut requests: Vec<(Request, usize)>,
) -> Result {
    let batch = find(handle)?;
    let mut inner = lock(&batch.inner);
    if inner.submitted + requests.len() > batch.room {
        return Err(Fail::Code(code::BATCH_FULL));
    }
    inner.submitted += requests.len();
    drop(inner);
    lock(&state.inner).stats.batch_submits.count(true);
    let mut rng = Rng::new(state.settings.seed, handle as u64);
    for last in (1..requests.len()).rev() {
        let other = rng.below(last as u64 + 1);
        requests.swap(last, usize::try_from(other).unwrap_or(0));
    }
    let held = |(request, _): &(Request, usize)| InFlight::new(state, request.handle, request.base);
    let in_flight: Vec<_> = requests.iter().map(held).collect();
    let run = move || {
        for ((request, cookie), held) in requests.into_iter().zip(in_flight) {
            let ended = batch.execute(state, &request, cookie);
            drop(held);
            lock(&batch.inner).ended.push_back(ended);
            monitor::ring();
        }
    };
    let spawned = std::thread::Builder::new()
        .name("sim-batch".into())
        .spawn(run);
    spawned
        .map(drop)
        .map_err(|_| Fail::Code(code::INTERNAL_ERROR))
}

impl Batch {
    fn execute(&self, state: &'static State, request: &Request, cookie: usize) -> Ended {
        if lock(&self.inner).is_cancelled {
            return Ended {
                cookie,
                status: CANCELED,
                ret: 0,
            };
        }
        let subject = if request.write {
            Subject::Write
        } else {
            Subject::Read
        };
        let path = transfer::path(state, request.handle);
        let place = Place {
            device: cuda::get().and_then(|cuda| cuda.device_of(request.base)),
            file: Some(&path),
        };
        let spoiled = state.faults.at(subject, place);
        let told = spoiled.and_then(|spoiled| transfer::perform(state, request, &spoiled));
        let (status, ret) = match told {
            Ok(told) => (COMPLETE, told),
            Err(fail) => (FAILED, fail.negated()),
        };
        Ended {
            cookie,
            status,
            ret,
        }
    }
}

/// Waits for at least `least` ends or for the time, and takes no more than `room`.
pub(crate) fn status(
    handle: usize,
    (least, room): (usize, usize),
    timeout: Option<Duration>,
) -> Result<Vec<Ended>> {
    let batch = find(handle)?;
    let end = timeout.map(|timeout| Instant::now() + timeout);
    let least = least.min(room);
    let has = || lock(&batch.inner).ended.len() >= least;
    match end {
        None => monitor::wait(has),
        Some(end) => {
            while !has() && Instant::now() < end {
                monitor::pause(Duration::from_micros(50));
            }
        }
    }
    let mut inner = lock(&batch.inner);
    let count = inner.ended.len().min(room);
    inner.submitted -= count;
    Ok(inner.ended.drain(..count).collect())
}

pub(crate) fn cancel(handle: usize) -> Result {
    lock(&find(handle)?.inner).is_cancelled = true;
    Ok(())
}

pub(crate) fn destroy(handle: usize) {
    lock(&BATCHES).remove(&handle);
}
