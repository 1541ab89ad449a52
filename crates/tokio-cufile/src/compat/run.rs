//! One part of a read or a write as a sequence of steps, for any executor.
//!
//! A run says which request to make next and takes its result; whether that is a system call on a
//! worker or an entry in a ring is not its business. So short results, `EINTR` and `EAGAIN`, the end
//! of the file, and a direct request that the file system refuses mean the same on every executor.
#![allow(unsafe_code, reason = "copies between a slot and the user's memory")]

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use completion::{Next, PartOutcome};
use rustix::io::Errno;

use super::cached::Residency;
use super::digest::PartDigest;
use super::target::Target;
use crate::engine::{Model, PartReport};
use crate::error::{Error, ErrorKind, Operation};
use crate::file::FileShared;
use crate::memory::MemoryRange;
use crate::plan::{Kind, Lane};
use crate::receipt::{Backend, DataPath, PathClass};

/// `EINTR` and `EAGAIN` in a row, without a byte between them, before it is an error.
const RETRIES_MAX: u32 = 1024;

/// The unit in which the page cache holds a file.
const PAGE_SIZE: usize = 4096;

/// One part, as the planner cut it, with the memory it moves.
pub(crate) struct TransferPart {
    pub(crate) file: Arc<FileShared>,
    pub(crate) kind: Kind,
    pub(crate) target: Target,
    pub(crate) file_offset: u64,
    /// Bytes of the file that the part moves, gaps between its pieces included.
    pub(crate) len: usize,
    pub(crate) lane: Lane,
    /// Executed by the ring; by a worker of the pool otherwise.
    pub(crate) by_ring: bool,
    /// Whether bytes that are in the page cache may come from there.
    pub(crate) may_use_cache: bool,
    pub(crate) require: Option<PathClass>,
    /// Whether somebody waits for the source of a write, before its end even.
    pub(crate) lets_go: bool,
    /// Of a part that is not for the ring.
    pub(crate) digest: Option<PartDigest>,
}

/// The paths that an executor's bytes take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paths {
    pub(crate) backend: Backend,
    pub(crate) direct: DataPath,
    pub(crate) cached: DataPath,
}

/// Which descriptor a request goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Direct,
    /// Bytes that are in the page cache, or a file that is read so.
    Cached,
    /// Through the page cache where the direct way was wanted.
    Buffered,
}

/// Bytes that go one way, one after the other.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    memory: MemoryRange,
    offset: u64,
    way: Way,
    /// The memory is the part's slot.
    in_slot: bool,
    done: usize,
}

/// A request to make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) memory: MemoryRange,
    pub(crate) offset: u64,
    /// Holds up whoever makes it: served by copying from the page cache, or by a file system that
    /// does not let go before it has the bytes.
    pub(crate) blocks: bool,
    /// The memory is the part's slot.
    pub(crate) in_slot: bool,
    direct: bool,
}

impl Request {
    pub(crate) fn fd<'a>(&self, part: &'a TransferPart) -> BorrowedFd<'a> {
        let handle = &part.file.handle;
        match handle.direct_fd() {
            Some(fd) if self.direct => fd,
            _ => handle.buffered_fd(),
        }
    }
}

/// A slot read: which part of the window is the user's.
#[derive(Clone, Copy, Debug)]
struct Window {
    slot: MemoryRange,
    skip: usize,
}

/// A part in execution.
pub(crate) struct Run {
    pub(crate) part: TransferPart,
    paths: Paths,
    now: Option<Stretch>,
    /// What comes after, the next one last.
    later: Vec<Stretch>,
    window: Option<Window>,
    /// Bytes of the part moved, without a gap from its start.
    done: usize,
    fault: Option<Error>,
    idle: u32,
    asked_at: Instant,
    report: PartReport,
}

impl Run {
    /// Looks where the bytes are, and stages those of a write that goes through a slot.
    pub(crate) fn new(part: TransferPart, slot: Option<MemoryRange>, paths: Paths) -> Self {
        let start = Instant::now();
        let mut run = Self {
            part,
            paths,
            now: None,
            later: Vec::new(),
            window: None,
            done: 0,
            fault: None,
            idle: 0,
            asked_at: start,
            report: PartReport::started_at(start),
        };
        match (run.part.lane, slot) {
            (Lane::Buffered, _) => run.begin(run.buffered_way()),
            (Lane::DirectInPlace, _) => run.begin_in_place(),
            (lane @ Lane::DirectViaSlot { .. }, Some(slot)) => run.begin_via_slot(lane, slot),
            (Lane::DirectViaSlot { .. }, None) => {
                unreachable!("the scheduler grants a slot to every part that asks for one")
            }
        }
        run
    }

    /// One piece after the other, each straight to its place.
    fn begin(&mut self, way: Way) {
        let pieces = self.part.target.pieces(self.part.file_offset);
        let mut stretches = pieces.map(|piece| Stretch {
            memory: piece.memory,
            offset: piece.file_offset,
            way,
            in_slot: false,
            done: 0,
        });
        self.now = stretches.next();
        self.later.extend(stretches.rev());
    }

