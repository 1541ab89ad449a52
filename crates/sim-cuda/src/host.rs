//! Host memory that is pinned: what was registered, and what was allocated so.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::code::{Code, Result};
use crate::raw::{self, Map, PAGE};
use sim_common::monitor::lock;

/// For every context, not only for that of the call.
pub(crate) const PORTABLE: u32 = 1;

#[derive(Debug)]
pub(crate) struct HostRange {
    pub(crate) start: usize,
    pub(crate) len: usize,
    /// The device whose context made it.
    pub(crate) ordinal: usize,
    portable: bool,
    /// What was allocated here, and not only registered.
    owned: Option<Map>,
    /// Outstanding copies.
    users: AtomicUsize,
}

/// A pinned range that a copy is using.
#[derive(Debug)]
pub(crate) struct Pinned(Arc<HostRange>);

impl Pinned {
    fn new(range: &Arc<HostRange>) -> Self {
        range.users.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(range))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

impl HostRange {
    /// Whether copies of that device take it for pinned.
    pub(crate) fn serves(&self, ordinal: usize) -> bool {
        self.portable || self.ordinal == ordinal
    }

    fn end(&self) -> usize {
        self.start + self.len
    }
}

/// All pinned ranges of the process; none overlaps another in any page.
#[derive(Debug, Default)]
pub(crate) struct HostRanges(Mutex<BTreeMap<usize, Arc<HostRange>>>);

impl HostRanges {
    pub(crate) fn register(&self, ordinal: usize, start: usize, len: usize, flags: u32) -> Result {
        if start == 0 || len == 0 || start.checked_add(len).is_none() {
            return Err(Code::INVALID_VALUE);
        }
        if !raw::is_mapped(start, len) {
            return Err(Code::INVALID_VALUE);
        }
        let mut ranges = lock(&self.0);
        let end = (start + len).next_multiple_of(PAGE);
        let before = ranges.range(..end).next_back();
        if before
            .is_some_and(|(_, range)| range.end().next_multiple_of(PAGE) > start - start % PAGE)
        {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        let range = HostRange {
            start,
            len,
            ordinal,
            portable: flags & PORTABLE != 0,
            owned: None,
            users: AtomicUsize::new(0),
        };
        ranges.insert(start, Arc::new(range));
        Ok(())
    }

    /// Ends a registration, and says whether something was still using it.
    pub(crate) fn unregister(&self, start: usize) -> Result<InUse> {
        let missing = Code::HOST_MEMORY_NOT_REGISTERED;
        self.remove(start, false).ok_or(missing)
    }

    pub(crate) fn allocate(&self, ordinal: usize, len: usize, flags: u32) -> Result<usize> {
        if len == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let map = Map::new(len.next_multiple_of(PAGE)).ok_or(Code::OUT_OF_MEMORY)?;
        let start = map.address();
        let range = HostRange {
            start,
            len,
            ordinal,
            portable: flags & PORTABLE != 0,
            owned: Some(map),
            users: AtomicUsize::new(0),
        };
        lock(&self.0).insert(start, Arc::new(range));
        Ok(start)
    }

    pub(crate) fn free(&self, start: usize) -> Result<InUse> {
        self.remove(start, true).ok_or(Code::INVALID_VALUE)
    }

    fn remove(&self, start: usize, owned: bool) -> Option<InUse> {
        let mut ranges = lock(&self.0);
        let found = ranges.get(&start)?;
        if found.owned.is_some() != owned {
            return None;
        }
        let in_use = found.users.load(Ordering::Acquire) > 0;
        let range = ranges.remove(&start)?;
        Some(InUse(in_use.then_some(range)))
    }

    /// The pinned range that holds all of these bytes for a device, in use until it is dropped.
    pub(crate) fn pin(&self, ordinal: usize, start: usize, len: usize) -> Option<Pinned> {
        let ranges = lock(&self.0);
        let (_, found) = ranges.range(..=start).next_back()?;
        let inside = start.checked_add(len)? <= found.end();
        (inside && found.serves(ordinal)).then(|| Pinned::new(found))
    }

    /// The range around an address, for whatever device.
    pub(crate) fn around(&self, address: usize) -> Option<Arc<HostRange>> {
        let ranges = lock(&self.0);
        let (_, found) = ranges.range(..=address).next_back()?;
        (address < found.end()).then(|| Arc::clone(found))
    }

    /// Ends what a context leaves behind.
    pub(crate) fn forget(&self, ordinal: usize) {
        lock(&self.0).retain(|_, range| range.ordinal != ordinal);
    }

    pub(crate) fn count(&self, ordinal: usize) -> usize {
        let ranges = lock(&self.0);
        ranges
            .values()
            .filter(|range| range.ordinal == ordinal)
            .count()
    }
}

/// The range, if a copy that is outstanding names it.
#[derive(Debug)]
#[must_use]
pub(crate) struct InUse(pub(crate) Option<Arc<HostRange>>);
