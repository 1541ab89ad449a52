//! Events of the user's, which an operation waits for before it is admitted.
#![allow(unsafe_code, reason = "records in a stream that the user names")]

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use completion::Gate;
use nvidia_dl::cuda::Stream;

use super::device::Device;
use super::handles::Event;
use crate::compat::DeviceSide;
use crate::engine::{Disposed, Engine, Model, Shared};
use crate::error::{Error, ErrorKind, Operation};
use crate::op::Request;

/// The handle that stands for the calling thread's own default stream.
const STREAM_PER_THREAD: usize = 2;

/// The other handle of the legacy default stream, beside null.
const STREAM_LEGACY: usize = 1;

/// The stream of that handle, under one name.
pub(crate) fn stream_of(handle: *mut c_void) -> Stream {
    match handle.addr() {
        STREAM_LEGACY => Stream::NULL,
        _ => Stream::from_raw(handle),
    }
}

/// Whether a handle means another stream on every thread, so that the engine cannot use it.
pub(crate) fn is_per_thread(stream: *mut c_void) -> bool {
    stream.addr() == STREAM_PER_THREAD
}

/// A point in a CUDA stream: complete once everything that was in the stream when it was recorded
/// has ended.
///
/// An operation that is told to come [after](crate::Transfer::after) it is not admitted before: it
/// holds neither permit nor slot meanwhile. Where the event cannot complete since its context is in
/// error, the operation ends with that error, on host memory too: what it waited for was not done.
pub struct CudaEvent {
    event: Disposed<Event>,
    side: Arc<DeviceSide>,
}

impl CudaEvent {
    /// Records an event in `stream` (`CUstream`, of the device's primary context; null is the legacy
    /// default stream). It covers what is in the stream when this resolves.
    ///
    /// # Safety
    ///
    /// The stream is alive until the future has resolved or was dropped and its engine has shut
    /// down, and it belongs to the primary context of that device.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for the per-thread default stream (`CU_STREAM_PER_THREAD`), which means another
    /// one on every thread; `Unsupported`, `DeviceNotFound`, `DeviceFailed`.
    pub unsafe fn record(engine: &Engine, device: u32, stream: *mut c_void) -> Request<Self> {
        let shared = Arc::clone(&engine.shared);
        let stream = Stream::from_raw(stream);
        Request::detached(&engine.shared, Operation::Event, move || {
            let side = shared.devices.get(device)?;
            // SAFETY: the caller of `record` vouches for the stream.
            unsafe { Self::record_at_once(&shared, side, stream) }
        })
    }

    /// The same at once, on an engine thread.
    ///
    /// # Safety
    ///
    /// As for [`record`](Self::record).
    pub(super) unsafe fn record_at_once(
        shared: &Shared,
        side: Arc<DeviceSide>,
        stream: Stream,
    ) -> Result<Self, Error> {
        if is_per_thread(stream.as_raw()) {
            let reason = "the per-thread default stream is another one on the engine's threads: \
                          record in a stream that has a handle of its own";
            return Err(Error::new(ErrorKind::InvalidInput, reason)
                .with_operation(Operation::Event)
                .with_device(side.device().ordinal()));
        }
        side.device().bind()?;
        let event = Event::new(side.device())?;
        // SAFETY: passed on from the caller.
        unsafe { event.record(stream) }?;
        Ok(Self {
            event: Disposed::new(shared, event),
            side,
        })
    }

    /// The CUDA ordinal of the device that its stream belongs to.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.side.device().ordinal()
    }

    /// Has its device's thread open `gate` once all `events` are complete.
    pub(crate) fn open_after(events: Vec<Arc<Self>>, gate: Gate<Model>) {
        let Some(first) = events.first() else {
            return gate.open();
        };
        let side = Arc::clone(&first.side);
        let gate = Some(gate);
        side.watch(Box::new(Watch { events, gate }));
    }
}

impl fmt::Debug for CudaEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaEvent")
            .field("device", &self.device())
            .finish_non_exhaustive()
    }
}

/// Something that a device's thread looks at until it is over.
pub(crate) trait Watched: Send {
    /// Whether it is over. On the thread of `device`, which it has bound.
    fn look(&mut self, device: &Device) -> bool;

    /// Whether its end is to be looked for as often as that of a copy: a user's may be far.
    fn is_near(&self) -> bool {
        false
    }
}

/// Events, and the operation that waits for them.
struct Watch {
    events: Vec<Arc<CudaEvent>>,
    /// `None` once the wait is over, or another device's.
    gate: Option<Gate<Model>>,
}

impl Watched for Watch {
    /// Whether there is nothing more to do on the thread of `device`: its events are complete or in
    /// error, or the operation has ended without them. Events of others are looked after by their
    /// own threads, one device after the other: an event is known in its own context only.
    fn look(&mut self, device: &Device) -> bool {
        if self.gate.as_ref().is_none_or(Gate::is_moot) {
            self.gate = None;
            return true;
        }
        let mut failure = None;
        self.events.retain(|event| {
            if event.device() != device.ordinal() {
                return true;
            }
            match event.event.is_complete() {
                Ok(complete) => !complete,
                Err(error) => {
                    failure = Some(error);
                    false
                }
            }
        });
        if let Some(error) = failure {
            self.fail(error);
            return true;
        }
        if self
            .events
            .iter()
            .any(|event| event.device() == device.ordinal())
        {
            return false;
        }
        if let Some(gate) = self.gate.take() {
            CudaEvent::open_after(std::mem::take(&mut self.events), gate);
        }
        true
    }
}

impl Watch {
    fn fail(&mut self, error: Error) {
        if let Some(gate) = self.gate.take() {
            gate.fail(error);
        }
    }
}

impl Drop for Watch {
    /// Nobody looks after the events any more. The operation must not go on: what it waits for may
    /// still use its memory, or may never have been done.
    fn drop(&mut self) {
        self.fail(Error::new(
            ErrorKind::DeviceFailed,
            "nobody looks after the event any more",
        ));
    }
}
