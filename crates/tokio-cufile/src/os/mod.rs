//! System calls on files, behind types that cannot be misused.
//!
//! Everything here may block and belongs on an engine thread.

mod direct;
mod file;
pub(crate) mod io;
mod open;
#[cfg(test)]
mod tests;

pub(crate) use file::{FileHandle, FileIdentity};
pub(crate) use open::{OpenHow, path_of};
