//! One opaque error: what kind, which operation, which file, where, and why.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::receipt::Backend;

/// The result of a call that hands no buffer back.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as a class that a program can act on.
///
/// The same misuse gives the same kind on every backend.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// No file at that path (`ENOENT`, a dangling link included; `ENOTDIR`).
    NotFound,
    /// The system refused access (`EACCES`, `EPERM`, `EROFS`).
    PermissionDenied,
    /// Something is there already (`EEXIST` under `create_new`).
    AlreadyExists,
    /// The path names something other than a regular file.
    NotRegularFile,
    /// A read through a handle opened without read access.
    NotReadable,
    /// A write through a handle opened without write access.
    NotWritable,
    /// An argument cannot be right: a range beyond every file, settings that exclude each other.
    InvalidInput,
    /// The file ended before an exact read was full.
    UnexpectedEof,
    /// The file system accepted none of the bytes (`write` returned 0).
    WriteZero,
    /// The device or the file system is full (`ENOSPC`, `EDQUOT`, `EFBIG`).
    StorageFull,
    /// The process or the system has no descriptor left (`EMFILE`, `ENFILE`).
    TooManyOpenFiles,
    /// Memory could not be had (`ENOMEM`).
    OutOfMemory,
    /// The device or the file system failed (`EIO` and every code not named here).
    Io,
    /// Cancelled through its handle.
    Cancelled,
    /// The deadline passed.
    DeadlineExceeded,
    /// The engine is shutting down or has shut down.
    ShuttingDown,
    /// It could not be proved that the hardware is done with the memory: the memory is leaked.
    Quarantined,
    /// The buffer is lent out: a part of it is still in flight or held. Or the CUDA stream takes no
    /// operation of cuFile's, or no registration, as long as it has one.
    Busy,
    /// The buffer, the file or the registration of the CUDA stream belongs to another engine.
    WrongEngine,
    /// More operations wait than the engine admits; try again later.
    QueueFull,
    /// What is left of the budget, after quarantine, cannot hold one part.
    NoCapacity,
    /// A required path is not available for this file; nothing was issued.
    PathRefused,
    /// Bytes took another path than the required one.
    PathViolated,
    /// Not available in this build or on this machine.
    Unsupported,
    /// An earlier write whose future was dropped failed or was torn.
    OrphanedWrite,
    /// Called in a child process after `fork`.
    Forked,
    /// CUDA sees no device of that ordinal.
    DeviceNotFound,
    /// The driver or the device failed. Once a device's context is in error, everything on it
    /// fails so until the process ends.
    DeviceFailed,
}

impl ErrorKind {
    /// One short phrase for people.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Self::NotFound => "not found",
            Self::PermissionDenied => "permission denied",
            Self::AlreadyExists => "already exists",
            Self::NotRegularFile => "not a regular file",
            Self::NotReadable => "not open for reading",
            Self::NotWritable => "not open for writing",
            Self::InvalidInput => "invalid input",
            Self::UnexpectedEof => "unexpected end of file",
            Self::WriteZero => "no byte accepted",
            Self::StorageFull => "storage full",
            Self::TooManyOpenFiles => "too many open files",
            Self::OutOfMemory => "out of memory",
            Self::Io => "I/O error",
            Self::Cancelled => "cancelled",
            Self::DeadlineExceeded => "deadline exceeded",
            Self::ShuttingDown => "engine shutting down",
            Self::Quarantined => "quarantined",
            Self::Busy => "busy",
            Self::WrongEngine => "wrong engine",
            Self::QueueFull => "queue full",
            Self::NoCapacity => "no capacity left",
            Self::PathRefused => "required path refused",
            Self::PathViolated => "required path violated",
            Self::Unsupported => "unsupported",
            Self::OrphanedWrite => "an earlier write was lost",
            Self::Forked => "used after fork",
            Self::DeviceNotFound => "no such device",
            Self::DeviceFailed => "device failed",
        }
    }

    const fn from_errno(errno: i32) -> Self {
        match rustix::io::Errno::from_raw_os_error(errno) {
            rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR => Self::NotFound,
            rustix::io::Errno::ACCESS | rustix::io::Errno::PERM | rustix::io::Errno::ROFS => {
                Self::PermissionDenied
            }
            rustix::io::Errno::EXIST => Self::AlreadyExists,
            rustix::io::Errno::ISDIR => Self::NotRegularFile,
            rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT | rustix::io::Errno::FBIG => {
                Self::StorageFull
            }
            rustix::io::Errno::MFILE | rustix::io::Errno::NFILE => Self::TooManyOpenFiles,
            rustix::io::Errno::NOMEM => Self::OutOfMemory,
            rustix::io::Errno::INVAL
            | rustix::io::Errno::OVERFLOW
            | rustix::io::Errno::LOOP
            | rustix::io::Errno::NAMETOOLONG => Self::InvalidInput,
            _ => Self::Io,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.description())
    }
}

