//! What a result means. Pure functions: every form of error that the library is known to return.
//!
//! The header tells a simpler story than what has been measured: a code may come in `errno`, and
//! beside success there may be a code of CUDA that means nothing.

use std::fmt;
use std::io;

use super::code::Code;
use super::types::{BatchStatus, IoEvent, Status};
use crate::cuda::CuResult;

/// Why a call or an operation did not do what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// A code of the library.
    Code(Code),
    /// A code of the CUDA driver, told by the library beside
    /// [`CUDA_DRIVER_ERROR`](Code::CUDA_DRIVER_ERROR).
    Cuda(CuResult),
    /// A number of the operating system, `errno`.
    Os(i32),
    /// The library says that it failed, and not why.
    Unexplained,
    /// More bytes than were asked for: a bug of the library, and nothing is known of the memory.
    TooLong {
        /// Bytes that were asked for.
        asked: usize,
        /// Bytes that the library says it moved.
        told: usize,
    },
    /// What a batch says of a request that did not run to its end: cancelled, out of time, refused.
    Batch(BatchStatus),
}

impl Failure {
    /// The library's code, where it gave one.
    #[must_use]
    pub fn code(self) -> Option<Code> {
        match self {
            Self::Code(code) => Some(code),
            Self::Cuda(_) => Some(Code::CUDA_DRIVER_ERROR),
            _ => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code(code) => write!(f, "{code}"),
            Self::Cuda(code) => {
                let announced = Code::CUDA_DRIVER_ERROR.0;
                write!(f, "CU_FILE_CUDA_DRIVER_ERROR ({announced}): {code}")?;
                code.meaning()
                    .map_or(Ok(()), |meaning| write!(f, ": {meaning}"))
            }
            Self::Os(errno) => write!(f, "{}", io::Error::from_raw_os_error(errno)),
            Self::Unexplained => f.write_str("the library does not say why"),
            Self::TooLong { asked, told } => {
                write!(
                    f,
                    "the library says that it moved {told} bytes, of {asked} asked for"
                )
            }
            Self::Batch(status) => write!(f, "the batch says: {status}"),
        }
    }
}

/// A [`Status`]. CUDA's code counts only beside the one code that announces it.
///
/// # Errors
///
/// [`Failure::Code`] and [`Failure::Cuda`].
pub fn decode_status(status: Status) -> Result<(), Failure> {
    if status.err.is_success() {
        return Ok(());
    }
    if status.err == Code::CUDA_DRIVER_ERROR && status.cu_err != 0 {
        return Err(Failure::Cuda(CuResult(status.cu_err)));
    }
    Err(Failure::Code(status.err))
}

/// What `cuFileRead` and its like return, with the `errno` of the same thread, taken at once: bytes
/// moved, of `asked`.
///
/// # Errors
///
/// Every kind but that of batches. Beside a count `errno` means nothing.
pub fn decode_sync(returned: isize, errno: i32, asked: usize) -> Result<usize, Failure> {
    match returned {
        -1 if errno > Code::BASE => Err(Failure::Code(Code(errno))),
        -1 if errno == 0 => Err(Failure::Unexplained),
        -1 => Err(Failure::Os(errno)),
        other => decode_count(other, asked),
    }
}

/// What an operation in a stream leaves in its cell: bytes moved, of `asked`. Not for a cell that
/// was [not written yet](super::Cells::NOT_DONE).
///
/// # Errors
///
/// Every kind but that of batches.
pub fn decode_done(done: isize, asked: usize) -> Result<usize, Failure> {
    match done {
        // There is no errno beside it.
        -1 => Err(Failure::Unexplained),
        other => decode_count(other, asked),
    }
}

/// What came of a request of a batch, which asked for `asked` bytes; `None` while it has not ended.
///
/// # Errors
///
/// Every kind.
pub fn decode_event(event: &IoEvent, asked: usize) -> Option<Result<usize, Failure>> {
    let status = event.status;
    let has = |bit| status.contains(bit);
    if has(BatchStatus::COMPLETE) {
        return Some(decode_done(event.ret.cast_signed(), asked));
    }
    if has(BatchStatus::FAILED) {
        let failure = decode_done(event.ret.cast_signed(), asked).err();
        return Some(Err(failure.unwrap_or(Failure::Batch(status))));
    }
    if has(BatchStatus::WAITING) || has(BatchStatus::PENDING) {
        return None;
    }
    Some(Err(Failure::Batch(status)))
}

/// A count, or the negative of a code or of an `errno`.
fn decode_count(value: isize, asked: usize) -> Result<usize, Failure> {
    match usize::try_from(value) {
        Ok(told) if told > asked => Err(Failure::TooLong { asked, told }),
        Ok(moved) => Ok(moved),
        Err(_) => Err(negated(value)),
    }
}

