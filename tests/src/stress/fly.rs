//! One operation: drawn from its number, and flown on some memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use measure::data::Draws;
use tokio_cufile::{AsyncCuFile, IoBufMut, Transfer};

use super::acts::Act;
use super::arena::{Access, Arena, Ground, Held};
use super::content::{Claim, Written};
use super::counts::{Point, add};
use super::devices::{Role, Turn};
use super::fate::{End, Fate, meet};
use super::field::Epoch;
use super::foreign::{self, Carries};
use super::{lock, staged, streams, writers};

/// Bytes of most operations, at most.
const LEN_MAX: u64 = 200 << 10;
/// On a device that may hang nobody waits for ever.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);

/// Does operations until all are taken, or time is up.
pub(super) async fn fly(epoch: Arc<Epoch>, task: usize) -> Result<(), String> {
    loop {
        let index = epoch.next.fetch_add(1, Ordering::Relaxed);
        let late = epoch.until.is_some_and(|until| Instant::now() >= until);
        if index >= epoch.end || late {
            return Ok(());
        }
        number(&epoch, task, index).await?;
    }
}

/// Does one operation.
pub(super) async fn number(epoch: &Arc<Epoch>, task: usize, index: usize) -> Result<(), String> {
    let mut draws = Draws::new(epoch.seed ^ ((index as u64 + 1) << 20));
    one(epoch, task, &mut draws).await?;
    add(&epoch.counts.ops, 1);
    lock(&epoch.flying[task]).clear();
    Ok(())
}

async fn one(epoch: &Arc<Epoch>, task: usize, draws: &mut Draws) -> Result<(), String> {
    epoch.gather();
    let subject = epoch.files.draw(draws);
    let (mut act, fate) = (Act::draw(draws), Fate::draw(draws));
    *lock(&epoch.flying[task]) = format!("{act:?} {fate:?} of file {subject}");
    if epoch.is_stuck {
        // As on a device that is doomed, below.
        act = act.visible();
    }
    match act {
        Act::Inspect => return epoch.inspect(subject).await,
        Act::Stream => {
            streams::read(epoch, subject, fate, draws).await;
            return Ok(());
        }
        _ => {}
    }
    let turn = match draws.below(2) {
        0 => epoch.devices.enter(draws),
        _ => None,
    };
    on_some_memory(epoch, (subject, act, fate), turn, draws).await;
    Ok(())
}

/// On a device's, or the host's: as the library knows it, or as somebody else's.
async fn on_some_memory(
    epoch: &Arc<Epoch>,
    (subject, act, fate): (usize, Act, Fate),
    turn: Option<Turn>,
    draws: &mut Draws,
) {
    let mut order = Order {
        subject,
        act,
        fate,
        foreign: None,
        turn: None,
    };
    if let Some(turn) = turn {
        (order.act, order.fate) = suited(turn.0.role, act, fate);
        if draws.below(4) == 0 {
            order.foreign = Some(turn.0.arena.access().ordinal());
        }
        let arena = Arc::clone(&turn.0.arena);
        order.turn = Some(turn);
        return on(epoch, &arena, order, draws).await;
    }
    match &epoch.pinned {
        Some(pinned) if draws.below(5) == 0 => {
            order.foreign = Some(pinned.access().0.ordinal());
            on(epoch, pinned, order, draws).await;
        }
        _ => on(epoch, &epoch.host, order, draws).await,
    }
}

/// What can be asked of such a device.
fn suited(role: Role, act: Act, fate: Fate) -> (Act, Fate) {
    let simple = match act.visible() {
        Act::Ranges => Act::Read,
        act => act,
    };
    match (role, fate) {
        (Role::WillHang, Fate::Awaited) => (simple, Fate::Deadline(PATIENCE)),
        // Syncs would wait for a dropped write.
        (Role::WillHang, Fate::Dropped(_)) => (Act::Read, Fate::Dropped(Point::UnderWay)),
        (Role::WillHang | Role::WillBeLost, fate) => (simple, fate),
        (Role::Slow, Fate::Awaited) => (act, Fate::Dropped(Point::Between)),
        (_, fate) => (act, fate),
    }
}

/// What is to be done.
struct Order {
    subject: usize,
    act: Act,
    fate: Fate,
    /// On memory of another owner, as it is seen from that device.
    foreign: Option<u32>,
    turn: Option<Turn>,
}

/// An operation with its claim and its memory.
pub(super) struct Flight<G: Ground, A> {
    pub(super) epoch: Arc<Epoch>,
    pub(super) arena: Arc<Arena<G, A>>,
    pub(super) subject: usize,
    pub(super) handle: usize,
    pub(super) claim: Claim,
    pub(super) act: Act,
    pub(super) fate: Fate,
    pub(super) is_foreign: bool,
    pub(super) turn: Option<Turn>,
}

