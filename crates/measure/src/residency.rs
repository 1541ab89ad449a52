//! Which bytes of a file are in the page cache, and how they get out of it or into it for sure.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{Access, Advice, access, fadvise};
use serde::Serialize;

use crate::os;

/// A file counts as cold with at most one byte in this many in the page cache.
pub const COLD_SHARE: u64 = 1000;

/// Some pages are in the hands of other processors at the first try.
const EVICTIONS_MAX: u32 = 8;
/// Pages may be reclaimed while the file is read through.
const WARMINGS_MAX: u32 = 3;

/// What `mincore` looks at in one mapping. A multiple of every page size.
const MAPPING_LENGTH_MAX: usize = 1 << 30;

/// How many bytes of a range are in the page cache.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Residency {
    /// Bytes in the page cache.
    pub resident: u64,
    /// Bytes of the range that the file has.
    pub length: u64,
}

impl Residency {
    /// Whether hardly anything is resident: at most one byte in [`COLD_SHARE`].
    #[must_use]
    pub const fn is_cold(&self) -> bool {
        self.resident <= self.length / COLD_SHARE
    }

    /// Whether everything is resident.
    #[must_use]
    pub const fn is_warm(&self) -> bool {
        self.resident >= self.length
    }
}

impl fmt::Display for Residency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} bytes in the page cache",
            self.resident, self.length
        )
    }
}

/// The residency of a whole file.
///
/// # Errors
///
/// As [`of_range`].
pub fn of(file: &File) -> io::Result<Residency> {
    of_range(file, 0..u64::MAX)
}

/// The residency of the part of `range` (bytes) that the file has. Rounded to whole pages.
///
/// Brings nothing into the cache.
///
/// # Errors
///
/// `PermissionDenied` for a file that the caller neither owns nor may write: `cachestat` refuses to
/// say, and `mincore`, which serves where `cachestat` is missing, would call every page resident.
pub fn of_range(file: &File, range: Range<u64>) -> io::Result<Residency> {
    let page = os::page_size() as u64;
    let end = range.end.min(file.metadata()?.len());
    let start = range.start.min(end);
    let length = end - start;
    if length == 0 {
        return Ok(Residency {
            resident: 0,
            length,
        });
    }
    let first = start - start % page;
    let pages = match os::cached_pages(file.as_fd(), first, end - first) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
            pages_by_mincore(file, first, end)?
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(refused()),
        pages => pages?,
    };
    Ok(Residency {
        resident: pages.saturating_mul(page).min(length),
        length,
    })
}

fn refused() -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        "the kernel tells a file's residency only to its owner and to who may write it",
    )
}

fn pages_by_mincore(file: &File, first: u64, end: u64) -> io::Result<u64> {
    if !is_trusted(file)? {
        return Err(refused());
    }
    let mut pages = 0;
    let mut at = first;
    while at < end {
        let length = usize::try_from(end - at)
            .map_or(MAPPING_LENGTH_MAX, |length| length.min(MAPPING_LENGTH_MAX));
        pages += os::mapped_pages(file.as_fd(), at, length)?;
        at += length as u64;
    }
    Ok(pages)
}

/// Whether the kernel says the truth about the file to this process.
fn is_trusted(file: &File) -> io::Result<bool> {
    let user = rustix::process::geteuid();
    if user.is_root() || user.as_raw() == file.metadata()?.uid() {
        return Ok(true);
    }
    let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(access(Path::new(&itself), Access::WRITE_OK).is_ok())
}

/// Drops the file from the page cache, and proves it.
///
/// Makes dirty pages durable first, since they cannot be dropped.
///
/// # Errors
///
/// `Other` when more than one byte in [`COLD_SHARE`] stays, for example because another process
/// reads or maps the file; what [`of`] gives; what syncing gives.
pub fn evict(file: &File) -> io::Result<Residency> {
    file.sync_data()?;
    let mut residency = of(file)?;
    for _ in 0..EVICTIONS_MAX {
        fadvise(file, 0, None, Advice::DontNeed)?;
        residency = of(file)?;
        if residency.resident == 0 {
            break;
        }
    }
    if residency.is_cold() {
        Ok(residency)
    } else {
        Err(io::Error::other(format!(
            "not cold after eviction: {residency}"
        )))
    }
}