fn negated(value: isize) -> Failure {
    match i32::try_from(value.unsigned_abs()) {
        Ok(code) if code > Code::BASE => Failure::Code(Code(code)),
        Ok(errno) => Failure::Os(errno),
        // No code and no errno is that large.
        Err(_) => Failure::Unexplained,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EIO: i32 = 5;

    fn status(err: i32, cu_err: i32) -> Status {
        Status {
            err: Code(err),
            cu_err,
        }
    }

    #[test]
    fn a_status_is_its_code_and_cudas_only_where_it_is_announced() {
        let table = [
            (status(0, 0), Ok(())),
            // Seen in the field, and no error.
            (status(0, 201), Ok(())),
            (status(5011, 3), Err(Failure::Cuda(CuResult(3)))),
            (status(5011, 0), Err(Failure::Code(Code::CUDA_DRIVER_ERROR))),
            (status(5027, 0), Err(Failure::Code(Code(5027)))),
            (status(5027, 999), Err(Failure::Code(Code(5027)))),
            (status(7777, 0), Err(Failure::Code(Code(7777)))),
            (status(-1, 0), Err(Failure::Code(Code(-1)))),
        ];
        for (status, expected) in table {
            assert_eq!(decode_status(status), expected, "{status:?}");
        }
    }

    #[test]
    fn a_return_is_a_count_a_code_in_errno_an_errno_or_the_negative_of_either() {
        let table = [
            (100, 0, Ok(100)),
            // errno is left dirty by calls that succeed.
            (100, 2, Ok(100)),
            (0, 5027, Ok(0)),
            (-1, 5022, Err(Failure::Code(Code::INVALID_VALUE))),
            (-1, 5027, Err(Failure::Code(Code::HANDLE_NOT_REGISTERED))),
            (-1, 5019, Err(Failure::Code(Code::INVALID_FILE_OPEN_FLAG))),
            (-1, 5001, Err(Failure::Code(Code::DRIVER_NOT_INITIALIZED))),
            (-1, 5000, Err(Failure::Os(5000))),
            (-1, EIO, Err(Failure::Os(EIO))),
            (-1, 1, Err(Failure::Os(1))),
            (-1, 0, Err(Failure::Unexplained)),
            (-5027, 2, Err(Failure::Code(Code(5027)))),
            (-6001, 0, Err(Failure::Code(Code(6001)))),
            (-5, 2, Err(Failure::Os(EIO))),
            (-5000, 0, Err(Failure::Os(5000))),
            (isize::MIN, 0, Err(Failure::Unexplained)),
        ];
        for (returned, errno, expected) in table {
            let found = decode_sync(returned, errno, 100);
            assert_eq!(found, expected, "{returned} with errno {errno}");
        }
    }

    #[test]
    fn a_cell_is_a_count_or_the_negative_of_a_code_or_an_errno() {
        let table = [
            (100, Ok(100)),
            (0, Ok(0)),
            (-5, Err(Failure::Os(EIO))),
            (-5011, Err(Failure::Code(Code::CUDA_DRIVER_ERROR))),
            // No errno is beside it: not EPERM.
            (-1, Err(Failure::Unexplained)),
            (isize::MIN, Err(Failure::Unexplained)),
        ];
        for (done, expected) in table {
            assert_eq!(decode_done(done, 100), expected, "{done}");
        }
    }

    #[test]
    fn more_bytes_than_asked_for_are_no_success() {
        let too_long = Err(Failure::TooLong {
            asked: 100,
            told: 101,
        });
        assert_eq!(decode_sync(101, 0, 100), too_long);
        assert_eq!(decode_done(101, 100), too_long);
        assert_eq!(decode_sync(100, 0, 100), Ok(100));
    }

    #[test]
    fn an_event_of_a_batch_is_read_by_its_status_first() {
        let event = |status, ret: isize| IoEvent {
            status,
            ret: ret.cast_unsigned(),
            ..IoEvent::EMPTY
        };
        let failed = |status| Some(Err(Failure::Batch(status)));
        let table = [
            (BatchStatus::WAITING, 0, None),
            (BatchStatus::PENDING, 50, None),
            (BatchStatus::COMPLETE, 50, Some(Ok(50))),
            // A negative error in an unsigned field.
            (BatchStatus::COMPLETE, -5, Some(Err(Failure::Os(EIO)))),
            (
                BatchStatus::FAILED,
                -5030,
                Some(Err(Failure::Code(Code(5030)))),
            ),
            (BatchStatus::FAILED, 0, failed(BatchStatus::FAILED)),
            (BatchStatus::INVALID, 0, failed(BatchStatus::INVALID)),
            (BatchStatus::CANCELED, 50, failed(BatchStatus::CANCELED)),
            (BatchStatus::TIMEOUT, 0, failed(BatchStatus::TIMEOUT)),
            (BatchStatus(0x80), 50, failed(BatchStatus(0x80))),
        ];
        for (status, ret, expected) in table {
            let found = decode_event(&event(status, ret), 100);
            assert_eq!(found, expected, "{status} with {ret}");
        }
    }

    #[test]
    fn failures_are_told_in_words() {
        let told = |failure: Failure| failure.to_string();
        assert!(told(Failure::Code(Code(5028))).contains("registered already"));
        assert_eq!(told(Failure::Code(Code(7777))), "unknown cuFile code 7777");
        assert!(told(Failure::Cuda(CuResult(201))).contains("CUDA_ERROR_INVALID_CONTEXT (201)"));
        assert!(told(Failure::Os(EIO)).contains("os error 5"));
        let (asked, told_bytes) = (1, 2);
        let text = told(Failure::TooLong {
            asked,
            told: told_bytes,
        });
        assert!(text.contains("2 bytes, of 1"), "{text}");
    }

    /// A table out of order would lose codes in the binary search: then fewer than all are found.
    #[test]
    fn every_code_of_the_table_is_found_once() {
        let names: Vec<_> = (-1..6000).filter_map(|code| Code(code).name()).collect();
        let mut once = names.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), names.len(), "a name stands for two codes");
        // 5001 to 5049 without 5021 and 5032, and success.
        assert_eq!(names.len(), 48, "{names:?}");
        assert_eq!(Code(5027).name(), Some("CU_FILE_HANDLE_NOT_REGISTERED"));
        assert_eq!(Code(5021).name(), None);
    }
}
