//! Descriptors by number, as the library that is simulated knows them: whatever file has the number
//! when it is used.
#![allow(
    unsafe_code,
    reason = "system calls on descriptors that others own, and memory named by address"
)]

use std::ffi::{CString, c_void};
use std::fs::OpenOptions;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::code::{Fail, Result};

/// What tells one file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

/// A file as its descriptor is now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About {
    pub(crate) identity: Identity,
    /// A file or a block device, and no folder, pipe or other thing.
    pub(crate) holds_bytes: bool,
    /// The flags that it was opened with.
    pub(crate) flags: i32,
    pub(crate) on_tmpfs: bool,
}

/// Asks about a descriptor; the error is the system's.
pub(crate) fn about(fd: i32) -> Result<About> {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: writes one structure to a place that lives, or fails.
    check(unsafe { libc::fstat(fd, stat.as_mut_ptr()) })?;
    // SAFETY: zeros are a value of it, and the call has written it.
    let stat = unsafe { stat.assume_init() };
    let mut system = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: as above.
    check(unsafe { libc::fstatfs(fd, system.as_mut_ptr()) })?;
    // SAFETY: as above.
    let system = unsafe { system.assume_init() };
    // SAFETY: only asks.
    let flags = check(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    Ok(About {
        identity: Identity {
            device: stat.st_dev,
            inode: stat.st_ino,
        },
        holds_bytes: matches!(stat.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK),
        flags,
        on_tmpfs: system.f_type == libc::TMPFS_MAGIC,
    })
}

/// Closes a descriptor of somebody else's, as the real library has been reported to.
pub(crate) fn close(fd: i32) {
    // SAFETY: a number names no memory. Whoever has it is in for a surprise, which is the point.
    let _ = unsafe { libc::close(fd) };
}

/// Opens the path that a descriptor has by now, for what the descriptor is open for: not the file of
/// one that was deleted, whose path names nothing.
pub(crate) fn open_again(fd: i32, flags: i32) -> io::Result<OwnedFd> {
    let path = std::fs::read_link(format!("/proc/self/fd/{fd}"))?;
    let mode = flags & libc::O_ACCMODE;
    let mut options = OpenOptions::new();
    options
        .read(mode != libc::O_WRONLY)
        .write(mode != libc::O_RDONLY);
    options.open(path).map(OwnedFd::from)
}

/// The path of a descriptor, as far as the system knows it.
pub(crate) fn path(fd: i32) -> String {
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    link.map_or_else(
        |_| String::new(),
        |path| path.to_string_lossy().into_owned(),
    )
}

/// A descriptor to move bytes by, however they are aligned: the one of that number, or, where that
/// is for direct I/O, another of the same file through the page cache.
#[derive(Debug)]
pub(crate) enum Access {
    Theirs(i32),
    Own(OwnedFd),
}

impl Access {
    pub(crate) fn new(fd: i32, flags: i32, write: bool) -> Result<Self> {
        if flags & libc::O_DIRECT == 0 {
            return Ok(Self::Theirs(fd));
        }
        let path = CString::new(format!("/proc/self/fd/{fd}")).unwrap_or_default();
        let mode = if write {
            libc::O_WRONLY
        } else {
            libc::O_RDONLY
        };
        // SAFETY: the path ends in 0.
        let own = check(unsafe { libc::open(path.as_ptr(), mode | libc::O_CLOEXEC) })?;
        // SAFETY: it was just opened, and nobody else knows it.
        Ok(Self::Own(unsafe { OwnedFd::from_raw_fd(own) }))
    }

    fn number(&self) -> i32 {
        match self {
            Self::Theirs(fd) => *fd,
            Self::Own(own) => own.as_raw_fd(),
        }
    }

    /// Moves bytes between the file and an address; fewer only at the end of the file.
    pub(crate) fn transfer(
        &self,
        to_file: bool,
        address: usize,
        len: usize,
        offset: i64,
    ) -> Result<usize> {
        let mut moved = 0;
        while moved < len {
            let at = (address + moved) as *mut c_void;
            let from = offset.saturating_add(i64::try_from(moved).unwrap_or(i64::MAX));
            let rest = len - moved;
            let fd = self.number();
            let count = if to_file {
                // SAFETY: device memory stays while it is accessed; host memory is as the caller of
                // the library vouches, and the kernel refuses what is not there.
                unsafe { libc::pwrite(fd, at, rest, from) }
            } else {
                // SAFETY: as above.
                unsafe { libc::pread(fd, at, rest, from) }
            };
            match usize::try_from(count) {
                Ok(0) => break,
                Ok(count) => moved += count,
                Err(_) if errno() == libc::EINTR => {}
                Err(_) => return Err(Fail::Errno(errno())),
            }
        }
        Ok(moved)
    }
}

/// Makes one bit of a byte wrong. The byte was written by [`Access::transfer`] just before.
pub(crate) fn flip(address: usize) {
    let at = address as *mut u8;
    // SAFETY: it was just written, so it is there and may be written.
    let byte = unsafe { at.read() };
    // SAFETY: as above.
    unsafe { at.write(byte ^ 1) };
}

/// The calling thread's name, as far as the system keeps it.
pub(crate) fn thread_name() -> [u8; 16] {
    let mut name = [0; 16];
    // SAFETY: writes 16 bytes, to a place that has as many.
    let _ = unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

pub(crate) fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

pub(crate) fn set_errno(number: i32) {
    // SAFETY: only tells where this thread's number is.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the place is this thread's.
    unsafe { place.write(number) };
}

fn check(result: i32) -> Result<i32> {
    if result < 0 {
        Err(Fail::Errno(errno()))
    } else {
        Ok(result)
    }
}
