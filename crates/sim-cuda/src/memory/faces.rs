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
