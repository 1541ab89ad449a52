//! One part of a read or a write, by cuFile's own calls.
#![allow(
    unsafe_code,
    reason = "hands the memory of an operation to cuFile by address"
)]

use std::ffi::c_void;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use completion::{Next, PartOutcome};
use nvidia_dl::cuda::CuResult;
use nvidia_dl::cufile::{Code, CufileError, Failure, Transfer};
use rustix::io::Errno;

use super::in_stream::InStream;
use super::leaving::Purpose;
use super::proof::Window;
use super::registration::Registration;
use super::session::Session;
use crate::compat::DeviceSide;
use crate::cuda::Event;
use crate::engine::{Model, PartReport};
use crate::error::{Error, ErrorKind, Result, VendorCode};
use crate::file::FileShared;
use crate::memory::Region;
use crate::plan::{IO_LEN_MAX, Kind};
use crate::receipt::{Backend, DataPath, PathClass};

/// `EINTR` and `EAGAIN` in a row, without a byte between them, before it is an error.
const RETRIES_MAX: u32 = 1024;

const NOT_COUNTED: &str = "cuFile counts by GPU, and so nothing of host memory";

/// One part, as the planner cut it, with the memory it moves.
pub(crate) struct CufilePart {
    pub(crate) file: Arc<FileShared>,
    pub(crate) kind: Kind,
    pub(crate) memory: Region,
    /// The device whose memory it is.
    pub(crate) device: Option<Arc<DeviceSide>>,
    pub(crate) file_offset: u64,
    pub(crate) require: Option<PathClass>,
    /// Put into this stream instead of being done at once.
    pub(crate) into_stream: Option<Arc<InStream>>,
}

/// Nobody knows what became of the memory: the operation is to be quarantined.
#[derive(Debug)]
pub(super) struct Lost;

/// What was done of a part by other calls.
#[derive(Debug)]
pub(super) struct SoFar {
    pub(super) done: usize,
    /// Whether there were any, in which case nobody may wait for the rest any more.
    pub(super) calls: u32,
    pub(super) report: PartReport,
}

impl SoFar {
    pub(super) fn nothing() -> Self {
        Self {
            done: 0,
            calls: 0,
            report: PartReport::started_at(Instant::now()),
        }
    }
}

/// A part in execution.
struct Run<'a> {
    part: &'a CufilePart,
    registration: Arc<Registration>,
    done: usize,
    /// Done before.
    before: usize,
    calls: u32,
    /// In a row.
    retries: u32,
    report: PartReport,
}

impl CufilePart {
    /// Moves what is left of the part, by calls that block. `advance` is asked before a call that
    /// nobody waits for any more (I17).
    pub(super) fn run(
        &self,
        so_far: SoFar,
        advance: impl FnMut() -> Next,
    ) -> std::result::Result<PartOutcome<Model>, Lost> {
        let SoFar {
            done,
            calls,
            report,
        } = so_far;
        let registration = match self.bind() {
            Ok(registration) => registration,
            Err(error) => {
                return Ok(PartOutcome {
                    bytes: done as u64,
                    fault: Some(self.describe(error, done)),
                    report,
                });
            }
        };
        let mut run = Run {
            part: self,
            registration,
            done,
            before: done,
            calls,
            retries: 0,
            report,
        };
        let moved = run.move_all(advance)?;
        let fault = moved.err().map(|error| self.describe(error, run.done));
        Ok(PartOutcome {
            bytes: run.done as u64,
            fault,
            report: run.report,
        })
    }

    pub(super) fn registration(&self) -> Result<Arc<Registration>> {
        let registration = self.file.handle.registration();
        registration.ok_or_else(|| {
            let reason = "the engine has let go of cuFile";
            Error::new(ErrorKind::ShuttingDown, reason)
        })
    }

    fn bind(&self) -> Result<Arc<Registration>> {
        let registration = self.registration()?;
        match &self.device {
            Some(side) => {
                side.device().check()?;
                side.device().bind()?;
            }
            None => registration.session().bind()?,
        }
        Ok(registration)
    }

    /// Whether the part may go by a stream, where the path of its bytes cannot be told.
    pub(super) fn may_be_streamed(&self) -> bool {
        let required = self.require;
        self.memory.on_device().is_some()
            && self.memory.len() as u64 <= IO_LEN_MAX
            && required.is_none_or(|class| class.admits(DataPath::CufileUnverified))
    }