/// The call that failed.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Building an engine.
    Build,
    /// Allocating or lending a buffer.
    Buffer,
    /// `open`, `from_std`.
    Open,
    /// `read_at`, `read_exact_at`, `read_ranges`, streams and readers.
    Read,
    /// `write_at`, `write_all_at`, writers.
    Write,
    /// `sync_data`, `sync_all`.
    Sync,
    /// `len`.
    Len,
    /// `set_len`.
    SetLen,
    /// `drop_cache`.
    DropCache,
    /// `close`.
    Close,
    /// `devices`.
    Devices,
    /// Recording a CUDA event.
    Event,
    /// Registering a CUDA stream with cuFile, or the end of that.
    Stream,
    /// Opening libcufile: `cufile`.
    CuFile,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Build => "build engine",
            Self::Buffer => "buffer",
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Len => "len",
            Self::SetLen => "set_len",
            Self::DropCache => "drop_cache",
            Self::Close => "close",
            Self::Devices => "devices",
            Self::Event => "event",
            Self::Stream => "stream",
            Self::CuFile => "cufile",
        })
    }
}

/// A code as the foreign side gave it.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VendorCode {
    /// The kernel's `errno`.
    Errno(i32),
    /// CUDA's `CUresult`.
    Cuda(i32),
    /// cuFile's `CUfileOpError`.
    CuFile(i32),
}

