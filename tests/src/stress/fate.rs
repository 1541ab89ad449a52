//! What becomes of a future: awaited, cancelled, late, or dropped at some point of its life.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use measure::data::Draws;
use tokio::sync::Notify;
use tokio_cufile::{Done, Engine, OpError, Priority, Transfer};

use super::counts::{Counts, Point, add};

/// Turns of the runtime that a drop waits at most for what it wants to see.
const TURNS_MAX: u64 = 2000;
/// Of the deadlines.
const DEADLINE_MICROS_MAX: u64 = 3000;

/// What is to become of a future.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Awaited,
    /// Cancelled after so many turns of the runtime; none is before the first poll.
    Cancelled(u64),
    Deadline(Duration),
    Dropped(Point),
}

impl Fate {
    /// 30 in 100 are dropped, 10 cancelled, 10 have a deadline.
    pub(super) fn draw(draws: &mut Draws) -> Self {
        match draws.below(100) {
            0..30 => Self::Dropped(match draws.below(12) {
                0 => Point::Unpolled,
                1..4 => Point::Queued,
                4..7 => Point::Issued,
                7..9 => Point::Between,
                9..11 => Point::Settled,
                _ => Point::UnderWay,
            }),
            30..40 => Self::Cancelled(turns(draws)),
            40..50 => Self::Deadline(Duration::from_micros(draws.below(DEADLINE_MICROS_MAX))),
            _ => Self::Awaited,
        }
    }
}

fn turns(draws: &mut Draws) -> u64 {
    match draws.below(3) {
        0 => 0,
        1 => 1 + draws.below(4),
        _ => 1 + draws.below(200),
    }
}

/// How it ended, as far as its task knows.
#[expect(clippy::large_enum_variant, reason = "it lives for one match")]
pub(super) enum End<B> {
    Settled(Result<Done<B>, OpError<B>>),
    /// What was issued goes on.
    Dropped(Point),
}

/// Says whether the disk is done and the copy is not, of an operation just submitted.
pub(super) type IsBetween<'a> = &'a (dyn Fn() -> bool + Send + Sync);

/// Lets a future meet its fate.
pub(super) async fn meet<B: Send + 'static>(
    engine: &Engine,
    counts: &Counts,
    transfer: Transfer<B>,
    fate: Fate,
    between: Option<IsBetween<'_>>,
) -> End<B> {
    let point = match fate {
        Fate::Awaited => return End::Settled(Box::pin(transfer).await),
        Fate::Deadline(after) => {
            add(&counts.timed_out, 1);
            let transfer = transfer.deadline(Instant::now() + after);
            return End::Settled(Box::pin(transfer).await);
        }
        Fate::Cancelled(turns) => {
            add(&counts.cancelled, 1);
            return End::Settled(cancel(transfer, turns).await);
        }
        Fate::Dropped(point) => point,
    };
    let end = match point {
        Point::Unpolled => {
            drop(transfer);
            End::Dropped(point)
        }
        Point::Queued => drop_queued(engine, transfer).await,
        Point::Settled => drop_settled(transfer).await,
        Point::Issued | Point::UnderWay => drop_issued(engine, transfer).await,
        Point::Between => match between {
            Some(is_between) => drop_between(transfer, is_between).await,
            None => drop_issued(engine, transfer).await,
        },
    };
    if let End::Dropped(point) = end {
        counts.dropped(point);
    }
    end
}

async fn cancel<B: Send + 'static>(
    transfer: Transfer<B>,
    turns: u64,
) -> Result<Done<B>, OpError<B>> {
    let handle = transfer.cancel_handle();
    let mut transfer = Box::pin(transfer);
    if turns > 0 {
        if let Some(outcome) = poll_once(transfer.as_mut()).await {
            return outcome;
        }
        for _ in 1..turns {
            tokio::task::yield_now().await;
        }
    }
    handle.cancel();
    transfer.await
}

/// Behind everything else: where anything waits afterwards, so does it.
async fn drop_queued<B: Send + 'static>(engine: &Engine, transfer: Transfer<B>) -> End<B> {
    let mut transfer = Box::pin(transfer.priority(Priority::Bulk));
    if let Some(outcome) = poll_once(transfer.as_mut()).await {
        return End::Settled(outcome);
    }
    let waits = engine.stats().operations_queued > 0;
    drop(transfer);
    End::Dropped(if waits {
        Point::Queued
    } else {
        Point::UnderWay
    })
}

/// Once nothing waits, what has not woken its task is with the hardware.
async fn drop_issued<B: Send + 'static>(engine: &Engine, transfer: Transfer<B>) -> End<B> {
    let mut transfer = Box::pin(transfer.priority(Priority::Urgent));
    let (bell, waker) = Bell::new();
    if let Poll::Ready(outcome) = transfer.as_mut().poll(&mut Context::from_waker(&waker)) {
        return End::Settled(outcome);
    }
    let mut point = Point::UnderWay;
    for _ in 0..TURNS_MAX {
        if bell.has_rung() {
            point = Point::Settled;
            break;
        }
        if engine.stats().operations_queued == 0 {
            point = Point::Issued;
            break;
        }
        tokio::task::yield_now().await;
    }
    drop(transfer);
    End::Dropped(point)
}

async fn drop_settled<B: Send + 'static>(transfer: Transfer<B>) -> End<B> {
    let mut transfer = Box::pin(transfer);
    let (bell, waker) = Bell::new();
    if let Poll::Ready(outcome) = transfer.as_mut().poll(&mut Context::from_waker(&waker)) {
        return End::Settled(outcome);
    }
    bell.ring.notified().await;
    drop(transfer);
    End::Dropped(Point::Settled)
}

async fn drop_between<B: Send + 'static>(
    transfer: Transfer<B>,
    is_between: IsBetween<'_>,
) -> End<B> {
    let mut transfer = Box::pin(transfer.priority(Priority::Urgent));
    let (bell, waker) = Bell::new();
    if let Poll::Ready(outcome) = transfer.as_mut().poll(&mut Context::from_waker(&waker)) {
        return End::Settled(outcome);
    }
    let mut seen = false;
    while !bell.has_rung() && !seen {
        seen = is_between();
        tokio::task::yield_now().await;
    }
    let point = match (bell.has_rung(), seen) {
        (true, _) => Point::Settled,
        (false, true) => Point::Between,
        (false, false) => Point::UnderWay,
    };
    drop(transfer);
    End::Dropped(point)
}

/// So many turns of the runtime.
pub(super) async fn turns_pass(turns: u64) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
}

/// Waits for it as long as the fate has it wait. `None`: it was late.
pub(super) async fn in_time<F: Future>(fate: Fate, whole: F) -> Option<F::Output> {
    match fate {
        Fate::Cancelled(turns) => tokio::select! {
            biased;
            end = whole => Some(end),
            () = turns_pass(turns) => None,
        },
        Fate::Deadline(after) => tokio::time::timeout(after, whole).await.ok(),
        Fate::Awaited | Fate::Dropped(_) => Some(whole.await),
    }
}

/// Polls with the task's own waker.
pub(super) async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
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
struct Bell {
    rung: AtomicBool,
    ring: Notify,
}

impl Bell {
    fn new() -> (Arc<Self>, Waker) {
        let bell = Arc::new(Self::default());
        let waker = Waker::from(Arc::clone(&bell));
        (bell, waker)
    }

    fn has_rung(&self) -> bool {
        self.rung.load(Ordering::Acquire)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        self.ring.notify_one();
    }
}