    /// The part's memory, as cuFile takes it: a start, and an offset from there.
    pub(super) fn place(&self, session: &Session) -> (*mut c_void, usize) {
        match self.memory {
            Region::Host(memory) => (memory.as_ptr().cast(), 0),
            Region::Device(memory) => session.pinned().place_of(memory),
        }
    }

    /// What a failed call means, where it leaves the memory quiet.
    pub(super) fn error(&self, error: CufileError) -> std::result::Result<Error, Lost> {
        match error.failure() {
            // It moved more than it was asked to, or lost the context: nobody knows where bytes went,
            // or still go.
            Some(Failure::TooLong { .. }) => Err(Lost),
            Some(Failure::Cuda(code)) if code.ends_context() => {
                if let Some(side) = &self.device {
                    side.device().give_up(&error_of(error));
                }
                Err(Lost)
            }
            // Whatever it says: a lost context may be behind it.
            Some(_) => {
                self.check_context().map_err(|()| Lost)?;
                Ok(error_of(error))
            }
            None => Ok(error_of(error)),
        }
    }

    /// Whether the device's context is still good, where cuFile does not say what CUDA told it. A
    /// context in error gives that error for every call.
    fn check_context(&self) -> std::result::Result<(), ()> {
        let Some(side) = &self.device else {
            return Ok(());
        };
        // Notes a lost context.
        let probed = Event::new(side.device()).and_then(|event| event.is_complete());
        if let Err(error) = probed {
            tracing::debug!(%error, "asked after a failed call of cuFile's");
        }
        side.device().check().map_err(drop)
    }

    /// How many bytes a request for the whole of it moves: fewer than that only where the file ends.
    pub(super) fn expected(&self) -> Result<usize> {
        let len = self.memory.len();
        if self.kind == Kind::Write {
            return Ok(len);
        }
        let left = self.file.handle.len()?.saturating_sub(self.file_offset);
        Ok(usize::try_from(left).map_or(len, |left| left.min(len)))
    }

    /// What it means that a request which cannot be continued moved that many bytes.
    pub(super) fn check_in_one_go(&self, done: usize, expected: usize) -> Result<usize> {
        if done >= expected {
            return Ok(done);
        }
        let reason =
            format!("cuFile moved {done} bytes of {expected}, and a stream does not go on");
        let kind = match (self.kind, done) {
            (Kind::Write, 0) => ErrorKind::WriteZero,
            _ => ErrorKind::Io,
        };
        Err(Error::new(kind, reason))
    }

    /// An error behind the part's first `done` bytes.
    pub(super) fn describe(&self, error: Error, done: usize) -> Error {
        let left = self.memory.len() - done;
        error
            .with_operation(self.kind.operation())
            .with_path(&self.file.path)
            .with_range(self.file_offset + done as u64, left as u64)
            .with_backend(Backend::CuFile)
    }
}

