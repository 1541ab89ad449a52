//! What to issue for a request: pure functions over numbers, no I/O and no state.
//!
//! A [`Plan`] cuts one request into [`Part`]s, lazily: a request of any size costs the same few
//! words. Each part says by which [`Lane`] its bytes go, so the caller knows before it issues a
//! part whether that part needs a staging slot.
//!
//! | request | lane |
//! |---|---|
//! | no direct I/O on this file, or cached by choice | buffered |
//! | read, offset and address agree | in place; unaligned head and tail through a slot |
//! | read, they do not | through a slot, read aligned and a little more than asked |
//! | device memory | as for the host's, but every part through a slot |
//! | by cuFile, read | cuFile, wherever the range lies |
//! | by cuFile, write | cuFile, but for the pages that it fills in part |
//! | write, the pages that it fills | in place where the address is aligned, else through a slot |
//! | write, the pages that it fills in part | buffered: never read-modify-write, never padded |
//!
//! Validation happens here, once. Below, a part that breaks a limit is a bug.

pub(crate) mod coalesce;
pub(crate) mod ranges;
pub(crate) mod route;
mod segment;
#[cfg(test)]
mod tests;

use std::fmt;

use self::segment::{LaneClass, Range, Segment, align_down, align_up, is_aligned, step};
use crate::error::{Error, ErrorKind, Operation};

/// The most bytes one system call moves: what Linux caps `read` and `write` at, less than 2 GiB.
pub(crate) const IO_LEN_MAX: u64 = (1 << 31) - 4096;

/// A middle no longer than this is read through the slot that its unaligned head or tail needs
/// anyway. Copying it costs a few microseconds: less than one more direct read (an estimate).
const IN_PLACE_LEN_MIN: u64 = 64 << 10;

const OFFSET_MAX: u64 = i64::MAX.cast_unsigned();

/// What direct I/O on a file demands, in bytes. Both are powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectAlignment {
    /// Of the memory address.
    pub(crate) memory: u64,
    /// Of the file offset and of the length.
    pub(crate) offset: u64,
}

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// From the file to memory.
    Read,
    /// From memory to the file.
    Write,
}

impl Kind {
    /// What errors and spans call it.
    pub(crate) const fn operation(self) -> Operation {
        match self {
            Self::Read => Operation::Read,
            Self::Write => Operation::Write,
        }
    }
}

/// Where bytes lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At this address of the host's.
    Host(usize),
    /// Where the kernel's file interface does not reach: every byte goes through a slot.
    Device,
    /// Where cuFile reaches, at any address. What it must not write, the kernel does.
    Cufile { on_device: bool },
}

impl Place {
    const fn is_on_device(self) -> bool {
        matches!(self, Self::Device | Self::Cufile { on_device: true })
    }
}

/// One request, before it is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) file_offset: u64,
    /// Zero is allowed and gives no part.
    pub(crate) len: u64,
    /// Where the request's first byte lies.
    pub(crate) place: Place,
    /// `None` where the file takes no direct I/O.
    pub(crate) direct: Option<DirectAlignment>,
    /// Through the page cache, whatever the file could do.
    pub(crate) cached: bool,
    /// The most bytes that one part moves.
    pub(crate) task_size: usize,
    /// Bytes in one staging slot. Slots are taken to start at an address that direct I/O accepts.
    pub(crate) slot_size: usize,
    /// Bytes of a page of the page cache, a power of two. A write edge is cut at it, so that no page
    /// is written both directly and through the cache by one request.
    pub(crate) page_size: u64,
}

/// How a part's bytes go between the file and the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Through the direct descriptor, from or to the user's memory.
    DirectInPlace,
    /// Through the direct descriptor and a staging slot. A read fills `io_len` bytes of the slot
    /// and the part begins `skip` bytes into it. A write is staged first; it moves exactly the
    /// part, so `skip` is 0.
    DirectViaSlot {
        io_offset: u64,
        io_len: u64,
        skip: u64,
    },
    /// By cuFile, from or to the user's memory.
    Cufile,
    /// Through the buffered descriptor, from or to the user's memory.
    Buffered,
    /// Through the buffered descriptor and the start of a staging slot.
    BufferedViaSlot,
}

