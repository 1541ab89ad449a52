//! One operation after another, and when its future is dropped.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use measure::data::Draws;
use tokio::sync::Notify;
use tokio_cufile::{DeviceBuffer, DevicePart, OpError, Transfer};

use super::field::{Kind, Place, REGIONS};
use super::{Buffer, Storm};

/// When a future is dropped. A third of them are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Awaited,
    BeforePoll,
    /// After the first poll and so many turns of the runtime.
    InFlight(u64),
    /// It woke its task, and nobody asked it.
    AfterSettle,
}

impl Fate {
    fn draw(draws: &mut Draws) -> Self {
        match draws.below(9) {
            0 => Self::BeforePoll,
            1 => {
                let most = match draws.below(3) {
                    0 => 1,
                    1 => 16,
                    _ => 1000,
                };
                Self::InFlight(draws.below(most))
            }
            2 => Self::AfterSettle,
            _ => Self::Awaited,
        }
    }
}

/// How an operation ended, as far as its task knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    Failed,
    DroppedBefore,
    DroppedInFlight,
    DroppedAfter,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    next: AtomicUsize,
    reads: AtomicU64,
    writes: AtomicU64,
    bytes: AtomicU64,
    ends: [AtomicU64; 5],
    first_failure: Mutex<Option<String>>,
    /// What each task is at.
    flying: Vec<Mutex<Option<(Work, Fate)>>>,
}

impl Counts {
    pub(super) fn new(tasks: usize) -> Self {
        Self {
            flying: (0..tasks).map(|_| Mutex::new(None)).collect(),
            ..Self::default()
        }
    }

    /// The number of the next operation.
    pub(super) fn begin_at(&self, index: usize) {
        self.next.store(index, Ordering::Relaxed);
    }

    /// How many operations are over for their tasks.
    pub(super) fn ended(&self) -> u64 {
        self.ends
            .iter()
            .map(|end| end.load(Ordering::Relaxed))
            .sum()
    }

    /// One line on what the tasks are at.
    pub(super) fn flying(&self) -> String {
        let each = self.flying.iter().filter_map(|one| *lock(one));
        let each: Vec<String> = each
            .map(|(work, fate)| format!("{fate:?} {work:?}"))
            .collect();
        each.join(", ")
    }

    fn of(&self, end: End) -> u64 {
        self.ends[end as usize].load(Ordering::Relaxed)
    }

    pub(super) fn failures(&self) -> u64 {
        self.of(End::Failed)
    }