/// Why a call failed.
///
/// Cheap to clone. The text is for people and not stable; programs use
/// [`kind`](Self::kind) and the accessors.
#[derive(Clone)]
pub struct Error {
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    reason: Cow<'static, str>,
    operation: Option<Operation>,
    path: Option<Arc<Path>>,
    offset: Option<u64>,
    length: Option<u64>,
    device: Option<u32>,
    backend: Option<Backend>,
    vendor_code: Option<VendorCode>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            inner: Arc::new(Inner {
                kind,
                reason: reason.into(),
                operation: None,
                path: None,
                offset: None,
                length: None,
                device: None,
                backend: None,
                vendor_code: None,
                source: None,
            }),
        }
    }

    /// From a system call's error code, with the kind that the code means.
    pub(crate) fn from_errno(errno: rustix::io::Errno) -> Self {
        let source = io::Error::from(errno);
        let code = errno.raw_os_error();
        let mut error = Self::new(ErrorKind::from_errno(code), source.to_string());
        let inner = Arc::make_mut(&mut error.inner);
        inner.vendor_code = Some(VendorCode::Errno(code));
        inner.source = Some(Arc::new(source));
        error
    }

    fn with(mut self, set: impl FnOnce(&mut Inner)) -> Self {
        set(Arc::make_mut(&mut self.inner));
        self
    }

    pub(crate) fn with_operation(self, operation: Operation) -> Self {
        self.with(|inner| inner.operation = Some(operation))
    }

    pub(crate) fn with_path(self, path: &Arc<Path>) -> Self {
        self.with(|inner| inner.path = Some(Arc::clone(path)))
    }

    /// The byte range of the file that the failing request covers.
    pub(crate) fn with_range(self, offset: u64, length: u64) -> Self {
        self.with(|inner| {
            inner.offset = Some(offset);
            inner.length = Some(length);
        })
    }

    pub(crate) fn with_offset(self, offset: u64) -> Self {
        self.with(|inner| inner.offset = Some(offset))
    }

    pub(crate) fn with_device(self, ordinal: u32) -> Self {
        self.with(|inner| inner.device = Some(ordinal))
    }

    pub(crate) fn with_vendor_code(self, code: VendorCode) -> Self {
        self.with(|inner| inner.vendor_code = Some(code))
    }

    pub(crate) fn with_backend(self, backend: Backend) -> Self {
        self.with(|inner| inner.backend = Some(backend))
    }

    pub(crate) fn with_source(
        self,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        self.with(|inner| inner.source = Some(Arc::new(source)))
    }

    /// The class of the failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// Whether the same call may succeed later, unchanged.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.inner.kind,
            ErrorKind::Busy
                | ErrorKind::QueueFull
                | ErrorKind::TooManyOpenFiles
                | ErrorKind::OutOfMemory
        )
    }

    /// The call that failed.
    #[must_use]
    pub fn operation(&self) -> Option<Operation> {
        self.inner.operation
    }

    /// The file, as it was opened.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.inner.path.as_deref()
    }

    /// The file offset in bytes at which it failed.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.inner.offset
    }

    /// The length in bytes of the failing request.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        self.inner.length
    }

    /// The CUDA ordinal of the device that failed.
    #[must_use]
    pub fn device(&self) -> Option<u32> {
        self.inner.device
    }

    /// The executor that reported it; `None` where none had a hand in it.
    #[must_use]
    pub fn backend(&self) -> Option<Backend> {
        self.inner.backend
    }

    /// The code as the kernel or a library gave it.
    #[must_use]
    pub fn vendor_code(&self) -> Option<VendorCode> {
        self.inner.vendor_code
    }

    /// The reason alone, without operation, file and offset.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.inner.reason
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.inner;
        let mut before = "";
        if let Some(operation) = inner.operation {
            write!(f, "{operation}")?;
            before = " ";
        }
        if let Some(path) = &inner.path {
            write!(f, "{before}{}", path.display())?;
            before = " ";
        }
        match (inner.offset, inner.length) {
            (Some(offset), Some(length)) => {
                write!(f, "{before}at offset {offset}, {length} bytes")?;
            }
            (Some(offset), None) => write!(f, "{before}at offset {offset}")?,
            _ => {}
        }
        if !before.is_empty() {
            f.write_str(": ")?;
        }
        let kind = inner.kind.description();
        if inner.reason.is_empty() {
            f.write_str(kind)
        } else {
            write!(f, "{kind}: {}", inner.reason)
        }
    }
}

/// What a program shows whose `main` returns it: the text, and the kind by which programs tell it.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({:?}", self.inner.kind)?;
        if let Some(code) = self.inner.vendor_code {
            write!(f, ", {code:?}")?;
        }
        f.write_str(")")
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner
            .source
            .as_deref()
            .map(|source| source as &(dyn std::error::Error + 'static))
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::NotFound | ErrorKind::DeviceNotFound => io::ErrorKind::NotFound,
            ErrorKind::PermissionDenied | ErrorKind::NotReadable | ErrorKind::NotWritable => {
                io::ErrorKind::PermissionDenied
            }
            ErrorKind::AlreadyExists => io::ErrorKind::AlreadyExists,
            ErrorKind::InvalidInput | ErrorKind::WrongEngine | ErrorKind::NotRegularFile => {
                io::ErrorKind::InvalidInput
            }
            ErrorKind::UnexpectedEof => io::ErrorKind::UnexpectedEof,
            ErrorKind::WriteZero => io::ErrorKind::WriteZero,
            ErrorKind::StorageFull => io::ErrorKind::StorageFull,
            ErrorKind::OutOfMemory => io::ErrorKind::OutOfMemory,
            ErrorKind::DeadlineExceeded => io::ErrorKind::TimedOut,
            ErrorKind::Unsupported | ErrorKind::PathRefused => io::ErrorKind::Unsupported,
            ErrorKind::Busy | ErrorKind::QueueFull => io::ErrorKind::ResourceBusy,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
