//! Copies in flight on one device: issued in order, and polled for in order.
#![allow(unsafe_code, reason = "copies name memory by address")]

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use nvidia_dl::cuda::DevicePtr;

use super::device::Device;
use super::handles::{Event, Stream};
use super::pinned::Pinned;
use crate::error::Error;
use crate::memory::{DeviceRange, MemoryRange};

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToDevice,
    FromDevice,
}

/// Copies that begin and end together. Owns whatever they touch: dropped unfinished, it leaks that
/// (I3, I4).
pub(crate) trait CopyJob: Send + 'static {
    fn direction(&self) -> Direction;

    /// Bytes in a slot, and their place in the device's memory.
    fn copies(&self) -> impl Iterator<Item = (MemoryRange, DeviceRange)> + '_;
}

/// One thread's copies on one device. Events complete in the order of their stream, so the oldest
/// of each direction is looked at.
pub(crate) struct CopyLane<T: CopyJob> {
    device: Arc<Device>,
    ways: [Way<T>; 2],
    /// Complete, and used again.
    events: Vec<Event>,
    /// Leaked with what is in flight when the lane goes.
    pinned: ManuallyDrop<Arc<Pinned>>,
}

struct Way<T> {
    stream: Stream,
    in_flight: VecDeque<InFlight<T>>,
}

struct InFlight<T> {
    event: Event,
    job: T,
    /// Not all of it was issued; what was is waited for all the same.
    fault: Option<Error>,
}

impl<T: CopyJob> CopyLane<T> {
    /// A lane for the calling thread, which it binds to the device.
    pub(crate) fn new(device: &Arc<Device>, pinned: &Arc<Pinned>) -> Result<Self, Error> {
        device.bind()?;
        let way = || -> Result<Way<T>, Error> {
            Ok(Way {
                stream: Stream::new(device)?,
                in_flight: VecDeque::new(),
            })
        };
        Ok(Self {
            device: Arc::clone(device),
            ways: [way()?, way()?],
            events: Vec::new(),
            pinned: ManuallyDrop::new(Arc::clone(pinned)),
        })
    }

    /// Makes the lane's device the calling thread's. Whether that worked shows at the next call.
    pub(crate) fn bind(&self) {
        drop(self.device.bind());
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.ways.iter().all(|way| way.in_flight.is_empty())
    }

    /// Queues a job's copies. Gives it back where nothing was issued, with the reason.
    pub(crate) fn issue(&mut self, job: T) -> Result<(), (T, Error)> {
        let ready = self
            .device
            .check()
            .and_then(|()| self.device.bind())
            .and_then(|()| self.event());
        let event = match ready {
            Ok(event) => event,
            Err(error) => return Err((job, error)),
        };
        let direction = job.direction();
        let way = &mut self.ways[direction as usize];
        let mut fault = None;
        for (host, device) in job.copies() {
            // SAFETY: the job owns slot and device memory until its event is complete, and is
            // leaked where that cannot be seen; the stream is the lane's.
            let copied = unsafe { copy(&self.device, direction, host, device, &way.stream) };
            if let Err(error) = copied {
                fault = Some(error);
                break;
            }
        }
        // Also after a fault: whether the failed call queued its copy is not known.
        // SAFETY: the stream is the lane's, and of the same device.
        let recorded = unsafe { event.record(way.stream.raw) };
        match recorded {
            Ok(()) => way.in_flight.push_back(InFlight { event, job, fault }),
            // Nobody will ever know: the job goes unfinished, and the slots stay pinned.
            Err(error) => {
                self.device.give_up(&error);
                self.leak_pinned();
            }
        }
        Ok(())
    }

    fn event(&mut self) -> Result<Event, Error> {
        match self.events.pop() {
            Some(event) => Ok(event),
            None => Event::new(&self.device),
        }
    }

    /// The next job that has ended, and how. Jobs whose end cannot be seen any more are dropped
    /// unfinished.
    pub(crate) fn poll(&mut self) -> Option<(T, Result<(), Error>)> {
        for index in 0..self.ways.len() {
            let Some(oldest) = self.ways[index].in_flight.front() else {
                continue;
            };
            match oldest.event.is_complete() {
                Ok(false) => {}
                Ok(true) => {
                    let InFlight { event, job, fault } = self.ways[index].in_flight.pop_front()?;
                    self.events.push(event);
                    return Some((job, fault.map_or(Ok(()), Err)));
                }
                Err(error) => {
                    self.device.give_up(&error);
                    self.lose_all();
                }
            }
        }
        None
    }

    fn lose_all(&mut self) {
        for way in &mut self.ways {
            way.in_flight.clear();
        }
        // The device may still use the slots: they stay pinned.
        self.leak_pinned();
    }

    fn leak_pinned(&self) {
        #[expect(
            clippy::disallowed_methods,
            reason = "the device may still use the slots"
        )]
        std::mem::forget(Arc::clone(&self.pinned));
    }
}

impl<T: CopyJob> Drop for CopyLane<T> {
    fn drop(&mut self) {
        if !self.is_idle() {
            self.leak_pinned();
        }
        // SAFETY: not used after this; the lane is going.
        unsafe { ManuallyDrop::drop(&mut self.pinned) };
    }
}

/// # Safety
///
/// Both ranges have one length and are owned by a job that lives until an event recorded after this
/// call is complete; the device is bound.
unsafe fn copy(
    device: &Device,
    direction: Direction,
    host: MemoryRange,
    memory: DeviceRange,
    stream: &Stream,
) -> Result<(), Error> {
    debug_assert!(host.len() == memory.len() && memory.device() == device.ordinal());
    let (driver, address) = (device.driver, DevicePtr(memory.address()));
    let copied = match direction {
        // SAFETY: passed on from the caller.
        Direction::ToDevice => unsafe {
            driver.memcpy_htod_async(address, host.as_ptr(), host.len(), stream.raw)
        },
        // SAFETY: passed on from the caller.
        Direction::FromDevice => unsafe {
            driver.memcpy_dtoh_async(host.as_ptr(), address, host.len(), stream.raw)
        },
    };
    copied.map_err(|error| device.error(error))
}
