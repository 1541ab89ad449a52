//! Which process it is: the one that built an engine, or a child of it (I22).
#![allow(
    unsafe_code,
    reason = "reads a byte that the kernel wipes in children, by its address"
)]

use std::sync::atomic::{AtomicU8, Ordering};

use rustix::mm::Advice;

use super::mapping::{PAGE_SIZE_MIN, Region};
use crate::error::{Error, ErrorKind, Result};

/// Tells the process that made it from its children, by one load: a byte that the kernel wipes in
/// a child, however it was forked. An operation asks several times, and asking the kernel for the
/// process's number takes a system call each time.
#[derive(Debug)]
pub(crate) struct ProcessMark {
    /// `None` where the kernel does not wipe (before 4.14).
    page: Option<Region>,
    process: u32,
}

impl ProcessMark {
    /// The mark of this process.
    pub(crate) fn new() -> Self {
        let page = Region::map_plain(PAGE_SIZE_MIN).ok();
        let page = page.filter(|page| page.advise(Advice::LinuxWipeOnFork).is_ok());
        let mark = Self {
            page,
            process: std::process::id(),
        };
        if let Some(byte) = mark.byte() {
            byte.store(1, Ordering::Relaxed);
        }
        mark
    }

    fn byte(&self) -> Option<&AtomicU8> {
        let start = self.page.as_ref()?.start().cast();
        // SAFETY: the region is mapped, readable and writable while the mark lives, and nobody else
        // knows its address.
        Some(unsafe { AtomicU8::from_ptr(start.as_ptr()) })
    }

    /// Whether this process is a child of the one that made the mark. The engine's threads are not
    /// here then, and its locks may be held for ever.
    pub(crate) fn is_forked(&self) -> bool {
        match self.byte() {
            Some(byte) => byte.load(Ordering::Relaxed) != 1,
            None => std::process::id() != self.process,
        }
    }

    /// # Errors
    ///
    /// `Forked` in a child.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_forked() {
            let reason = "the engine belongs to the process that built it";
            return Err(Error::new(ErrorKind::Forked, reason));
        }
        Ok(())
    }
}

/// Leaks, in a child, what it must not drop: its locks are the parent's.
#[expect(
    clippy::disallowed_methods,
    reason = "whoever had the locks is not here to open them (I22)"
)]
pub(crate) fn leak_in_child<T>(value: T) {
    std::mem::forget(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_finds_its_mark_and_the_kernel_wipes_it_for_children() {
        let mut mark = ProcessMark::new();
        assert!(!mark.is_forked());
        if let Some(byte) = mark.byte() {
            // What a child finds.
            byte.store(0, Ordering::Relaxed);
            assert!(mark.is_forked());
        }
        mark.page = None;
        assert!(!mark.is_forked());
        mark.process = 1;
        assert!(mark.is_forked());
    }
}
