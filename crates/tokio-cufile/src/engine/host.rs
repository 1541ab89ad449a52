//! What the completion model asks of this engine.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use completion::{Doubt, Environment, IssuedPart, Tick};

use super::clock::Clock;
use super::model::Model;
use super::threads::Bells;
use crate::compat::{Devices, Executors};
use crate::error::Error;
use crate::file::lost_write;

/// Lost writes kept for `shutdown`; all are logged.
const LOST_WRITES_MAX: usize = 1024;

/// Orphaned writes that were lost and that no call on their file has reported.
#[derive(Debug, Default)]
pub(crate) struct LostWrites {
    errors: Mutex<Vec<Error>>,
}

impl LostWrites {
    pub(crate) fn report(&self, error: Error) {
        tracing::error!(%error, "an orphaned write was lost");
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if errors.len() < LOST_WRITES_MAX {
            errors.push(error);
        }
    }

    pub(crate) fn all(&self) -> Vec<Error> {
        self.errors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Part of the [`Core`](super::Core), which every future of the engine has a share of. So it has none
/// of the executors and devices, and of their descriptors and slots: [`Machinery`] has.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) machinery: Weak<Machinery>,
    pub(super) clock: Clock,
    pub(super) bells: Arc<Bells>,
    pub(super) lost_writes: Arc<LostWrites>,
}

impl Environment<Model> for Host {
    fn submit(&self, part: IssuedPart<Model>) {
        match self.machinery.upgrade() {
            Some(machinery) => machinery.executors.submit(part),
            // Granted before its operation was dropped, and late: everything else has ended.
            None => drop(part),
        }
    }

    fn now(&self) -> Tick {
        self.clock.now()
    }

    fn set_alarm(&self, _at: Tick) {
        self.bells.alarm.ring();
    }

    fn disposal_waits(&self) {
        self.bells.ring_disposer();
    }

    fn lost_write(&self, file: &Arc<Path>, doubt: Doubt<Error>) {
        self.lost_writes.report(lost_write(file, &doubt));
    }

    fn drained(&self) {
        // Where it is gone, it was stopped.
        if let Some(machinery) = self.machinery.upgrade() {
            machinery.stop();
        }
        self.bells.ring_all();
    }
}

/// What the disposer keeps until everything has ended.
#[derive(Debug)]
pub(super) struct Machinery {
    pub(super) executors: Arc<Executors>,
    pub(super) devices: Arc<Devices>,
}

impl Machinery {
    pub(super) fn stop(&self) {
        self.executors.stop();
        self.devices.stop();
    }
}
