//! The system calls of measuring that no kept crate wraps: `cachestat`, `mincore`, `getrusage`.
//!
//! Unsafe, because all three write through pointers. No pointer outlives its call.
#![allow(unsafe_code, reason = "the kernel writes its answers through pointers")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

/// The number of `cachestat`, one for all architectures; libc does not have it on all.
const SYS_CACHESTAT: libc::c_long = 451;

#[repr(C)]
struct CachestatRange {
    offset: u64,
    length: u64,
}

#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cache: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Pages of `length` bytes from `offset` that are in the page cache.
///
/// A length of 0 means to the end of the file. Since Linux 6.5 (`ENOSYS` before); `EPERM` for who
/// may not write the file and does not own it.
pub(crate) fn cached_pages(fd: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<u64> {
    let range = CachestatRange { offset, length };
    let mut stat = Cachestat::default();
    // SAFETY: both structures have the kernel's layout and live through the call; the kernel reads
    // the first and writes the second; `fd` is open while it is borrowed.
    let status = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            fd.as_raw_fd(),
            &raw const range,
            &raw mut stat,
            0_u32,
        )
    };
    if status == 0 {
        Ok(stat.cache)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Pages of `length` bytes from `offset`, a multiple of the page size, that `mincore` calls
/// resident.
///
/// For who may not write the file and does not own it the kernel calls every page resident.
pub(crate) fn mapped_pages(fd: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<u64> {
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    if length == 0 {
        return Ok(0);
    }
    let mapping = Mapping::new(fd, offset, length)?;
    let mut pages = vec![0_u8; length.div_ceil(page_size())];
    // SAFETY: the mapping has `length` bytes, and `pages` has a byte for each page of them.
    let status = unsafe { libc::mincore(mapping.start, length, pages.as_mut_ptr().cast()) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    let resident = pages.iter().filter(|&&page| page & 1 == 1).count();
    Ok(resident as u64)
}

/// A mapping that is never read: looking at it must not bring pages in.
struct Mapping {
    start: *mut libc::c_void,
    length: usize,
}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, offset: libc::off_t, length: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours;
        // `fd` is open while it is borrowed.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                offset,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start, length })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing refers into it.
        let status = unsafe { libc::munmap(self.start, self.length) };
        debug_assert_eq!(status, 0, "a mapping that was made can be unmade");
    }
}

pub(crate) fn page_size() -> usize {
    rustix::param::page_size()
}

/// User and system CPU time of this process so far.
pub(crate) fn rusage() -> io::Result<(Duration, Duration)> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the kernel writes one whole `rusage` to the pointer.
    let status = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so all of it was written.
    let usage = unsafe { usage.assume_init() };
    Ok((duration(usage.ru_utime), duration(usage.ru_stime)))
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let micros = u64::try_from(time.tv_usec).unwrap_or_default();
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}
