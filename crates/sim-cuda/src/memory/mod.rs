//! The memory of a device: what is allocated, and what was freed and is still watched.

mod allocation;
mod faces;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

pub(crate) use allocation::{Allocation, Origin, Untimely};
use faces::Faces;

use crate::code::{Code, Result};
use crate::raw::{Map, PAGE};
use crate::stats::{Counters, late};
use sim_common::Rng;
use sim_common::monitor::lock;

/// Addresses of a device, as a multiple of its memory: so an address is not soon used again. They
/// cost nothing; sanitizers leave a process no more than about 2^40 bytes of them.
const FACES_PER_BYTE: usize = 8;
/// So that the memory can be used up in small pieces, each of which has a page to itself and one more.
const FACES_BYTES_MIN: usize = 1 << 30;
/// Freed memory that is watched. Each is a mapping, and a process may have 65530.
const WATCHED_MAX: usize = 64;
const WATCHED_BYTES_MAX: usize = 256 << 20;
/// Smaller allocations begin anywhere in a page, as they do on a device, which aligns to this much.
const ALIGNMENT: usize = 256;
const UNALIGNED_BYTES_MAX: usize = 1 << 20;

/// What somebody does to memory.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) pointer: usize,
    pub(crate) len: usize,
    pub(crate) write: bool,
}

#[derive(Debug)]
pub(crate) struct Memory {
    ordinal: usize,
    total: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    faces: Faces,
    live: BTreeMap<usize, Arc<Allocation>>,
    watched: VecDeque<Arc<Allocation>>,
    watched_bytes: usize,
    used: usize,
    serial: u64,
    rng: Rng,
}

impl Memory {
    pub(crate) fn new(ordinal: usize, total: usize, rng: Rng) -> Option<Self> {
        let inner = Inner {
            faces: Faces::reserve(total.checked_mul(FACES_PER_BYTE)?.max(FACES_BYTES_MIN))?,
            live: BTreeMap::new(),
            watched: VecDeque::new(),
            watched_bytes: 0,
            used: 0,
            serial: 0,
            rng,
        };
        Some(Self {
            ordinal,
            total,
            inner: Mutex::new(inner),
        })
    }

    pub(crate) fn allocate(&self, len: usize, origin: Origin) -> Result<Arc<Allocation>> {
        if len == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let mut inner = lock(&self.inner);
        if len > self.total - inner.used {
            return Err(Code::OUT_OF_MEMORY);
        }
        let pad = if len < UNALIGNED_BYTES_MAX {
            // Below 16, so that it fits whatever the width of usize.
            ALIGNMENT * usize::try_from(inner.rng.below(16)).unwrap_or(0)
        } else {
            0
        };
        let pages = (pad + len).div_ceil(PAGE);
        let page = inner.faces.take(pages).ok_or(Code::OUT_OF_MEMORY)?;
        let serial = inner.serial;
        inner.serial += 1;
        inner.used += len;
        drop(inner);
        // Filling takes long, and is not for others to wait for.
        let Some(map) = Map::new(pages * PAGE) else {
            let mut inner = lock(&self.inner);
            inner.used -= len;
            inner.faces.give_back(page, pages);
            return Err(Code::OUT_OF_MEMORY);
        };
        let name = (self.ordinal, serial);
        let made = Arc::new(Allocation::new(name, (page + pad, len), map, origin));
        lock(&self.inner).live.insert(made.face, Arc::clone(&made));
        Ok(made)
    }

    /// Ends an allocation that begins at `face`, at once.
    pub(crate) fn free(&self, face: usize, counters: &Counters) -> Result {
        let mut inner = lock(&self.inner);
        let found = inner.live.get(&face).filter(|found| found.may_be_named());
        let found = Arc::clone(found.ok_or(Code::INVALID_VALUE)?);
        inner.retire(&found, counters);
        Ok(())
    }

    /// Ends an allocation to which a stream has come.
    pub(crate) fn retire(&self, allocation: &Arc<Allocation>, counters: &Counters) {
        lock(&self.inner).retire(allocation, counters);
    }

