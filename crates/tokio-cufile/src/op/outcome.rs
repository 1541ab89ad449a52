//! What a read or a write gives back.

use std::fmt;

use crate::digest::Digests;
use crate::error::Error;
use crate::receipt::Receipt;

/// What a finished read or write gives back.
#[non_exhaustive]
pub struct Done<B> {
    /// The buffer.
    pub buf: B,
    /// Bytes moved, from the buffer's start; of a read of many ranges, all that was asked for.
    pub bytes: usize,
    /// What happened on the way.
    pub receipt: Receipt,
    pub(super) digests: Option<Digests>,
}

impl<B> Done<B> {
    /// The checksums that [`Transfer::digest`](crate::Transfer::digest) asked for.
    #[must_use]
    pub const fn digests(&self) -> Option<&Digests> {
        self.digests.as_ref()
    }

    pub(super) fn map<U>(self, map: impl FnOnce(B) -> U) -> Done<U> {
        Done {
            buf: map(self.buf),
            bytes: self.bytes,
            receipt: self.receipt,
            digests: self.digests,
        }
    }
}

impl<B> fmt::Debug for Done<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Done")
            .field("bytes", &self.bytes)
            .field("receipt", &self.receipt)
            .finish_non_exhaustive()
    }
}

/// Why a read or write failed, with the buffer.
#[must_use]
pub struct OpError<B> {
    pub(super) error: Error,
    pub(super) buf: Option<B>,
    pub(super) bytes_done: usize,
    /// Boxed, to keep results small.
    pub(super) receipt: Option<Box<Receipt>>,
}

impl<B> OpError<B> {
    /// The error.
    #[must_use]
    pub const fn error(&self) -> &Error {
        &self.error
    }

    /// Bytes moved before it without a gap, from the buffer's start; of a read of many ranges, in
    /// the order of their file offsets. After a failed write more may have reached the file.
    #[must_use]
    pub const fn bytes_done(&self) -> usize {
        self.bytes_done
    }

    /// What happened on the way; `None` when nothing was submitted.
    #[must_use]
    pub fn receipt(&self) -> Option<&Receipt> {
        self.receipt.as_deref()
    }

    pub(super) fn map<U>(self, map: impl FnOnce(B) -> U) -> OpError<U> {
        OpError {
            error: self.error,
            buf: self.buf.map(map),
            bytes_done: self.bytes_done,
            receipt: self.receipt,
        }
    }

    /// The error and the buffer. The buffer is `None` exactly when the error is `Quarantined`, or
    /// `Forked` for an operation that was started before the fork.
    pub fn into_parts(self) -> (Error, Option<B>) {
        (self.error, self.buf)
    }
}

impl<B> From<OpError<B>> for Error {
    fn from(error: OpError<B>) -> Self {
        error.error
    }
}

impl<B> fmt::Display for OpError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> fmt::Debug for OpError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpError")
            .field("error", &self.error)
            .field("bytes_done", &self.bytes_done)
            .finish_non_exhaustive()
    }
}

impl<B> std::error::Error for OpError<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}