    /// A file that is read through the page cache, or an unaligned edge of one that is not.
    fn buffered_way(&self) -> Way {
        if self.part.file.route.cached {
            Way::Cached
        } else {
            Way::Buffered
        }
    }

    fn residency(&self) -> Residency {
        let len = self.part.len;
        if self.part.kind == Kind::Write || !self.part.may_use_cache {
            return Residency::none(len);
        }
        let file = &self.part.file;
        let alignment = self.direct_step().max(PAGE_SIZE);
        Residency::look(
            file.handle.buffered_fd(),
            self.part.file_offset,
            len,
            alignment,
        )
    }

    fn begin_in_place(&mut self) {
        let Target::One(all) = self.part.target else {
            unreachable!("the planner reads scattered pieces through a slot or the page cache")
        };
        let residency = self.residency();
        let file_offset = self.part.file_offset;
        let mut stretches = residency.pieces().map(|piece| Stretch {
            memory: all
                .sub(piece.start, piece.end - piece.start)
                .expect("the pieces cover the part"),
            offset: file_offset + piece.start as u64,
            way: if piece.cached {
                Way::Cached
            } else {
                Way::Direct
            },
            in_slot: false,
            done: 0,
        });
        self.now = stretches.next();
        self.later.extend(stretches.rev());
    }

    fn begin_via_slot(&mut self, lane: Lane, slot: MemoryRange) {
        let Lane::DirectViaSlot {
            io_offset,
            io_len,
            skip,
        } = lane
        else {
            return;
        };
        let is_cached = self.residency().is_all_cached();
        // From the page cache no alignment is asked for, so no slot is needed. Scattered pieces
        // still take one request that way instead of one for each.
        if is_cached && matches!(self.part.target, Target::One(_)) {
            return self.begin(Way::Cached);
        }
        let window = usize::try_from(io_len)
            .ok()
            .and_then(|len| slot.sub(0, len));
        let window = window.expect("the planner keeps a part's window inside one slot");
        match (self.part.kind, &self.part.target) {
            (Kind::Write, Target::One(source)) => {
                let start = Instant::now();
                // SAFETY: the operation's payload owns the source, which nobody writes meanwhile;
                // the part has the slot alone until it is finished; a write's window is as long.
                unsafe { source.copy_to(window) };
                self.report.copy_time += start.elapsed();
            }
            (Kind::Write, Target::Scatter { .. }) => unreachable!("writes are of one range"),
            (Kind::Read, _) => {
                let skip = usize::try_from(skip).expect("the planner skips less than one slot");
                self.window = Some(Window { slot: window, skip });
            }
        }
        self.now = Some(Stretch {
            memory: window,
            offset: io_offset,
            way: if is_cached { Way::Cached } else { Way::Direct },
            in_slot: true,
            done: 0,
        });
    }

    /// Whether the part has copied what it needs of the source of a write, and somebody waits for
    /// that: from now on it reads its slot.
    pub(crate) fn lets_go(&self) -> bool {
        let in_slot = self.now.is_some_and(|stretch| stretch.in_slot);
        self.part.lets_go && self.part.kind == Kind::Write && in_slot
    }

    /// The next request; `None` when the part is over, one way or the other.
    pub(crate) fn next(&mut self) -> Option<Request> {
        let stretch = self.now?;
        // After a result that broke the alignment, the last block is moved again.
        let from = self.resume_at(stretch);
        self.asked_at = Instant::now();
        Some(Request {
            kind: self.part.kind,
            memory: stretch.memory.sub(from, stretch.memory.len() - from)?,
            offset: stretch.offset + from as u64,
            blocks: stretch.way != Way::Direct || self.part.file.route.may_block,
            in_slot: stretch.in_slot,
            direct: stretch.way == Way::Direct,
        })
    }

    fn resume_at(&self, stretch: Stretch) -> usize {
        let step = match stretch.way {
            Way::Direct => self.direct_step(),
            Way::Cached | Way::Buffered => 1,
        };
        stretch.done - stretch.done % step
    }

    /// What a direct request's place and length are multiples of.
    fn direct_step(&self) -> usize {
        let alignment = self.part.file.route.direct;
        let step = alignment.map_or(1, |direct| direct.offset.max(direct.memory));
        usize::try_from(step).unwrap_or(PAGE_SIZE)
    }

