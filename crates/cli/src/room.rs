//! Whether a file system has room for a file, before the file is touched.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use indicatif::BinaryBytes;
use rustix::fs::statvfs;

use crate::failure::Failure;

/// `st_blocks` counts these, whatever the file system's blocks are.
const STAT_BLOCK: u64 = 512;

/// Refuses `length` bytes where they surely do not fit. Where the file system does not say how much
/// it has, the write finds out.
pub(crate) fn check(path: &Path, length: u64) -> Result<(), Failure> {
    let Some(room) = room(path) else {
        return Ok(());
    };
    if length <= room {
        return Ok(());
    }
    let (wanted, there) = (BinaryBytes(length), BinaryBytes(room));
    let reason = format!("storage full: {wanted} asked for, {there} there; nothing was touched");
    Err(Failure::new(path, 0, reason))
}

/// Bytes that the file may have: what is free for this user, and what it has already.
fn room(path: &Path) -> Option<u64> {
    let (at, has) = match fs::metadata(path) {
        Ok(file) => (path, file.blocks().saturating_mul(STAT_BLOCK)),
        Err(_) => (folder_of(path), 0),
    };
    let system = statvfs(at).ok()?;
    // Those that do not count, such as some in user space, say 0.
    (system.f_blocks > 0).then(|| {
        let free = system.f_bavail.saturating_mul(system.f_frsize);
        free.saturating_add(has)
    })
}

/// The folder that a path's last name is in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or_else(|| Path::new("."))
}