impl Lane {
    /// Bytes of the slot that a part of `len` bytes takes by it, if it takes one.
    pub(crate) const fn slot_len(self, len: u64) -> Option<u64> {
        match self {
            Self::DirectViaSlot { io_len, .. } => Some(io_len),
            Self::BufferedViaSlot => Some(len),
            Self::DirectInPlace | Self::Cufile | Self::Buffered => None,
        }
    }
}

/// One system call's worth of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Where the part begins, counted from the request's first byte.
    pub(crate) buf_offset: u64,
    /// Where the part begins in the file.
    pub(crate) file_offset: u64,
    /// Bytes of the request that the part moves; never 0.
    pub(crate) len: u64,
    pub(crate) lane: Lane,
}

/// Why a request cannot be planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlanError {
    /// The end of the range is beyond what a file offset can express.
    RangeTooLarge,
    /// The limit on one part is zero.
    TaskSizeZero,
    /// One part is too small for one unit of direct I/O.
    TaskSizeBelowAlignment { task_size: u64, alignment: u64 },
    /// One slot is too small for one unit of direct I/O.
    SlotSizeBelowAlignment { slot_size: u64, alignment: u64 },
    /// The file's alignment is not a power of two: the layer that reads it is wrong.
    AlignmentNotPowerOfTwo,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RangeTooLarge => write!(f, "offset + length is above {OFFSET_MAX}"),
            Self::TaskSizeZero => f.write_str("task_size is 0"),
            Self::TaskSizeBelowAlignment {
                task_size,
                alignment,
            } => write!(
                f,
                "task_size {task_size} is below the file's direct I/O alignment {alignment}"
            ),
            Self::SlotSizeBelowAlignment {
                slot_size,
                alignment,
            } => write!(
                f,
                "bounce_buffer_size {slot_size} is below the file's direct I/O alignment {alignment}"
            ),
            Self::AlignmentNotPowerOfTwo => {
                f.write_str("the file's direct I/O alignment is not a power of two")
            }
        }
    }
}

impl std::error::Error for PlanError {}

impl From<PlanError> for Error {
    fn from(error: PlanError) -> Self {
        Self::new(ErrorKind::InvalidInput, error.to_string()).with_source(error)
    }
}

/// What a plan consists of, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outline {
    /// Straight to or from the user's memory, around the page cache.
    pub(crate) in_place: u64,
    /// By cuFile.
    pub(crate) by_cufile: u64,
    /// Around the page cache, through a slot.
    pub(crate) via_slot: u64,
    /// Through the page cache.
    pub(crate) buffered: u64,
    /// The longest window that a part reads into a slot or writes from one.
    pub(crate) slot_io_len_max: u64,
    /// A device copies between the slots and the memory, not the thread that completes a part.
    pub(crate) on_device: bool,
}

impl Outline {
    fn add(&mut self, other: &Self) {
        self.in_place += other.in_place;
        self.by_cufile += other.by_cufile;
        self.via_slot += other.via_slot;
        self.buffered += other.buffered;
        self.slot_io_len_max = self.slot_io_len_max.max(other.slot_io_len_max);
        self.on_device |= other.on_device;
    }
}

/// The parts of one request, in file order, made as they are asked for.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    kind: Kind,
    on_device: bool,
    file_offset: u64,
    segments: [Segment; 3],
    alignment: u64,
}