    /// What became of the request that `next` gave.
    pub(crate) fn complete(&mut self, result: Result<usize, Errno>) {
        self.report.io_time += self.asked_at.elapsed();
        let Some(mut stretch) = self.now.take() else {
            return;
        };
        match result {
            Ok(moved) => {
                let end = self.resume_at(stretch) + moved;
                let progress = end > stretch.done;
                if progress {
                    self.idle = 0;
                    self.report.retries += u64::from(stretch.done > 0);
                    stretch.done = end;
                }
                if stretch.done == stretch.memory.len() {
                    let end = self.account(stretch);
                    // A piece may lie inside the one before it.
                    self.done = self.done.max(end);
                    self.now = self.later.pop();
                } else if progress {
                    self.now = Some(stretch);
                } else {
                    self.no_progress(stretch);
                }
            }
            Err(Errno::INTR | Errno::AGAIN) if self.idle < RETRIES_MAX => {
                self.idle += 1;
                self.report.retries += 1;
                self.now = Some(stretch);
            }
            Err(Errno::INVAL) if stretch.way == Way::Direct => self.refused_direct(stretch),
            Err(errno) => self.fail(stretch, Error::from_errno(errno)),
        }
    }

    /// Whether the last result asked for another try at once: give way before it.
    pub(crate) const fn is_retrying(&self) -> bool {
        self.idle > 0
    }

    /// The end of the file, or a file system that takes no byte.
    fn no_progress(&mut self, stretch: Stretch) {
        match self.part.kind {
            Kind::Read => {
                self.done = self.account(stretch);
                self.later.clear();
            }
            Kind::Write => {
                let reason = "the file system accepted no byte";
                self.fail(stretch, Error::new(ErrorKind::WriteZero, reason));
            }
        }
    }

    fn fail(&mut self, stretch: Stretch, error: Error) {
        self.done = self.account(stretch);
        self.later.clear();
        // An error behind the part's own bytes, in the rest of an over-read, is not its error.
        if self.done < self.part.len {
            self.fault = Some(error);
        }
    }

    /// Notes what a stretch moved of the part. Gives where it ended, counted from the part's start.
    fn account(&mut self, stretch: Stretch) -> usize {
        let part = &self.part;
        let end = stretch.offset + stretch.done as u64;
        let moved = if self.window.is_some() {
            let read = part.file_offset..end;
            part.target.wanted(part.file_offset, read)
        } else {
            stretch.done
        };
        let path = match stretch.way {
            Way::Direct => self.paths.direct,
            Way::Cached => self.paths.cached,
            Way::Buffered => DataPath::Buffered,
        };
        if stretch.way == Way::Cached && !self.part.file.route.cached {
            let note = "bytes found in the page cache were copied from there";
            self.report.note(note.into());
        }
        self.report.moved(path, moved);
        let end = end.saturating_sub(self.part.file_offset);
        usize::try_from(end).map_or(self.part.len, |end| end.min(self.part.len))
    }

    /// `EINVAL` for an aligned request: the file system promised more than it keeps. Once through
    /// the page cache, and not again for this file.
    fn refused_direct(&mut self, stretch: Stretch) {
        if let Some(required) = self.part.require {
            let reason = format!(
                "{required} is required, and the file system refused an aligned direct request (EINVAL)"
            );
            return self.fail(stretch, Error::new(ErrorKind::PathViolated, reason));
        }
        self.part.file.handle.refuse_direct();
        self.report.retries += 1;
        self.report
            .note("an aligned direct request was refused with EINVAL; repeated buffered".into());
        self.later.clear();
        if self.part.kind == Kind::Write && stretch.in_slot {
            // The source may be its owner's again.
            let way = Way::Buffered;
            self.now = Some(Stretch { way, ..stretch });
            return;
        }
        // What a slot holds by now is left there: the user's bytes are read anew.
        if self.window.take().is_none() {
            self.done = self.account(stretch);
        }
        let Target::One(memory) = self.part.target else {
            return self.begin(Way::Buffered);
        };
        let memory = memory.sub(self.done, self.part.len - self.done);
        self.now = memory.map(|memory| Stretch {
            memory,
            offset: self.part.file_offset + self.done as u64,
            way: Way::Buffered,
            in_slot: false,
            done: 0,
        });
    }

    /// Ends the part: copies out of the slot what is wanted, unless `advance` says that nobody
    /// waits for it any more (I17).
    pub(crate) fn finish(mut self, advance: impl FnOnce() -> Next) -> PartOutcome<Model> {
        if let Some(window) = self.window
            && advance() == Next::Proceed
            && self.done > 0
        {
            let start = Instant::now();
            let from = window.slot.sub(window.skip, self.done);
            let from = from.expect("what was read lies in the window");
            // SAFETY: the operation's payload owns the destination, of which this part has its
            // bytes alone; the part has the slot alone until it is finished; no request is under
            // way, and what was read is initialised.
            unsafe { self.part.target.scatter(self.part.file_offset, from) };
            self.report.copy_time += start.elapsed();
        }
        let fault = self.fault.take().map(|error| self.describe(error));
        PartOutcome {
            bytes: self.done as u64,
            fault,
            report: self.report,
        }
    }

    fn describe(&self, error: Error) -> Error {
        let operation = match self.part.kind {
            Kind::Read => Operation::Read,
            Kind::Write => Operation::Write,
        };
        let left = self.part.len - self.done;
        error
            .with_operation(operation)
            .with_path(&self.part.file.path)
            .with_range(self.part.file_offset + self.done as u64, left as u64)
            .with_backend(self.paths.backend)
    }
}