    /// Ends all that is left, as the end of a context does.
    pub(crate) fn free_all(&self, counters: &Counters) {
        let mut inner = lock(&self.inner);
        while let Some((_, allocation)) = inner.live.pop_first() {
            inner.live.insert(allocation.face, Arc::clone(&allocation));
            inner.retire(&allocation, counters);
        }
    }

    pub(crate) fn contains(&self, address: usize) -> bool {
        lock(&self.inner).faces.contains(address)
    }

    /// The allocation around an address, and the offset in it.
    pub(crate) fn find(&self, address: usize) -> Option<(Arc<Allocation>, usize)> {
        let inner = lock(&self.inner);
        let (face, found) = inner.live.range(..=address).next_back()?;
        let offset = address - face;
        (offset < found.len && found.may_be_named()).then(|| (Arc::clone(found), offset))
    }

    /// The same, of which `len` bytes must be there.
    pub(crate) fn find_range(
        &self,
        address: usize,
        len: usize,
    ) -> Result<(Arc<Allocation>, usize)> {
        let (found, offset) = self.find(address).ok_or(Code::INVALID_VALUE)?;
        if len > found.len - offset {
            return Err(Code::INVALID_VALUE);
        }
        Ok((found, offset))
    }

    /// Lets somebody else than a stream at memory. What was freed and is still watched is known, so
    /// that a late access is named.
    pub(crate) fn access(
        &self,
        access: &Access,
        counters: &Counters,
        run: impl FnOnce(usize),
    ) -> Result {
        let inner = lock(&self.inner);
        let holds = |found: &&Arc<Allocation>| {
            let offset = access.pointer.checked_sub(found.face);
            offset.is_some_and(|offset| offset < found.len && access.len <= found.len - offset)
        };
        let live = inner.live.range(..=access.pointer).next_back();
        let live = live.map(|(_, found)| found).filter(holds);
        let found = live.or_else(|| inner.watched.iter().find(holds));
        let allocation = Arc::clone(found.ok_or(Code::INVALID_VALUE)?);
        drop(inner);
        let offset = access.pointer - allocation.face;
        match allocation.access(offset, access.len, run) {
            Ok(()) => Ok(()),
            Err(untimely) => {
                untimely.report(&allocation, offset, access.write, counters);
                Err(Code::ILLEGAL_ADDRESS)
            }
        }
    }

    /// Looks at everything that was freed and is still kept.
    pub(crate) fn watch(&self, counters: &Counters) {
        let watched: Vec<_> = lock(&self.inner).watched.iter().cloned().collect();
        for allocation in watched {
            report_late_write(&allocation, counters);
        }
    }

    /// Free and total bytes.
    pub(crate) fn info(&self) -> (usize, usize) {
        (self.total - lock(&self.inner).used, self.total)
    }

    /// Number and bytes of what is allocated.
    pub(crate) fn live(&self) -> (usize, usize) {
        let inner = lock(&self.inner);
        (inner.live.len(), inner.used)
    }
}

impl Inner {
    fn retire(&mut self, allocation: &Arc<Allocation>, counters: &Counters) {
        if self.live.remove(&allocation.face).is_none() {
            return;
        }
        allocation.end();
        self.used -= allocation.len;
        self.watched_bytes += allocation.len;
        self.watched.push_back(Arc::clone(allocation));
        while self.watched.len() > WATCHED_MAX || self.watched_bytes > WATCHED_BYTES_MAX {
            let Some(oldest) = self.watched.pop_front() else {
                break;
            };
            report_late_write(&oldest, counters);
            self.watched_bytes -= oldest.len;
            let page = oldest.face - oldest.face % PAGE;
            let pages = (oldest.face - page + oldest.len).div_ceil(PAGE);
            self.faces.give_back(page, pages);
        }
    }
}

fn report_late_write(allocation: &Allocation, counters: &Counters) {
    if let Some(offset) = allocation.find_late_write() {
        late(
            &counters.late_writes,
            &format!("byte {offset} of {allocation:?} was written after it was freed"),
        );
    }
}
