//! What streams do.
#![allow(
    unsafe_code,
    reason = "copies name their memory by address, as a device's do"
)]

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::code::Result;
use crate::context::Health;
use crate::device::Device;
use crate::event::Completion;
use crate::host::Pinned;
use crate::memory::{Allocation, Untimely};
use crate::raw;
use crate::stats::add;
use sim_common::Rng;
use sim_common::monitor;

/// A copy shows itself in steps of this size.
const STEP_BYTES: usize = 1 << 20;

/// What a fault script calls work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
    Fill,
    Record,
    Wait,
    Allocate,
    Free,
    Call,
}

impl Kind {
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "htod" => Self::HostToDevice,
            "dtoh" => Self::DeviceToHost,
            "dtod" => Self::DeviceToDevice,
            "fill" => Self::Fill,
            "record" => Self::Record,
            "wait" => Self::Wait,
            "alloc" => Self::Allocate,
            "free" => Self::Free,
            "call" => Self::Call,
            _ => return None,
        })
    }
}

#[derive(Debug)]
pub(crate) enum Work {
    Copy(Copy),
    Fill(Place, usize, u8),
    Record(Arc<Completion>),
    Wait(Arc<Completion>),
    Allocate(Arc<Allocation>),
    Free(Arc<Allocation>),
    /// A function of another simulator.
    Call(Call),
}

/// A function that runs in its turn, or is told that it will never.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) run: CallFn,
    pub(crate) argument: usize,
    pub(crate) is_told: AtomicBool,
}

/// Takes its argument, and whether its turn has come (1) or never will (0).
pub(crate) type CallFn = unsafe extern "C" fn(*mut c_void, i32);

impl Call {
    fn tell(&self, turn: i32) {
        if !self.is_told.swap(true, Ordering::AcqRel) {
            // SAFETY: whoever issued it vouches for the function and its argument, for one call.
            unsafe { (self.run)(self.argument as *mut c_void, turn) };
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.tell(0);
    }
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
    Host(
        usize,
        #[allow(dead_code, reason = "kept, so that it counts as in use")] Option<Pinned>,
    ),
    /// Bytes that were taken when the call was made, as a driver does with memory that is not
    /// pinned.
    Staged(Vec<u8>),
}

impl Work {
    fn kind(&self) -> Kind {
        match self {
            Self::Copy(copy) => copy.kind(),
            Self::Fill(..) => Kind::Fill,
            Self::Record(_) => Kind::Record,
            Self::Wait(_) => Kind::Wait,
            Self::Allocate(_) => Kind::Allocate,
            Self::Free(_) => Kind::Free,
            Self::Call(_) => Kind::Call,
        }
    }

    /// An error loses the context.
    pub(crate) fn run(&self, device: &Device, health: &Health, rng: &mut Rng) -> Result {
        let spoiled = device.faults.at_work(self.kind(), health);
        // It may have been lost while the work was held up.
        health.check()?;
        if let Some(code) = spoiled.fail {
            self.do_half(device, rng);
            return Err(code);
        }
        match self {
            Self::Copy(copy) => copy.run(device, rng, spoiled.flip),
            Self::Fill(place, len, byte) => fill(device, place, *len, *byte, spoiled.flip),
            Self::Record(completion) => completion.complete(),
            Self::Wait(completion) => monitor::wait(|| {
                completion.is_complete() || completion.is_lost() || health.check().is_err()
            }),
            Self::Allocate(allocation) => allocation.begin(),
            Self::Free(allocation) => device.memory.retire(allocation, &device.counters),
            Self::Call(call) => call.tell(1),
        }
        Ok(())
    }

    /// What fails may have moved bytes before.
    fn do_half(&self, device: &Device, rng: &mut Rng) {
        match self {
            Self::Copy(copy) => copy.move_bytes(device, copy.len / 2, rng, false),
            Self::Fill(place, len, byte) => fill(device, place, len / 2, *byte, false),
            _ => {}
        }
    }
}

fn fill(device: &Device, place: &Place, len: usize, byte: u8, flip: bool) {
    let done = place.with(len, |to| {
        // SAFETY: `with` gives a range of a live allocation, which it holds.
        unsafe { raw::fill(to, len, byte) };
        if flip {
            // SAFETY: as above; a fill that is issued has a byte.
            unsafe { raw::flip(to + len / 2) };
        }
    });
    report(device, done, place, true);
}

impl Copy {
    fn kind(&self) -> Kind {
        match (&self.from, &self.to) {
            (Place::Device(..), Place::Device(..)) => Kind::DeviceToDevice,
            (Place::Device(..), _) => Kind::DeviceToHost,
            _ => Kind::HostToDevice,
        }
    }

    fn run(&self, device: &Device, rng: &mut Rng, flip: bool) {
        self.move_bytes(device, self.len, rng, flip);
        let counters = &device.counters;
        let counter = match self.kind() {
            Kind::DeviceToDevice => &counters.bytes_on_device,
            Kind::DeviceToHost => &counters.bytes_to_host,
            _ => &counters.bytes_to_device,
        };
        add(counter, self.len);
    }

    fn move_bytes(&self, device: &Device, len: usize, rng: &mut Rng, flip: bool) {
        let mut wrote = Ok(());
        let read = self.from.with(len, |from| {
            wrote = self.to.with(len, |to| steps(from, to, len, rng, flip));
        });
        report(device, read, &self.from, false);
        report(device, wrote, &self.to, true);
    }
}

fn steps(from: usize, to: usize, len: usize, rng: &mut Rng, flip: bool) {
    for offset in (0..len).step_by(STEP_BYTES) {
        if offset > 0 && rng.below(4) == 0 {
            std::thread::yield_now();
        }
        let step = STEP_BYTES.min(len - offset);
        // SAFETY: device ranges are live allocations that are held; staged bytes are ours; host
        // memory has to stay until the copy is complete, by the contract of the call.
        unsafe { raw::copy(from + offset, to + offset, step) };
    }
    if flip {
        // SAFETY: as above; a copy that is issued has a byte.
        unsafe { raw::flip(to + len / 2) };
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
    untimely.report(allocation, *offset, write, &device.counters);
}
