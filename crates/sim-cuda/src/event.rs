//! Events: each record is a completion of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::code::{Code, Result};
use crate::context::Health;
use sim_common::monitor::{self, lock};

/// One record of an event.
#[derive(Debug)]
pub(crate) struct Completion {
    done: AtomicBool,
    health: Arc<Health>,
}

impl Completion {
    pub(crate) fn new(health: Arc<Health>) -> Self {
        Self {
            done: AtomicBool::new(false),
            health,
        }
    }

    pub(crate) fn complete(&self) {
        self.done.store(true, Ordering::Release);
        monitor::ring();
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// It was recorded in a context that is lost, and will not complete.
    pub(crate) fn is_lost(&self) -> bool {
        self.health.check().is_err()
    }
}

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) handle: usize,
    latest: Mutex<Option<Arc<Completion>>>,
}

impl Event {
    pub(crate) fn new(handle: usize) -> Self {
        Self {
            handle,
            latest: Mutex::new(None),
        }
    }

    /// From now on the event stands for this record.
    pub(crate) fn record(&self, completion: Arc<Completion>) {
        *lock(&self.latest) = Some(completion);
    }

    /// What the event stands for; nothing if it was never recorded.
    pub(crate) fn latest(&self) -> Option<Arc<Completion>> {
        lock(&self.latest).clone()
    }

    /// An event that was never recorded is complete.
    pub(crate) fn query(&self) -> Result {
        match self.latest() {
            Some(completion) if !completion.is_complete() => Err(Code::NOT_READY),
            _ => Ok(()),
        }
    }

    pub(crate) fn synchronize(&self) -> Result {
        let Some(completion) = self.latest() else {
            return Ok(());
        };
        monitor::wait(|| completion.is_complete() || completion.is_lost());
        if completion.is_complete() {
            return Ok(());
        }
        completion.health.check()
    }
}
