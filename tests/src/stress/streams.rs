//! Streams of a file's bytes: read to the end, or dropped anywhere, with chunks that outlive them.
//!
//! A stream reads into memory of its own, so that no fence is around it; its chunks are looked at when
//! they come, and again before they are dropped, which may be after the stream.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt;
use measure::data::Draws;
use tokio_cufile::{Chunk, Priority, ReadStream};

use super::acts::Act;
use super::content::Claim;
use super::counts::{Harm, Point, add};
use super::fate::{Fate, in_time, poll_once, turns_pass};
use super::field::Epoch;
use super::fly::length_max;
use super::{lock, outcome};

/// A stream, and what came of it.
struct Reading<'a> {
    epoch: &'a Epoch,
    subject: usize,
    fate: Fate,
    claim: Claim,
    /// Where the next chunk begins.
    next: u64,
    chunk_size: u64,
    kept: VecDeque<Chunk>,
    kept_max: usize,
}

/// Reads a range of a file. A stream knows no deadline and no cancel: who is late drops it.
pub(super) async fn read(epoch: &Arc<Epoch>, subject: usize, fate: Fate, draws: &mut Draws) {
    let Some(claim) = claim(epoch, subject, draws).await else {
        return;
    };
    epoch.counts.acts.begun(Act::Stream);
    let chunk_size = match draws.below(3) {
        0 => 512 + draws.below(6000),
        1 => 4096 << draws.below(4),
        _ => 64 << 10,
    };
    let (ahead, more) = (1 + draws.below(4), draws.below(4));
    let small = |number: u64| usize::try_from(number).unwrap_or(1);
    let handles = epoch.handles(subject);
    let handle = &handles[small(draws.below(handles.len() as u64))];
    let stream = handle.read_stream(claim.range.clone());
    let stream = stream
        .chunk_size(small(chunk_size))
        .read_ahead(small(ahead));
    let stream = stream.chunks_max(small(ahead + more));
    let stream = stream.priority(match draws.below(3) {
        0 => Priority::Urgent,
        1 => Priority::Normal,
        _ => Priority::Bulk,
    });
    let mut reading = Reading {
        epoch,
        subject,
        fate,
        next: claim.range.start,
        claim,
        chunk_size,
        kept: VecDeque::new(),
        // Who keeps all of them waits for ever.
        kept_max: small(ahead + more) - 1,
    };
    if let Some(point) = reading.meet(stream, draws.below(4)).await {
        epoch.counts.dropped(point);
        turns_pass(draws.below(40)).await;
    }
    reading.check_kept();
    epoch.end_claim(subject, &reading.claim, None);
}

/// Waits for plots that nobody writes. `None` when the engine ends first.
async fn claim(epoch: &Epoch, subject: usize, draws: &mut Draws) -> Option<Claim> {
    let len_max = length_max(draws, false);
    while !epoch.is_ending() {
        let claim = lock(&epoch.subject(subject).content).claim_read(draws, len_max);
        if claim.is_some() {
            return claim;
        }
        epoch.gather();
        tokio::task::yield_now().await;
    }
    None
}

impl Reading<'_> {
    /// Lets the stream meet its fate. Where it was dropped, if it was.
    async fn meet(&mut self, stream: ReadStream, chunks: u64) -> Option<Point> {
        match self.fate {
            Fate::Dropped(Point::Unpolled) => {
                drop(stream);
                Some(Point::Unpolled)
            }
            Fate::Dropped(_) => self.drop_behind(stream, chunks).await,
            fate => {
                let whole = in_time(fate, self.exhaust(stream)).await;
                whole.is_none().then_some(Point::UnderWay)
            }
        }
    }

    async fn exhaust(&mut self, mut stream: ReadStream) {
        while self.step(&mut stream).await {}
    }

    /// Takes some chunks, asks for one more, and drops it.
    async fn drop_behind(&mut self, mut stream: ReadStream, chunks: u64) -> Option<Point> {
        for _ in 0..chunks {
            if !self.step(&mut stream).await {
                return None;
            }
        }
        let ended = poll_once(pin!(self.step(&mut stream))).await == Some(false);
        drop(stream);
        (!ended).then_some(Point::UnderWay)
    }

    /// Takes the next chunk. Whether there may be more.
    async fn step(&mut self, stream: &mut ReadStream) -> bool {
        match stream.next().await {
            Some(Ok(chunk)) => {
                self.take(chunk);
                return true;
            }
            Some(Err(error)) => {
                outcome::judge(self.epoch, self.subject, self.fate, None, &error);
            }
            None if self.next == self.claim.range.end => self.ended_well(),
            None => self.wrong(&format!("ended at {}", self.next)),
        }
        if stream.next().await.is_some() {
            self.wrong("went on after its end");
        }
        false
    }

    fn ended_well(&self) {
        let bytes = self.claim.range.end - self.claim.range.start;
        add(&self.epoch.counts.done, 1);
        add(&self.epoch.counts.bytes, bytes);
        self.epoch.counts.acts.ended_well(Act::Stream);
    }

    fn take(&mut self, chunk: Chunk) {
        let (start, len) = (chunk.offset(), chunk.len() as u64);
        // Between two multiples of the size, but for the first and the last.
        let end = (start / self.chunk_size + 1) * self.chunk_size;
        let end = end.min(self.claim.range.end);
        if start != self.next || start + len != end {
            self.wrong(&format!("has {len} bytes at {start}, after {}", self.next));
        }
        self.next = start + len;
        self.check(&chunk);
        self.kept.push_back(chunk);
        while self.kept.len() > self.kept_max {
            if let Some(chunk) = self.kept.pop_front() {
                self.check(&chunk);
            }
        }
    }

    /// Chunks are as they were, whatever became of their stream.
    fn check_kept(&mut self) {
        for chunk in std::mem::take(&mut self.kept) {
            self.check(&chunk);
        }
    }

    fn check(&self, chunk: &Chunk) {
        let content = lock(&self.epoch.subject(self.subject).content);
        let wrong = content.first_wrong(chunk.offset(), chunk);
        drop(content);
        if let Some(at) = wrong {
            self.wrong(&format!("byte {at} is none of those it may be"));
        }
    }

    fn wrong(&self, what: &str) {
        let path = self.epoch.subject(self.subject).path.display();
        let (claim, fate) = (&self.claim.range, self.fate);
        let message = || format!("a stream of {claim:?} of {path} ({fate:?}) {what}");
        self.epoch.counts.harm(Harm::Corrupt, 1, message);
    }
}
