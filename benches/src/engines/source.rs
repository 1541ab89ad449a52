//! Where lanes that run side by side get their offsets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::job::{Access, Job};

/// The offsets of one run: those of a sequential job are dealt out as lanes come for them.
#[derive(Clone)]
pub(super) struct Source {
    job: Job,
    next: Arc<AtomicU64>,
    end: Option<Instant>,
}

impl Source {
    /// The time of a random job begins now.
    pub(super) fn start(job: &Job) -> Self {
        Self {
            job: job.clone(),
            next: Arc::default(),
            end: match job.access {
                Access::Random { duration } => Some(Instant::now() + duration),
                Access::Read | Access::Write { .. } => None,
            },
        }
    }

    pub(super) const fn job(&self) -> &Job {
        &self.job
    }

    /// The next offset; of a random job from the lane's own.
    pub(super) fn next(&self, random: &mut impl FnMut() -> u64) -> Option<u64> {
        match self.end {
            Some(end) => (Instant::now() < end).then(random),
            None => {
                let index = self.next.fetch_add(1, Ordering::Relaxed);
                (index < self.job.blocks()).then(|| index * self.job.block as u64)
            }
        }
    }
}
