//! Events of the user's, which an operation waits for before it is admitted.

use std::fmt;
use std::sync::Arc;

use completion::Gate;

use super::handles::Event;
use crate::engine::Model;

/// A point in a CUDA stream: complete once everything that was in the stream when it was recorded
/// has ended.
///
/// An operation that is told to come [after](crate::Transfer::after) it is not admitted before: it
/// holds neither permit nor slot meanwhile.
pub struct CudaEvent {
    pub(super) event: Event,
}

impl CudaEvent {
    pub(crate) const fn new(event: Event) -> Self {
        Self { event }
    }

    /// The CUDA ordinal of the device that its stream belongs to.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.event.device().ordinal()
    }
}

impl fmt::Debug for CudaEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaEvent")
            .field("device", &self.device())
            .finish_non_exhaustive()
    }
}

/// An event, and the operation that waits for it.
pub(crate) struct Watch {
    event: Arc<CudaEvent>,
    gate: Gate<Model>,
}

impl Watch {
    pub(crate) const fn new(event: Arc<CudaEvent>, gate: Gate<Model>) -> Self {
        Self { event, gate }
    }

    /// Whether the wait is over: the event is complete, or its operation has ended without it. An
    /// event in error opens too: the operation finds the device lost.
    pub(super) fn look(&mut self) -> bool {
        if self.gate.is_moot() {
            return true;
        }
        let over = !matches!(self.event.event.is_complete(), Ok(false));
        if over {
            self.gate.open();
        }
        over
    }
}
