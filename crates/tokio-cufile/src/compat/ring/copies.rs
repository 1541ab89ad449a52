//! Copies that the ring thread issues itself, and waits for beside its completions.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::compat::devices::{DeviceSide, Staged};
use crate::cuda::{CopyLane, nap_after};
use crate::error::{Error, Result};

/// How long the thread looks for the end of a copy before it sleeps: about what one of 256 KiB takes.
const SPIN: Duration = Duration::from_micros(20);

/// One lane for each device that was used.
pub(super) struct Copies {
    lanes: BTreeMap<u32, CopyLane<Box<Staged>>>,
    busy_at: Instant,
}

impl Copies {
    pub(super) fn new() -> Self {
        Self {
            lanes: BTreeMap::new(),
            busy_at: Instant::now(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.lanes.values().all(CopyLane::is_idle)
    }

    /// Whether to look again before sleeping.
    pub(super) fn may_spin(&self) -> bool {
        self.busy_at.elapsed() < SPIN
    }

    /// How long it sleeps while copies are in flight.
    pub(super) fn nap(&self) -> Duration {
        nap_after(self.busy_at.elapsed())
    }

    /// Queues a part's copies. Gives it back where nothing was issued, with the reason.
    pub(super) fn issue(
        &mut self,
        device: &DeviceSide,
        staged: Box<Staged>,
    ) -> std::result::Result<(), (Box<Staged>, Error)> {
        self.busy_at = Instant::now();
        match self.lane(device) {
            Ok(lane) => lane.issue(staged),
            Err(error) => Err((staged, error)),
        }
    }

    fn lane(&mut self, device: &DeviceSide) -> Result<&mut CopyLane<Box<Staged>>> {
        use std::collections::btree_map::Entry;
        match self.lanes.entry(device.device().ordinal()) {
            Entry::Occupied(lane) => Ok(lane.into_mut()),
            Entry::Vacant(place) => Ok(place.insert(device.lane()?)),
        }
    }

    /// To be called when nothing more is issued for now.
    pub(super) fn flush(&mut self) {
        self.lanes.values_mut().for_each(CopyLane::flush);
    }

    /// The next part whose copies have ended, and how.
    pub(super) fn poll(&mut self) -> Option<(Box<Staged>, Result<()>)> {
        let ended = self.lanes.values_mut().find_map(CopyLane::poll)?;
        self.busy_at = Instant::now();
        Some(ended)
    }
}
