//! How a call of the driver fails.

use std::fmt;

use super::result::CuResult;

/// A call of the driver that did not do what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver said no.
    #[error("{call} failed: {}", Code { result: *result, words: *words })]
    #[non_exhaustive]
    Failed {
        /// The function that was called.
        call: &'static str,
        /// What it returned.
        result: CuResult,
        /// The driver's own words for a code that [`CuResult`] has no name for, if it has some.
        words: Option<Words>,
    },
    /// The driver does not have the function.
    #[error("the driver has no {symbol}: it is too old for this call")]
    #[non_exhaustive]
    Unsupported {
        /// The function that is missing.
        symbol: &'static str,
    },
}

impl CudaError {
    /// A call that ended with a code, without the driver's own words for it.
    #[must_use]
    pub const fn failed(call: &'static str, result: CuResult) -> Self {
        Self::Failed {
            call,
            result,
            words: None,
        }
    }

    /// The function that was, or would have been, called.
    #[must_use]
    pub const fn call(&self) -> &'static str {
        match *self {
            Self::Failed { call, .. } => call,
            Self::Unsupported { symbol } => symbol,
        }
    }

    /// The code, or none where no call was made.
    #[must_use]
    pub const fn result(&self) -> Option<CuResult> {
        match *self {
            Self::Failed { result, .. } => Some(result),
            Self::Unsupported { .. } => None,
        }
    }
}

/// The driver's own words for one of its codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Words {
    /// From `cuGetErrorName`.
    pub name: &'static str,
    /// From `cuGetErrorString`.
    pub meaning: Option<&'static str>,
}

struct Code {
    result: CuResult,
    words: Option<Words>,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meaning = match self.words {
            None => {
                write!(f, "{}", self.result)?;
                self.result.meaning()
            }
            Some(words) => {
                write!(f, "{} ({})", words.name, self.result.0)?;
                words.meaning
            }
        };
        match meaning {
            Some(meaning) => write!(f, ": {meaning}"),
            None => Ok(()),
        }
    }
}