impl Plan {
    pub(crate) fn new(request: Request) -> Result<Self, PlanError> {
        let end = request
            .file_offset
            .checked_add(request.len)
            .filter(|&end| end <= OFFSET_MAX)
            .ok_or(PlanError::RangeTooLarge)?;
        if request.task_size == 0 {
            return Err(PlanError::TaskSizeZero);
        }
        let task_len_max = (request.task_size as u64).min(IO_LEN_MAX);
        let on_device = request.place.is_on_device();
        let buffered_len_max = if on_device {
            task_len_max.min(request.slot_size as u64)
        } else {
            task_len_max
        };
        let direct = match request.direct {
            Some(alignment) if !request.cached => {
                Some(Direct::new(alignment, task_len_max, &request)?)
            }
            _ => None,
        };
        let range = Range {
            start: request.file_offset,
            end,
        };
        // The kernel refuses a read whose aligned end is beyond the largest offset.
        let direct = direct.filter(|direct| align_up(end, direct.alignment.offset) <= OFFSET_MAX);
        let segments = match (direct, request.kind) {
            (None, _) => [
                Segment::buffered(range, buffered_len_max, request.page_size),
                Segment::EMPTY,
                Segment::EMPTY,
            ],
            (Some(direct), Kind::Read) => direct.read(range, request.place),
            (Some(direct), Kind::Write) => direct.write(range, request.place, buffered_len_max),
        };
        Ok(Self {
            kind: request.kind,
            on_device,
            file_offset: request.file_offset,
            segments,
            alignment: direct.map_or(1, |direct| direct.alignment.offset),
        })
    }

    /// How many parts are left.
    pub(crate) fn parts_total(&self) -> u64 {
        self.segments.iter().map(Segment::parts_total).sum()
    }

    /// Bytes left, by the lane they go.
    pub(crate) fn outline(&self) -> Outline {
        let mut outline = Outline {
            on_device: self.on_device,
            ..Outline::default()
        };
        for segment in &self.segments {
            let len = segment.range.len();
            match segment.class {
                LaneClass::InPlace => outline.in_place += len,
                LaneClass::Cufile => outline.by_cufile += len,
                LaneClass::Buffered => outline.buffered += len,
                LaneClass::ViaSlot if len > 0 => {
                    outline.via_slot += len;
                    let window = align_up(segment.range.end, self.alignment)
                        - align_down(segment.range.start, self.alignment);
                    outline.slot_io_len_max = outline.slot_io_len_max.max(window.min(segment.step));
                }
                LaneClass::ViaSlot => {}
            }
        }
        outline
    }

    fn lane(&self, class: LaneClass, range: Range) -> Lane {
        match class {
            LaneClass::InPlace => Lane::DirectInPlace,
            LaneClass::Cufile => Lane::Cufile,
            LaneClass::Buffered if self.on_device => Lane::BufferedViaSlot,
            LaneClass::Buffered => Lane::Buffered,
            LaneClass::ViaSlot => {
                let io_offset = align_down(range.start, self.alignment);
                let io_end = align_up(range.end, self.alignment);
                let skip = range.start - io_offset;
                debug_assert!(self.kind == Kind::Read || (skip == 0 && io_end == range.end));
                Lane::DirectViaSlot {
                    io_offset,
                    io_len: io_end - io_offset,
                    skip,
                }
            }
        }
    }
}

impl Iterator for Plan {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        let segment = self
            .segments
            .iter_mut()
            .find(|segment| !segment.range.is_empty())?;
        let range = segment.cut();
        let class = segment.class;
        Some(Part {
            buf_offset: range.start - self.file_offset,
            file_offset: range.start,
            len: range.len(),
            lane: self.lane(class, range),
        })
    }
}

/// How a file with direct I/O is cut.
#[derive(Clone, Copy)]
struct Direct {
    alignment: DirectAlignment,
    page_size: u64,
    in_place_step: u64,
    slot_step: u64,
}

impl Direct {
    fn new(
        alignment: DirectAlignment,
        task_len_max: u64,
        request: &Request,
    ) -> Result<Self, PlanError> {
        let page_size = request.page_size;
        if !alignment.memory.is_power_of_two() || !alignment.offset.is_power_of_two() {
            return Err(PlanError::AlignmentNotPowerOfTwo);
        }
        let unit = alignment.memory.max(alignment.offset);
        let slot_size = request.slot_size as u64;
        if task_len_max < unit {
            return Err(PlanError::TaskSizeBelowAlignment {
                task_size: task_len_max,
                alignment: unit,
            });
        }
        if slot_size < unit {
            return Err(PlanError::SlotSizeBelowAlignment {
                slot_size,
                alignment: unit,
            });
        }
        Ok(Self {
            alignment,
            page_size,
            in_place_step: step(task_len_max, unit, page_size),
            slot_step: step(task_len_max.min(slot_size), unit, page_size),
        })
    }

