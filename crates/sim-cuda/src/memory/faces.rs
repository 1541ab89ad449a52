//! Which addresses of a device's reserved range are whose.

use std::collections::BTreeMap;

use crate::raw::{self, PAGE};

/// Addresses that nobody can touch, handed out upwards. What was given back is used again only when
/// there is nothing new: an address of old is then no valid one by chance.
#[derive(Debug)]
pub(super) struct Faces {
    pub(super) base: usize,
    len: usize,
    next: usize,
    returned: BTreeMap<usize, usize>,
}

impl Faces {
    pub(super) fn reserve(len: usize) -> Option<Self> {
        let base = raw::reserve(len)?;
        Some(Self {
            base,
            len,
            next: base,
            returned: BTreeMap::new(),
        })
    }

    pub(super) fn contains(&self, address: usize) -> bool {
        (self.base..self.base + self.len).contains(&address)
    }

    /// Whole pages, with one more that belongs to nobody.
    pub(super) fn take(&mut self, pages: usize) -> Option<usize> {
        let len = pages.checked_add(1)?.checked_mul(PAGE)?;
        if len <= self.base + self.len - self.next {
            let face = self.next;
            self.next += len;
            return Some(face);
        }
        let (&face, &found) = self.returned.iter().find(|(_, found)| **found >= len)?;
        self.returned.remove(&face);
        if found > len {
            self.returned.insert(face + len, found - len);
        }
        Some(face)
    }

    pub(super) fn give_back(&mut self, face: usize, pages: usize) {
        let mut len = (pages + 1) * PAGE;
        let mut start = face;
        if let Some(after) = self.returned.remove(&(face + len)) {
            len += after;
        }
        if let Some((&before, &before_len)) = self.returned.range(..face).next_back()
            && before + before_len == face
        {
            start = before;
            len += before_len;
        }
        self.returned.insert(start, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages, the one between included.
    const PAGES: usize = 64;

    fn faces() -> Faces {
        Faces::reserve(PAGES * PAGE).expect("there are addresses")
    }

    #[test]
    fn what_was_given_back_is_used_when_there_is_nothing_new() {
        let mut faces = faces();
        let first = faces.take(1).expect("all is free");
        faces.give_back(first, 1);
        let second = faces.take(1).expect("nearly all is free");
        assert_ne!(first, second);
        let rest = faces.take(PAGES - 5).expect("the rest");
        assert_eq!(faces.take(1), Some(first));
        assert_eq!(faces.take(1), None);
        assert!(faces.contains(rest));
    }

    #[test]
    fn neighbours_that_were_given_back_are_one() {
        // Each of the three can come last, in the middle or first.
        for order in [[0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 0, 2]] {
            let mut faces = faces();
            let taken = [(); 3].map(|()| faces.take(3).expect("there is room"));
            let rest = faces.take(PAGES - 13).expect("the rest");
            for index in order {
                faces.give_back(taken[index], 3);
            }
            assert_eq!(faces.take(11), Some(taken[0]), "{order:?}");
            faces.give_back(rest, PAGES - 13);
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let mut faces = faces();
        assert_eq!(faces.take(PAGES), None);
        assert_eq!(faces.take(usize::MAX), None);
        assert_eq!(faces.take(usize::MAX / PAGE), None);
        assert!(faces.take(PAGES - 1).is_some());
    }
}
