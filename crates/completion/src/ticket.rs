//! A part in a backend's hands: a token that is used up exactly once (I5).

use std::fmt;
use std::sync::Arc;

use crate::core::Core;
use crate::domain::{Domain, PartOutcome};
use crate::wakers::Wakers;

/// Names one part in flight. Fits the `user_data` of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartKey(u64);

impl PartKey {
    pub(crate) const fn new(index: u32, generation: u32) -> Self {
        Self((generation as u64) << 32 | index as u64)
    }

    /// The key as one word.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The key that [`to_bits`](Self::to_bits) gave. Any word is safe: an unknown key is counted
    /// and dropped.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the low half is the index")]
    pub(crate) const fn index(self) -> u32 {
        self.0 as u32
    }

    pub(crate) const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// The staging slot that a part may use until it is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotId(pub u32);

/// A part that was granted and is not yet visible to any hardware.
///
/// Dropped instead of started, it is taken back as if it had never been granted, and its operation
/// stops: a backend that drops parts is shutting down.
#[must_use = "a part that is not started stops its operation"]
pub struct IssuedPart<D: Domain> {
    key: PartKey,
    slot: Option<SlotId>,
    /// `None` once started.
    unstarted: Option<(Arc<Core<D>>, D::Task)>,
}

impl<D: Domain> IssuedPart<D> {
    pub(crate) const fn new(
        core: Arc<Core<D>>,
        key: PartKey,
        slot: Option<SlotId>,
        task: D::Task,
    ) -> Self {
        Self {
            key,
            slot,
            unstarted: Some((core, task)),
        }
    }

    /// What it is, for a backend that chooses an executor by it. `None` once started.
    #[must_use]
    pub fn task(&self) -> Option<&D::Task> {
        self.unstarted.as_ref().map(|(_, task)| task)
    }

    /// The last instant at which a cancel is exact (I24). `None`: the operation was stopped, and
    /// the part has been taken back; its memory may be gone. Otherwise the part counts as visible to
    /// hardware from here on.
    pub fn start(mut self) -> Option<(Ticket<D>, D::Task)> {
        let (core, task) = self.unstarted.take()?;
        let (key, slot) = (self.key, self.slot);
        core.start(key).then(|| {
            (
                Ticket {
                    core: Some(core),
                    key,
                    slot,
                },
                task,
            )
        })
    }
}

impl<D: Domain> Drop for IssuedPart<D> {
    fn drop(&mut self) {
        if let Some((core, task)) = self.unstarted.take() {
            core.hand_back(self.key);
            drop(task);
        }
    }
}

impl<D: Domain> fmt::Debug for IssuedPart<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuedPart")
            .field("key", &self.key)
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}

/// What to do after a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Go on with the next stage.
    Proceed,
    /// Nobody waits for it: finish the part without its later stages (I17).
    Skip,
}

/// A started part. Whoever holds it owes exactly one [`finish`](Self::finish); dropped without, the
/// part counts as lost and the operation's memory is quarantined (I3, I4).
#[must_use = "a ticket that is dropped quarantines its operation"]
pub struct Ticket<D: Domain> {
    core: Option<Arc<Core<D>>>,
    key: PartKey,
    slot: Option<SlotId>,
}

impl<D: Domain> Ticket<D> {
    /// The slot that the part may use.
    #[must_use]
    pub const fn slot(&self) -> Option<SlotId> {
        self.slot
    }

    /// The part's name, for a completion that will arrive by name:
    /// [`Core::finish`](crate::Core::finish) is then owed instead.
    #[must_use]
    pub fn into_key(mut self) -> PartKey {
        self.core = None;
        self.key
    }

    /// A stage that is not the last was seen complete.
    #[must_use]
    pub fn advance(&self) -> Next {
        self.core
            .as_ref()
            .map_or(Next::Skip, |core| core.advance(self.key))
    }

    /// What is left of the part occupies no worker: the next part may have it.
    pub fn free_worker(&self) {
        if let Some(core) = &self.core {
            core.free_worker(self.key);
        }
    }

    /// The part touches the payload no more: what is left to do is between its slot and the device.
    /// When all parts have let go, [`PayloadWatch`](crate::PayloadWatch) says so.
    pub fn let_go(&self) {
        if let Some(core) = &self.core {
            core.let_go(self.key);
        }
    }

    /// The part is at work, on something that no backend times: its silence is counted from now.
    /// Tells whether anybody waits for the operation.
    #[must_use]
    pub fn report(&self) -> Next {
        self.core
            .as_ref()
            .map_or(Next::Skip, |core| core.report(self.key))
    }

    /// Whether the operation was quarantined without it: nothing that the part still does is for
    /// anybody, and the outcome is only counted.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        self.core
            .as_ref()
            .is_none_or(|core| core.is_given_up(self.key))
    }

    /// As [`finish`](Self::finish), but whom it would wake is added to `wakers`: the caller has
    /// more to finish, and wakes afterwards.
    pub fn finish_with(mut self, outcome: PartOutcome<D>, wakers: &mut Wakers) {
        if let Some(core) = self.core.take() {
            core.finish_with(self.key, outcome, wakers);
        }
    }

    /// The part is quiet: no hardware touches its memory any more.
    pub fn finish(mut self, outcome: PartOutcome<D>) {
        if let Some(core) = self.core.take() {
            core.finish(self.key, outcome);
        }
    }
}

impl<D: Domain> Drop for Ticket<D> {
    fn drop(&mut self) {
        if let Some(core) = self.core.take() {
            core.lose(self.key);
        }
    }
}

impl<D: Domain> fmt::Debug for Ticket<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("key", &self.key)
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}
