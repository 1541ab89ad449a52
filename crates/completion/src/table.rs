//! Parts that are out, found again by index and generation (I5, I6).

use crate::policy::ReleasePolicy;
use crate::ticket::PartKey;

/// A fixed number of entries. A key is good for one life of its entry: removing the value moves the
/// entry on to the next generation.
#[derive(Debug)]
pub(crate) struct Table<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Table<T> {
    pub(crate) fn new(capacity: u32) -> Self {
        let entries = (0..capacity).map(|_| Entry {
            // Not 0, so that the zero word, which a backend may use for its own, names no part.
            generation: 1,
            value: None,
        });
        Self {
            entries: entries.collect(),
            free: (0..capacity).rev().collect(),
        }
    }

    /// The caller holds a permit for the entry, so there is one.
    pub(crate) fn insert(&mut self, value: T) -> PartKey {
        let index = self
            .free
            .pop()
            .expect("a part permit stands for a free entry");
        let entry = &mut self.entries[index as usize];
        assert!(entry.value.is_none(), "entry {index} was free");
        entry.value = Some(value);
        PartKey::new(index, entry.generation)
    }

    pub(crate) fn get<P: ReleasePolicy>(&mut self, key: PartKey) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.index() as usize)?;
        if !P::accepts_generation(entry.generation, key.generation()) {
            return None;
        }
        entry.value.as_mut()
    }

    pub(crate) fn remove<P: ReleasePolicy>(&mut self, key: PartKey) -> Option<T> {
        self.get::<P>(key)?;
        let entry = &mut self.entries[key.index() as usize];
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(key.index());
        entry.value.take()
    }

    pub(crate) fn values(&mut self) -> impl Iterator<Item = &mut T> {
        self.enumerate().map(|(_, value)| value)
    }

    /// The values, with the index of each.
    pub(crate) fn enumerate(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        let entries = (0..).zip(self.entries.iter_mut());
        entries.filter_map(|(index, entry)| Some((index, entry.value.as_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::WhenQuiet;

    #[test]
    fn a_key_is_dead_after_its_entry_was_reused() {
        let mut table = Table::new(1);
        let first = table.insert('a');
        assert_eq!(table.remove::<WhenQuiet>(first), Some('a'));
        let second = table.insert('b');
        assert_eq!(first.index(), second.index());
        assert_eq!(table.remove::<WhenQuiet>(first), None);
        assert_eq!(table.remove::<WhenQuiet>(second), Some('b'));
    }

    #[test]
    fn an_index_outside_the_table_is_unknown() {
        let mut table = Table::<char>::new(1);
        assert_eq!(table.remove::<WhenQuiet>(PartKey::new(7, 0)), None);
    }
}
