//! Streams and events that belong to somebody, and go with them.
#![allow(unsafe_code, reason = "handles are destroyed and used by value")]

use std::sync::Arc;

use nvidia_dl::cuda::{self, EventFlags, StreamFlags};

use super::device::Device;
use crate::error::Error;

/// A stream that has nothing to do with the legacy default stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(super) device: Arc<Device>,
    pub(super) raw: cuda::Stream,
}

impl Stream {
    /// On a thread that has the device bound.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, Error> {
        let raw = device.driver.stream_create(StreamFlags::NON_BLOCKING);
        Ok(Self {
            raw: raw.map_err(|error| device.error(error))?,
            device: Arc::clone(device),
        })
    }

    pub(crate) const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The handle, for as long as this value lives.
    pub(crate) const fn raw(&self) -> cuda::Stream {
        self.raw
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handle; the driver finishes what is queued by itself.
        let destroy = || unsafe { self.device.driver.stream_destroy(self.raw) };
        self.device.end_of("stream", destroy);
    }
}

/// An event without timing.
#[derive(Debug)]
pub(crate) struct Event {
    device: Arc<Device>,
    raw: cuda::Event,
}

impl Event {
    /// On a thread that has the device bound.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, Error> {
        let raw = device.driver.event_create(EventFlags::DISABLE_TIMING);
        Ok(Self {
            raw: raw.map_err(|error| device.error(error))?,
            device: Arc::clone(device),
        })
    }

    /// Complete once everything that is in `stream` now has ended.
    ///
    /// # Safety
    ///
    /// The stream is alive and of this event's device.
    pub(crate) unsafe fn record(&self, stream: cuda::Stream) -> Result<(), Error> {
        // SAFETY: the event is alive; the caller vouches for the stream.
        let recorded = unsafe { self.device.driver.event_record(self.raw, stream) };
        recorded.map_err(|error| self.device.error(error))
    }

    /// Whether it is complete. An error proves nothing about what was recorded.
    pub(crate) fn is_complete(&self) -> Result<bool, Error> {
        // SAFETY: the event is alive.
        let complete = unsafe { self.device.driver.event_query(self.raw) };
        complete.map_err(|error| self.device.error(error))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handle; an event that is not complete may be destroyed.
        let destroy = || unsafe { self.device.driver.event_destroy(self.raw) };
        self.device.end_of("event", destroy);
    }
}
