//! Permits: bytes, parts and slots, each either free, reserved, issued or quarantined (I9, I10).

/// What one part takes while it is in flight. Every part also takes one part permit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes in flight.
    pub bytes: u64,
    /// Whether it needs a staging slot.
    pub slot: bool,
}

/// What an engine may have in flight, and how much of that only urgent operations may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in flight at most.
    pub bytes: u64,
    /// Of these, bytes kept for urgent operations.
    pub bytes_reserve: u64,
    /// Parts in flight at most: the backend's true parallelism, so that nothing waits behind the
    /// scheduler's back.
    pub parts: u32,
    /// Of these, parts kept for urgent operations.
    pub parts_reserve: u32,
    /// Staging slots.
    pub slots: u32,
    /// Of these, slots kept for urgent operations.
    pub slots_reserve: u32,
    /// Operations that may wait.
    pub queued_max: usize,
    /// How long nothing may be heard of a part, once its operation is asked to stop.
    pub quiet_limit: std::time::Duration,
}

/// Where a permit stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Free,
    Reserved,
    Issued,
    Quarantined,
}

/// How one resource is spread over its standings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// All there is.
    pub capacity: u64,
    /// To be granted.
    pub free: u64,
    /// Granted, not yet visible to hardware.
    pub reserved: u64,
    /// In the hands of the kernel, a library or a device.
    pub issued: u64,
    /// Lost for good: quiet could not be proved.
    pub quarantined: u64,
}

impl Account {
    const fn new(capacity: u64) -> Self {
        Self {
            capacity,
            free: capacity,
            reserved: 0,
            issued: 0,
            quarantined: 0,
        }
    }

    /// Whether nothing is lost and nothing is counted twice (I9).
    #[must_use]
    pub const fn is_conserved(&self) -> bool {
        self.free + self.reserved + self.issued + self.quarantined == self.capacity
    }

    /// What can ever be granted again.
    const fn usable(&self) -> u64 {
        self.capacity - self.quarantined
    }

    const fn standing(&mut self, standing: Standing) -> &mut u64 {
        match standing {
            Standing::Free => &mut self.free,
            Standing::Reserved => &mut self.reserved,
            Standing::Issued => &mut self.issued,
            Standing::Quarantined => &mut self.quarantined,
        }
    }

    fn shift(&mut self, amount: u64, from: Standing, to: Standing) {
        let source = self.standing(from);
        assert!(*source >= amount, "{amount} permits are not {from:?}");
        *source -= amount;
        *self.standing(to) += amount;
        debug_assert!(self.is_conserved());
    }
}

/// Every permit and slot of an engine, at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Bytes in flight.
    pub bytes: Account,
    /// Parts in flight.
    pub parts: Account,
    /// Staging slots.
    pub slots: Account,
    /// Operations that wait for permits, or for earlier writes of their file.
    pub queued: usize,
    /// Operations admitted and not settled.
    pub live: usize,
    /// Completions that named no part in flight: late, doubled or unknown. Dropped (I5).
    pub stray_completions: u64,
    /// Operations whose memory was leaked because quiet could not be proved.
    pub quarantined_operations: u64,
}

impl Census {
    /// Whether every account adds up (I9).
    #[must_use]
    pub const fn is_conserved(&self) -> bool {
        self.bytes.is_conserved() && self.parts.is_conserved() && self.slots.is_conserved()
    }

    /// Whether nothing is in flight.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.live == 0 && self.parts.reserved == 0 && self.parts.issued == 0
    }
}

/// The accounts, and what urgent operations hold of them.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) bytes: Account,
    pub(crate) parts: Account,
    pub(crate) slots: Account,
    bytes_reserve: u64,
    parts_reserve: u64,
    slots_reserve: u64,
    urgent_bytes: u64,
    urgent_parts: u64,
    urgent_slots: u64,
}

impl Budget {
    pub(crate) fn new(limits: &Limits) -> Self {
        assert!(
            limits.bytes_reserve < limits.bytes,
            "the reserve is the whole budget"
        );
        assert!(
            limits.parts_reserve < limits.parts,
            "the reserve is every part"
        );
        assert!(
            limits.slots_reserve <= limits.slots,
            "the reserve exceeds the slots"
        );
        Self {
            bytes: Account::new(limits.bytes),
            parts: Account::new(u64::from(limits.parts)),
            slots: Account::new(u64::from(limits.slots)),
            bytes_reserve: limits.bytes_reserve,
            parts_reserve: u64::from(limits.parts_reserve),
            slots_reserve: u64::from(limits.slots_reserve),
            urgent_bytes: 0,
            urgent_parts: 0,
            urgent_slots: 0,
        }
    }

    /// Whether `cost` can be granted now without touching the reserve. What urgent parts hold
    /// counts as taken from it: kept free a second time, an endless run of small urgent parts would
    /// starve a large part of another class.
    pub(crate) const fn fits_general(&self, cost: Cost) -> bool {
        let bytes_kept = self.bytes_reserve.saturating_sub(self.urgent_bytes);
        let parts_kept = self.parts_reserve.saturating_sub(self.urgent_parts);
        let slots_kept = self.slots_reserve.saturating_sub(self.urgent_slots);
        self.bytes.free >= cost.bytes + bytes_kept
            && self.parts.free > parts_kept
            && (!cost.slot || self.slots.free > slots_kept)
    }

    /// Whether an urgent `cost` can be granted now from all that is free.
    pub(crate) const fn fits_urgent(&self, cost: Cost) -> bool {
        self.bytes.free >= cost.bytes
            && self.parts.free >= 1
            && (!cost.slot || self.slots.free >= 1)
    }

    /// Whether an urgent `cost` can be granted now from the reserve alone, so that a lower class
    /// that gathers permits is not set back.
    pub(crate) const fn fits_reserve(&self, cost: Cost) -> bool {
        self.fits_urgent(cost)
            && self.urgent_bytes + cost.bytes <= self.bytes_reserve
            && self.urgent_parts < self.parts_reserve
            && (!cost.slot || self.urgent_slots < self.slots_reserve)
    }

    /// Whether `cost` could be granted if everything in flight came back. Without quarantine,
    /// always: the planner makes no larger part.
    pub(crate) const fn can_ever_fit(&self, cost: Cost, urgent: bool) -> bool {
        let (bytes, parts, slots) = if urgent {
            (0, 0, 0)
        } else {
            (self.bytes_reserve, self.parts_reserve, self.slots_reserve)
        };
        self.bytes.usable() >= cost.bytes + bytes
            && self.parts.usable() > parts
            && (!cost.slot || self.slots.usable() > slots)
    }

    /// Moves a part's permits from one standing to another.
    pub(crate) fn shift(&mut self, cost: Cost, urgent: bool, from: Standing, to: Standing) {
        self.bytes.shift(cost.bytes, from, to);
        self.parts.shift(1, from, to);
        if cost.slot {
            self.slots.shift(1, from, to);
        }
        if urgent {
            let slots = u64::from(cost.slot);
            if from == Standing::Free {
                self.urgent_bytes += cost.bytes;
                self.urgent_parts += 1;
                self.urgent_slots += slots;
            } else if matches!(to, Standing::Free | Standing::Quarantined) {
                self.urgent_bytes -= cost.bytes;
                self.urgent_parts -= 1;
                self.urgent_slots -= slots;
            }
        }
    }

    /// Gives a slot back ahead of its part: what a broken policy does.
    pub(crate) fn free_slot_early(&mut self) {
        self.slots.shift(1, Standing::Issued, Standing::Free);
    }
}
