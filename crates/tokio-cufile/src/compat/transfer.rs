//! One part of a read or a write, by blocking system calls.
//!
//! Short results are continued, `EINTR` and `EAGAIN` repeated, and a direct request that the file
//! system refuses with `EINVAL` is repeated once through the page cache, unless the operation
//! requires otherwise. All of it is counted and stated in the report.
#![allow(unsafe_code, reason = "the memory of an operation is named by address")]

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use completion::{Next, PartOutcome};
use rustix::io::Errno;

use crate::engine::{Model, PartReport};
use crate::error::{Error, ErrorKind, Operation};
use crate::file::FileShared;
use crate::memory::MemoryRange;
use crate::os::io;
use crate::plan::{Kind, Lane};
use crate::receipt::{Backend, DataPath, PathClass};

/// `EINTR` and `EAGAIN` in a row, without a byte between them, before it is an error.
const RETRIES_MAX: u32 = 1024;

/// One part, as the planner cut it, with the memory it moves.
pub(crate) struct TransferPart {
    pub(crate) file: Arc<FileShared>,
    pub(crate) kind: Kind,
    /// The user's bytes of this part. The operation's payload owns them.
    pub(crate) memory: MemoryRange,
    pub(crate) file_offset: u64,
    pub(crate) lane: Lane,
    pub(crate) require: Option<PathClass>,
}

/// The system call loop over one descriptor and one piece of memory.
struct Run<'a> {
    fd: BorrowedFd<'a>,
    kind: Kind,
    memory: MemoryRange,
    offset: u64,
    /// Where a continued request may begin: the direct alignment, or 1.
    step: usize,
    retries: &'a mut u64,
}

impl TransferPart {
    pub(crate) fn perform(
        &self,
        slot: Option<MemoryRange>,
        next: impl Fn() -> Next,
    ) -> PartOutcome<Model> {
        let mut report = PartReport::started_at(Instant::now());
        let (bytes, fault) = match self.lane {
            Lane::Buffered => self.buffered(&mut report, self.buffered_path()),
            Lane::DirectInPlace => self.direct_in_place(&mut report),
            Lane::DirectViaSlot {
                io_offset,
                io_len,
                skip,
            } => match slot {
                Some(slot) if self.kind == Kind::Read => {
                    self.read_via_slot(slot, (io_offset, io_len, skip), &mut report, next)
                }
                Some(slot) => self.write_via_slot(slot, &mut report, next),
                None => unreachable!("the scheduler grants a slot to every part that asks for one"),
            },
        };
        let fault = fault.map(|error| self.describe(error, bytes));
        PartOutcome {
            bytes: bytes as u64,
            fault,
            report,
        }
    }

    const fn operation(&self) -> Operation {
        match self.kind {
            Kind::Read => Operation::Read,
            Kind::Write => Operation::Write,
        }
    }

    fn describe(&self, error: Error, done: usize) -> Error {
        let left = self.memory.len() - done;
        error
            .with_operation(self.operation())
            .with_path(&self.file.path)
            .with_range(self.file_offset + done as u64, left as u64)
            .with_backend(Backend::CompatPool)
    }

    /// Through the page cache because the file is read so, or because this is an unaligned edge.
    fn buffered_path(&self) -> DataPath {
        if self.file.route.cached {
            DataPath::PoolCached
        } else {
            DataPath::Buffered
        }
    }

    fn buffered(&self, report: &mut PartReport, path: DataPath) -> (usize, Option<Error>) {
        let start = Instant::now();
        let run = Run {
            fd: self.file.handle.buffered_fd(),
            kind: self.kind,
            memory: self.memory,
            offset: self.file_offset,
            step: 1,
            retries: &mut report.retries,
        };
        let (done, halt) = run.complete();
        report.io_time += start.elapsed();
        report.moved(path, done);
        (done, halt.map(Error::from))
    }

    fn direct_in_place(&self, report: &mut PartReport) -> (usize, Option<Error>) {
        let (done, halt) = self.direct(self.memory, self.file_offset, report);
        if halt == Some(Halt::Errno(Errno::INVAL)) && done == 0 {
            return self.refused_direct(report);
        }
        report.moved(DataPath::PoolDirect, done);
        (done, halt.map(Error::from))
    }

    fn read_via_slot(
        &self,
        slot: MemoryRange,
        (io_offset, io_len, skip): (u64, u64, u64),
        report: &mut PartReport,
        next: impl Fn() -> Next,
    ) -> (usize, Option<Error>) {
        let window = usize::try_from(io_len)
            .ok()
            .and_then(|len| slot.sub(0, len));
        let window = window.expect("the planner keeps a part's window inside one slot");
        let (read, halt) = self.direct(window, io_offset, report);
        if halt == Some(Halt::Errno(Errno::INVAL)) && read == 0 {
            return self.refused_direct(report);
        }
        let skip = usize::try_from(skip).expect("the planner skips less than one slot");
        let done = read.saturating_sub(skip).min(self.memory.len());
        // Nobody waits for the bytes any more: leave their memory alone (I17).
        if next() == Next::Proceed && done > 0 {
            let start = Instant::now();
            let from = slot
                .sub(skip, done)
                .expect("read - skip bytes lie in the slot");
            // SAFETY: the operation's payload owns the destination, and the part has the slot
            // alone until it is finished; both are quiet, for the read has returned; `done` is at
            // most the length of the destination.
            unsafe { from.copy_to(self.memory) };
            report.copy_time += start.elapsed();
        }
        report.moved(DataPath::PoolDirect, done);
        // An error behind the part's own bytes, in the rest of the over-read, is not its error.
        let halt = halt.filter(|_| done < self.memory.len());
        (done, halt.map(Error::from))
    }

