//! What the kernel says about pages of a file in the page cache.
#![allow(
    unsafe_code,
    reason = "cachestat has no wrapper in the crates used, preadv2 here names memory of its own"
)]

use std::os::fd::{AsRawFd, BorrowedFd};

/// How much of a range is in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CachedPages {
    /// Nothing, or it is not known.
    None,
    /// Some of it.
    Some,
    /// All of it.
    All,
}

/// `cachestat`, in every architecture's table since Linux 6.5.
const SYS_CACHESTAT: libc::c_long = 451;

const PAGE_SIZE: u64 = 4096;

#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct Stat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Asks about `len` bytes at `offset`. Never makes the kernel read more than one page: where
/// `cachestat` is refused (a file that the caller neither owns nor may write), one byte is asked
/// for without waiting, and speaks for the whole range.
pub(crate) fn cached_pages(fd: BorrowedFd<'_>, offset: u64, len: u64) -> CachedPages {
    if len == 0 {
        return CachedPages::None;
    }
    match cachestat(fd, offset, len) {
        Some(cached) => {
            let pages = (offset + len).div_ceil(PAGE_SIZE) - offset / PAGE_SIZE;
            match cached {
                0 => CachedPages::None,
                all if all >= pages => CachedPages::All,
                _ => CachedPages::Some,
            }
        }
        None if first_byte_is_cached(fd, offset) => CachedPages::All,
        None => CachedPages::None,
    }
}

/// Pages of the range in the page cache; `None` where the kernel does not say.
fn cachestat(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Option<u64> {
    let range = Range { offset, len };
    let mut stat = Stat::default();
    // SAFETY: the kernel reads one range and writes one stat, both live and laid out as in
    // linux/mman.h; flags must be 0.
    let status = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            fd.as_raw_fd(),
            std::ptr::from_ref(&range),
            std::ptr::from_mut(&mut stat),
            0_u32,
        )
    };
    (status == 0).then_some(stat.cached)
}

fn first_byte_is_cached(fd: BorrowedFd<'_>, offset: u64) -> bool {
    let Ok(offset) = libc::off_t::try_from(offset) else {
        return false;
    };
    let mut byte = 0_u8;
    let into = libc::iovec {
        iov_base: std::ptr::from_mut(&mut byte).cast(),
        iov_len: 1,
    };
    // SAFETY: one iovec, that names one writable byte which lives until the call returns.
    let count = unsafe {
        libc::preadv2(
            fd.as_raw_fd(),
            std::ptr::from_ref(&into),
            1,
            offset,
            libc::RWF_NOWAIT,
        )
    };
    count == 1
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_was_just_written_is_cached_and_what_lies_behind_is_not() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 64 << 10]).unwrap();
        let fd = file.as_fd();
        assert_eq!(cached_pages(fd, 0, 64 << 10), CachedPages::All);
        assert_eq!(cached_pages(fd, 100, 1000), CachedPages::All);
        assert_eq!(cached_pages(fd, 1 << 20, 64 << 10), CachedPages::None);
        assert_eq!(cached_pages(fd, 0, 0), CachedPages::None);
        assert!(first_byte_is_cached(fd, 0));
        assert!(!first_byte_is_cached(fd, 1 << 20));
    }
}
