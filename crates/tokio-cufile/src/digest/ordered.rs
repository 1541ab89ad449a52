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

    /// The next bytes. Gives the chunks that are complete by them, by index.
    pub(super) fn feed(&mut self, mut bytes: &[u8], mut put: impl FnMut(u64, Digest)) {
        while !bytes.is_empty() {
            let index = self.turn / self.chunk;
            let left = (index + 1).saturating_mul(self.chunk) - self.turn;
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
            let (now, rest) = bytes.split_at(len);
            let hasher = self.hasher.get_or_insert_with(|| Hasher::new(self.kind));
            hasher.update(now);
            self.turn += len as u64;
            // Also where the end was told before the bytes in front of it came.
            if len as u64 == left || self.turn == self.total.min(self.end) {
                put(index, self.finish());
            }
            bytes = rest;
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

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: DigestKind = DigestKind::Crc32c;

    fn fed(chunk: u64, total: u64, parts: &[&[u8]]) -> Vec<(u64, Digest)> {
        let (mut ordered, mut seen) = (Ordered::new(KIND, chunk, total), Vec::new());
        for part in parts {
            ordered.feed(part, |index, digest| seen.push((index, digest)));
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
        ordered.feed(&[7; 13], |index, digest| seen.push((index, digest)));
        let expected = [(0, KIND.of(&[7; 10])), (1, KIND.of(&[7; 3]))];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_part_waits_for_those_before_it_and_for_none_that_will_not_come() {
        let mut ordered = Ordered::new(KIND, 10, 100);
        assert!(ordered.must_wait(10) && !ordered.must_wait(0));
        ordered.feed(&[0; 10], |_, _| {});
        assert!(!ordered.must_wait(10) && ordered.is_wanted(10));
        ordered.close(20, |_, _| {});
        assert!(!ordered.must_wait(30) && !ordered.is_wanted(30));
        assert!(!ordered.must_wait(10) && ordered.is_wanted(10));
    }
}
