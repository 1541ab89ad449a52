//! A buffer of which one range is in use: what streams and writers reuse from read to read.

use super::host::HostBuffer;

/// An owned buffer and the range of it that an operation moves.
#[derive(Debug)]
pub(crate) struct Span {
    pub(super) buffer: HostBuffer,
    pub(super) start: usize,
    pub(super) len: usize,
}

impl Span {
    /// `len` bytes of `buffer` from `start` on.
    ///
    /// # Panics
    ///
    /// When they are not all inside: a bug of the caller.
    pub(crate) fn new(buffer: HostBuffer, start: usize, len: usize) -> Self {
        let inside = start
            .checked_add(len)
            .is_some_and(|end| end <= buffer.len());
        assert!(inside, "{len} bytes at {start} of {}", buffer.len());
        Self { buffer, start, len }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Keeps the first `len` bytes, or all if there are fewer.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        let all = self.buffer.as_slice().expect("no part was ever lent");
        &all[self.start..self.start + self.len]
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        let all = self.buffer.as_mut_slice().expect("no part was ever lent");
        &mut all[self.start..self.start + self.len]
    }

    /// The buffer, for the next range.
    pub(crate) fn into_buffer(self) -> HostBuffer {
        self.buffer
    }
}
