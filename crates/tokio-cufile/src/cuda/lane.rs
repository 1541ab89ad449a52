//! Copies in flight on one device: issued in order, and polled for in order.
#![allow(unsafe_code, reason = "copies name memory by address")]

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

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

/// A batch is closed when it has this many bytes: a few microseconds of copying, so that small
/// copies share an event and large ones do not wait for one another's.
const BATCH_BYTES: usize = 256 << 10;

/// The shortest sleep between two looks for an end: less than a copy of 4 MiB takes.
const NAP_MIN: Duration = Duration::from_micros(50);

/// The longest: a copy that is stuck for good, or a user's kernel of seconds, costs no processor.
const NAP_MAX: Duration = Duration::from_millis(5);

/// How long to sleep before the next look, when nothing has ended for a while: an end is seen late by
/// an eighth of what it took, at most.
pub(crate) fn nap_after(waited: Duration) -> Duration {
    (waited / 8).clamp(NAP_MIN, NAP_MAX)
}

/// One thread's copies on one device. Events complete in the order of their stream, so the oldest
/// of each direction is looked at.
pub(crate) struct CopyLane<T: CopyJob> {
    device: Arc<Device>,
    ways: [Way<T>; 2],
    /// Complete and empty, to be used again.
    spare: Vec<Batch<T>>,
    /// Leaked with what is in flight when the lane goes.
    pinned: ManuallyDrop<Arc<Pinned>>,
}

struct Way<T> {
    stream: Stream,
    /// Issued, with an event to be recorded behind it.
    open: Option<Batch<T>>,
    in_flight: VecDeque<Batch<T>>,
    /// Their event was seen complete.
    ended: VecDeque<Issued<T>>,
}

/// Jobs that one event stands for: an event costs as much as a small copy.
struct Batch<T> {
    event: Event,
    jobs: Vec<Issued<T>>,
    bytes: usize,
}

struct Issued<T> {
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
                open: None,
                in_flight: VecDeque::new(),
                ended: VecDeque::new(),
            })
        };
        Ok(Self {
            device: Arc::clone(device),
            ways: [way()?, way()?],
            spare: Vec::new(),
            pinned: ManuallyDrop::new(Arc::clone(pinned)),
        })
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn is_idle(&self) -> bool {
        let is_idle =
            |way: &Way<T>| way.open.is_none() && way.in_flight.is_empty() && way.ended.is_empty();
        self.ways.iter().all(is_idle)
    }

    /// Queues a job's copies; [`flush`](Self::flush) is owed before the caller sleeps. Gives it back
    /// where nothing was issued, with the reason.
    pub(crate) fn issue(&mut self, job: T) -> Result<(), (T, Error)> {
        let direction = job.direction() as usize;
        let mut batch = match self.batch(direction) {
            Ok(batch) => batch,
            Err(error) => return Err((job, error)),
        };
        let way = &mut self.ways[direction];
        let mut fault = None;
        for (host, device) in job.copies() {
            // SAFETY: the job owns slot and device memory until its event is complete, and is
            // leaked where that cannot be seen; the stream is the lane's.
            let copied = unsafe { copy(&self.device, job.direction(), host, device, &way.stream) };
            batch.bytes += host.len();
            if let Err(error) = copied {
                fault = Some(error);
                break;
            }
        }
        // Also after a fault: whether the failed call queued its copy is not known.
        batch.jobs.push(Issued { job, fault });
        let is_full = batch.bytes >= BATCH_BYTES;
        way.open = Some(batch);
        if is_full {
            self.close(direction);
        }
        Ok(())
    }

    /// The open batch of a direction, with its device bound.
    fn batch(&mut self, direction: usize) -> Result<Batch<T>, Error> {
        self.device.check()?;
        self.device.bind()?;
        match self.ways[direction]
            .open
            .take()
            .or_else(|| self.spare.pop())
        {
            Some(batch) => Ok(batch),
            None => Ok(Batch {
                event: Event::new(&self.device)?,
                jobs: Vec::new(),
                bytes: 0,
            }),
        }
    }

    /// Has everything that was issued followed by an event.
    pub(crate) fn flush(&mut self) {
        for direction in 0..self.ways.len() {
            self.close(direction);
        }
    }

    fn close(&mut self, direction: usize) {
        let way = &mut self.ways[direction];
        let Some(batch) = way.open.take() else {
            return;
        };
        // The thread may have lanes of other devices.
        let bound = self.device.bind();
        // SAFETY: the stream is the lane's, and of the same device.
        let recorded = bound.and_then(|()| unsafe { batch.event.record(way.stream.raw) });
        match recorded {
            Ok(()) => way.in_flight.push_back(batch),
            // Nobody will ever know: the jobs go unfinished.
            Err(error) => {
                self.device.give_up(&error);
                drop(batch);
                self.leak_pinned();
            }
        }
    }

    /// The next job that has ended, and how. Jobs whose end cannot be seen any more are dropped
    /// unfinished.
    pub(crate) fn poll(&mut self) -> Option<(T, Result<(), Error>)> {
        for index in 0..self.ways.len() {
            if self.ways[index].ended.is_empty() {
                self.look(index);
            }
            if let Some(Issued { job, fault }) = self.ways[index].ended.pop_front() {
                return Some((job, fault.map_or(Ok(()), Err)));
            }
        }
        None
    }

    /// Whether the oldest batch of a direction has ended.
    fn look(&mut self, direction: usize) {
        let way = &mut self.ways[direction];
        let Some(oldest) = way.in_flight.front() else {
            return;
        };
        let bound = self.device.bind();
        match bound.and_then(|()| oldest.event.is_complete()) {
            Ok(false) => {}
            Ok(true) => {
                if let Some(mut batch) = way.in_flight.pop_front() {
                    way.ended.extend(batch.jobs.drain(..));
                    batch.bytes = 0;
                    self.spare.push(batch);
                }
            }
            Err(error) => {
                self.device.give_up(&error);
                self.lose_all();
            }
        }
    }

    fn lose_all(&mut self) {
        for way in &mut self.ways {
            way.open = None;
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
