//! What streams do.
#![allow(
    unsafe_code,
    reason = "copies name their memory by address, as a device's do"
)]

use std::sync::Arc;

use crate::code::Result;
use crate::context::Health;
use crate::device::Device;
use crate::event::Completion;
use crate::host::HostRange;
use crate::memory::{Allocation, Untimely};
use crate::monitor;
use crate::raw;
use crate::rng::Rng;
use crate::stats::{add, late};

/// A copy shows itself in steps of this size.
const STEP_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(crate) enum Work {
    Copy(Copy),
    Fill(Place, usize, u8),
    Record(Arc<Completion>),
    Wait(Arc<Completion>),
    Allocate(Arc<Allocation>),
    Free(Arc<Allocation>),
}

#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) from: Place,
    pub(crate) to: Place,
    pub(crate) len: usize,
}

/// Memory that work names, and what keeps it there.
#[derive(Debug)]
pub(crate) enum Place {
    Device(Arc<Allocation>, usize),
    /// The user's; the range, if it is pinned, is in use while this is kept.
    Host(usize, Option<Arc<HostRange>>),
    /// Bytes that were taken when the call was made, as a driver does with memory that is not
    /// pinned.
    Staged(Vec<u8>),
}

impl Work {
    /// An error loses the context.
    pub(crate) fn run(&self, device: &Device, health: &Health, rng: &mut Rng) -> Result {
        match self {
            Self::Copy(copy) => copy.run(device, rng),
            Self::Fill(place, len, byte) => {
                let done = place.with(*len, |to| {
                    // SAFETY: `with` gives a range of a live allocation, which it holds.
                    unsafe { raw::fill(to, *len, *byte) };
                });
                report(device, done, place, true);
            }
            Self::Record(completion) => completion.complete(),
            Self::Wait(completion) => monitor::wait(|| {
                completion.is_complete() || completion.is_lost() || health.check().is_err()
            }),
            Self::Allocate(allocation) => allocation.begin(),
            Self::Free(allocation) => device.memory.retire(allocation, &device.counters),
        }
        Ok(())
    }
}

impl Copy {
    fn run(&self, device: &Device, rng: &mut Rng) {
        let mut wrote = Ok(());
        let read = self.from.with(self.len, |from| {
            wrote = self.to.with(self.len, |to| self.steps(from, to, rng));
        });
        report(device, read, &self.from, false);
        report(device, wrote, &self.to, true);
        let counters = &device.counters;
        let counter = match (&self.from, &self.to) {
            (Place::Device(..), Place::Device(..)) => &counters.bytes_on_device,
            (Place::Device(..), _) => &counters.bytes_to_host,
            _ => &counters.bytes_to_device,
        };
        add(counter, self.len);
    }

    fn steps(&self, from: usize, to: usize, rng: &mut Rng) {
        for offset in (0..self.len).step_by(STEP_BYTES) {
            if offset > 0 && rng.below(4) == 0 {
                std::thread::yield_now();
            }
            let len = STEP_BYTES.min(self.len - offset);
            // SAFETY: device ranges are live allocations that are held; staged bytes are ours; host
            // memory has to stay until the copy is complete, by the contract of the call.
            unsafe { raw::copy(from + offset, to + offset, len) };
        }
    }
}

impl Place {
    fn with(&self, len: usize, run: impl FnOnce(usize)) -> Result<(), Untimely> {
        match self {
            Self::Device(allocation, offset) => return allocation.access(*offset, len, run),
            Self::Host(address, _) => run(*address),
            Self::Staged(bytes) => run(bytes.as_ptr() as usize),
        }
        Ok(())
    }
}

fn report(device: &Device, result: Result<(), Untimely>, place: &Place, write: bool) {
    let (Err(untimely), Place::Device(allocation, offset)) = (result, place) else {
        return;
    };
    let counters = &device.counters;
    let (counter, when) = match (untimely, write) {
        (Untimely::BeforeAllocation, _) => (&counters.early_accesses, "before it was allocated"),
        (Untimely::AfterFree, true) => (&counters.late_writes, "after it was freed"),
        (Untimely::AfterFree, false) => (&counters.late_reads, "after it was freed"),
    };
    let what = if write { "a write to" } else { "a read of" };
    late(
        counter,
        &format!("{what} byte {offset} and on of {allocation:?} {when}"),
    );
}
