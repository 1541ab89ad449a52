//! System calls on files, behind types that cannot be misused.
//!
//! Everything here may block and belongs on an engine thread.

mod cache;
mod direct;
mod file;
mod file_system;
pub(crate) mod io;
mod open;
#[cfg(test)]
mod tests;

pub(crate) use cache::{CachedPages, cached_pages};
pub(crate) use file::FileHandle;
pub(crate) use open::{OpenHow, StdioPlaces, path_of};

/// The unit in which the page cache holds a file, in bytes: 4 KiB, or 64 KiB on some 64-bit Arm
/// machines.
pub(crate) fn page_size() -> u64 {
    rustix::param::page_size() as u64
}