async fn on<G, A>(epoch: &Arc<Epoch>, arena: &Arc<Arena<G, A>>, order: Order, draws: &mut Draws)
where
    G: Ground<Part: IoBufMut>,
    A: Access<G::Part>,
{
    let is_doomed = order.turn.as_ref().is_some_and(|turn| turn.0.is_doomed());
    let len_max = length_max(draws, is_doomed).min(arena.part_max() as u64);
    let taken = take(epoch, arena, &order, len_max, draws).await;
    let Some((claim, held, mut part)) = taken else {
        return;
    };
    let handles = epoch.handles(order.subject);
    let flight = Flight {
        epoch: Arc::clone(epoch),
        arena: Arc::clone(arena),
        subject: order.subject,
        handle: usize::try_from(draws.below(handles.len() as u64)).unwrap_or(0),
        claim,
        act: order.act,
        fate: order.fate,
        is_foreign: order.foreign.is_some() && order.act != Act::Writer,
        turn: order.turn,
    };
    epoch.counts.acts.begun(flight.act);
    if flight.act.writes() {
        flight.fill_source(&mut part);
    }
    match (flight.act, order.foreign) {
        // Of pieces, which are the library's own.
        (Act::Writer, _) => writers::write(flight, held, part, draws).await,
        (_, None) => flight.fly(held, part, draws).await,
        (_, Some(device)) => flight.fly_foreign(device, held, part, draws).await,
    }
}

/// Each part that a device takes with it is one less for the engine.
pub(super) fn length_max(draws: &mut Draws, is_doomed: bool) -> u64 {
    match draws.below(8) {
        0..4 => 4 << 10,
        4..7 => 32 << 10,
        _ if is_doomed => 32 << 10,
        _ => LEN_MAX,
    }
}

/// Waits for plots and a cell that nobody has. `None` when the engine ends first.
async fn take<G, A>(
    epoch: &Epoch,
    arena: &Arena<G, A>,
    order: &Order,
    len_max: u64,
    draws: &mut Draws,
) -> Option<(Claim, Held<G::Part>, G::Part)>
where
    G: Ground,
    A: Access<G::Part>,
{
    while !epoch.is_ending() {
        let claimed = {
            let mut content = lock(&epoch.subject(order.subject).content);
            if order.act.writes() {
                content.claim_write(draws, len_max)
            } else {
                content.claim_read(draws, len_max)
            }
        };
        if let Some(claim) = claimed {
            let len = usize::try_from(claim.range.end - claim.range.start).unwrap_or(0);
            debug_assert!(len <= arena.part_max(), "a claim fits the largest cell");
            if let Some((held, part)) = arena.take(draws, len) {
                return Some((claim, held, part));
            }
            let nothing = claim.generation.map(|_| Written::Nothing);
            epoch.end_claim(order.subject, &claim, nothing);
        }
        epoch.gather();
        tokio::task::yield_now().await;
    }
    None
}

impl<G, A> Flight<G, A>
where
    G: Ground<Part: IoBufMut>,
    A: Access<G::Part>,
{
    /// Does it, on a part or what has one inside.
    async fn fly<B: Carries<G::Part>>(self, held: Held<G::Part>, memory: B, draws: &mut Draws) {
        match self.act {
            Act::Read | Act::Digest => self.read(held, memory, draws).await,
            Act::Ranges => self.ranges(held, memory, draws).await,
            Act::Write => self.write(held, memory).await,
            Act::Staged => staged::write(self, held, memory).await,
            Act::Stream | Act::Writer | Act::Inspect => {
                unreachable!("what has no memory of this kind was done before")
            }
        }
    }

    async fn fly_foreign(self, device: u32, held: Held<G::Part>, part: G::Part, draws: &mut Draws) {
        self.epoch.counts.acts.begun_on_foreign();
        match foreign::lend::<G>(&self.epoch.engine, device, part).await {
            Ok(memory) => self.fly(held, memory, draws).await,
            Err(error) => {
                self.judge(&error);
                // Nothing was asked of the file. The part is dropped by the engine.
                let nothing = self.claim.generation.map(|_| Written::Nothing);
                self.orphan(held, nothing);
            }
        }
    }

    pub(super) fn with_handle<T>(&self, act: impl FnOnce(&AsyncCuFile) -> T) -> T {
        act(&self.epoch.handles(self.subject)[self.handle])
    }

    pub(super) async fn meet<B: Send + 'static>(&self, transfer: Transfer<B>) -> End<B> {
        let epoch = &self.epoch;
        let device = self.turn.as_ref().map(|turn| Arc::clone(&turn.0));
        let slow = device.filter(|device| device.role == Role::Slow);
        let Some(device) = slow else {
            return meet(&epoch.engine, &epoch.counts, transfer, self.fate, None).await;
        };
        let before = device.copies();
        let is_between = move || device.copies() > before;
        let between: &(dyn Fn() -> bool + Send + Sync) = &is_between;
        meet(
            &epoch.engine,
            &epoch.counts,
            transfer,
            self.fate,
            Some(between),
        )
        .await
    }
}
