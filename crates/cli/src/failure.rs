//! Why the command failed: one line naming file, offset and reason.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};

use tokio_cufile::{Error, ErrorKind};

use crate::resolved::Refused;

/// What ends the command early, by exit code.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Wrong usage: 2.
    Usage(String),
    /// The operation failed: 1.
    Operation(OperationFailure),
    /// A signal ended it: 130, as a shell has it for an interrupt.
    Interrupted(OperationFailure),
}

#[derive(Debug)]
pub(crate) struct OperationFailure {
    path: PathBuf,
    offset: u64,
    reason: String,
}

impl Failure {
    pub(crate) fn new(path: &Path, offset: u64, reason: impl fmt::Display) -> Self {
        Self::Operation(OperationFailure {
            path: path.to_owned(),
            offset,
            reason: reason.to_string(),
        })
    }

    /// From the library's error; `path` and `offset` say where the command was, for an error that
    /// does not.
    pub(crate) fn of_library(error: &Error, path: &Path, offset: u64) -> Self {
        let mut reason = String::new();
        if let Some(operation) = error.operation() {
            reason.push_str(&format!("{operation}: "));
        }
        reason.push_str(error.kind().description());
        if !error.reason().is_empty() {
            reason.push_str(": ");
            reason.push_str(error.reason());
        }
        Self::new(
            error.path().unwrap_or(path),
            error.offset().unwrap_or(offset),
            reason,
        )
    }

    /// From building the engine: it refuses settings, which were typed or are in the environment.
    /// Else the failure is that of the command, which was to work on `path`.
    pub(crate) fn of_engine(error: &Error, path: &Path, offset: u64) -> Self {
        match error.kind() {
            ErrorKind::InvalidInput | ErrorKind::Unsupported => Self::Usage(error.to_string()),
            _ => Self::of_library(error, path, offset),
        }
    }

    /// From the memory that the bytes of `path` were to go through.
    pub(crate) fn of_memory(error: &Error, path: &Path, offset: u64) -> Self {
        let failure = Self::of_library(error, path, offset);
        match error.kind() {
            ErrorKind::OutOfMemory => failure.with_aftermath("a smaller --window takes less"),
            _ => failure,
        }
    }

    /// The person had enough.
    pub(crate) fn interrupted(path: &Path, offset: u64) -> Self {
        Self::Interrupted(OperationFailure {
            path: path.to_owned(),
            offset,
            reason: "interrupted".into(),
        })
    }

    /// With what follows from it, or is left behind by it.
    pub(crate) fn with_aftermath(mut self, aftermath: &str) -> Self {
        if let Self::Operation(failure) | Self::Interrupted(failure) = &mut self {
            failure.reason.push_str("; ");
            failure.reason.push_str(aftermath);
        }
        self
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Operation(_) => 1,
            Self::Interrupted(_) => 130,
            Self::Usage(_) => 2,
        }
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Self::Usage(refused.0)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(reason) => write!(OneLine(f), "{reason}"),
            Self::Operation(failure) | Self::Interrupted(failure) => {
                let OperationFailure {
                    path,
                    offset,
                    reason,
                } = failure;
                write!(OneLine(f), "{}: offset {offset}: {reason}", path.display())
            }
        }
    }
}

/// Escapes control characters: a file's name may hold a newline.
struct OneLine<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for OneLine<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|char| {
            if char.is_control() {
                write!(self.0, "{}", char.escape_default())
            } else {
                self.0.write_char(char)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_whatever_the_file_is_called() {
        let failure = Failure::new(Path::new("a\nb\u{1b}[31m"), 7, "broken");
        assert_eq!(failure.to_string(), "a\\nb\\u{1b}[31m: offset 7: broken");
        assert_eq!(failure.exit_code(), 1);
    }

    #[test]
    fn what_is_left_behind_follows_the_reason() {
        let failure =
            Failure::new(Path::new("f"), 0, "storage full").with_aftermath("f was removed");
        assert_eq!(
            failure.to_string(),
            "f: offset 0: storage full; f was removed"
        );
    }

    #[test]
    fn wrong_usage_has_its_own_exit_code() {
        assert_eq!(Failure::from(Refused("no".into())).exit_code(), 2);
    }
}
