//! One part of a read or a write as a sequence of steps, for any executor.
//!
//! A run says which request to make next and takes its result; whether that is a system call on a
//! worker or an entry in a ring is not its business. So short results, `EINTR` and `EAGAIN`, the end
//! of the file, and a direct request that the file system refuses mean the same on every executor.
#![allow(unsafe_code, reason = "copies between a slot and the user's memory")]

use std::os::fd::BorrowedFd;
use std::time::Instant;

use completion::{Next, PartOutcome};
use rustix::io::Errno;

use super::cached::{Piece, Residency};
use super::part::{Paths, TransferPart};
use super::stretch::{Stretch, Way};
use super::target::Target;
use crate::engine::{Model, PartReport};
use crate::error::{Error, ErrorKind};
use crate::memory::{DeviceRange, MemoryRange, Region};
use crate::plan::{Kind, Lane};
use crate::receipt::DataPath;

/// `EINTR` and `EAGAIN` in a row, without a byte between them, before it is an error.
const RETRIES_MAX: u32 = 1024;

/// Why bytes go by the pool although their file has a ring.
const STAGED_NOTE: &str =
    "what is staged in host memory, above 64 KiB, goes by the pool, whose threads copy it";

/// What takes longer to copy than to hand to another thread: about 10 microseconds (an estimate).
const COPY_MUCH: usize = 64 << 10;

/// A request to make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) memory: MemoryRange,
    pub(crate) offset: u64,
    /// Holds up whoever makes it: served by copying from the page cache, or by a file system that
    /// does not let go before it has the bytes.
    pub(crate) blocks: bool,
    /// Copies what was found in the page cache, and enough of it to occupy a processor.
    pub(crate) copies_much: bool,
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

/// What to do next for a part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Make this request, and tell what became of it by [`Run::complete`].
    Io(Request),
    /// Have the device copy what [`Run::copies`] names, and tell by [`Run::copied`].
    Copy,
}

/// A part's use of its slot: which bytes of it are the part's.
#[derive(Clone, Copy, Debug)]
struct Window {
    slot: MemoryRange,
    skip: usize,
}

/// A part in execution.
pub(crate) struct Run {
    pub(crate) part: Box<TransferPart>,
    paths: Paths,
    now: Option<Stretch>,
    /// What comes after, the next one last.
    later: Vec<Stretch>,
    window: Option<Window>,
    /// The device has yet to copy between the slot and the user's memory: before the first request
    /// of a write, after the last one of a read.
    copy_due: bool,
    /// Bytes of the part moved, without a gap from its start.
    done: usize,
    fault: Option<Error>,
    idle: u32,
    /// Since when time counts as spent on requests: what came before has ended.
    asked_at: Instant,
    report: PartReport,
}

impl Run {
    /// Looks where the bytes are, and stages those of a write that goes through a slot.
    pub(crate) fn new(part: Box<TransferPart>, slot: Option<MemoryRange>, paths: Paths) -> Self {
        let start = Instant::now();
        let mut run = Self {
            copy_due: part.target.is_device(),
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
            (Lane::DirectViaSlot { .. } | Lane::BufferedViaSlot, Some(slot)) => {
                run.begin_via_slot(slot);
            }
            (Lane::DirectViaSlot { .. } | Lane::BufferedViaSlot, None) => {
                unreachable!("the scheduler grants a slot to every part that asks for one")
            }
            (Lane::Cufile, _) => unreachable!("cuFile's parts are no transfers of this backend"),
        }
        run
    }

    fn go(&mut self, mut stretches: impl DoubleEndedIterator<Item = Stretch>) {
        self.now = stretches.next();
        self.later.extend(stretches.rev());
    }

    /// One piece after the other, each straight to its place.
    fn begin(&mut self, way: Way) {
        let pieces = self.part.target.pieces(self.part.file_offset);
        let stretches: Vec<_> = pieces
            .map(|piece| Stretch {
                memory: in_host(piece.memory),
                offset: piece.file_offset,
                way,
                in_slot: false,
                done: 0,
            })
            .collect();
        self.go(stretches.into_iter());
    }

    /// A file that is read through the page cache, or an unaligned edge of one that is not.
    fn buffered_way(&self) -> Way {
        if self.part.file.route.cached {
            Way::Cached
        } else {
            Way::Buffered
        }
    }

    /// Where the part's bytes from `offset` of the file on are.
    fn residency(&self, offset: u64) -> Residency {
        let part = &self.part;
        let before = usize::try_from(part.file_offset - offset).unwrap_or(usize::MAX);
        let len = part.len + before;
        if part.kind == Kind::Write || !part.may_use_cache {
            return Residency::none(len);
        }
        let alignment = self.direct_step().max(rustix::param::page_size());
        Residency::look(part.file.handle.buffered_fd(), offset, len, alignment)
    }

    fn begin_in_place(&mut self) {
        let Target::One(all) = self.part.target else {
            unreachable!("the planner reads scattered pieces through a slot or the page cache")
        };
        let (all, offset) = (in_host(all), self.part.file_offset);
        let residency = self.residency(offset);
        self.go(residency
            .pieces()
            .map(|piece| stretch_of(piece, all, offset)));
    }

