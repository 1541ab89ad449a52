//! Deadlines and quiet limits, on the engine's own clock.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::domain::{Domain, Tick};
use crate::operation::Operation;

/// Operations to look at, by time. One entry an operation at most.
#[derive(Debug)]
pub(crate) struct Timers<D: Domain> {
    due: BTreeMap<(Tick, u64), Arc<Operation<D>>>,
}

impl<D: Domain> Timers<D> {
    pub(crate) const fn new() -> Self {
        Self {
            due: BTreeMap::new(),
        }
    }

    pub(crate) fn insert(&mut self, at: Tick, operation: &Arc<Operation<D>>) {
        self.due.insert((at, operation.id), Arc::clone(operation));
    }

    pub(crate) fn remove(&mut self, at: Tick, operation: u64) {
        self.due.remove(&(at, operation));
    }

    pub(crate) fn next(&self) -> Option<Tick> {
        self.due.keys().next().map(|&(at, _)| at)
    }

    pub(crate) fn pop_due(&mut self, now: Tick) -> Option<Arc<Operation<D>>> {
        let entry = self.due.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}
