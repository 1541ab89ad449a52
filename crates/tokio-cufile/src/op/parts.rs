//! The parts of a transfer as tasks, made one by one as they are granted.

use std::sync::Arc;

use completion::{Cost, Part};

use crate::compat::{DeviceSide, PartDigest, Target, TransferPart};
use crate::cufile::{CufilePart, InStream};
use crate::digest::DigestState;
use crate::engine::{Model, Task};
use crate::file::FileShared;
use crate::memory::{Region, SlotLayout};
use crate::plan::ranges::{RangesPart, RangesPlan, Runs};
use crate::plan::{Kind, Lane, Plan};
use crate::receipt::PathClass;

/// How a transfer is cut.
pub(super) enum Cut {
    /// One range of the file, one of memory.
    One(Plan),
    /// Many, with the runs that they are read in.
    Many(RangesPlan, Arc<Runs>),
}

impl Cut {
    pub(super) fn parts_total(&self) -> u64 {
        match self {
            Self::One(plan) => plan.parts_total(),
            Self::Many(plan, _) => plan.parts_total(),
        }
    }

    /// How the bytes of many ranges lie.
    pub(super) fn runs(&self) -> Option<Arc<Runs>> {
        match self {
            Self::One(_) => None,
            Self::Many(_, runs) => Some(Arc::clone(runs)),
        }
    }

    /// The next part, as if the buffer were one more range of many.
    fn next(&mut self) -> Option<RangesPart> {
        match self {
            Self::One(plan) => plan.next().map(|part| RangesPart {
                offset: part.buf_offset,
                part,
                scatter: None,
            }),
            Self::Many(plan, _) => plan.next(),
        }
    }
}

pub(super) struct Parts {
    pub(super) cut: Cut,
    pub(super) device: Option<Arc<DeviceSide>>,
    /// The whole buffer.
    pub(super) memory: Region,
    pub(super) file: Arc<FileShared>,
    pub(super) kind: Kind,
    slots: SlotLayout,
    pub(super) in_place_by_ring: bool,
    pub(super) staged_by_ring: bool,
    pub(super) may_use_cache: bool,
    pub(super) require: Option<PathClass>,
    pub(super) digest: Option<Arc<DigestState>>,
    /// Parts tell when they are done with the source.
    pub(super) let_go: bool,
    /// Parts go into this stream.
    pub(super) into_stream: Option<Arc<InStream>>,
}

impl Parts {
    /// Of a plan. By which executor and under which conditions they go is said when they are
    /// submitted.
    pub(super) const fn new(
        cut: Cut,
        memory: Region,
        device: Option<Arc<DeviceSide>>,
        file: Arc<FileShared>,
        kind: Kind,
        slots: SlotLayout,
    ) -> Self {
        Self {
            cut,
            device,
            memory,
            file,
            kind,
            slots,
            in_place_by_ring: false,
            staged_by_ring: false,
            may_use_cache: false,
            require: None,
            digest: None,
            let_go: false,
            into_stream: None,
        }
    }

    fn target(&self, part: &RangesPart, len: usize) -> Target {
        match (part.scatter, &self.cut) {
            (Some(run), Cut::Many(_, runs)) => Target::Scatter {
                runs: Arc::clone(runs),
                run,
                memory: self.memory,
            },
            _ => Target::One(self.memory_of(part, len)),
        }
    }
}

impl Parts {
    /// Of a part with one place in the buffer.
    fn memory_of(&self, part: &RangesPart, len: usize) -> Region {
        let place = usize::try_from(part.part.buf_offset).ok();
        let memory = place.and_then(|place| self.memory.sub(place, len));
        memory.expect("the plan cuts the range that it was made for")
    }

    fn by_compat(&self, next: &RangesPart, len: usize, by_ring: bool) -> TransferPart {
        let part = &next.part;
        TransferPart {
            file: Arc::clone(&self.file),
            kind: self.kind,
            target: self.target(next, len),
            device: self.device.clone(),
            file_offset: part.file_offset,
            len,
            lane: part.lane,
            by_ring,
            may_use_cache: self.may_use_cache,
            require: self.require,
            // A digest is made of the source, after the write.
            lets_go: self.let_go && self.digest.is_none(),
            digest: self.digest.as_ref().map(|state| PartDigest {
                state: Arc::clone(state),
                memory: match self.memory {
                    Region::Host(memory) => Some(memory),
                    Region::Device(_) => None,
                },
                handed_over: false,
                offset: next.offset,
                len: part.len,
            }),
        }
    }

    fn by_cufile(&self, next: &RangesPart, len: usize) -> CufilePart {
        CufilePart {
            file: Arc::clone(&self.file),
            kind: self.kind,
            memory: self.memory_of(next, len),
            device: self.device.clone(),
            file_offset: next.part.file_offset,
            require: self.require,
            into_stream: self.into_stream.clone(),
        }
    }
}

impl Iterator for Parts {
    type Item = Part<Model>;

    fn next(&mut self) -> Option<Part<Model>> {
        let next = self.cut.next()?;
        let part = next.part;
        let len = usize::try_from(part.len).expect("a part is shorter than its buffer or one slot");
        // What goes through the page cache by plan is the pool's: whoever asks for it copies it.
        let by_ring = match part.lane {
            Lane::DirectInPlace => self.in_place_by_ring,
            Lane::DirectViaSlot { .. } => self.staged_by_ring,
            Lane::Buffered | Lane::BufferedViaSlot | Lane::Cufile => false,
        };
        let task = match part.lane {
            Lane::Cufile => Task::Cufile(Box::new(self.by_cufile(&next, len))),
            _ => Task::Transfer(Box::new(self.by_compat(&next, len, by_ring))),
        };
        let slot_len = part.lane.slot_len(part.len);
        let slot = slot_len.map(|len| self.slots.size_for(len));
        let into_stream = self.into_stream.as_ref();
        Some(Part {
            offset: next.offset,
            len: part.len,
            cost: Cost {
                bytes: into_stream.map_or(part.len, |into| into.cost(part.len)),
                slot,
                worker: !by_ring,
            },
            stages: if slot.is_some() { 2 } else { 1 },
            task,
        })
    }
}