impl Run<'_> {
    fn move_all(
        &mut self,
        mut advance: impl FnMut() -> Next,
    ) -> std::result::Result<Result<()>, Lost> {
        let start = Instant::now();
        let registration = Arc::clone(&self.registration);
        // cuFile counts by GPU: what moves to and from the host is in none of its counts.
        let is_counted = self.part.memory.on_device().is_some();
        let proof = registration.session().proof();
        let window = is_counted.then(|| proof.begin(self.part.kind));
        let mut result = Ok(());
        while self.done < self.part.memory.len() {
            if self.calls > 0 && advance() == Next::Skip {
                break;
            }
            self.calls += 1;
            match self.call() {
                Ok(0) if self.part.kind == Kind::Read => break,
                Ok(0) => {
                    let reason = "the file system accepted no byte";
                    result = Err(Error::new(ErrorKind::WriteZero, reason));
                    break;
                }
                Ok(moved) => {
                    self.report.retries += u64::from(self.done > 0);
                    (self.done, self.retries) = (self.done + moved, 0);
                }
                Err(error) if self.may_retry(error) => {
                    self.report.retries += 1;
                    thread::yield_now();
                }
                Err(error) => {
                    result = Err(self.part.error(error)?);
                    break;
                }
            }
        }
        self.report.io_time += start.elapsed();
        let not_counted = || (DataPath::CufileUnverified, Some(NOT_COUNTED.into()));
        let (path, note) = window.map_or_else(not_counted, Window::end);
        self.report.moved(path, self.done - self.before);
        let judged = result.and_then(|()| self.judge(path, note.as_deref()));
        if let Some(note) = note {
            self.report.note(note);
        }
        Ok(judged)
    }

    /// Whether the path of what was moved is the required one.
    fn judge(&self, path: DataPath, note: Option<&str>) -> Result<()> {
        let required = self.part.require.filter(|_| self.done > self.before);
        match required.filter(|class| !class.admits(path)) {
            None => Ok(()),
            Some(class) => {
                let why = note.map(|note| format!(": {note}")).unwrap_or_default();
                let reason = format!("{class} is required, and bytes went by {path}{why}");
                Err(Error::new(ErrorKind::PathViolated, reason))
            }
        }
    }

    /// One call for all that is left.
    fn call(&self) -> std::result::Result<usize, CufileError> {
        let (part, session) = (self.part, self.registration.session());
        let (base, offset) = part.place(session);
        let what = Transfer {
            base,
            buf_offset: offset + self.done,
            file_offset: part.file_offset + self.done as u64,
            len: part.memory.len() - self.done,
        };
        let file = self.registration.handle();
        let library = session.library().call(Purpose::Move);
        match part.kind {
            // SAFETY: the operation's payload owns the memory, of which this part has its bytes alone
            // and which is writable; it came after whatever events the user named. The part keeps the
            // file, and so the registration and its descriptor; its context is bound. The call has
            // ended when it returns.
            Kind::Read => unsafe { library.read(file, &what) },
            // SAFETY: as above; nobody writes the source while the operation owns it.
            Kind::Write => unsafe { library.write(file, &what) },
        }
    }

    fn may_retry(&mut self, error: CufileError) -> bool {
        self.retries += 1;
        error.failure().is_some_and(is_passing) && self.retries < RETRIES_MAX
    }
}

/// Whether the same again may succeed.
pub(super) fn is_passing(failure: Failure) -> bool {
    let Failure::Os(errno) = failure else {
        return false;
    };
    matches!(Errno::from_raw_os_error(errno), Errno::INTR | Errno::AGAIN)
}

/// A failed call as an error of the engine.
pub(super) fn error_of(error: CufileError) -> Error {
    let reason = error.to_string();
    match error.failure() {
        Some(Failure::Os(errno)) => {
            let os = Error::from_errno(Errno::from_raw_os_error(errno));
            Error::new(os.kind(), reason).with_vendor_code(VendorCode::Errno(errno))
        }
        Some(Failure::Cuda(CuResult(code))) => {
            Error::new(ErrorKind::DeviceFailed, reason).with_vendor_code(VendorCode::Cuda(code))
        }
        Some(Failure::Code(code)) => {
            Error::new(kind_of(code), reason).with_vendor_code(VendorCode::CuFile(code.0))
        }
        Some(_) => Error::new(ErrorKind::Io, reason),
        // There was no call.
        None => match error {
            CufileError::Unsupported { .. } => Error::new(ErrorKind::Unsupported, reason),
            _ => Error::new(ErrorKind::InvalidInput, reason),
        },
    }
    .with_source(error)
}

/// The class of a code of the library's.
const fn kind_of(code: Code) -> ErrorKind {
    match code {
        Code::PERMISSION_DENIED => ErrorKind::PermissionDenied,
        Code::NOMEM_ERROR
        | Code::INVALID_MAPPING_SIZE
        | Code::INVALID_MAPPING_RANGE
        | Code::GPU_MEMORY_PINNING_FAILED => ErrorKind::OutOfMemory,
        Code::PLATFORM_NOT_SUPPORTED
        | Code::IO_NOT_SUPPORTED
        | Code::DEVICE_NOT_SUPPORTED
        | Code::INVALID_FILE_TYPE
        | Code::IO_DISABLED => ErrorKind::Unsupported,
        Code::CUDA_DRIVER_ERROR
        | Code::CUDA_POINTER_INVALID
        | Code::CUDA_MEMORY_TYPE_INVALID
        | Code::CUDA_POINTER_RANGE_ERROR
        | Code::CUDA_CONTEXT_MISMATCH
        | Code::INVALID_CONTEXT_ERROR => ErrorKind::DeviceFailed,
        _ => ErrorKind::Io,
    }
}
