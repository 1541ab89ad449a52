//! Finding out whether an open file takes direct I/O, and a second descriptor for it.

use std::borrow::Cow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::file::FileIdentity;
use super::file_system;
use super::open::{above_stdio, clear_nonblock};
use crate::plan::DirectAlignment;
use crate::plan::route::AlignmentSource;

/// The calling thread's open descriptors as files. Not `/proc/self`: that is the main thread's
/// view, which is gone once the main thread has left.
pub(super) const DESCRIPTORS: &str = "/proc/thread-self/fd";

/// Less than this no file system takes on a block device, whatever `statx` says.
const ALIGNMENT_MIN: u64 = 512;

/// Where `statx` does not say: the largest sector in use, and the page size.
const ALIGNMENT_ASSUMED: u64 = 4096;

/// A descriptor opened with `O_DIRECT`.
#[derive(Debug)]
pub(super) struct DirectFile {
    pub(super) fd: OwnedFd,
    pub(super) alignment: DirectAlignment,
    pub(super) source: AlignmentSource,
}

/// Why there is no direct descriptor.
#[derive(Debug)]
pub(super) enum NoDirect {
    /// The file is used without.
    Reason(Cow<'static, str>),
    /// The process or the system ran out of something. Not a property of the file: going on
    /// without would make a passing shortage a lasting detour.
    Exhausted(Errno),
}

/// Opens the file behind `buffered` once more, with `O_DIRECT`.
///
/// `access` is the access mode. The way is through `descriptors` (see [`DESCRIPTORS`]), which
/// reaches the very same file, renamed or deleted; `path` is tried next, if given, and taken only
/// if it is still the same file.
pub(super) fn open_direct(
    buffered: BorrowedFd<'_>,
    access: OFlags,
    path: Option<&Path>,
    descriptors: &str,
) -> Result<DirectFile, NoDirect> {
    let (alignment, source) = alignment_of(buffered)?;
    require_disk(buffered, source)?;
    let own = Path::new(descriptors).join(buffered.as_raw_fd().to_string());
    let fd = reopen(&own, buffered, access | OFlags::DIRECT).or_else(|first| match path {
        Some(path) => {
            reopen(path, buffered, access | OFlags::DIRECT).map_err(|second| match second {
                ReopenError::OtherFile => first,
                second => second,
            })
        }
        None => Err(first),
    });
    fd.map(|fd| DirectFile {
        fd,
        alignment,
        source,
    })
    .map_err(NoDirect::from)
}

/// Refuses file systems that live in the page cache. Newer kernels let them open with `O_DIRECT`
/// and read the page cache all the same: a path is named only where it is the path.
///
/// An overlay tells what the file system below it tells; where that is nothing, it may be one of
/// those.
fn require_disk(fd: BorrowedFd<'_>, source: AlignmentSource) -> Result<(), NoDirect> {
    match file_system::name_of(fd) {
        Some("tmpfs" | "ramfs") => Err(NoDirect::Reason(
            "the file system keeps its files in the page cache".into(),
        )),
        Some("overlay") if source == AlignmentSource::Assumed => Err(NoDirect::Reason(
            "an overlay over a file system that may keep its files in the page cache".into(),
        )),
        _ => Ok(()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReopenError {
    Refused(Errno),
    OtherFile,
}

impl From<ReopenError> for NoDirect {
    fn from(error: ReopenError) -> Self {
        match error {
            ReopenError::Refused(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
                Self::Exhausted(errno)
            }
            ReopenError::Refused(Errno::INVAL) => {
                Self::Reason("the file system refuses O_DIRECT".into())
            }
            ReopenError::Refused(errno) => {
                Self::Reason(format!("the file cannot be opened a second time: {errno}").into())
            }
            ReopenError::OtherFile => Self::Reason("the path names another file by now".into()),
        }
    }
}

/// Opens `path`, which must be the file that `original` is.
pub(super) fn reopen(
    path: &Path,
    original: BorrowedFd<'_>,
    flags: OFlags,
) -> Result<OwnedFd, ReopenError> {
    // O_NONBLOCK: the path may name a FIFO by now.
    let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let open = || {
        let fd = rustix::io::retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()))?;
        let fd = above_stdio(fd)?;
        let same = FileIdentity::of(fd.as_fd())? == FileIdentity::of(original)?;
        Ok((fd, same))
    };
    match open().map_err(ReopenError::Refused)? {
        (_, false) => Err(ReopenError::OtherFile),
        (fd, true) => {
            clear_nonblock(fd.as_fd()).map_err(ReopenError::Refused)?;
            Ok(fd)
        }
    }
}

fn alignment_of(fd: BorrowedFd<'_>) -> Result<(DirectAlignment, AlignmentSource), NoDirect> {
    match rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(stat) if stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            stated_alignment(stat.stx_dio_mem_align, stat.stx_dio_offset_align)
                .map(|alignment| (alignment, AlignmentSource::Statx))
                .ok_or_else(|| NoDirect::Reason("statx says that the file takes none".into()))
        }
        // The kernel or the file system does not say, which is not a no.
        _ => {
            let (memory, offset) = (ALIGNMENT_ASSUMED, ALIGNMENT_ASSUMED);
            Ok((DirectAlignment { memory, offset }, AlignmentSource::Assumed))
        }
    }
}

/// Zero is how the kernel says no.
fn stated_alignment(memory: u32, offset: u32) -> Option<DirectAlignment> {
    let usable = |stated: u32| u64::from(stated).next_power_of_two().max(ALIGNMENT_MIN);
    (memory != 0 && offset != 0).then(|| DirectAlignment {
        memory: usable(memory),
        offset: usable(offset),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stated_alignment_is_at_least_a_sector_and_zero_means_no() {
        let alignment = |memory, offset| DirectAlignment { memory, offset };
        assert_eq!(stated_alignment(4, 512), Some(alignment(512, 512)));
        assert_eq!(stated_alignment(512, 4096), Some(alignment(512, 4096)));
        assert_eq!(stated_alignment(513, 1), Some(alignment(1024, 512)));
        assert_eq!(stated_alignment(0, 512), None);
        assert_eq!(stated_alignment(512, 0), None);
    }

    #[test]
    fn exhaustion_is_an_error_and_a_refusal_is_a_reason() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            let found = NoDirect::from(ReopenError::Refused(errno));
            assert!(matches!(found, NoDirect::Exhausted(same) if same == errno));
        }
        for errno in [Errno::INVAL, Errno::ACCESS, Errno::NOENT] {
            let found = NoDirect::from(ReopenError::Refused(errno));
            assert!(matches!(found, NoDirect::Reason(_)), "{errno}");
        }
    }

    #[test]
    fn without_proc_the_path_is_taken_only_if_it_is_the_same_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let file = std::fs::File::create(&path).unwrap();
        let reopened =
            |path: Option<&Path>| open_direct(file.as_fd(), OFlags::WRONLY, path, "/nonexistent");
        // A file system without direct I/O refuses before the identity matters.
        let direct = reopened(Some(&path));
        assert!(match &direct {
            Ok(_) => true,
            Err(NoDirect::Reason(reason)) => {
                reason.contains("O_DIRECT") || reason.contains("page cache")
            }
            Err(NoDirect::Exhausted(_)) => false,
        });
        assert!(matches!(reopened(None), Err(NoDirect::Reason(_))));

        std::fs::rename(&path, directory.path().join("moved")).unwrap();
        std::fs::write(&path, "a stranger").unwrap();
        assert!(matches!(reopened(Some(&path)), Err(NoDirect::Reason(_))));
    }
}
