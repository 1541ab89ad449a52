//! Reads, judged by their bytes.

use measure::data::Draws;
use tokio_cufile::{DigestKind, Digests, FileRange, IoBufMut, Receipt};

use super::acts::Act;
use super::arena::{Access, Ground, Held};
use super::content::Claim;
use super::counts::Harm;
use super::fate::End;
use super::fly::Flight;
use super::foreign::Carries;
use super::lock;

impl<G, A> Flight<G, A>
where
    G: Ground<Part: IoBufMut>,
    A: Access<G::Part>,
{
    pub(super) async fn read<B: Carries<G::Part>>(
        self,
        held: Held<G::Part>,
        memory: B,
        draws: &mut Draws,
    ) {
        let offset = self.claim.range.start;
        let asked = self.asked();
        let sums = (self.act == Act::Digest).then(|| sums(draws, asked));
        let transfer = self.with_handle(|handle| handle.read_at(memory, offset));
        let transfer = match sums {
            Some((kind, chunk)) => transfer.digest(kind, chunk),
            None => transfer,
        };
        match self.meet(transfer).await {
            End::Settled(Ok(done)) => {
                self.note_done(done.bytes);
                let bytes = done.bytes;
                self.check_length(asked, bytes, &done.receipt);
                let digests = done.digests().cloned();
                let part = done.buf.into_part();
                self.check_read(&part, bytes);
                self.check_digests(&part, bytes, sums, digests.as_ref());
                self.over(held, part, None);
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

    fn asked(&self) -> usize {
        usize::try_from(self.claim.range.end - self.claim.range.start).unwrap_or(usize::MAX)
    }

    /// The checksums are those of the bytes that were found, and are there where they are wanted.
    fn check_digests(
        &self,
        part: &G::Part,
        bytes: usize,
        wanted: Option<(DigestKind, usize)>,
        digests: Option<&Digests>,
    ) {
        let right = match (wanted, digests) {
            (None, None) => true,
            (Some((kind, chunk)), Some(digests)) => self.arena.look(part, |found| {
                let values = found[..bytes].chunks(chunk).map(|bytes| kind.of(bytes));
                let is_so_made = digests.kind == kind && digests.chunk == chunk;
                is_so_made && values.eq(digests.values.iter().copied())
            }),
            _ => false,
        };
        let message = || {
            let path = self.epoch.subject(self.subject).path.display();
            let claim = &self.claim.range;
            format!("digests of {claim:?} of {path} ({wanted:?}): {digests:?}")
        };
        let wrong = u64::from(!right);
        self.epoch.counts.harm(Harm::Corrupt, wrong, message);
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

    pub(super) fn wrong_byte(&self, wrong: Option<u64>, of: &str) {
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

    pub(super) async fn ranges<B: Carries<G::Part>>(
        self,
        held: Held<G::Part>,
        memory: B,
        draws: &mut Draws,
    ) {
        let ranges = cut(draws, &self.claim);
        let asked: usize = ranges.iter().map(|range| range.len).sum();
        let wanted = ranges.clone();
        let transfer = self.with_handle(|handle| handle.read_ranges(memory, wanted));
        match self.meet(transfer).await {
            End::Settled(Ok(done)) => {
                self.note_done(done.bytes);
                self.check_length(asked, done.bytes, &done.receipt);
                let part = done.buf.into_part();
                for range in &ranges {
                    let wrong = self.arena.look(&part, |found| {
                        let content = lock(&self.epoch.subject(self.subject).content);
                        let found = &found[range.buf_offset..range.buf_offset + range.len];
                        content.first_wrong(range.file_offset, found)
                    });
                    self.wrong_byte(wrong, "one of many ranges");
                }
                self.over(held, part, None);
            }
            End::Settled(Err(error)) => {
                if let Some((held, part)) = self.failed(held, error) {
                    self.over(held, part, None);
                }
            }
            End::Dropped(_) => self.orphan(held, None),
        }
    }
}

/// Which checksums, and of how many bytes each: of a few, of about a part, of all.
fn sums(draws: &mut Draws, len: usize) -> (DigestKind, usize) {
    let kinds = DigestKind::ALL;
    let kind = kinds[usize::try_from(draws.below(kinds.len() as u64)).unwrap_or(0)];
    let chunk = match draws.below(4) {
        0 => 64 + draws.below(1000),
        1 => 4096 << draws.below(5),
        2 => 64 << 10,
        _ => len as u64 + draws.below(2),
    };
    (kind, usize::try_from(chunk).unwrap_or(1))
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
