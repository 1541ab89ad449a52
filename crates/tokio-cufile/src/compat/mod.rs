//! The compat backend: bytes through the kernel's file interface, around the page cache where the
//! file allows.
//!
//! | module | concept |
//! |---|---|
//! | `part` | one part, as the planner cut it |
//! | `run` | one part as a sequence of requests: what every executor has in common |
//! | `stretch` | bytes of a part that go one way |
//! | `target` | where a part's bytes go, in one place or in many |
//! | `digest` | checksums of what parts have moved |
//! | `cached` | which bytes of a range are in the page cache |
//! | `pool` | the executor of blocking calls: a full engine, and the ring's helper |
//! | `ring` | the executor on io_uring |
//! | `job` | what an executor is handed |
//! | `devices` | the GPUs, and a part between the disk and one of them |

mod cached;
mod devices;
mod digest;
mod job;
mod part;
mod pool;
mod ring;
mod run;
mod stretch;
mod target;

pub(crate) use devices::{DeviceSide, Devices};
pub(crate) use digest::PartDigest;
pub(crate) use part::TransferPart;
pub(crate) use pool::Pool;
pub(crate) use ring::{Ring, RingConfig};
pub(crate) use target::Target;

use std::sync::Arc;

use completion::IssuedPart;

use self::devices::Staged;
use crate::cufile::Cufile;
use crate::engine::{Model, Task};

/// The executors of one engine.
#[derive(Debug)]
pub(crate) struct Executors {
    pub(crate) pool: Pool,
    pub(crate) ring: Option<Ring>,
    pub(crate) cufile: Arc<Cufile>,
}

impl Executors {
    /// Hands a part to its executor. Never blocks.
    pub(crate) fn submit(&self, part: IssuedPart<Model>) {
        match (&self.ring, part.task()) {
            (Some(ring), Some(Task::Transfer(transfer))) if transfer.by_ring => ring.submit(part),
            (_, Some(Task::Cufile(_))) => self.cufile.submit(part),
            _ => self.pool.submit(part),
        }
    }

    /// Whether there is a ring, and it was not lost: the pool does everything else.
    pub(crate) fn has_ring(&self) -> bool {
        self.ring.as_ref().is_some_and(Ring::serves)
    }

    /// Goes on with a part whose bytes the device has copied to its slot. Never blocks.
    fn resume(&self, staged: Box<Staged>) {
        match &self.ring {
            Some(ring) if staged.run.part.by_ring => ring.resume(staged),
            _ => self.pool.resume(staged),
        }
    }

    /// Lets every thread end after what it is doing.
    pub(crate) fn stop(&self) {
        self.pool.stop();
        self.cufile.stop();
        if let Some(ring) = &self.ring {
            ring.stop();
        }
    }
}
