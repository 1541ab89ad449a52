//! What the kernel says about pages of a file in the page cache.
#![allow(
    unsafe_code,
    reason = "cachestat has no wrapper in the crates used, preadv2 here names memory of its own"
)]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::page_size;

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

/// How many bytes speak for a range, at most.
const SAMPLES_MAX: u64 = 4;

/// A shorter range is not asked about by samples: it counts as not cached.
const SAMPLED_LEN_MIN: u64 = 64 << 10;

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

/// Asks about `len` bytes at `offset`.
///
/// Where `cachestat` is refused (a file that the caller neither owns nor may write), a few bytes are
/// asked for without waiting, and speak for the whole range. A byte that is not there makes the
/// kernel fetch its page and a few behind it, so the first miss ends the asking, and other bytes are
/// asked for the next time: the same ones would be there then, and the rest still not.
pub(crate) fn cached_pages(fd: BorrowedFd<'_>, offset: u64, len: u64) -> CachedPages {
    if len == 0 {
        return CachedPages::None;
    }
    match cachestat(fd, offset, len) {
        Some(cached) => {
            let page = page_size();
            let pages = (offset + len).div_ceil(page) - offset / page;
            match cached {
                0 => CachedPages::None,
                all if all >= pages => CachedPages::All,
                _ => CachedPages::Some,
            }
        }
        // What asking makes the kernel read would be most of a short range.
        None if len < SAMPLED_LEN_MIN => CachedPages::None,
        None if samples((offset, len), page_size(), next_seed())
            .all(|at| byte_is_cached(fd, at)) =>
        {
            CachedPages::All
        }
        None => CachedPages::None,
    }
}

/// Bytes of the range, each in another stretch of it, and not the same for another seed.
fn samples((offset, len): (u64, u64), page_size: u64, seed: u64) -> impl Iterator<Item = u64> {
    let first = offset / page_size;
    let pages = (offset + len).div_ceil(page_size) - first;
    let count = pages.min(SAMPLES_MAX);
    (0..count).map(move |index| {
        let (start, end) = (pages * index / count, pages * (index + 1) / count);
        let page = first + start + seed % (end - start);
        (page * page_size).max(offset)
    })
}

/// Numbers that have nothing to do with those before.
fn next_seed() -> u64 {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    // The multiplier of Fibonacci hashing; the upper half is the mixed one.
    call.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
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

fn byte_is_cached(fd: BorrowedFd<'_>, offset: u64) -> bool {
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
        assert!(byte_is_cached(fd, 0));
        assert!(!byte_is_cached(fd, 1 << 20));
    }

    #[test]
    fn samples_lie_in_the_range_one_in_each_stretch() {
        for (offset, len) in [
            (0, 1),
            (100, 1),
            (4095, 2),
            (5000, 4 << 20),
            (1 << 40, 12_288),
        ] {
            for (seed, page) in (0..100).map(|at| (next_seed(), 4096 << (at % 2 * 4))) {
                let found: Vec<u64> = samples((offset, len), page, seed).collect();
                let pages = (offset + len).div_ceil(page) - offset / page;
                assert_eq!(found.len() as u64, pages.min(SAMPLES_MAX));
                assert!(found.iter().all(|&at| (offset..offset + len).contains(&at)));
                assert!(found.is_sorted_by(|one, two| one / page < two / page));
            }
        }
    }

    #[test]
    fn other_bytes_are_asked_for_the_next_time() {
        let mut asked: Vec<u64> = (0..100)
            .flat_map(|_| samples((0, 4 << 20), 4096, next_seed()).take(1))
            .collect();
        asked.sort_unstable();
        asked.dedup();
        assert!(asked.len() > 50, "of 256 pages: {asked:?}");
    }
}
