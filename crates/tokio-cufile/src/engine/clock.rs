//! The engine's clock: monotonic nanoseconds since it was built.

use std::time::{Duration, Instant};

use completion::Tick;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    pub(crate) fn now(self) -> Tick {
        self.tick(Instant::now())
    }

    /// An instant before the engine was built is its first tick.
    pub(crate) fn tick(self, at: Instant) -> Tick {
        Tick(0).after(
            at.checked_duration_since(self.origin)
                .unwrap_or(Duration::ZERO),
        )
    }
}
