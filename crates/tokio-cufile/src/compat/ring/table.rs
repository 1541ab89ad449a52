//! Parts that the kernel knows of, found again by `user_data` (I5, I6).

use completion::Ticket;

use crate::compat::run::Run;
use crate::engine::Model;

/// A part in flight, with everything that the kernel can touch on its behalf: the run holds the
/// file, the ticket holds the permits and the slot, and the operation's payload, which the ticket
/// keeps, owns the memory.
pub(super) struct InFlight {
    pub(super) ticket: Ticket<Model>,
    pub(super) run: Run,
    /// Bytes that the entry in the ring asks for: a result above it is a fault of the protocol.
    pub(super) asked: usize,
}

struct Entry {
    generation: u32,
    value: Option<InFlight>,
}

/// A fixed number of entries. A part's entry moves to the next generation when it leaves.
pub(super) struct Table {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl Table {
    pub(super) fn new(capacity: u32) -> Self {
        let entry = |_| Entry {
            generation: 0,
            value: None,
        };
        Self {
            entries: (0..capacity).map(entry).collect(),
            free: (0..capacity).rev().collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Gives the `user_data` of the entry. The part has a permit, of which there are as many as
    /// entries.
    pub(super) fn insert(&mut self, value: InFlight) -> u64 {
        let index = self
            .free
            .pop()
            .expect("a part permit stands for a free entry");
        let entry = &mut self.entries[index as usize];
        entry.value = Some(value);
        u64::from(entry.generation) << 32 | u64::from(index)
    }

    fn entry(&mut self, user_data: u64) -> Option<(u32, &mut Entry)> {
        let index = u32::try_from(user_data & u64::from(u32::MAX)).ok()?;
        let entry = self.entries.get_mut(index as usize)?;
        (u64::from(entry.generation) == user_data >> 32).then_some((index, entry))
    }

    pub(super) fn remove(&mut self, user_data: u64) -> Option<InFlight> {
        let (index, entry) = self.entry(user_data)?;
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(index);
        Some(value)
    }

    /// Takes everything out, for a driver that cannot go on.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = InFlight> + '_ {
        self.entries
            .iter_mut()
            .filter_map(|entry| entry.value.take())
    }
}

#[cfg(test)]
mod tests {
    // The table's own rules; parts in it need an engine, and are tested through one.
    use super::*;

    #[test]
    fn what_names_no_entry_is_unknown() {
        let mut table = Table::new(2);
        for user_data in [0, 1, 2, 1 << 32, u64::MAX] {
            assert!(table.remove(user_data).is_none());
        }
        assert!(table.is_empty());
    }
}
