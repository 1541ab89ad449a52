//! What the planner hands to an executor, and what the executor says of itself.

use std::sync::Arc;

use super::devices::DeviceSide;
use super::digest::PartDigest;
use super::target::Target;
use crate::file::FileShared;
use crate::plan::{Kind, Lane};
use crate::receipt::{Backend, DataPath, PathClass};

/// One part, as the planner cut it, with the memory it moves.
pub(crate) struct TransferPart {
    pub(crate) file: Arc<FileShared>,
    pub(crate) kind: Kind,
    pub(crate) target: Target,
    /// The device whose memory the target is.
    pub(crate) device: Option<Arc<DeviceSide>>,
    pub(crate) file_offset: u64,
    /// Bytes of the file that the part moves, gaps between its pieces included.
    pub(crate) len: usize,
    pub(crate) lane: Lane,
    /// Executed by the ring; by a worker of the pool otherwise.
    pub(crate) by_ring: bool,
    /// Whether bytes that are in the page cache may come from there.
    pub(crate) may_use_cache: bool,
    pub(crate) require: Option<PathClass>,
    /// Whether somebody waits for the source of a write, before its end even.
    pub(crate) lets_go: bool,
    /// Of a part that is not for the ring.
    pub(crate) digest: Option<PartDigest>,
}

impl TransferPart {
    /// Whether the pool has it because it is staged, although the file has a ring. What is digested
    /// has a reason of its own.
    pub(crate) fn is_beside_the_ring(&self) -> bool {
        let is_for_ring = self.file.route.by_ring && self.digest.is_none();
        is_for_ring && !self.by_ring && matches!(self.lane, Lane::DirectViaSlot { .. })
    }
}

/// The paths that an executor's bytes take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paths {
    pub(crate) backend: Backend,
    pub(crate) direct: DataPath,
    pub(crate) cached: DataPath,
}
