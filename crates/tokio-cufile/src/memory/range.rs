//! An address with a length, and the identity of an engine.
#![allow(
    unsafe_code,
    reason = "a range is handed between threads and its bytes are copied by address: hardware may \
              write them meanwhile, so no reference may stand for them"
)]

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// Tells the engines of one process apart; never used twice.
///
/// `pub` since the sealed trait of the buffers names it; it cannot be reached from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EngineId(u64);

impl EngineId {
    /// An identity that no other engine of this process has.
    pub(crate) fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Uniqueness needs atomicity alone; no other memory hangs on the value.
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Where bytes lie. Raw on purpose: holding one grants no right to touch the bytes, whoever
/// dereferences it must own them by other means. `pub` for the same reason as [`EngineId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: a range is a number pair; every access to the bytes is an unsafe call whose contract
// covers which thread may make it.
unsafe impl Send for MemoryRange {}
// SAFETY: as above; a shared range gives nothing that a copied one does not.
unsafe impl Sync for MemoryRange {}

impl MemoryRange {
    /// `len` bytes from `ptr`. Promises nothing about them: that is for whoever touches them.
    pub(crate) const fn new(ptr: NonNull<u8>, len: usize) -> Self {
        Self { ptr, len }
    }

    /// The first byte. Valid as long as the owner of the bytes lives.
    pub(crate) const fn as_ptr(self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// The first byte's address, for alignment checks.
    pub(crate) fn address(self) -> usize {
        self.ptr.addr().get()
    }

    /// The length in bytes.
    pub(crate) const fn len(self) -> usize {
        self.len
    }

    /// Whether it holds no byte.
    pub(crate) const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// `len` bytes from `offset` on, or `None` where they are not all inside.
    pub(crate) fn sub(self, offset: usize, len: usize) -> Option<Self> {
        let end = offset.checked_add(len)?;
        if end > self.len {
            return None;
        }
        // Wrapping, so that a range may be divided even when its owner is gone already.
        let ptr = NonNull::new(self.as_ptr().wrapping_add(offset))?;
        Some(Self { ptr, len })
    }

    /// Copies all bytes of this range to the start of `to`.
    ///
    /// # Panics
    ///
    /// When `to` is shorter than this range: a bug in the caller's plan.
    ///
    /// # Safety
    ///
    /// Each range lies in one allocation, whose owner lives; the bytes of this range are
    /// initialised, those of `to` may be written; the ranges do not overlap; and until
    /// the call returns nobody else (no thread, no device) writes this range or touches the
    /// copied part of `to`.
    pub(crate) unsafe fn copy_to(self, to: Self) {
        assert!(
            self.len <= to.len,
            "copy of {} bytes into {}",
            self.len,
            to.len
        );
        // SAFETY: the caller vouches for life, exclusiveness and disjointness; both lengths are
        // at least self.len, the second by the assertion.
        unsafe { ptr::copy_nonoverlapping(self.as_ptr(), to.as_ptr(), self.len) }
    }

    /// The bytes, to be read.
    ///
    /// # Safety
    ///
    /// The range lies in one allocation, whose owner lives as long as the slice; the bytes are
    /// initialised, and nobody (no thread, no device) writes them meanwhile.
    pub(crate) unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: the caller vouches for life, initialisation and stillness; a range that is not
        // empty is no longer than its allocation, and an empty one reads nothing.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range_of(bytes: &mut [u8]) -> MemoryRange {
        let len = bytes.len();
        let ptr = NonNull::new(bytes.as_mut_ptr()).expect("a slice is never at null");
        MemoryRange::new(ptr, len)
    }

    #[test]
    fn engine_ids_differ() {
        assert_ne!(EngineId::unique(), EngineId::unique());
    }

    #[test]
    fn sub_ranges_stay_inside() {
        let mut bytes = [0_u8; 8];
        let range = range_of(&mut bytes);
        let tail = range.sub(6, 2).unwrap();
        assert_eq!((tail.address() - range.address(), tail.len()), (6, 2));
        assert!(range.sub(8, 0).unwrap().is_empty());
        assert_eq!(range.sub(7, 2), None);
        assert_eq!(range.sub(9, 0), None);
        assert_eq!(range.sub(1, usize::MAX), None);
    }

    #[test]
    fn a_copy_moves_only_the_source_length() {
        let mut from = *b"abc";
        let mut to = *b"......";
        let (source, target) = (range_of(&mut from), range_of(&mut to));
        // SAFETY: two distinct local arrays, no other thread.
        unsafe { source.copy_to(target.sub(1, 5).unwrap()) };
        assert_eq!(&to, b".abc..");
    }

    #[test]
    #[should_panic(expected = "copy of 3 bytes into 2")]
    fn a_copy_into_less_room_is_refused() {
        let mut from = *b"abc";
        let mut to = *b"..";
        let (source, target) = (range_of(&mut from), range_of(&mut to));
        // SAFETY: two distinct local arrays; the call panics before it writes.
        unsafe { source.copy_to(target) };
    }
}
