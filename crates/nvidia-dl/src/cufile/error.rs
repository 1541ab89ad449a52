//! How a call of libcufile fails.

use super::decode::Failure;
use super::version::Version;

/// A call of libcufile that did not do what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CufileError {
    /// The library said no.
    #[error("{call} failed: {failure}")]
    #[non_exhaustive]
    Failed {
        /// The function that was called.
        call: &'static str,
        /// What it returned.
        failure: Failure,
    },
    /// The library does not have the function.
    #[error("libcufile has no {symbol}: it {}", Since(*since))]
    #[non_exhaustive]
    Unsupported {
        /// The function that is missing.
        symbol: &'static str,
        /// The version that brought it, where that is known.
        since: Option<Version>,
    },
    /// The arguments were not given to the library, which would not have refused them all.
    #[error("{call} was not made: {misuse}")]
    #[non_exhaustive]
    Refused {
        /// The function that would have been called.
        call: &'static str,
        /// What is wrong.
        misuse: Misuse,
    },
}

/// Arguments that never reach the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// An offset in the buffer that is no positive `off_t`. The library does not check it, and
    /// writes before the buffer.
    #[error("the offset in the buffer is beyond what an offset can be")]
    BufferOffset,
    /// An offset in the file that is no positive `off_t`.
    #[error("the offset in the file is beyond what an offset can be")]
    FileOffset,
    /// More bytes than a count can tell.
    #[error("the length is beyond what a count can be")]
    Length,
    /// Buffer offset and length, or address, offset and length, go beyond the end of all addresses.
    #[error("the range of memory goes beyond the end of all addresses")]
    Range,
    /// More requests or entries than the call takes.
    #[error("there are more entries than the call takes")]
    Count,
    /// A text with a zero byte.
    #[error("the text has a zero byte")]
    ZeroByte,
    /// Two lists that belong together are of different lengths.
    #[error("the lists are of different lengths")]
    Lengths,
}

impl CufileError {
    /// A call that ended so.
    #[must_use]
    pub const fn failed(call: &'static str, failure: Failure) -> Self {
        Self::Failed { call, failure }
    }

    pub(super) fn unsupported(symbol: &'static str) -> Self {
        let since = Version::since(symbol);
        Self::Unsupported { symbol, since }
    }

    pub(super) const fn refused(call: &'static str, misuse: Misuse) -> Self {
        Self::Refused { call, misuse }
    }

    /// The function that was, or would have been, called.
    #[must_use]
    pub const fn call(&self) -> &'static str {
        match *self {
            Self::Failed { call, .. } | Self::Refused { call, .. } => call,
            Self::Unsupported { symbol, .. } => symbol,
        }
    }

    /// What the library returned, or none where no call was made.
    #[must_use]
    pub const fn failure(&self) -> Option<Failure> {
        match *self {
            Self::Failed { failure, .. } => Some(failure),
            _ => None,
        }
    }
}

struct Since(Option<Version>);

impl std::fmt::Display for Since {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(version) => write!(f, "came with version {version}"),
            None => f.write_str("is too old for this call"),
        }
    }
}
