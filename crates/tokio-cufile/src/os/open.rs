//! Opening: a regular file or a named error, at most two descriptors, none of them leaked.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, FdFlags};

use super::direct::{DESCRIPTORS, NoDirect, ReopenError, open_direct, reopen};
use super::file::{Access, FileHandle};
use crate::error::{Error, ErrorKind, Operation};

/// What to open for, with the meanings of std's `OpenOptions`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenHow {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) create: bool,
    pub(crate) create_new: bool,
    pub(crate) truncate: bool,
    /// Permissions of a file that is created, before the process's umask.
    pub(crate) mode: u32,
    /// Whether a direct descriptor is of use.
    pub(crate) want_direct: bool,
}

impl OpenHow {
    /// Whether the file is to be cut to length 0 once it is known to be usable.
    pub(crate) const fn truncates(self) -> bool {
        self.truncate && !self.create_new
    }

    fn access(self) -> Result<Access, Error> {
        let access = Access::new(self.read, self.write).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidInput,
                "neither read nor write access was asked for",
            )
        })?;
        if !self.write && (self.create || self.create_new || self.truncate) {
            let reason = "creating or truncating a file needs write access";
            return Err(Error::new(ErrorKind::InvalidInput, reason));
        }
        Ok(access)
    }

    /// Without `O_TRUNC`: nothing is cut before the file is known to be regular and usable.
    fn creation_flags(self) -> OFlags {
        match (self.create_new, self.create) {
            (true, _) => OFlags::CREATE | OFlags::EXCL,
            (false, true) => OFlags::CREATE,
            (false, false) => OFlags::empty(),
        }
    }
}

impl FileHandle {
    /// Opens `path`.
    ///
    /// A path to anything but a regular file is `NotRegularFile`; a FIFO or a device never makes
    /// the call wait. Nothing is cut: see [`truncate`](Self::truncate).
    pub(crate) fn open(path: &Arc<Path>, how: OpenHow) -> Result<Self, Error> {
        open_path(path, how).map_err(|error| error.with_operation(Operation::Open).with_path(path))
    }

    /// Takes over an open file.
    ///
    /// The access mode is the file's own. For direct I/O it is opened a second time, where the
    /// system allows that; closing either descriptor drops the `fcntl` record locks that the
    /// process holds on the file, as closing any descriptor does. Flags of the given descriptor
    /// are left alone: it may be shared.
    pub(crate) fn from_std(file: File, want_direct: bool) -> Result<Self, Error> {
        adopt(file.into(), want_direct).map_err(|error| error.with_operation(Operation::Open))
    }
}

/// The path that an open file had when it was opened or has by now, for messages.
pub(crate) fn path_of(file: &File) -> PathBuf {
    let number = file.as_raw_fd().to_string();
    std::fs::read_link(Path::new(DESCRIPTORS).join(&number))
        .unwrap_or_else(|_| PathBuf::from(format!("descriptor {number}")))
}

fn open_path(path: &Path, how: OpenHow) -> Result<FileHandle, Error> {
    let access = how.access()?;
    let flags = access.flags() | how.creation_flags();
    // Where no second descriptor is to be had, no file is left behind.
    let second = (how.want_direct && flags.contains(OFlags::CREATE)).then(spare_descriptor);
    let second = second.transpose().map_err(Error::from_errno)?;
    let fd = open_first(path, flags, how.mode)?;
    drop(second);
    let fd = above_stdio(fd).map_err(Error::from_errno)?;
    require_regular(fd.as_fd())?;
    clear_nonblock(fd.as_fd()).map_err(Error::from_errno)?;
    assemble(fd, access, Some(path), how.want_direct)
}

fn open_first(path: &Path, flags: OFlags, mode: u32) -> Result<OwnedFd, Error> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
    let mode = Mode::from_raw_mode(mode);
    let open = |flags| rustix::io::retry_on_intr(|| rustix::fs::open(path, flags, mode));
    // O_NONBLOCK: a FIFO or a device must not make the open wait.
    open(flags | OFlags::NONBLOCK).or_else(|errno| match (errno, rustix::fs::stat(path)) {
        // What the kernel says about a FIFO nobody reads, a socket, a dead device, a directory.
        (Errno::NXIO | Errno::NODEV | Errno::ISDIR, Ok(stat)) => {
            let file_type = FileType::from_raw_mode(stat.st_mode);
            Err(not_regular(file_type).unwrap_or_else(|| Error::from_errno(errno)))
        }
        // Somebody has a lease on it, and is asked to give it up while this call waits.
        (Errno::AGAIN, Ok(stat)) if FileType::from_raw_mode(stat.st_mode).is_file() => {
            open(flags).map_err(Error::from_errno)
        }
        _ => Err(Error::from_errno(errno)),
    })
}

