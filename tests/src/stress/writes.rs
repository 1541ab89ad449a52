//! Writes, whose source must stay as it is, and which are read back.

use std::time::Instant;

use tokio_cufile::IoBufMut;

use super::arena::{Access, Ground, Held};
use super::content::Written;
use super::counts::Point;
use super::fate::{End, Fate};
use super::fly::{Flight, PATIENCE};
use super::foreign::Carries;
use super::lock;

impl<G, A> Flight<G, A>
where
    G: Ground<Part: IoBufMut>,
    A: Access<G::Part>,
{
    pub(super) async fn write<B: Carries<G::Part>>(self, held: Held<G::Part>, memory: B) {
        let offset = self.claim.range.start;
        let transfer = self.with_handle(|handle| handle.write_all_at(memory, offset));
        match self.meet(transfer).await {
            End::Settled(Ok(done)) => {
                self.note_done(done.bytes);
                let part = done.buf.into_part();
                self.check_own(&part, "the source of a write");
                self.read_back(held, part).await;
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

    /// What the claim's write writes, and from where on.
    fn own_content(&self) -> (u64, u64) {
        let generation = self.claim.generation.unwrap_or(0);
        let content = lock(&self.epoch.subject(self.subject).content).stream_of(generation);
        (content, self.claim.range.start)
    }

    pub(super) fn fill_source(&self, part: &mut G::Part) {
        let (content, offset) = self.own_content();
        self.arena
            .fill(part, |bytes| measure::data::fill(content, offset, bytes));
    }

    /// The bytes are those that the claim's write writes.
    pub(super) fn check_own(&self, part: &G::Part, of: &str) {
        let (content, offset) = self.own_content();
        let first = |found: &[u8]| measure::data::first_difference(content, offset, found);
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
