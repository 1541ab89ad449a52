//! Checksums of an operation's bytes, chunk by chunk, made while they are in the caches.

mod ordered;
mod progress;

use std::fmt;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use twox_hash::XxHash3_64;

use self::ordered::Ordered;
use self::progress::Progress;
use crate::error::{Error, ErrorKind, Result};

/// Which checksum: see [`Transfer::digest`](crate::Transfer::digest).
///
/// What each costs is measured in the project's `docs/performance.md`.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DigestKind {
    /// CRC-32C (Castagnoli), as of iSCSI, ext4 and TFRecord: finds accidents of transport.
    Crc32c,
    /// XXH3 with 64 bits and seed 0: finds accidents, at about the speed of memory.
    Xxh3,
    /// BLAKE3 with 256 bits, not keyed: also withstands those who mean harm.
    Blake3,
}

impl DigestKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Crc32c, Self::Xxh3, Self::Blake3];

    /// Its name: `crc32c`, `xxh3`, `blake3`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "crc32c",
            Self::Xxh3 => "xxh3",
            Self::Blake3 => "blake3",
        }
    }

    /// The checksum of `bytes`, as an operation makes it: to compare with, or of what did not come
    /// by an operation.
    #[must_use]
    pub fn of(self, bytes: &[u8]) -> Digest {
        let mut hasher = Hasher::new(self);
        hasher.update(bytes);
        hasher.finish()
    }
}

impl fmt::Display for DigestKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One checksum. Displayed in lower-case hex, as the usual tools print it.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Digest {
    /// Of [`DigestKind::Crc32c`].
    Crc32c(u32),
    /// Of [`DigestKind::Xxh3`].
    Xxh3(u64),
    /// Of [`DigestKind::Blake3`].
    Blake3([u8; 32]),
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crc32c(value) => write!(f, "{value:08x}"),
            Self::Xxh3(value) => write!(f, "{value:016x}"),
            Self::Blake3(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}

/// The checksums of an operation's bytes: see [`Transfer::digest`](crate::Transfer::digest).
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digests {
    /// Which checksum.
    pub kind: DigestKind,
    /// Bytes that each is of, counted from the operation's first byte; the last chunk is shorter
    /// where they do not divide what was moved.
    pub chunk: usize,
    /// One for each chunk, in file order; none where no byte was moved.
    pub values: Vec<Digest>,
}

impl Digests {
    /// The most chunks that one operation is digested in.
    pub const CHUNKS_MAX: usize = 1 << 20;
}

/// What an operation and its parts share of its digests.
pub(crate) struct DigestState {
    kind: DigestKind,
    chunk: usize,
    inner: Mutex<Inner>,
    /// The next part in file order has handed its bytes over, or never will.
    turned: Condvar,
}

struct Inner {
    progress: Progress,
    /// Of bytes that the host can read in a slot only.
    ordered: Ordered,
    /// As many as chunks have begun to be there.
    values: Vec<Option<Digest>>,
}

impl fmt::Debug for DigestState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DigestState")
            .field("kind", &self.kind)
            .field("chunk", &self.chunk)
            .finish_non_exhaustive()
    }
}

impl DigestState {
    /// For an operation of `len` bytes.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for chunks of no bytes, or for more than [`Digests::CHUNKS_MAX`].
    pub(crate) fn new(kind: DigestKind, chunk: usize, len: usize) -> Result<Self> {
        let max = Digests::CHUNKS_MAX;
        let reason = match len.checked_div(chunk) {
            None => "the chunks of a digest have no bytes".to_owned(),
            Some(_) if len.div_ceil(chunk) > max => {
                format!("{len} bytes in chunks of {chunk}: at most {max} are digested at once")
            }
            Some(_) => {
                return Ok(Self {
                    kind,
                    chunk,
                    turned: Condvar::new(),
                    inner: Mutex::new(Inner {
                        progress: Progress::new(len as u64, chunk as u64),
                        ordered: Ordered::new(kind, chunk as u64, len as u64),
                        values: Vec::new(),
                    }),
                });
            }
        };
        Err(Error::new(ErrorKind::InvalidInput, reason))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn hasher(&self) -> Hasher {
        Hasher::new(self.kind)
    }

    /// A part has ended, with its first `moved` bytes in memory. Gives the chunks that are complete
    /// by it: the caller makes their digests, and nobody else does.
    pub(crate) fn part_ended(&self, offset: u64, len: u64, moved: u64) -> Range<u64> {
        self.lock().progress.part_ended(offset, len, moved)
    }

    /// A part failed, so the operation will: no further digest is made.
    pub(crate) fn give_up(&self) {
        self.lock().progress.give_up();
    }

    /// A part at `offset` hands over, in pieces, what it has of its bytes in a slot; `is_short` says
    /// that the file ends behind them. Waits for the parts before it: each of them is in the hands
    /// of a thread, and hands over in turn or goes.
    pub(crate) fn hand_over<'a>(
        &self,
        offset: u64,
        pieces: impl Iterator<Item = &'a [u8]>,
        is_short: bool,
    ) {
        let waiting = self
            .turned
            .wait_while(self.lock(), |inner| inner.ordered.must_wait(offset));
        let mut inner = waiting.unwrap_or_else(PoisonError::into_inner);
        if !inner.ordered.is_wanted(offset) {
            return;
        }
        let mut turn = inner.ordered.begin();
        // Summing takes time: a cancel that passes over a part behind this one must not wait for it.
        drop(inner);
        let (mut end, mut made) = (offset, Vec::new());
        for piece in pieces {
            end += piece.len() as u64;
            turn.bytes(piece, |chunk, digest| made.push((chunk, digest)));
        }
        let mut inner = self.lock();
        let Inner {
            ordered, values, ..
        } = &mut *inner;
        for (chunk, digest) in made {
            put(values, chunk, digest);
        }
        ordered.end(turn, |chunk, digest| put(values, chunk, digest));
        if is_short {
            ordered.close(end, |chunk, digest| put(values, chunk, digest));
        }
        drop(inner);
        self.turned.notify_all();
    }