    fn write_via_slot(
        &self,
        slot: MemoryRange,
        report: &mut PartReport,
        next: impl Fn() -> Next,
    ) -> (usize, Option<Error>) {
        let start = Instant::now();
        let staged = slot.sub(0, self.memory.len());
        let staged = staged.expect("the planner keeps a part inside one slot");
        // SAFETY: the operation's payload owns the source, which nobody writes meanwhile, and the
        // part has the slot alone until it is finished.
        unsafe { self.memory.copy_to(staged) };
        report.copy_time += start.elapsed();
        // A dropped write goes on: its bytes are staged, and half a write helps nobody.
        let _ = next();
        let (done, halt) = self.direct(staged, self.file_offset, report);
        if halt == Some(Halt::Errno(Errno::INVAL)) && done == 0 {
            return self.refused_direct(report);
        }
        report.moved(DataPath::PoolDirect, done);
        (done, halt.map(Error::from))
    }

    fn direct(
        &self,
        memory: MemoryRange,
        offset: u64,
        report: &mut PartReport,
    ) -> (usize, Option<Halt>) {
        let Some(fd) = self.file.handle.direct_fd() else {
            return (0, Some(Halt::Errno(Errno::INVAL)));
        };
        let alignment = self
            .file
            .route
            .direct
            .map_or(4096, |direct| direct.offset.max(direct.memory));
        let start = Instant::now();
        let run = Run {
            fd,
            kind: self.kind,
            memory,
            offset,
            step: usize::try_from(alignment).unwrap_or(4096),
            retries: &mut report.retries,
        };
        let result = run.complete();
        report.io_time += start.elapsed();
        result
    }

    /// `EINVAL` for an aligned request: the file system promised more than it keeps. Once through
    /// the page cache, and not again for this file.
    fn refused_direct(&self, report: &mut PartReport) -> (usize, Option<Error>) {
        if let Some(required) = self.require {
            let reason = format!(
                "{required} is required, and the file system refused an aligned direct request (EINVAL)"
            );
            return (0, Some(Error::new(ErrorKind::PathViolated, reason)));
        }
        self.file.handle.refuse_direct();
        report.retries += 1;
        report.note("an aligned direct request was refused with EINVAL; repeated buffered".into());
        self.buffered(report, DataPath::Buffered)
    }
}

/// Why a run stopped early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Halt {
    Errno(Errno),
    /// A write returned 0.
    NoProgress,
}

impl From<Halt> for Error {
    fn from(halt: Halt) -> Self {
        match halt {
            Halt::Errno(errno) => Self::from_errno(errno),
            Halt::NoProgress => Self::new(ErrorKind::WriteZero, "the file system accepted no byte"),
        }
    }
}

impl Run<'_> {
    /// Goes on until the memory is full, the file ends or an error says why not. Gives the bytes
    /// done, without a gap from the start.
    fn complete(self) -> (usize, Option<Halt>) {
        let mut done = 0;
        let mut idle = 0;
        while done < self.memory.len() {
            // After a result that broke the alignment, the last block is moved again.
            let from = done - done % self.step;
            match self.once(from) {
                Ok(moved) if from + moved > done => {
                    *self.retries += u64::from(done > 0);
                    done = from + moved;
                    idle = 0;
                }
                Ok(_) if self.kind == Kind::Read => break,
                Ok(_) => return (done, Some(Halt::NoProgress)),
                Err(Errno::INTR) if idle < RETRIES_MAX => {
                    idle += 1;
                    *self.retries += 1;
                }
                Err(Errno::AGAIN) if idle < RETRIES_MAX => {
                    idle += 1;
                    *self.retries += 1;
                    thread::yield_now();
                }
                Err(errno) => return (done, Some(Halt::Errno(errno))),
            }
        }
        (done, None)
    }

    fn once(&self, from: usize) -> Result<usize, Errno> {
        let left = self.memory.len() - from;
        let memory = self.memory.sub(from, left).ok_or(Errno::OVERFLOW)?;
        let offset = self.offset + from as u64;
        match self.kind {
            // SAFETY: the range is the user's memory, owned by the operation's payload and
            // writable, or a slot that the part has alone; the call is synchronous.
            Kind::Read => unsafe { io::read_at(self.fd, memory.as_ptr(), memory.len(), offset) },
            // SAFETY: as above; nobody writes the source while the operation owns it.
            Kind::Write => unsafe { io::write_at(self.fd, memory.as_ptr(), memory.len(), offset) },
        }
    }
}
