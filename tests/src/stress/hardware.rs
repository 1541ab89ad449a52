//! What is behind a device: a simulated one, which can be told to go wrong and says what it saw, or
//! whatever CUDA has, which cannot.

use std::sync::Arc;

use tokio_cufile::DevicePart;

use super::arena::Access;
use super::cuda::Cuda;
use crate::sim::{Lease, Stats};

/// One of them.
#[derive(Clone, Debug)]
pub(super) enum Hardware {
    Simulated(Arc<Lease>),
    Cuda(Arc<Cuda>),
}

impl Hardware {
    pub(super) fn ordinal(&self) -> u32 {
        match self {
            Self::Simulated(lease) => lease.ordinal,
            Self::Cuda(cuda) => cuda.ordinal,
        }
    }

    /// Adds faults, in the words of the simulator, where there is one.
    pub(super) fn fault(&self, script: &str) {
        if let Self::Simulated(lease) = self {
            lease.fault(script);
        }
    }

    /// Ends all faults; what hangs goes on.
    pub(super) fn clear(&self) {
        if let Self::Simulated(lease) = self {
            lease.clear();
        }
    }

    /// What the simulator has counted; nothing of a real device.
    pub(super) fn stats(&self) -> Stats {
        match self {
            Self::Simulated(lease) => lease.stats(),
            Self::Cuda(_) => Stats::default(),
        }
    }

    /// Copies to the device so far, finished or not, where that can be seen.
    pub(super) fn copies(&self) -> u64 {
        match self {
            Self::Simulated(lease) => lease.calls("cuMemcpyHtoDAsync_v2"),
            Self::Cuda(_) => 0,
        }
    }
}

/// Behind the back of the simulated driver, which a lost context does not hinder; by copies of a real
/// one.
impl Access<DevicePart> for Hardware {
    fn fill(&self, part: &mut DevicePart, fill: impl FnOnce(&mut [u8])) {
        let mut bytes = vec![0; part.len()];
        fill(&mut bytes);
        match self {
            Self::Simulated(lease) => lease.poke(part.address(), &bytes),
            Self::Cuda(cuda) => cuda.poke(part, &bytes),
        }
    }

    fn look<T>(&self, part: &DevicePart, look: impl FnOnce(&[u8]) -> T) -> T {
        match self {
            Self::Simulated(lease) => look(&lease.peek(part.address(), part.len())),
            Self::Cuda(cuda) => look(&cuda.peek(part)),
        }
    }
}