    /// The part at `offset` hands nothing over: nobody waits for it any more.
    pub(crate) fn pass_over(&self, offset: u64) {
        let mut inner = self.lock();
        let Inner {
            ordered, values, ..
        } = &mut *inner;
        ordered.close(offset, |chunk, digest| put(values, chunk, digest));
        drop(inner);
        self.turned.notify_all();
    }

    /// The bytes of a complete chunk, counted from the operation's first.
    pub(crate) fn bytes_of(&self, chunk: u64) -> Range<usize> {
        let bytes = self.lock().progress.bytes_of(chunk);
        let place = |at| usize::try_from(at).expect("a chunk lies in memory");
        place(bytes.start)..place(bytes.end.max(bytes.start))
    }

    pub(crate) fn put(&self, chunk: u64, digest: Digest) {
        put(&mut self.lock().values, chunk, digest);
    }

    /// The digests of the first `bytes` of an operation that succeeded with them.
    pub(crate) fn take(&self, bytes: usize) -> Option<Digests> {
        let mut made = std::mem::take(&mut self.lock().values);
        // What lies behind the end of a file that shrank meanwhile does not count.
        made.truncate(bytes.div_ceil(self.chunk));
        let values: Option<Vec<_>> = made.into_iter().collect();
        let values = values.filter(|values| values.len() == bytes.div_ceil(self.chunk));
        debug_assert!(values.is_some(), "every chunk that arrived was digested");
        Some(Digests {
            kind: self.kind,
            chunk: self.chunk,
            values: values?,
        })
    }
}

fn put(values: &mut Vec<Option<Digest>>, chunk: u64, digest: Digest) {
    let index = usize::try_from(chunk).expect("chunks are counted in a usize");
    if values.len() <= index {
        values.resize(index + 1, None);
    }
    values[index] = Some(digest);
}

/// A checksum in the making.
pub(crate) struct Hasher(State);

enum State {
    Crc32c(u32),
    Xxh3(Box<XxHash3_64>),
    Blake3(Box<blake3::Hasher>),
}

impl Hasher {
    fn new(kind: DigestKind) -> Self {
        Self(match kind {
            DigestKind::Crc32c => State::Crc32c(0),
            DigestKind::Xxh3 => State::Xxh3(Box::new(XxHash3_64::new())),
            DigestKind::Blake3 => State::Blake3(Box::new(blake3::Hasher::new())),
        })
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Crc32c(crc) => *crc = crc32c::crc32c_append(*crc, bytes),
            State::Xxh3(state) => std::hash::Hasher::write(&mut **state, bytes),
            State::Blake3(state) => drop(state.update(bytes)),
        }
    }

    pub(crate) fn finish(self) -> Digest {
        match self.0 {
            State::Crc32c(crc) => Digest::Crc32c(crc),
            State::Xxh3(state) => Digest::Xxh3(std::hash::Hasher::finish(&*state)),
            State::Blake3(state) => Digest::Blake3(*state.finalize().as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_values_come_out_however_the_bytes_come_in() {
        // The check value of the CRC catalogue, and the first vectors of the two hashes' authors.
        let blake3 = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        let expected: [(_, &[u8], _); 3] = [
            (DigestKind::Crc32c, b"123456789", "e3069283"),
            (DigestKind::Xxh3, b"", "2d06800538d394c2"),
            (DigestKind::Blake3, b"", blake3),
        ];
        let long: Vec<u8> = (0..5000_u16).flat_map(u16::to_le_bytes).collect();
        for (kind, bytes, hex) in expected {
            assert_eq!(kind.of(bytes).to_string(), hex, "{kind}");
            let mut hasher = Hasher::new(kind);
            long.chunks(333).for_each(|bytes| hasher.update(bytes));
            assert_eq!(hasher.finish(), kind.of(&long), "{kind}");
        }
    }

    #[test]
    fn no_chunk_and_too_many_are_refused() {
        let max = Digests::CHUNKS_MAX;
        let new = |chunk, len| DigestState::new(DigestKind::Xxh3, chunk, len);
        for (chunk, len) in [(0, 0), (0, 1), (1, max + 1), (2, 2 * max + 1)] {
            let error = new(chunk, len).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{chunk} {len}");
        }
        for (chunk, len) in [(1, 0), (1, max), (2, 2 * max), (usize::MAX, usize::MAX)] {
            assert!(new(chunk, len).is_ok(), "{chunk} {len}");
        }
    }
}
