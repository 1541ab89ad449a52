//! One operation: drawn from its number, flown on some memory, and judged by its bytes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use measure::data::Draws;
use tokio_cufile::{AsyncCuFile, FileRange, IoBufMut, Receipt, Transfer};

use super::arena::{Access, Arena, Ground, Held};
use super::content::{Claim, Written};
use super::counts::{Harm, Point, add};
use super::devices::{Role, Turn};
use super::fate::{End, Fate, meet};
use super::field::Epoch;
use super::{lock, staged};

/// Bytes of most operations, at most.
const LEN_MAX: u64 = 200 << 10;
/// On a device that may hang nobody waits for ever.
const PATIENCE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Read,
    Ranges,
    Write,
    Staged,
    /// Waits for writes, and looks at the whole file.
    Inspect,
}

impl Act {
    fn draw(draws: &mut Draws) -> Self {
        match draws.below(100) {
            0..44 => Self::Read,
            44..56 => Self::Ranges,
            56..88 => Self::Write,
            88..98 => Self::Staged,
            _ => Self::Inspect,
        }
    }
}

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
    let (mut act, mut fate) = (Act::draw(draws), Fate::draw(draws));
    *lock(&epoch.flying[task]) = format!("{act:?} {fate:?} of file {subject}");
    if epoch.is_stuck && act == Act::Staged {
        // As on a device that is doomed, below.
        act = Act::Write;
    }
    if act == Act::Inspect {
        return epoch.inspect(subject).await;
    }
    let turn = match draws.below(2) {
        0 => epoch.devices.enter(draws),
        _ => None,
    };
    let Some(turn) = turn else {
        return on(
            epoch,
            &Arc::clone(&epoch.host),
            subject,
            act,
            fate,
            None,
            draws,
        )
        .await;
    };
    (act, fate) = suited(turn.0.role, act, fate);
    let arena = Arc::clone(&turn.0.arena);
    on(epoch, &arena, subject, act, fate, Some(turn), draws).await
}