    fn begin_via_slot(&mut self, slot: MemoryRange) {
        let (io_offset, io_len, skip, way) = match self.part.lane {
            Lane::DirectViaSlot {
                io_offset,
                io_len,
                skip,
            } => (io_offset, io_len, skip, None),
            _ => {
                let len = self.part.len as u64;
                (self.part.file_offset, len, 0, Some(self.buffered_way()))
            }
        };
        let residency = match way {
            None => self.residency(io_offset),
            Some(_) => Residency::none(self.part.len),
        };
        // From the page cache no alignment is asked for, so no slot is needed. Scattered pieces
        // still take one request that way instead of one for each.
        if residency.is_all_cached() && matches!(self.part.target, Target::One(Region::Host(_))) {
            return self.begin(Way::Cached);
        }
        let window = usize::try_from(io_len)
            .ok()
            .and_then(|len| slot.sub(0, len));
        let window = window.expect("the planner keeps a part's window inside one slot");
        let skip = usize::try_from(skip).expect("the planner skips less than one slot");
        self.window = Some(Window { slot: window, skip });
        if self.part.kind == Kind::Write && !self.part.target.is_device() {
            self.stage(window);
        }
        let mut stretches: Vec<_> = residency
            .pieces()
            .map(|piece| stretch_of(piece, window, io_offset))
            .collect();
        if let Some(last) = stretches.last_mut() {
            // What is read beyond the part, up to the next block.
            let start = usize::try_from(last.offset - io_offset).unwrap_or(usize::MAX);
            let rest = window.sub(start, window.len() - start);
            last.memory = rest.expect("it begins in the window");
        }
        for stretch in &mut stretches {
            stretch.in_slot = true;
            stretch.way = way.unwrap_or(stretch.way);
        }
        self.go(stretches.into_iter());
    }

    /// Copies a write's bytes from host memory to its slot.
    fn stage(&mut self, window: MemoryRange) {
        let Target::One(source) = self.part.target else {
            unreachable!("writes are of one range")
        };
        let start = Instant::now();
        // SAFETY: the operation's payload owns the source, which nobody writes meanwhile; the part
        // has the slot alone until it is finished; a write's window is as long.
        unsafe { in_host(source).copy_to(window) };
        self.asked_at = Instant::now();
        self.report.copy_time += self.asked_at - start;
    }

    /// Whether the part has copied what it needs of the source of a write, and somebody waits for
    /// that: from now on it reads its slot.
    pub(crate) fn lets_go(&self) -> bool {
        let in_slot = self.now.is_some_and(|stretch| stretch.in_slot);
        let is_staged = in_slot && !self.copy_due;
        self.part.lets_go && self.part.kind == Kind::Write && is_staged
    }

    pub(super) const fn kind(&self) -> Kind {
        self.part.kind
    }

    /// The next step; `None` when the part is over, one way or the other. `advance` is asked before
    /// a step that nobody waits for any more (I17).
    pub(crate) fn next(&mut self, advance: impl FnOnce() -> Next) -> Option<Step> {
        let is_write = self.part.kind == Kind::Write;
        if self.copy_due && is_write && self.fault.is_none() {
            self.asked_at = Instant::now();
            return Some(Step::Copy);
        }
        if let Some(stretch) = self.now {
            return self.request(stretch).map(Step::Io);
        }
        let is_read_whole = self.copy_due && !is_write && self.done > 0;
        if is_read_whole && advance() == Next::Proceed {
            self.asked_at = Instant::now();
            return Some(Step::Copy);
        }
        None
    }

    fn request(&mut self, stretch: Stretch) -> Option<Request> {
        let from = stretch.resume_at(self.direct_step());
        Some(Request {
            kind: self.part.kind,
            memory: stretch.memory.sub(from, stretch.memory.len() - from)?,
            offset: stretch.offset + from as u64,
            blocks: stretch.way != Way::Direct || self.part.file.route.may_block,
            copies_much: stretch.way == Way::Cached && stretch.memory.len() > from + COPY_MUCH,
            in_slot: stretch.in_slot,
            direct: stretch.way == Way::Direct,
        })
    }

