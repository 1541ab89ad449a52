//! What an executor is handed.

use completion::IssuedPart;

use super::devices::Staged;
use crate::engine::Model;

/// A part to execute. Dropped, it goes back to the scheduler, or, where it was begun, to quarantine.
pub(super) enum Job {
    Start(IssuedPart<Model>),
    /// A part that has been there before, has its permits still, and whose bytes a device has copied
    /// to its slot.
    Resume(Box<Staged>),
}
