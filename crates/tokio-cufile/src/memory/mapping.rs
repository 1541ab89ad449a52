//! One private anonymous mapping: zeroed, page aligned, on 2 MiB pages where it is large enough.
//!
//! # Fork
//!
//! Engine memory is hidden from children: after a fork its address range may hold something
//! else in the child, so a mapping dropped there must not unmap. User memory is inherited, since a
//! child that reads its own data must not crash. A fork with a read in flight into user memory is
//! safe for the parent where the kernel *pins* the pages, as it then copies them for the child at
//! once. On kernels that only count references the page is shared after the fork, and a write by
//! the parent's processor to **another** byte of the same page moves the parent to a copy that the
//! device does not know. Bytes in flight are not touched by the parent, so only neighbours within
//! one page are affected (see `HostBuffer`).
#![allow(
    unsafe_code,
    reason = "mmap, madvise and munmap act on addresses: this file is the only one of the crate to call them"
)]

use std::ffi::c_void;
use std::io;
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use rustix::process::Pid;

use super::range::MemoryRange;
use crate::error::{Error, ErrorKind, Result};

/// The size that a transparent huge page has where this crate has been measured. Where it is
/// another, the alignment is merely unneeded.
pub(super) const HUGE_PAGE_SIZE: usize = 2 << 20;

/// The step of touching: the smallest page of any Linux.
pub(super) const PAGE_SIZE_MIN: usize = 4096;

/// Leaves room for rounding up and aligning without overflow.
const LEN_MAX: usize = isize::MAX.unsigned_abs() - 2 * HUGE_PAGE_SIZE;

/// Whose memory it is, which decides what a child process and a core dump see of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The user's: inherited by children, present in core dumps.
    User,
    /// Staging of an engine: it holds bytes of whatever passed last, so neither a child nor a core
    /// dump gets it.
    Engine,
}

/// When the pages are obtained from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prefault {
    /// At creation: about 0.13 s of processor time a GiB on 2 MiB pages, two to four times that on
    /// 4 KiB pages.
    Now,
    /// At the first touch, page by page.
    OnTouch,
}

/// Owns its memory until dropped; hands out addresses only.
#[derive(Debug)]
pub(super) struct Mapping {
    range: MemoryRange,
    /// `None` for an empty mapping, which the kernel does not know.
    _region: Option<Region>,
}

impl Mapping {
    /// Maps `len` zeroed bytes.
    ///
    /// From [`HUGE_PAGE_SIZE`] on the start is aligned to it and what the kernel maps is rounded up
    /// to it, so that the tail gets a large page too. Huge pages are a wish: a system that grants
    /// none gives small ones.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a length no address space holds; `OutOfMemory` when the kernel has no
    /// memory or address space left.
    pub(super) fn new(len: usize, purpose: Purpose, prefault: Prefault) -> Result<Self> {
        if len > LEN_MAX {
            let reason = format!("{len} bytes of memory are more than any address space holds");
            return Err(Error::new(ErrorKind::InvalidInput, reason));
        }
        if len == 0 {
            let range = MemoryRange::new(NonNull::dangling(), 0);
            return Ok(Self {
                range,
                _region: None,
            });
        }
        let region = Region::map(len, purpose).map_err(|errno| map_error(len, errno))?;
        let range = MemoryRange::new(region.start.cast(), len);
        let mapping = Self {
            range,
            _region: Some(region),
        };
        if prefault == Prefault::Now {
            // SAFETY: the mapping is new: nobody else knows its address.
            unsafe { mapping.prefault() }?;
        }
        Ok(mapping)
    }

    /// All its bytes: one allocation, initialised and writable, while the mapping lives.
    pub(super) fn range(&self) -> MemoryRange {
        self.range
    }