/// Reads the file through, and proves that all of it is in the page cache.
///
/// # Errors
///
/// `Other` when something is missing, for example because memory is short; what [`of`] and reading
/// give.
pub fn warm(file: &File) -> io::Result<Residency> {
    let mut residency = of(file)?;
    for _ in 0..WARMINGS_MAX {
        if residency.is_warm() {
            return Ok(residency);
        }
        read_through(file)?;
        residency = of(file)?;
    }
    if residency.is_warm() {
        Ok(residency)
    } else {
        Err(io::Error::other(format!(
            "not warm after reading it: {residency}"
        )))
    }
}

fn read_through(file: &File) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut offset = 0;
    loop {
        match file.read_at(&mut buffer, offset) {
            Ok(0) => return Ok(()),
            Ok(count) => offset += count as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const LENGTH: usize = 4 << 20;

    /// A file on a real disk: the page cache is all that a file on tmpfs has.
    fn file() -> File {
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![7; LENGTH]).unwrap();
        file
    }

    #[test]
    fn what_was_written_is_resident_until_it_is_evicted() {
        let file = file();
        assert!(of(&file).unwrap().is_warm());
        let cold = evict(&file).unwrap();
        assert!(cold.is_cold(), "{cold}");
        assert_eq!(cold.length, LENGTH as u64);
        assert_eq!(of(&file).unwrap(), cold, "asking brings nothing in");
    }

    #[test]
    fn a_cold_file_is_warmed_and_warm_is_not_cold() {
        let file = file();
        evict(&file).unwrap();
        let warm = warm(&file).unwrap();
        assert_eq!(warm.resident, LENGTH as u64);
        assert!(warm.is_warm() && !warm.is_cold());
    }

    #[test]
    fn a_range_counts_its_own_pages_only() {
        let file = file();
        evict(&file).unwrap();
        fadvise(&file, 0, None, Advice::Random).unwrap();
        let page = os::page_size();
        file.read_exact_at(&mut vec![0; page], 0).unwrap();
        assert_eq!(
            of_range(&file, 0..page as u64).unwrap().resident,
            page as u64
        );
        let far = (LENGTH / 2) as u64..LENGTH as u64;
        assert_eq!(of_range(&file, far).unwrap().resident, 0);
        let behind = LENGTH as u64..u64::MAX;
        assert_eq!(of_range(&file, behind).unwrap().length, 0);
    }

    #[test]
    fn both_ways_of_counting_agree() {
        let file = file();
        evict(&file).unwrap();
        let end = LENGTH as u64;
        assert_eq!(pages_by_mincore(&file, 0, end).unwrap(), 0);
        warm(&file).unwrap();
        let pages = (LENGTH / os::page_size()) as u64;
        assert_eq!(pages_by_mincore(&file, 0, end).unwrap(), pages);
        assert_eq!(os::cached_pages(file.as_fd(), 0, 0).ok(), Some(pages));
    }

    #[test]
    fn eviction_that_leaves_pages_is_an_error() {
        // The page cache is where such a file lives, so nothing leaves it.
        let memory = rustix::fs::memfd_create("resident", rustix::fs::MemfdFlags::CLOEXEC);
        let mut file = File::from(memory.unwrap());
        file.write_all(&vec![7; LENGTH]).unwrap();
        let error = evict(&file).unwrap_err();
        assert!(error.to_string().contains("not cold"), "{error}");
    }

    #[test]
    fn cold_allows_one_byte_in_a_thousand() {
        let residency = |resident| Residency {
            resident,
            length: 4_096_000,
        };
        assert!(residency(4096).is_cold());
        assert!(!residency(4097).is_cold());
    }

    #[test]
    fn an_empty_file_is_cold_and_warm() {
        let file = tempfile::tempfile().unwrap();
        assert!(evict(&file).unwrap().is_cold());
        assert!(warm(&file).unwrap().is_warm());
    }
}
