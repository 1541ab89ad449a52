//! The compat backend: bytes through the kernel's file interface, around the page cache where the
//! file allows.
//!
//! | module | concept |
//! |---|---|
//! | `run` | one part as a sequence of requests: what every executor has in common |
//! | `target` | where a part's bytes go, in one place or in many |
//! | `digest` | checksums of what parts have moved |
//! | `cached` | which bytes of a range are in the page cache |
//! | `pool` | the executor of blocking calls: a full engine, and the ring's helper |
//! | `ring` | the executor on io_uring |

mod cached;
mod digest;
mod pool;
mod ring;
mod run;
mod target;

pub(crate) use digest::PartDigest;
pub(crate) use pool::Pool;
pub(crate) use ring::{Ring, RingConfig};
pub(crate) use run::TransferPart;
pub(crate) use target::Target;

use completion::IssuedPart;

use crate::engine::{Model, Task};

/// The executors of one engine.
#[derive(Debug)]
pub(crate) struct Executors {
    pub(crate) pool: Pool,
    pub(crate) ring: Option<Ring>,
}

impl Executors {
    /// Hands a part to its executor. Never blocks.
    pub(crate) fn submit(&self, part: IssuedPart<Model>) {
        match (&self.ring, part.task()) {
            (Some(ring), Some(Task::Transfer(transfer))) if transfer.by_ring => ring.submit(part),
            _ => self.pool.submit(part),
        }
    }

    /// Lets every thread end after what it is doing.
    pub(crate) fn stop(&self) {
        self.pool.stop();
        if let Some(ring) = &self.ring {
            ring.stop();
        }
    }
}
