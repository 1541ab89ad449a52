//! Parts that the kernel knows of, found again by `user_data` (I5, I6).

use crate::compat::devices::Staged;

/// A part in flight, with everything that the kernel can touch on its behalf: the run holds the
/// file, the ticket holds the permits and the slot, and the operation's payload, which the ticket
/// keeps, owns the memory.
pub(super) struct InFlight {
    pub(super) staged: Box<Staged>,
    /// Bytes that the entry in the ring asks for: a result above it is a fault of the protocol.
    pub(super) asked: usize,
    /// The throttle counts it.
    pub(super) throttled: bool,
}

struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

/// A fixed number of entries. A part's entry moves to the next generation when it leaves.
pub(super) struct Table<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

impl<T> Table<T> {
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
    pub(super) fn insert(&mut self, value: T) -> u64 {
        let index = self
            .free
            .pop()
            .expect("a part permit stands for a free entry");
        let entry = &mut self.entries[index as usize];
        entry.value = Some(value);
        u64::from(entry.generation) << 32 | u64::from(index)
    }

    fn entry(&mut self, user_data: u64) -> Option<(u32, &mut Entry<T>)> {
        let index = u32::try_from(user_data & u64::from(u32::MAX)).ok()?;
        let entry = self.entries.get_mut(index as usize)?;
        (u64::from(entry.generation) == user_data >> 32).then_some((index, entry))
    }

    pub(super) fn remove(&mut self, user_data: u64) -> Option<T> {
        let (index, entry) = self.entry(user_data)?;
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(index);
        Some(value)
    }

    /// Takes everything out, for a driver that cannot go on.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.entries
            .iter_mut()
            .filter_map(|entry| entry.value.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_no_entry_is_unknown() {
        let mut table: Table<char> = Table::new(2);
        for user_data in [0, 1, 2, 1 << 32, u64::MAX] {
            assert!(table.remove(user_data).is_none());
        }
        assert!(table.is_empty());
    }

    #[test]
    fn a_name_of_an_entrys_earlier_life_finds_nothing() {
        let mut table = Table::new(1);
        let mut earlier = Vec::new();
        for value in 'a'..='z' {
            let name = table.insert(value);
            assert!(!earlier.contains(&name));
            assert!(earlier.iter().all(|&old| table.remove(old).is_none()));
            assert_eq!(table.remove(name), Some(value));
            assert!(table.remove(name).is_none(), "doubled");
            earlier.push(name);
        }
    }

    #[test]
    fn a_full_table_gives_back_what_was_put_in_in_any_order() {
        let mut table = Table::new(64);
        let mut names: Vec<(u64, u32)> =
            (0..64).map(|value| (table.insert(value), value)).collect();
        assert_eq!(table.len(), 64);
        names.reverse();
        names.swap(3, 50);
        for (name, value) in names {
            assert_eq!(table.remove(name), Some(value));
        }
        assert!(table.is_empty());
    }
}
