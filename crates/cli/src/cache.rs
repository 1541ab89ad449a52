//! `--drop-cache`: this file's pages leave the page cache; nobody else's do.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{Advice, OFlags, fadvise};

/// Writes the file's dirty pages back, since those stay otherwise, then evicts all of them.
///
/// Pages that another process maps, and those of a file system that has no other copy (tmpfs),
/// stay.
pub(crate) fn drop_pages(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new()
        .read(true)
        // Whatever the path names by now, opening it must not wait for a peer.
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)?;
    file.sync_data()?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    Ok(())
}
