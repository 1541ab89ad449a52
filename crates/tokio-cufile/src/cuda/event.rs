//! Events of the user's, which an operation waits for before it is admitted.
#![allow(unsafe_code, reason = "records in a stream that the user names")]

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use completion::Gate;
use nvidia_dl::cuda::Stream;

use super::handles::Event;
use crate::compat::DeviceSide;
use crate::engine::{Disposed, Engine, Model};
use crate::error::Operation;
use crate::op::Request;

/// A point in a CUDA stream: complete once everything that was in the stream when it was recorded
/// has ended.
///
/// An operation that is told to come [after](crate::Transfer::after) it is not admitted before: it
/// holds neither permit nor slot meanwhile.
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
    /// `Unsupported`, `DeviceNotFound`, `DeviceFailed`.
    pub unsafe fn record(engine: &Engine, device: u32, stream: *mut c_void) -> Request<Self> {
        let shared = Arc::clone(&engine.shared);
        let stream = Stream::from_raw(stream);
        Request::detached(&engine.shared, Operation::Event, move || {
            let side = shared.devices.get(device)?;
            side.device().bind()?;
            let event = Event::new(side.device())?;
            // SAFETY: the caller of `record` vouches for the stream.
            unsafe { event.record(stream) }?;
            Ok(Self {
                event: Disposed::new(&shared, event),
                side,
            })
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
        side.watch(Watch { events, gate });
    }
}

impl fmt::Debug for CudaEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaEvent")
            .field("device", &self.device())
            .finish_non_exhaustive()
    }
}

/// Events, and the operation that waits for them.
pub(crate) struct Watch {
    events: Vec<Arc<CudaEvent>>,
    gate: Gate<Model>,
}

impl Watch {
    /// Nobody looks after the events any more: the operation goes on, and finds its device lost or
    /// its engine shut down.
    pub(super) fn give_up(self) {
        self.gate.open();
    }

    /// Whether the wait is over: the events are complete, or the operation has ended without them.
    /// An event in error counts as complete: the operation finds its device lost.
    pub(super) fn look(&mut self) -> bool {
        if self.gate.is_moot() {
            return true;
        }
        self.events
            .retain(|event| matches!(event.event.is_complete(), Ok(false)));
        if self.events.is_empty() {
            self.gate.open();
        }
        self.events.is_empty()
    }
}
