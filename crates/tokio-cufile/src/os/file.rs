//! One open file: a buffered descriptor, where possible a direct one, and calls on the whole.

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, OFlags};
use rustix::io::Errno;

use super::direct::DirectFile;
use super::{file_system, io};
use crate::error::{Error, ErrorKind, Operation};
use crate::plan::route::DirectFacts;
use crate::plan::{DirectAlignment, Kind};

/// What a descriptor may be used for: at least one of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
    Both,
}

impl Access {
    pub(super) const fn new(read: bool, write: bool) -> Option<Self> {
        match (read, write) {
            (true, true) => Some(Self::Both),
            (true, false) => Some(Self::Read),
            (false, true) => Some(Self::Write),
            (false, false) => None,
        }
    }

    pub(super) fn of(flags: OFlags) -> Self {
        match flags & OFlags::RWMODE {
            OFlags::RDWR => Self::Both,
            OFlags::WRONLY => Self::Write,
            _ => Self::Read,
        }
    }

    pub(super) const fn flags(self) -> OFlags {
        match self {
            Self::Read => OFlags::RDONLY,
            Self::Write => OFlags::WRONLY,
            Self::Both => OFlags::RDWR,
        }
    }

    pub(super) const fn readable(self) -> bool {
        matches!(self, Self::Read | Self::Both)
    }

    pub(super) const fn writable(self) -> bool {
        matches!(self, Self::Write | Self::Both)
    }
}

/// Which file it is, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    pub(super) fn of(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(fd)?;
        Ok(Self {
            device: stat.st_dev,
            inode: stat.st_ino,
        })
    }
}

/// An open regular file.
///
/// Both descriptors are of the same file, have the same access, are closed on `exec`, and are
/// none of 0, 1 and 2.
#[derive(Debug)]
pub(crate) struct FileHandle {
    buffered: OwnedFd,
    direct: Result<DirectFile, Cow<'static, str>>,
    /// An aligned direct request was refused: the file system promised too much.
    direct_refused: AtomicBool,
    access: Access,
}

impl FileHandle {
    pub(super) fn new(
        buffered: OwnedFd,
        access: Access,
        direct: Result<DirectFile, Cow<'static, str>>,
    ) -> Self {
        Self {
            buffered,
            direct,
            direct_refused: AtomicBool::new(false),
            access,
        }
    }

    /// The descriptor for anything.
    pub(crate) fn buffered_fd(&self) -> BorrowedFd<'_> {
        self.buffered.as_fd()
    }

    /// The descriptor for aligned requests. It stays open after
    /// [`refuse_direct`](Self::refuse_direct), for parts that were planned before.
    pub(crate) fn direct_fd(&self) -> Option<BorrowedFd<'_>> {
        self.direct.as_ref().ok().map(|direct| direct.fd.as_fd())
    }

    /// What the next request may plan with.
    pub(crate) fn direct_alignment(&self) -> Option<DirectAlignment> {
        match self.direct_facts() {
            DirectFacts::Open { alignment, .. } => Some(alignment),
            DirectFacts::Unavailable(_) => None,
        }
    }

    /// Whether the file takes direct I/O, as known by now.
    pub(crate) fn direct_facts(&self) -> DirectFacts {
        match &self.direct {
            // Relaxed: the flag publishes nothing; a plan made a moment too early pays one retry.
            Ok(_) if self.direct_refused.load(Ordering::Relaxed) => DirectFacts::Unavailable(
                "the file system refused a direct request that was aligned".into(),
            ),
            Ok(direct) => DirectFacts::Open {
                alignment: direct.alignment,
                source: direct.source,
            },
            Err(reason) => DirectFacts::Unavailable(reason.clone()),
        }
    }

    /// Remembers that an aligned direct request came back with `EINVAL`, so that later requests
    /// do not pay the retry.
    pub(crate) fn refuse_direct(&self) {
        self.direct_refused.store(true, Ordering::Relaxed);
    }

    /// The name of its file system, as `/proc/mounts` has it, where it is a known one.
    pub(crate) fn file_system(&self) -> Option<&'static str> {
        file_system::name_of(self.buffered_fd())
    }

    pub(crate) fn readable(&self) -> bool {
        self.access.readable()
    }

    pub(crate) fn writable(&self) -> bool {
        self.access.writable()
    }

    /// `NotReadable` or `NotWritable` where the handle was opened without that access.
    pub(crate) fn check_access(&self, kind: Kind) -> Result<(), Error> {
        match kind {
            Kind::Read if !self.readable() => Err(Error::new(
                ErrorKind::NotReadable,
                "opened for writing only",
            )
            .with_operation(Operation::Read)),
            Kind::Write if !self.writable() => Err(Error::new(
                ErrorKind::NotWritable,
                "opened for reading only",
            )
            .with_operation(Operation::Write)),
            _ => Ok(()),
        }
    }

    /// Makes the data durable, and the metadata needed to read it back. Never repeated: after a
    /// failure the kernel may call the lost pages clean.
    pub(crate) fn sync_data(&self) -> Result<(), Error> {
        rustix::fs::fdatasync(&self.buffered).map_err(|errno| failed(Operation::Sync, errno))
    }

    /// Makes data and metadata durable. Never repeated, as [`sync_data`](Self::sync_data).
    pub(crate) fn sync_all(&self) -> Result<(), Error> {
        rustix::fs::fsync(&self.buffered).map_err(|errno| failed(Operation::Sync, errno))
    }

    /// The file's length in bytes, now.
    pub(crate) fn len(&self) -> Result<u64, Error> {
        let stat =
            rustix::fs::fstat(&self.buffered).map_err(|errno| failed(Operation::Len, errno))?;
        u64::try_from(stat.st_size).map_err(|_| failed(Operation::Len, Errno::OVERFLOW))
    }

    /// Cuts the file or extends it with a hole.
    pub(crate) fn set_len(&self, len: u64) -> Result<(), Error> {
        let refused =
            |kind, reason| Err(Error::new(kind, reason).with_operation(Operation::SetLen));
        if !self.writable() {
            return refused(ErrorKind::NotWritable, "opened for reading only");
        }
        if i64::try_from(len).is_err() {
            return refused(
                ErrorKind::InvalidInput,
                "the length is above what a file can have",
            );
        }
        rustix::io::retry_on_intr(|| rustix::fs::ftruncate(&self.buffered, len))
            .map_err(|errno| failed(Operation::SetLen, errno))
    }

    /// Cuts the file to length 0, as a part of opening it.
    pub(crate) fn truncate(&self) -> Result<(), Error> {
        rustix::io::retry_on_intr(|| rustix::fs::ftruncate(&self.buffered, 0))
            .map_err(|errno| failed(Operation::Open, errno))
    }

    /// Drops the file's clean pages in the range from the page cache; without `len`, to the end.
    /// Dirty pages stay, so sync first; so do pages that the range holds in part.
    pub(crate) fn drop_cache(&self, offset: u64, len: Option<NonZeroU64>) -> Result<(), Error> {
        rustix::fs::fadvise(&self.buffered, offset, len, Advice::DontNeed)
            .map_err(|errno| failed(Operation::DropCache, errno))
    }

    /// Closes both descriptors and returns the first error; both are closed in any case.
    pub(crate) fn close(self) -> Result<(), Error> {
        let direct = self.direct.map_or(Ok(()), |direct| io::close(direct.fd));
        let buffered = io::close(self.buffered);
        direct
            .and(buffered)
            .map_err(|errno| failed(Operation::Close, errno))
    }
}

fn failed(operation: Operation, errno: Errno) -> Error {
    Error::from_errno(errno).with_operation(operation)
}
