//! One allocation of device memory: what the user is given, and where the bytes are.
#![allow(
    unsafe_code,
    reason = "fills and checks the memory of an allocation, named by address"
)]

use std::fmt;
use std::sync::Mutex;

use crate::code::{Code, Result};
use crate::raw::{self, Map};
use crate::stats::{Counters, late};
use sim_common::monitor::lock;

/// What new memory is full of: whoever reads what was never written sees it.
const FRESH: u8 = 0xA5;
/// What freed memory is full of: whoever writes to it is seen.
const CANARY: u8 = 0xDB;
/// From here on only the beginning of each page is filled and looked at: most of a late write of a
/// page or more is still found, and freeing stays cheap.
const CANARIES_WHOLE_BYTES_MAX: usize = 1 << 20;
const CANARY_BYTES: usize = 64;

/// By which call memory was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// `cuMemAlloc`.
    Fixed,
    /// `cuMemAllocAsync`: there when its stream has come to it.
    Pool,
    /// `cuMemAllocManaged`. Unlike a driver's, the host may not touch it: who says that the device
    /// copies is found out.
    Managed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Allocated in the order of a stream that has not come that far.
    Pending,
    Live,
    Freed,
}

/// Device memory. What touches it holds it, so its bytes outlive every copy that was issued.
pub(crate) struct Allocation {
    pub(crate) ordinal: usize,
    /// The address the user knows, which nobody can touch.
    pub(crate) face: usize,
    pub(crate) len: usize,
    /// Counts the allocations of a device, so that a report says which one it was.
    pub(crate) serial: u64,
    pub(crate) origin: Origin,
    /// Where the bytes are: at the same place in a page as the face.
    bytes: usize,
    _map: Map,
    used: Mutex<Use>,
}

#[derive(Debug)]
struct Use {
    state: State,
    /// Accesses under way.
    active: usize,
    /// A call has asked for the end in the order of a stream.
    free_asked: bool,
    canaries: bool,
}

/// Why memory could not be accessed as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Untimely {
    BeforeAllocation,
    AfterFree,
}

impl Untimely {
    /// Counts and names it.
    pub(crate) fn report(
        self,
        allocation: &Allocation,
        offset: usize,
        write: bool,
        counters: &Counters,
    ) {
        let (counter, when) = match (self, write) {
            (Self::BeforeAllocation, _) => (&counters.early_accesses, "before it was allocated"),
            (Self::AfterFree, true) => (&counters.late_writes, "after it was freed"),
            (Self::AfterFree, false) => (&counters.late_reads, "after it was freed"),
        };
        let what = if write { "a write to" } else { "a read of" };
        late(
            counter,
            &format!("{what} byte {offset} and on of {allocation:?} {when}"),
        );
    }
}

impl Allocation {
    pub(super) fn new(
        (ordinal, serial): (usize, u64),
        (face, len): (usize, usize),
        map: Map,
        origin: Origin,
    ) -> Self {
        let bytes = map.address() + face % raw::PAGE;
        // SAFETY: the map is new, so nobody else knows of it.
        unsafe { raw::fill(map.address(), map.len(), FRESH) };
        Self {
            ordinal,
            face,
            len,
            serial,
            origin,
            bytes,
            _map: map,
            used: Mutex::new(Use {
                state: if origin == Origin::Pool {
                    State::Pending
                } else {
                    State::Live
                },
                active: 0,
                free_asked: false,
                canaries: false,
            }),
        }
    }

    /// Accesses `len` bytes at `offset`, or tells why that must not be. No lock is held meanwhile.
    /// An access during which the memory was freed is untimely as well.
    pub(crate) fn access(
        &self,
        offset: usize,
        len: usize,
        run: impl FnOnce(usize),
    ) -> Result<(), Untimely> {
        assert!(offset + len <= self.len, "checked when the work was issued");
        let mut used = lock(&self.used);
        match used.state {
            State::Pending => return Err(Untimely::BeforeAllocation),
            State::Freed => return Err(Untimely::AfterFree),
            State::Live => used.active += 1,
        }
        drop(used);
        run(self.bytes + offset);
        let mut used = lock(&self.used);
        used.active -= 1;
        match used.state {
            State::Freed => Err(Untimely::AfterFree),
            _ => Ok(()),
        }
    }

    /// A stream has come to the allocation.
    pub(crate) fn begin(&self) {
        let mut used = lock(&self.used);
        if used.state == State::Pending {
            used.state = State::Live;
        }
    }

    /// Nothing may touch the memory from now on.
    pub(crate) fn end(&self) {
        let mut used = lock(&self.used);
        if used.state == State::Freed {
            return;
        }
        used.state = State::Freed;
        // With an access under way the bytes are not ours; it reports itself when it ends.
        if used.active == 0 {
            used.canaries = true;
            for (offset, len) in self.canaries() {
                // SAFETY: inside the map, which this allocation owns, and nothing accesses freed
                // memory through `access`.
                unsafe { raw::fill(self.bytes + offset, len, CANARY) };
            }
        }
    }

    /// The end was asked for in the order of a stream: no call may name the memory any more.
    pub(crate) fn ask_end(&self) -> Result {
        let mut used = lock(&self.used);
        if used.free_asked || used.state == State::Freed {
            return Err(Code::INVALID_VALUE);
        }
        used.free_asked = true;
        Ok(())
    }

    pub(crate) fn may_be_named(&self) -> bool {
        let used = lock(&self.used);
        !used.free_asked && used.state != State::Freed
    }

    /// Where freed memory was written to, by who knew its bytes. Found once.
    pub(crate) fn find_late_write(&self) -> Option<usize> {
        let mut used = lock(&self.used);
        if !used.canaries {
            return None;
        }
        let found = self.canaries().find_map(|(offset, len)| {
            // SAFETY: as in `end`.
            let at = unsafe { raw::find_other(self.bytes + offset, len, CANARY) };
            at.map(|at| offset + at)
        });
        used.canaries = found.is_none();
        found
    }

    /// Offsets and lengths of what is filled and looked at.
    fn canaries(&self) -> impl Iterator<Item = (usize, usize)> {
        let whole = self.len <= CANARIES_WHOLE_BYTES_MAX;
        let (step, width) = if whole {
            (self.len, self.len)
        } else {
            (raw::PAGE, CANARY_BYTES)
        };
        (0..self.len)
            .step_by(step)
            .map(move |offset| (offset, width.min(self.len - offset)))
    }

    /// Where the bytes are, for who plays a device's part in another library.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "allocation {} of SIMULATED GPU {} ({} bytes at {:#x})",
            self.serial, self.ordinal, self.len, self.face
        )
    }
}
