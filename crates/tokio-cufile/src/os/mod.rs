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