    /// What the device is to copy: bytes in the slot, and their place in the device's memory. The
    /// part's kind says which way.
    pub(crate) fn copies(&self) -> impl Iterator<Item = (MemoryRange, DeviceRange)> + '_ {
        let len = match self.part.kind {
            Kind::Read => self.done,
            Kind::Write => self.part.len,
        };
        let staged = self
            .window
            .and_then(|window| window.slot.sub(window.skip, len));
        let target = &self.part.target;
        let pieces = staged.map(|staged| target.staged(self.part.file_offset, staged));
        pieces
            .into_iter()
            .flatten()
            .filter_map(|(staged, memory)| match memory {
                Region::Device(memory) => Some((staged, memory)),
                Region::Host(_) => None,
            })
    }

    /// What became of the copies, which are over.
    pub(crate) fn copied(&mut self, result: Result<(), Error>) {
        let now = Instant::now();
        self.report.copy_time += now - self.asked_at;
        self.asked_at = now;
        self.copy_due = false;
        if let Err(error) = result {
            // How far they came is not known.
            self.done = 0;
            self.fail_with(error);
        }
    }

    /// Whether a write has requests yet to make.
    pub(super) fn is_write_unfinished(&self) -> bool {
        self.part.kind == Kind::Write && self.now.is_some()
    }

    /// Makes no request any more.
    pub(super) fn fail_with(&mut self, error: Error) {
        self.now = None;
        self.later.clear();
        self.fault = Some(error);
    }

    /// What a direct request's place and length are multiples of.
    fn direct_step(&self) -> usize {
        let alignment = self.part.file.route.direct;
        let step = alignment.map_or(1, |direct| direct.offset.max(direct.memory));
        usize::try_from(step).unwrap_or(usize::MAX)
    }

    /// What became of the request that `next` gave.
    pub(crate) fn complete(&mut self, result: Result<usize, Errno>) {
        let now = Instant::now();
        self.report.io_time += now - self.asked_at;
        self.asked_at = now;
        let Some(mut stretch) = self.now.take() else {
            return;
        };
        match result {
            Ok(moved) => {
                let end = stretch.resume_at(self.direct_step()) + moved;
                let progress = end > stretch.done;
                if progress {
                    self.idle = 0;
                    self.report.retries += u64::from(stretch.done > 0);
                    stretch.done = end;
                }
                if stretch.is_done() {
                    self.account(stretch);
                    self.now = self.later.pop();
                } else if progress {
                    self.now = Some(stretch);
                } else if self.may_be_short_again(&stretch, moved, end) {
                    self.idle += 1;
                    self.report.retries += 1;
                    stretch.done = stretch.done.min(end);
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

    /// Whether a direct request, which began at a block, may have been cut short twice, the second
    /// time no later than the first. The end of the file is where it was; unless the file was cut, and
    /// then it ends at the second place.
    fn may_be_short_again(&self, stretch: &Stretch, moved: usize, end: usize) -> bool {
        let is_write = self.part.kind == Kind::Write;
        moved > 0 && (is_write || end < stretch.done) && self.idle < RETRIES_MAX
    }

    /// The end of the file, or a file system that takes no byte.
    fn no_progress(&mut self, stretch: Stretch) {
        match self.part.kind {
            Kind::Read => {
                self.account(stretch);
                self.later.clear();
            }
            Kind::Write => {
                let reason = "the file system accepted no byte";
                self.fail(stretch, Error::new(ErrorKind::WriteZero, reason));
            }
        }
    }

    fn fail(&mut self, stretch: Stretch, error: Error) {
        self.account(stretch);
        self.later.clear();
        // An error behind the part's own bytes, in the rest of an over-read, is not its error.
        if self.done < self.part.len {
            self.fault = Some(error);
        }
    }

    /// Notes what a stretch moved of the part.
    fn account(&mut self, stretch: Stretch) {
        let part = &self.part;
        let read = part.file_offset.max(stretch.offset)..stretch.end();
        let moved = if stretch.in_slot {
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
        if self.part.is_beside_the_ring() {
            self.report.note(STAGED_NOTE.into());
        }
        self.report.moved(path, moved);
        let end = stretch.end().saturating_sub(self.part.file_offset);
        let end = usize::try_from(end).map_or(self.part.len, |end| end.min(self.part.len));
        // A piece may lie inside the one before it.
        self.done = self.done.max(end);
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
        self.account(stretch);
        self.now = Some(stretch.buffered());
        let direct = self.later.iter_mut().filter(|next| next.way == Way::Direct);
        for next in direct {
            *next = next.buffered();
        }
    }

    /// Ends the part: copies to the host memory of a read what its slot holds of it, unless
    /// `advance` says that nobody waits for it any more (I17).
    pub(crate) fn finish(mut self, advance: impl FnOnce() -> Next) -> PartOutcome<Model> {
        if let Some(window) = self.window
            && self.part.kind == Kind::Read
            && !self.part.target.is_device()
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
        let left = self.part.len - self.done;
        error
            .with_operation(self.part.kind.operation())
            .with_path(&self.part.file.path)
            .with_range(self.part.file_offset + self.done as u64, left as u64)
            .with_backend(self.paths.backend)
    }
}

/// Memory that a request may name: the planner sends a device's through slots.
fn in_host(memory: Region) -> MemoryRange {
    match memory {
        Region::Host(memory) => memory,
        Region::Device(_) => unreachable!("device memory goes through slots"),
    }
}

/// A piece of `memory`, which holds the file's bytes from `offset` on.
fn stretch_of(piece: Piece, memory: MemoryRange, offset: u64) -> Stretch {
    let range = memory.sub(piece.start, piece.end - piece.start);
    Stretch {
        memory: range.expect("the pieces lie in the part"),
        offset: offset + piece.start as u64,
        way: if piece.cached {
            Way::Cached
        } else {
            Way::Direct
        },
        in_slot: false,
        done: 0,
    }
}