    fn note(&self, kind: Kind, bytes: usize, end: End) {
        let of_kind = if kind == Kind::Read {
            &self.reads
        } else {
            &self.writes
        };
        of_kind.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.ends[end as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn failed(&self, error: &OpError<DevicePart>) {
        let mut first = lock(&self.first_failure);
        first.get_or_insert_with(|| error.to_string());
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (reads, writes) = (
            self.reads.load(Ordering::Relaxed),
            self.writes.load(Ordering::Relaxed),
        );
        write!(
            f,
            "{} operations ({reads} reads, {writes} writes, {} MiB; dropped: {} before the first \
             poll, {} in flight, {} after settling), {} failed",
            reads + writes,
            self.bytes.load(Ordering::Relaxed) >> 20,
            self.of(End::DroppedBefore),
            self.of(End::DroppedInFlight),
            self.of(End::DroppedAfter),
            self.failures(),
        )?;
        let first = lock(&self.first_failure);
        first
            .as_ref()
            .map_or(Ok(()), |first| write!(f, " (first: {first})"))
    }
}

/// Where an operation works, for its task to note what came of it.
#[derive(Clone, Copy, Debug)]
struct Work {
    kind: Kind,
    buffer: usize,
    place: usize,
    /// Which of the place's regions, for a write.
    region: usize,
    /// In the file.
    offset: u64,
    length: usize,
}

/// Does operations until all are taken.
pub(super) async fn fly(storm: Arc<Storm>, task: usize) {
    loop {
        let index = storm.counts.next.fetch_add(1, Ordering::Relaxed);
        if index >= storm.operations {
            return;
        }
        let mut draws = Draws::new(storm.seed ^ ((index as u64 + 1) << 20));
        let fate = Fate::draw(&mut draws);
        let (work, part) = take_place(&storm, &mut draws).await;
        let handle = usize::try_from(draws.below(3)).unwrap_or(0);
        let transfer = match work.kind {
            Kind::Write => storm.writers[handle].write_all_at(part, work.offset),
            Kind::Read | Kind::Still => storm.readers[handle].read_exact_at(part, work.offset),
        };
        // The part comes back with the future, or later: the place is noted first, so that whoever
        // has it next notes after us.
        *lock(&storm.counts.flying[task]) = Some((work, fate));
        let end = meet(&storm, transfer, fate, work).await;
        storm.counts.note(work.kind, work.length, end);
        *lock(&storm.counts.flying[task]) = None;
    }
}

/// A place that nobody has, and where in a file it is to go to or come from.
async fn take_place(storm: &Storm, draws: &mut Draws) -> (Work, DevicePart) {
    let below =
        |draws: &mut Draws, bound: usize| usize::try_from(draws.below(bound as u64)).unwrap_or(0);
    loop {
        let buffer = below(draws, storm.buffers.len());
        {
            let mut locked = lock(&storm.buffers[buffer]);
            let Buffer { memory, layout } = &mut *locked;
            let place = below(draws, layout.places.len());
            let Place {
                kind,
                range,
                regions,
                ..
            } = &layout.places[place];
            let lend = |memory: &mut DeviceBuffer| memory.part(range.clone());
            let memory = memory.as_mut().filter(|_| *kind != Kind::Still);
            let free = memory.map(lend);
            if let Some(Ok(part)) = free {
                let region = below(draws, REGIONS);
                let offset = match kind {
                    Kind::Write => regions[region].0,
                    Kind::Read | Kind::Still => {
                        let offset = draws.below(storm.data.length - range.len() as u64);
                        // Half of them where a block begins.
                        if draws.below(2) == 0 {
                            offset
                        } else {
                            offset & !0xfff
                        }
                    }
                };
                let work = Work {
                    kind: *kind,
                    buffer,
                    place,
                    region,
                    offset,
                    length: range.len(),
                };
                return (work, part);
            }
        }
        // It is in flight for somebody, or for nobody any more.
        tokio::task::yield_now().await;
    }
}

/// Lets a future meet its fate, and notes what its bytes may be.
async fn meet(storm: &Storm, transfer: Transfer<DevicePart>, fate: Fate, work: Work) -> End {
    let mut transfer = Box::pin(transfer);
    let dropped = match fate {
        Fate::BeforePoll => End::DroppedBefore,
        Fate::Awaited => return settle(storm, transfer.await, work),
        Fate::InFlight(turns) => {
            if let Some(result) = poll_once(transfer.as_mut()).await {
                return settle(storm, result, work);
            }
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            End::DroppedInFlight
        }
        Fate::AfterSettle => {
            let bell = Arc::new(Bell::default());
            let waker = Waker::from(Arc::clone(&bell));
            let polled = transfer.as_mut().poll(&mut Context::from_waker(&waker));
            if let Poll::Ready(result) = polled {
                return settle(storm, result, work);
            }
            bell.0.notified().await;
            End::DroppedAfter
        }
    };
    if dropped != End::DroppedBefore {
        note(storm, work, false);
    }
    drop(transfer);
    dropped
}

type Outcome = Result<tokio_cufile::Done<DevicePart>, OpError<DevicePart>>;

fn settle(storm: &Storm, outcome: Outcome, work: Work) -> End {
    match outcome {
        Ok(done) => {
            note(storm, work, true);
            // Now the place may be taken by somebody else.
            drop(done);
            End::Done
        }
        Err(error) => {
            note(storm, work, false);
            storm.counts.failed(&error);
            End::Failed
        }
    }
}

/// Notes where the bytes came to, for certain or not.
fn note(storm: &Storm, work: Work, certain: bool) {
    let mut locked = lock(&storm.buffers[work.buffer]);
    let place = &mut locked.layout.places[work.place];
    let content = match work.kind {
        Kind::Write => &mut place.regions[work.region].1,
        Kind::Read | Kind::Still => &mut place.content,
    };
    if certain {
        content.became(work.offset);
    } else {
        content.may_have_become(work.offset);
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

/// Rings when a future wakes its task.
#[derive(Default)]
struct Bell(Notify);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}
