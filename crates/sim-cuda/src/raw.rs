//! Mappings, and bytes named by address.
#![allow(
    unsafe_code,
    reason = "device memory is made of mappings, and copies name their memory by address"
)]

use std::ffi::c_void;
use std::ptr;

/// Memory that this library reads and writes; unmapped at its end.
#[derive(Debug)]
pub(crate) struct Map {
    base: usize,
    len: usize,
}

impl Map {
    /// Anonymous memory of at least one page, or `None` where there is none.
    pub(crate) fn new(len: usize) -> Option<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let base = map(len, libc::PROT_READ | libc::PROT_WRITE, flags)?;
        Some(Self { base, len })
    }

    pub(crate) fn address(&self) -> usize {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and is unmapped only here; what reads or writes it
        // holds the allocation that owns this map.
        let status = unsafe { libc::munmap(self.base as *mut c_void, self.len) };
        assert_eq!(status, 0, "a mapping of ours can be unmapped");
    }
}

/// Addresses that nobody may touch: a load or store faults, a system call gives `EFAULT`. They stay
/// reserved for as long as the process lives.
pub(crate) fn reserve(len: usize) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    map(len, libc::PROT_NONE, flags)
}

fn map(len: usize, protection: i32, flags: i32) -> Option<usize> {
    // SAFETY: without MAP_FIXED the kernel takes addresses that nothing uses.
    let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
    (base != libc::MAP_FAILED).then_some(base as usize)
}

/// The calling thread's name, as far as the system keeps it.
pub(crate) fn thread_name() -> [u8; 16] {
    let mut name = [0; 16];
    // SAFETY: writes 16 bytes, to a place that has as many.
    let _ = unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

/// Whether every page of the range is mapped.
pub(crate) fn is_mapped(address: usize, len: usize) -> bool {
    let start = address & !(PAGE - 1);
    let pages = (address + len - start).div_ceil(PAGE);
    let mut found = vec![0_u8; pages];
    // SAFETY: `mincore` only asks about the range, and writes one byte a page, for which there is
    // room.
    let status = unsafe { libc::mincore(start as *mut c_void, pages * PAGE, found.as_mut_ptr()) };
    status == 0
}

/// The page size of every machine that this runs on.
pub(crate) const PAGE: usize = 4096;

/// Copies, as a DMA engine would: from any address to any other.
///
/// # Safety
///
/// `from` and `to` are ranges of `len` bytes that stay mapped meanwhile. Other threads may look at
/// them, as they may while a real device copies: who does is the bug that the tests look for.
pub(crate) unsafe fn copy(from: usize, to: usize, len: usize) {
    // SAFETY: as the caller vouches; the ranges may overlap.
    unsafe { ptr::copy(from as *const u8, to as *mut u8, len) };
}

/// Sets all bytes of a range.
///
/// # Safety
///
/// As for [`copy`].
pub(crate) unsafe fn fill(to: usize, len: usize, byte: u8) {
    // SAFETY: as the caller vouches.
    unsafe { ptr::write_bytes(to as *mut u8, byte, len) };
}

/// Makes one bit of a byte wrong.
///
/// # Safety
///
/// As for [`copy`].
pub(crate) unsafe fn flip(at: usize) {
    let at = at as *mut u8;
    // SAFETY: as the caller vouches.
    let byte = unsafe { at.read() };
    // SAFETY: as the caller vouches.
    unsafe { at.write(byte ^ 1) };
}

/// The first byte of a range that differs from `byte`.
///
/// # Safety
///
/// As for [`copy`].
pub(crate) unsafe fn find_other(from: usize, len: usize, byte: u8) -> Option<usize> {
    // SAFETY: as the caller vouches.
    let bytes = unsafe { std::slice::from_raw_parts(from as *const u8, len) };
    bytes.iter().position(|found| *found != byte)
}
