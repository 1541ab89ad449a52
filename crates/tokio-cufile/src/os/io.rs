//! Positional reads and writes on raw memory, and a `close` that reports.
//!
//! Unsafe, because no kept crate has these in the form needed: rustix's calls take slices, and no
//! reference to buffer memory may exist while the kernel can touch it; std's `close` drops the
//! error. One system call each: when to repeat is decided above.
#![allow(
    unsafe_code,
    reason = "raw memory and raw descriptors go to the kernel"
)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

use rustix::io::Errno;

/// Reads up to `len` bytes at `offset` of `fd` into `ptr`. Fewer is normal; 0 is the end of file.
///
/// # Safety
///
/// `ptr` must be valid for writes of `len` bytes for the whole call, and no reference to any of
/// them may be live and nothing else may access them meanwhile.
pub(crate) unsafe fn read_at(
    fd: BorrowedFd<'_>,
    ptr: *mut u8,
    len: usize,
    offset: u64,
) -> Result<usize, Errno> {
    let offset = libc::off_t::try_from(offset).map_err(|_| Errno::OVERFLOW)?;
    // SAFETY: the caller lends `len` writable bytes at `ptr` for the call; `fd` is open while
    // it is borrowed.
    let count = unsafe { libc::pread(fd.as_raw_fd(), ptr.cast(), len, offset) };
    usize::try_from(count).map_err(|_| last_errno())
}

/// Writes up to `len` bytes from `ptr` at `offset` of `fd`. Fewer is normal.
///
/// The file must not be open for appending: Linux then ignores `offset`.
///
/// # Safety
///
/// `ptr` must be valid for reads of `len` initialised bytes for the whole call, and nothing may
/// write to them meanwhile.
pub(crate) unsafe fn write_at(
    fd: BorrowedFd<'_>,
    ptr: *const u8,
    len: usize,
    offset: u64,
) -> Result<usize, Errno> {
    let offset = libc::off_t::try_from(offset).map_err(|_| Errno::OVERFLOW)?;
    // SAFETY: the caller lends `len` readable bytes at `ptr` for the call; `fd` is open while
    // it is borrowed.
    let count = unsafe { libc::pwrite(fd.as_raw_fd(), ptr.cast(), len, offset) };
    usize::try_from(count).map_err(|_| last_errno())
}

/// Closes `fd` and says what the kernel said; some file systems report a lost write only here.
pub(super) fn close(fd: OwnedFd) -> Result<(), Errno> {
    // SAFETY: the descriptor was owned and is given up by `into_raw_fd`: this is its one close.
    let status = unsafe { libc::close(fd.into_raw_fd()) };
    match status {
        0 => Ok(()),
        _ => match last_errno() {
            // Linux has released the descriptor by then: a second close could hit a stranger's.
            Errno::INTR => Ok(()),
            errno => Err(errno),
        },
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn write(file: &std::fs::File, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
        // SAFETY: `bytes` is a live slice, and nothing writes to it.
        unsafe { write_at(file.as_fd(), bytes.as_ptr(), bytes.len(), offset) }
    }

    fn read(file: &std::fs::File, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
        // SAFETY: `bytes` is borrowed exclusively, and is not used before the call is over.
        unsafe { read_at(file.as_fd(), bytes.as_mut_ptr(), bytes.len(), offset) }
    }

    #[test]
    fn bytes_come_back_from_the_offset_they_were_written_to() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(write(&file, b"abcdef", 10), Ok(6));
        let mut back = [0xff; 8];
        assert_eq!(
            read(&file, &mut back, 9),
            Ok(7),
            "short at the end of the file"
        );
        assert_eq!(&back, b"\0abcdef\xff");
        assert_eq!(read(&file, &mut back, 16), Ok(0));
        assert_eq!(read(&file, &mut back, 1 << 40), Ok(0));
    }

    #[test]
    fn an_offset_beyond_the_kernels_type_is_an_overflow() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(read(&file, &mut [0; 1], u64::MAX), Err(Errno::OVERFLOW));
        assert_eq!(write(&file, &[0; 1], 1 << 63), Err(Errno::OVERFLOW));
    }

    #[test]
    fn the_kernels_refusal_is_passed_on() {
        let directory = std::fs::File::open(std::env::temp_dir()).unwrap();
        assert_eq!(read(&directory, &mut [0; 1], 0), Err(Errno::ISDIR));
        assert_eq!(write(&directory, &[0; 1], 0), Err(Errno::BADF));
    }

    #[test]
    fn close_succeeds_on_an_open_descriptor() {
        assert_eq!(close(tempfile::tempfile().unwrap().into()), Ok(()));
    }
}