fn adopt(fd: OwnedFd, want_direct: bool) -> Result<FileHandle, Error> {
    require_regular(fd.as_fd())?;
    let fd = above_stdio(fd).map_err(Error::from_errno)?;
    rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC).map_err(Error::from_errno)?;
    let flags = rustix::fs::fcntl_getfl(&fd).map_err(Error::from_errno)?;
    let invalid = |reason| Err(Error::new(ErrorKind::InvalidInput, reason));
    if flags.contains(OFlags::PATH) {
        return invalid("the file was opened with O_PATH, which allows no I/O");
    }
    let access = Access::of(flags);
    if access.writable() && flags.contains(OFlags::APPEND) {
        return invalid(
            "the file is open for appending: Linux would ignore the offset of every write",
        );
    }
    if flags.contains(OFlags::DIRECT) {
        return adopt_direct(fd, access, want_direct);
    }
    assemble(fd, access, None, want_direct)
}

/// A descriptor that is direct already cannot serve unaligned bytes: those need a plain one.
fn adopt_direct(fd: OwnedFd, access: Access, want_direct: bool) -> Result<FileHandle, Error> {
    let own = Path::new(DESCRIPTORS).join(fd.as_raw_fd().to_string());
    let buffered = reopen(&own, fd.as_fd(), access.flags()).map_err(|error| match error {
        ReopenError::Refused(errno) => Error::from_errno(errno),
        ReopenError::OtherFile => Error::new(ErrorKind::Io, "it led to another file"),
    });
    let buffered = buffered.map_err(|error| {
        let reason = "the file is open with O_DIRECT and cannot be opened again without";
        Error::new(error.kind(), format!("{reason}: {}", error.reason())).with_source(error)
    })?;
    assemble(buffered, access, None, want_direct)
}

fn assemble(
    buffered: OwnedFd,
    access: Access,
    path: Option<&Path>,
    want_direct: bool,
) -> Result<FileHandle, Error> {
    let direct = if want_direct {
        open_direct(buffered.as_fd(), access.flags(), path, DESCRIPTORS)
    } else {
        Err(NoDirect::Reason("cached I/O was asked for".into()))
    };
    let direct = match direct {
        Ok(direct) => Ok(direct),
        Err(NoDirect::Reason(reason)) => Err(reason),
        Err(NoDirect::Exhausted(errno)) => return Err(Error::from_errno(errno)),
    };
    Ok(FileHandle::new(buffered, access, direct))
}

fn require_regular(fd: BorrowedFd<'_>) -> Result<(), Error> {
    let stat = rustix::fs::fstat(fd).map_err(Error::from_errno)?;
    not_regular(FileType::from_raw_mode(stat.st_mode)).map_or(Ok(()), Err)
}

fn not_regular(file_type: FileType) -> Option<Error> {
    let name = match file_type {
        FileType::RegularFile => return None,
        FileType::Directory => "it is a directory",
        FileType::Fifo => "it is a FIFO",
        FileType::Socket => "it is a socket",
        FileType::CharacterDevice => "it is a character device",
        FileType::BlockDevice => "it is a block device",
        FileType::Symlink => "it is a symbolic link",
        FileType::Unknown => "its type is unknown",
    };
    Some(Error::new(ErrorKind::NotRegularFile, name))
}

/// Moves a descriptor out of 0, 1 and 2. A program that closed its standard streams gets those
/// numbers from the next open, and whatever then prints would print into the user's file.
pub(super) fn above_stdio(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    if fd.as_raw_fd() > 2 {
        return Ok(fd);
    }
    rustix::io::fcntl_dupfd_cloexec(&fd, 3)
}

/// A descriptor that keeps its place for another.
fn spare_descriptor() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Takes the places of standard streams that are closed, until it is dropped: for descriptors that
/// cannot be moved away from there once they are made. Whoever prints then prints into them.
#[derive(Debug)]
pub(crate) struct StdioPlaces {
    _taken: Vec<OwnedFd>,
}

impl StdioPlaces {
    pub(crate) fn take() -> Result<Self, Errno> {
        let mut taken = Vec::new();
        loop {
            let fd = spare_descriptor()?;
            if fd.as_raw_fd() > 2 {
                return Ok(Self { _taken: taken });
            }
            taken.push(fd);
        }
    }
}

/// `O_NONBLOCK` means nothing to a regular file on a disk, but a FUSE server gets to see it.
pub(super) fn clear_nonblock(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags.difference(OFlags::NONBLOCK))
}