    /// Never reads into the user's memory more than was asked: what an unaligned edge needs
    /// beyond the range goes into a slot.
    fn read(&self, range: Range, place: Place) -> [Segment; 3] {
        let all_via_slot = [self.via_slot(range), Segment::EMPTY, Segment::EMPTY];
        let head_len = match place {
            Place::Host(address) => self.head_len(range.start, address as u64),
            Place::Device => None,
            Place::Cufile { .. } => return [self.by_cufile(range), Segment::EMPTY, Segment::EMPTY],
        };
        let Some(head_len) = head_len else {
            return all_via_slot;
        };
        let middle = Range {
            start: range.start + head_len,
            end: align_down(range.end, self.alignment.offset),
        };
        if middle.is_empty() || (middle != range && middle.len() <= IN_PLACE_LEN_MIN) {
            return all_via_slot;
        }
        [
            self.via_slot(Range {
                start: range.start,
                end: middle.start,
            }),
            self.in_place(middle),
            self.via_slot(Range {
                start: middle.end,
                end: range.end,
            }),
        ]
    }

    /// Bytes before the first one whose offset and address are both aligned; `None` if there is
    /// none because offset and address do not agree.
    fn head_len(&self, offset: u64, address: u64) -> Option<u64> {
        let DirectAlignment {
            memory,
            offset: file,
        } = self.alignment;
        let agree = is_aligned(address.wrapping_sub(offset), memory.min(file));
        // They agree in the smaller alignment, so the larger one decides.
        let (value, alignment) = if file >= memory {
            (offset, file)
        } else {
            (address, memory)
        };
        agree.then(|| value.wrapping_neg() & (alignment - 1))
    }

    fn write(&self, range: Range, place: Place, buffered_len_max: u64) -> [Segment; 3] {
        let DirectAlignment { memory, offset } = self.alignment;
        let edge = memory.max(offset).max(self.page_size);
        let buffered = |range| Segment::buffered(range, buffered_len_max, self.page_size);
        let middle = Range {
            start: align_up(range.start, edge),
            end: align_down(range.end, edge),
        };
        if middle.is_empty() {
            return [buffered(range), Segment::EMPTY, Segment::EMPTY];
        }
        let direct = match place {
            Place::Host(address) => {
                let middle_address = (address as u64).wrapping_add(middle.start - range.start);
                if is_aligned(middle_address, self.alignment.memory) {
                    self.in_place(middle)
                } else {
                    self.via_slot(middle)
                }
            }
            Place::Device => self.via_slot(middle),
            Place::Cufile { .. } => self.by_cufile(middle),
        };
        let head = Range {
            start: range.start,
            end: middle.start,
        };
        let tail = Range {
            start: middle.end,
            end: range.end,
        };
        [buffered(head), direct, buffered(tail)]
    }

    fn in_place(&self, range: Range) -> Segment {
        Segment {
            class: LaneClass::InPlace,
            range,
            step: self.in_place_step,
            base: range.start,
        }
    }

    /// Cut at the same places as what goes in place: cuFile's own requests are then aligned.
    fn by_cufile(&self, range: Range) -> Segment {
        Segment {
            class: LaneClass::Cufile,
            range,
            step: self.in_place_step,
            base: align_down(range.start, self.alignment.offset),
        }
    }

    fn via_slot(&self, range: Range) -> Segment {
        let base = align_down(range.start, self.alignment.offset);
        Segment {
            class: LaneClass::ViaSlot,
            range,
            step: self.slot_step,
            base,
        }
    }
}