    /// Obtains every page now; the contents stay as they are.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` when the kernel has no page left.
    ///
    /// # Safety
    ///
    /// Until the call returns nobody else (no thread, no device) touches the bytes.
    pub(super) unsafe fn prefault(&self) -> Result<()> {
        if self.range.is_empty() {
            return Ok(());
        }
        let start = self.range.as_ptr().cast::<c_void>();
        // SAFETY: the range is this mapping's own; populating changes no byte of it.
        let populated = unsafe { mm::madvise(start, self.range.len(), Advice::LinuxPopulateWrite) };
        match populated {
            Ok(()) => Ok(()),
            // Kernels before 5.14 do not know the advice.
            Err(Errno::INVAL) => {
                // SAFETY: passed on from the caller.
                unsafe { touch(self.range) };
                Ok(())
            }
            Err(errno) => Err(map_error(self.range.len(), errno)),
        }
    }
}

/// Writes one byte of every page back to itself, which makes the kernel provide the page.
///
/// # Safety
///
/// The range is mapped and writable, and until the call returns nobody else (no thread, no device)
/// touches its bytes.
unsafe fn touch(range: MemoryRange) {
    for offset in (0..range.len()).step_by(PAGE_SIZE_MIN) {
        // SAFETY: offset < len, so the byte is inside the range.
        let byte = unsafe { range.as_ptr().add(offset) };
        // SAFETY: a byte inside the range, which the caller has to itself.
        let value = unsafe { byte.read_volatile() };
        // SAFETY: as above. Volatile, since the write has no effect the compiler can see.
        unsafe { byte.write_volatile(value) };
    }
}

fn map_error(len: usize, errno: Errno) -> Error {
    let kind = match errno {
        // Populating reports a page that cannot be had as EFAULT (a limit of the control group)
        // or ENOMEM; mmap and madvise report EAGAIN where a limit on locked memory is in the way.
        Errno::NOMEM | Errno::FAULT | Errno::AGAIN => ErrorKind::OutOfMemory,
        _ => return Error::from_errno(errno),
    };
    Error::new(
        kind,
        format!("{len} bytes of memory could not be had ({errno})"),
    )
    .with_source(io::Error::from(errno))
}

/// What was asked of the kernel and goes back to it.
#[derive(Debug)]
pub(super) struct Region {
    start: NonNull<c_void>,
    len: usize,
    /// The process in which the region exists, where children do not inherit it.
    sole_owner: Option<Pid>,
}

// SAFETY: a region is an address range, bound to no thread; its own methods never read the bytes.
unsafe impl Send for Region {}
// SAFETY: as above; nothing acts through a shared reference.
unsafe impl Sync for Region {}

impl Region {
    fn map(len: usize, purpose: Purpose) -> rustix::io::Result<Self> {
        let huge = len >= HUGE_PAGE_SIZE;
        let region = if huge {
            Self::map_aligned(len)
        } else {
            Self::map_plain(len)
        }?;
        if huge {
            // A kernel without transparent huge pages refuses: small pages serve as well, and
            // what was got is read from the kernel's own report, never assumed.
            let _refused_where_unknown = region.advise(Advice::LinuxHugepage);
        }
        match purpose {
            Purpose::User => Ok(region),
            Purpose::Engine => region.hide(),
        }
    }

