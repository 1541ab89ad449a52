//! Digests of bytes that pass through staging slots: each part hands its own over while they are
//! there, in file order, whatever the order in which parts come.

use super::{Digest, DigestKind, Hasher};

/// What has been handed over.
pub(super) struct Ordered {
    kind: DigestKind,
    chunk: u64,
    total: u64,
    /// Whose turn it is: the part that begins here.
    turn: u64,
    /// Nobody hands over anything from here on.
    end: u64,
    hasher: Option<Hasher>,
}

impl Ordered {
    pub(super) const fn new(kind: DigestKind, chunk: u64, total: u64) -> Self {
        Self {
            kind,
            chunk,
            total,
            turn: 0,
            end: u64::MAX,
            hasher: None,
        }
    }

    /// Whether the part at `offset` has to wait for those before it.
    pub(super) const fn must_wait(&self, offset: u64) -> bool {
        self.turn < offset && offset < self.end
    }

    /// Whether what lies at `offset` is wanted, now that nobody is waited for.
    pub(super) const fn is_wanted(&self, offset: u64) -> bool {
        self.turn == offset && offset < self.end
    }

    /// Lets the part whose turn it is go on where the one before it stopped. Until
    /// [`end`](Self::end) it is still that part's turn.
    pub(super) const fn begin(&mut self) -> Feed {
        Feed {
            kind: self.kind,
            chunk: self.chunk,
            at: self.turn,
            hasher: self.hasher.take(),
        }
    }

    /// The next part's turn. Gives the chunk that ends here because all bytes do.
    pub(super) fn end(&mut self, feed: Feed, mut put: impl FnMut(u64, Digest)) {
        self.turn = feed.at;
        self.hasher = feed.hasher;
        // Also where the end was told before the bytes in front of it came.
        if self.turn == self.total.min(self.end) && self.hasher.is_some() {
            put(self.turn / self.chunk, self.finish());
        }
    }

    /// Nobody hands over anything from `offset` on: the file ends there, or a part does not come.
    pub(super) fn close(&mut self, offset: u64, mut put: impl FnMut(u64, Digest)) {
        self.end = self.end.min(offset);
        if self.turn == offset && self.hasher.is_some() {
            put(self.turn / self.chunk, self.finish());
        }
    }

    fn finish(&mut self) -> Digest {
        let hasher = self.hasher.take();
        hasher.unwrap_or_else(|| Hasher::new(self.kind)).finish()
    }
}

/// One part's turn: it takes time, and needs no lock.
pub(super) struct Feed {
    kind: DigestKind,
    chunk: u64,
    at: u64,
    hasher: Option<Hasher>,
}

impl Feed {
    /// The next bytes. Gives the chunks that are full by them, by index.
    pub(super) fn bytes(&mut self, mut bytes: &[u8], mut put: impl FnMut(u64, Digest)) {
        while !bytes.is_empty() {
            let index = self.at / self.chunk;
            let left = (index + 1).saturating_mul(self.chunk) - self.at;
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
            let (now, rest) = bytes.split_at(len);
            let mut hasher = self.hasher.take();
            let hashing = hasher.get_or_insert_with(|| Hasher::new(self.kind));
            hashing.update(now);
            self.at += len as u64;
            match hasher {
                Some(full) if len as u64 == left => put(index, full.finish()),
                rest => self.hasher = rest,
            }
            bytes = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: DigestKind = DigestKind::Crc32c;

    fn feed(ordered: &mut Ordered, bytes: &[u8], mut put: impl FnMut(u64, Digest)) {
        let mut turn = ordered.begin();
        turn.bytes(bytes, &mut put);
        ordered.end(turn, put);
    }

    fn fed(chunk: u64, total: u64, parts: &[&[u8]]) -> Vec<(u64, Digest)> {
        let (mut ordered, mut seen) = (Ordered::new(KIND, chunk, total), Vec::new());
        for part in parts {
            feed(&mut ordered, part, |index, digest| {
                seen.push((index, digest))
            });
        }
        let end = ordered.turn;
        ordered.close(end, |index, digest| seen.push((index, digest)));
        seen
    }

    #[test]
    fn chunks_and_parts_need_not_agree() {
        let bytes: Vec<u8> = (0..100).collect();
        for chunk in [1, 7, 10, 99, 100, 101] {
            let expected: Vec<_> = bytes.chunks(chunk).map(|chunk| KIND.of(chunk)).collect();
            for part in [1, 3, 10, 64, 100] {
                let parts: Vec<_> = bytes.chunks(part).collect();
                let seen = fed(chunk as u64, 100, &parts);
                let (indices, values): (Vec<_>, Vec<_>) = seen.into_iter().unzip();
                assert!(indices.iter().copied().eq(0..expected.len() as u64));
                assert_eq!(values, expected, "chunks of {chunk}, parts of {part}");
            }
        }
    }

    #[test]
    fn a_file_that_ends_early_ends_its_last_chunk() {
        assert_eq!(fed(10, 100, &[&[7; 13]]).len(), 2);
        assert_eq!(fed(10, 100, &[&[7; 13]])[1], (1, KIND.of(&[7; 3])));
        assert!(fed(10, 100, &[]).is_empty());
    }

    #[test]
    fn an_end_that_is_known_before_its_bytes_ends_the_last_chunk() {
        let (mut ordered, mut seen) = (Ordered::new(KIND, 10, 100), Vec::new());
        ordered.close(13, |_, _| {});
        feed(&mut ordered, &[7; 13], |index, digest| {
            seen.push((index, digest))
        });
        let expected = [(0, KIND.of(&[7; 10])), (1, KIND.of(&[7; 3]))];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_part_has_its_turn_until_it_says_otherwise() {
        let mut ordered = Ordered::new(KIND, 10, 20);
        let mut turn = ordered.begin();
        turn.bytes(&[7; 5], |_, _| panic!("no chunk is full"));
        assert!(ordered.must_wait(5), "the bytes before are being summed");
        // Told meanwhile: those behind do not come.
        ordered.close(5, |_, _| panic!("its bytes are not all there"));
        let mut seen = Vec::new();
        ordered.end(turn, |index, digest| seen.push((index, digest)));
        assert_eq!(seen, [(0, KIND.of(&[7; 5]))]);
    }

    #[test]
    fn a_part_waits_for_those_before_it_and_for_none_that_will_not_come() {
        let mut ordered = Ordered::new(KIND, 10, 100);
        assert!(ordered.must_wait(10) && !ordered.must_wait(0));
        feed(&mut ordered, &[0; 10], |_, _| {});
        assert!(!ordered.must_wait(10) && ordered.is_wanted(10));
        ordered.close(20, |_, _| {});
        assert!(!ordered.must_wait(30) && !ordered.is_wanted(30));
        assert!(!ordered.must_wait(10) && ordered.is_wanted(10));
    }
}