/// What can be asked of such a device.
fn suited(role: Role, act: Act, fate: Fate) -> (Act, Fate) {
    let simple = match act {
        Act::Ranges => Act::Read,
        // One whose source is back leaves nothing by which its quarantine could be seen.
        Act::Staged => Act::Write,
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

/// An operation with its claim and its memory.
pub(super) struct Flight<G: Ground, A> {
    pub(super) epoch: Arc<Epoch>,
    pub(super) arena: Arc<Arena<G, A>>,
    pub(super) subject: usize,
    pub(super) handle: usize,
    pub(super) claim: Claim,
    pub(super) fate: Fate,
    pub(super) turn: Option<Turn>,
}

async fn on<G, A>(
    epoch: &Arc<Epoch>,
    arena: &Arc<Arena<G, A>>,
    subject: usize,
    act: Act,
    fate: Fate,
    turn: Option<Turn>,
    draws: &mut Draws,
) -> Result<(), String>
where
    G: Ground<Part: IoBufMut>,
    A: Access<G::Part>,
{
    let is_doomed = turn.as_ref().is_some_and(|turn| turn.0.is_doomed());
    let len_max = length_max(draws, is_doomed).min(arena.part_max() as u64);
    let taken = take(epoch, arena, subject, (act, len_max), draws).await;
    let Some((claim, held, part)) = taken else {
        return Ok(());
    };
    let handles = epoch.handles(subject);
    let flight = Flight {
        epoch: Arc::clone(epoch),
        arena: Arc::clone(arena),
        subject,
        handle: usize::try_from(draws.below(handles.len() as u64)).unwrap_or(0),
        claim,
        fate,
        turn,
    };
    match act {
        Act::Read | Act::Inspect => flight.read(held, part).await,
        Act::Ranges => flight.ranges(held, part, draws).await,
        Act::Write => flight.write(held, part).await,
        Act::Staged => staged::write(flight, held, part).await,
    }
    Ok(())
}

/// Each part that a device takes with it is one less for the engine.
fn length_max(draws: &mut Draws, is_doomed: bool) -> u64 {
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
    subject: usize,
    (act, len_max): (Act, u64),
    draws: &mut Draws,
) -> Option<(Claim, Held<G::Part>, G::Part)>
where
    G: Ground,
    A: Access<G::Part>,
{
    while !epoch.is_ending() {
        let claimed = {
            let mut content = lock(&epoch.subject(subject).content);
            match act {
                Act::Write | Act::Staged => content.claim_write(draws, len_max),
                Act::Read | Act::Ranges | Act::Inspect => content.claim_read(draws, len_max),
            }
        };
        if let Some(claim) = claimed {
            let len = usize::try_from(claim.range.end - claim.range.start).unwrap_or(0);
            debug_assert!(len <= arena.part_max(), "a claim fits the largest cell");
            if let Some((held, part)) = arena.take(draws, len) {
                return Some((claim, held, part));
            }
            let nothing = claim.generation.map(|_| Written::Nothing);
            epoch.end_claim(subject, &claim, nothing);
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
    pub(super) fn with_handle<T>(&self, act: impl FnOnce(&AsyncCuFile) -> T) -> T {
        act(&self.epoch.handles(self.subject)[self.handle])
    }

    async fn meet(&self, transfer: Transfer<G::Part>) -> End<G::Part> {
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

    async fn read(self, held: Held<G::Part>, part: G::Part) {
        let offset = self.claim.range.start;
        let asked = G::range(&part).len();
        let transfer = self.with_handle(|handle| handle.read_at(part, offset));
        match self.meet(transfer).await {
            End::Settled(Ok(done)) => {
                self.note_done(done.bytes);
                let bytes = done.bytes;
                self.check_length(asked, bytes, &done.receipt);
                self.check_read(&done.buf, bytes);
                self.over(held, done.buf, None);
            }
            End::Settled(Err(error)) => {
                let bytes = error.bytes_done();
                if let Some((held, part)) = self.failed(held, error) {
                    self.check_read(&part, bytes);
                    self.over(held, part, None);
                }
            }
            End::Dropped(_) => self.orphan(held, None),
        }
    }

    /// Nothing is read at the end of a file.
    fn check_length(&self, asked: usize, bytes: usize, receipt: &Receipt) {
        let message = || {
            let path = self.epoch.subject(self.subject).path.display();
            let (fate, claim) = (self.fate, &self.claim.range);
            let device = self.turn.as_ref().map(|turn| turn.0.role);
            format!(
                "{bytes} of {asked} bytes of {claim:?} of {path} ({fate:?}, {device:?}): {receipt:?}"
            )
        };
        let short = u64::from(bytes != asked);
        self.epoch.counts.harm(Harm::Corrupt, short, message);
    }

    /// The first `bytes` of a part are those of the claim.
    fn check_read(&self, part: &G::Part, bytes: usize) {
        let offset = self.claim.range.start;
        let wrong = self.arena.look(part, |found| {
            let content = lock(&self.epoch.subject(self.subject).content);
            content.first_wrong(offset, &found[..bytes])
        });
        self.wrong_byte(wrong, "a read");
    }

    fn wrong_byte(&self, wrong: Option<u64>, of: &str) {
        let message = || {
            let path = &self.epoch.subject(self.subject).path;
            let at = wrong.unwrap_or(0);
            let (claim, path) = (&self.claim.range, path.display());
            let device = self.turn.as_ref().map(|turn| turn.0.role);
            format!(
                "{of} of {claim:?} of {path} ({device:?}): byte {at} is none of those it may be"
            )
        };
        let count = u64::from(wrong.is_some());
        self.epoch.counts.harm(Harm::Corrupt, count, message);
    }

    async fn ranges(self, held: Held<G::Part>, part: G::Part, draws: &mut Draws) {
        let ranges = cut(draws, &self.claim);
        let asked: usize = ranges.iter().map(|range| range.len).sum();
        let wanted = ranges.clone();
        let transfer = self.with_handle(|handle| handle.read_ranges(part, wanted));
        match self.meet(transfer).await {
            End::Settled(Ok(done)) => {
                self.note_done(done.bytes);
                let bytes = done.bytes;
                self.check_length(asked, bytes, &done.receipt);
                for range in &ranges {
                    let wrong = self.arena.look(&done.buf, |found| {
                        let content = lock(&self.epoch.subject(self.subject).content);
                        let found = &found[range.buf_offset..range.buf_offset + range.len];
                        content.first_wrong(range.file_offset, found)
                    });
                    self.wrong_byte(wrong, "one of many ranges");
                }
                self.over(held, done.buf, None);
            }
            End::Settled(Err(error)) => {
                if let Some((held, part)) = self.failed(held, error) {
                    self.over(held, part, None);
                }
            }
            End::Dropped(_) => self.orphan(held, None),
        }
    }

    async fn write(self, held: Held<G::Part>, mut part: G::Part) {
        self.fill_source(&mut part);
        let offset = self.claim.range.start;
        let transfer = self.with_handle(|handle| handle.write_all_at(part, offset));
        match self.meet(transfer).await {
            End::Settled(Ok(done)) => {
                self.note_done(done.bytes);
                self.check_own(&done.buf, "the source of a write");
                self.read_back(held, done.buf).await;
            }
            End::Settled(Err(error)) => {
                let written = match error.receipt() {
                    None => Written::Nothing,
                    Some(_) => Written::Failed,
                };
                if let Some((held, part)) = self.failed(held, error) {
                    self.check_own(&part, "the source of a failed write");
                    self.over(held, part, Some(written));
                }
            }
            End::Dropped(Point::Unpolled) => self.orphan(held, Some(Written::Nothing)),
            End::Dropped(_) => self.orphan(held, Some(Written::Dropped)),
        }
    }

    pub(super) fn fill_source(&self, part: &mut G::Part) {
        let generation = self.claim.generation.unwrap_or(0);
        let content = lock(&self.epoch.subject(self.subject).content).stream_of(generation);
        let offset = self.claim.range.start;
        self.arena
            .fill(part, |bytes| measure::data::fill(content, offset, bytes));
    }

    /// The bytes are those that the claim's write writes.
    pub(super) fn check_own(&self, part: &G::Part, of: &str) {
        let generation = self.claim.generation.unwrap_or(0);
        let stream = lock(&self.epoch.subject(self.subject).content).stream_of(generation);
        let offset = self.claim.range.start;
        let first = |found: &[u8]| measure::data::first_difference(stream, offset, found);
        let wrong = self.arena.look(part, first);
        self.wrong_byte(wrong, of);
    }

    /// An acknowledged write is read, by another opening of the file.
    pub(super) async fn read_back(mut self, held: Held<G::Part>, mut part: G::Part) {
        self.arena.fill(&mut part, |bytes| bytes.fill(0xbd));
        let handles = self.epoch.handles(self.subject);
        self.handle = (self.handle + 1) % handles.len();
        let offset = self.claim.range.start;
        let read = handles[self.handle].read_exact_at(part, offset);
        let read = match &self.turn {
            Some(_) => read.deadline(Instant::now() + PATIENCE),
            None => read,
        };
        match Box::pin(read).await {
            Ok(done) => {
                self.check_own(&done.buf, "a write read back");
                self.over(held, done.buf, Some(Written::All));
            }
            Err(error) => {
                // The deadline is our own here.
                self.fate = Fate::Deadline(PATIENCE);
                if let Some((held, part)) = self.failed_as(held, error, Some(Written::All)) {
                    self.over(held, part, Some(Written::All));
                }
            }
        }
    }
}

/// Some of the claim's bytes in some order, one behind the other in the buffer.
fn cut(draws: &mut Draws, claim: &Claim) -> Vec<FileRange> {
    let len = claim.range.end - claim.range.start;
    let mut cuts: Vec<u64> = (0..2 + draws.below(8))
        .map(|_| draws.below(len + 1))
        .collect();
    cuts.extend([0, len]);
    cuts.sort_unstable();
    let mut pieces: Vec<(u64, u64)> = cuts.windows(2).map(|two| (two[0], two[1])).collect();
    draws.shuffle(&mut pieces);
    if pieces.len() > 2 {
        pieces.pop();
    }
    let mut buf_offset = 0;
    let range = |(start, end): (u64, u64)| {
        let len = usize::try_from(end - start).unwrap_or(0);
        let range = FileRange {
            file_offset: claim.range.start + start,
            len,
            buf_offset,
        };
        buf_offset += len;
        range
    };
    pieces.into_iter().map(range).collect()
}