    pub(super) fn map_plain(len: usize) -> rustix::io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: no fixed address is asked for, so no existing mapping is touched.
        let start = unsafe { mm::mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) }?;
        let start = NonNull::new(start).ok_or(Errno::NOMEM)?;
        Ok(Self {
            start,
            len,
            sole_owner: None,
        })
    }

    /// All of it is readable and writable until it is dropped.
    pub(super) const fn start(&self) -> NonNull<c_void> {
        self.start
    }

    /// Maps up to one huge page too much and gives back what lies outside the aligned middle.
    fn map_aligned(len: usize) -> rustix::io::Result<Self> {
        let aligned_len = len.next_multiple_of(HUGE_PAGE_SIZE);
        let mut region = Self::map_plain(aligned_len + HUGE_PAGE_SIZE)?;
        let address = region.start.addr().get();
        region.cut_head(address.next_multiple_of(HUGE_PAGE_SIZE) - address)?;
        region.cut_tail(aligned_len)?;
        Ok(region)
    }

    fn cut_head(&mut self, head: usize) -> rustix::io::Result<()> {
        debug_assert!(head < self.len, "the aligned middle is not empty");
        if head > 0 {
            // SAFETY: the first `head` bytes are this region's and nobody knows their address yet;
            // both ends are page aligned.
            unsafe { mm::munmap(self.start.as_ptr(), head) }?;
            // SAFETY: head < len, so the new start is inside what was mapped.
            self.start = unsafe { self.start.byte_add(head) };
            self.len -= head;
        }
        Ok(())
    }

    fn cut_tail(&mut self, len: usize) -> rustix::io::Result<()> {
        debug_assert!(len <= self.len, "a cut never lengthens");
        let tail = self.len - len;
        if tail > 0 {
            // SAFETY: len < self.len, so the tail's start is inside the region.
            let from = unsafe { self.start.byte_add(len) };
            // SAFETY: the last `tail` bytes are this region's and nobody knows their address yet;
            // start and `len` are multiples of a huge page, hence page aligned.
            unsafe { mm::munmap(from.as_ptr(), tail) }?;
            self.len = len;
        }
        Ok(())
    }

    fn hide(mut self) -> rustix::io::Result<Self> {
        self.advise(Advice::LinuxDontDump)?;
        self.advise(Advice::LinuxDontFork)?;
        self.sole_owner = Some(rustix::process::getpid());
        Ok(self)
    }

    pub(super) fn advise(&self, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: the range is this region's own, and the advice given by this file's callers
        // (huge pages, no dump, no fork, wiped in children) changes no byte of it here.
        unsafe { mm::madvise(self.start.as_ptr(), self.len, advice) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // In a child the range is not ours: it was never inherited.
        if self
            .sole_owner
            .is_some_and(|owner| owner != rustix::process::getpid())
        {
            return;
        }
        // SAFETY: the region is mapped by us and its owner is going: no range of it is used later.
        let unmapped = unsafe { mm::munmap(self.start.as_ptr(), self.len) };
        // Only a full table of mappings can refuse; the memory then stays, which harms nobody.
        if let Err(errno) = unmapped {
            tracing::warn!(bytes = self.len, %errno, "memory could not be unmapped and stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(len: usize, purpose: Purpose, prefault: Prefault) -> Mapping {
        Mapping::new(len, purpose, prefault).unwrap()
    }

    fn bytes(mapping: &Mapping) -> &[u8] {
        let range = mapping.range();
        // SAFETY: the mapping lives as long as the slice, and no test writes meanwhile.
        unsafe { std::slice::from_raw_parts(range.as_ptr(), range.len()) }
    }

    fn write(mapping: &Mapping, offset: usize, byte: u8) {
        let at = mapping.range().sub(offset, 1).unwrap().as_ptr();
        // SAFETY: inside the mapping, which lives, and no slice of it does.
        unsafe { at.write(byte) };
    }

    #[test]
    fn memory_is_aligned_and_zeroed_at_every_size() {
        let huge = HUGE_PAGE_SIZE;
        for len in [
            1,
            4095,
            4096,
            4097,
            huge - 1,
            huge,
            huge + 1,
            3 * huge + 4096,
        ] {
            for purpose in [Purpose::User, Purpose::Engine] {
                let mapping = mapping(len, purpose, Prefault::OnTouch);
                let alignment = if len >= huge { huge } else { PAGE_SIZE_MIN };
                assert_eq!(mapping.range().address() % alignment, 0, "{len} bytes");
                assert_eq!(mapping.range().len(), len);
                assert!(bytes(&mapping).iter().all(|&byte| byte == 0), "{len} bytes");
            }
        }
    }

    #[test]
    fn an_empty_mapping_asks_the_kernel_for_nothing() {
        let mapping = mapping(0, Purpose::User, Prefault::Now);
        assert!(mapping.range().is_empty());
        assert!(mapping._region.is_none());
    }

    #[test]
    fn what_is_kept_is_exactly_the_aligned_middle() {
        let region = Region::map(HUGE_PAGE_SIZE + 1, Purpose::User).unwrap();
        assert_eq!(region.len, 2 * HUGE_PAGE_SIZE);
        assert_eq!(region.start.addr().get() % HUGE_PAGE_SIZE, 0);
    }

    #[test]
    fn a_length_beyond_any_address_space_is_invalid() {
        let error = Mapping::new(usize::MAX, Purpose::User, Prefault::OnTouch).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn a_refusal_of_the_kernel_names_the_length() {
        let error = Mapping::new(LEN_MAX, Purpose::User, Prefault::OnTouch).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert!(error.reason().contains(&LEN_MAX.to_string()), "{error}");
    }

    /// The kernel's flags of the area that holds the mapping's first byte.
    fn area_flags(mapping: &Mapping) -> String {
        let address = mapping.range().address();
        let smaps = std::fs::read("/proc/self/smaps").unwrap();
        let smaps = String::from_utf8_lossy(&smaps);
        let mut inside = false;
        for line in smaps.lines() {
            let bounds = line.split(' ').next().and_then(|word| word.split_once('-'));
            let hex = |text| usize::from_str_radix(text, 16).ok();
            if let Some((Some(start), Some(end))) = bounds.map(|(a, b)| (hex(a), hex(b))) {
                inside = (start..end).contains(&address);
            } else if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
                return format!("{flags} ");
            }
        }
        panic!("the kernel lists no area for the mapping");
    }

    #[test]
    fn engine_memory_is_hidden_from_children_and_dumps_and_user_memory_is_not() {
        for len in [4096, HUGE_PAGE_SIZE] {
            let flags = area_flags(&mapping(len, Purpose::Engine, Prefault::OnTouch));
            assert!(flags.contains(" dc ") && flags.contains(" dd "), "{flags}");
            let flags = area_flags(&mapping(len, Purpose::User, Prefault::OnTouch));
            assert!(
                !flags.contains(" dc ") && !flags.contains(" dd "),
                "{flags}"
            );
        }
    }

    #[test]
    fn only_the_process_that_mapped_hidden_memory_unmaps_it() {
        let mut region = Region::map(4096, Purpose::Engine).unwrap();
        let start = region.start;
        region.sole_owner = Some(Pid::INIT);
        drop(region);
        // SAFETY: the drop above left the region mapped, or this test fails.
        let first = unsafe { start.cast::<u8>().read() };
        assert_eq!(first, 0);
        let sole_owner = Some(rustix::process::getpid());
        drop(Region {
            start,
            len: 4096,
            sole_owner,
        });
    }

    /// How many pages of the mapping are in memory, from the kernel's own table.
    fn resident_pages(mapping: &Mapping) -> usize {
        let (start, len) = (mapping.range().address(), mapping.range().len());
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        let page = PAGE_SIZE_MIN;
        (start / page..(start + len).div_ceil(page))
            .filter(|index| {
                let mut entry = [0_u8; 8];
                let at = u64::try_from(index * 8).unwrap();
                std::os::unix::fs::FileExt::read_exact_at(&pagemap, &mut entry, at).unwrap();
                // Bit 63: the page is present.
                u64::from_ne_bytes(entry) >> 63 == 1
            })
            .count()
    }

    #[test]
    #[cfg(target_arch = "x86_64")] // Counts pages of 4 KiB.
    fn prefault_brings_every_page_in_and_keeps_the_contents() {
        let lazy = mapping(64 * PAGE_SIZE_MIN, Purpose::User, Prefault::OnTouch);
        assert_eq!(resident_pages(&lazy), 0);
        write(&lazy, 5, 7);
        // SAFETY: only this test knows the mapping.
        unsafe { lazy.prefault() }.unwrap();
        assert_eq!(resident_pages(&lazy), 64);
        assert_eq!(bytes(&lazy)[5], 7);

        let eager = mapping(HUGE_PAGE_SIZE + 1, Purpose::Engine, Prefault::Now);
        assert_eq!(resident_pages(&eager), HUGE_PAGE_SIZE / PAGE_SIZE_MIN + 1);
    }

    #[test]
    #[cfg(target_arch = "x86_64")] // Counts pages of 4 KiB.
    fn touching_does_what_populating_does() {
        let mapping = mapping(9 * PAGE_SIZE_MIN + 1, Purpose::User, Prefault::OnTouch);
        write(&mapping, PAGE_SIZE_MIN, 7);
        // SAFETY: only this test knows the mapping.
        unsafe { touch(mapping.range()) };
        assert_eq!(resident_pages(&mapping), 10);
        assert_eq!(bytes(&mapping)[PAGE_SIZE_MIN], 7);
    }
}
