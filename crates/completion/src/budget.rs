//! Permits: bytes, parts, slots and workers, each either free, reserved, issued or quarantined (I9, I10).

/// What one part takes while it is in flight. Every part also takes one part permit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes in flight.
    pub bytes: u64,
    /// The staging slot that it needs.
    pub slot: Option<SlotSize>,
    /// Whether it occupies a worker thread while it lasts.
    pub worker: bool,
}

impl Cost {
    /// In the order of [`Budget::resources`].
    const fn amounts(self) -> [u64; RESOURCES] {
        let small = matches!(self.slot, Some(SlotSize::Small)) as u64;
        let large = matches!(self.slot, Some(SlotSize::Large)) as u64;
        [self.bytes, 1, large, small, self.worker as u64]
    }
}

/// Slots come in two sizes, so that many small parts can be in flight without as many large slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlotSize {
    /// Of [`Limits::small_slots`].
    Small,
    /// Of [`Limits::slots`].
    Large,
}

/// How much there is of one resource, and how much of that only urgent operations may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// All there is.
    pub capacity: u64,
    /// Of it, what is kept for urgent operations.
    pub reserve: u64,
}

/// What an engine may have in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in flight.
    pub bytes: Limit,
    /// Parts in flight: what the backend takes at once, so that nothing waits behind the
    /// scheduler's back.
    pub parts: Limit,
    /// Large staging slots.
    pub slots: Limit,
    /// Small staging slots. They are numbered after the large ones.
    pub small_slots: Limit,
    /// Worker threads.
    pub workers: Limit,
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
        assert!(self.is_conserved());
    }
}

/// Every permit and slot of an engine, at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Bytes in flight.
    pub bytes: Account,
    /// Parts in flight.
    pub parts: Account,
    /// Large staging slots.
    pub slots: Account,
    /// Small staging slots.
    pub small_slots: Account,
    /// Worker threads.
    pub workers: Account,
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
        self.bytes.is_conserved()
            && self.parts.is_conserved()
            && self.slots.is_conserved()
            && self.small_slots.is_conserved()
            && self.workers.is_conserved()
    }

    /// Whether nothing is in flight.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.live == 0 && self.parts.reserved == 0 && self.parts.issued == 0
    }
}

/// How many resources there are: bytes, parts, large slots, small slots, workers.
const RESOURCES: usize = 5;
const BYTES: usize = 0;
const PARTS: usize = 1;
const SLOTS: usize = 2;
const SMALL_SLOTS: usize = 3;
const WORKERS: usize = 4;

/// One resource: its account, and what urgent operations hold of it.
#[derive(Clone, Copy, Debug)]
struct Resource {
    account: Account,
    reserve: u64,
    urgent: u64,
}

impl Resource {
    fn new(limit: Limit) -> Self {
        assert!(
            limit.reserve < limit.capacity || limit.capacity == 0,
            "the reserve leaves nothing to others: {limit:?}"
        );
        Self {
            account: Account::new(limit.capacity),
            reserve: limit.reserve,
            urgent: 0,
        }
    }

    /// What urgent parts hold counts as taken from the reserve: kept free a second time, an
    /// endless run of small urgent parts would starve a large part of another class.
    const fn kept(&self) -> u64 {
        self.reserve.saturating_sub(self.urgent)
    }
}

/// The accounts of an engine.
#[derive(Debug)]
pub(crate) struct Budget {
    resources: [Resource; RESOURCES],
}

impl Budget {
    pub(crate) fn new(limits: &Limits) -> Self {
        let limits = [
            limits.bytes,
            limits.parts,
            limits.slots,
            limits.small_slots,
            limits.workers,
        ];
        Self {
            resources: limits.map(Resource::new),
        }
    }

    pub(crate) const fn bytes(&self) -> Account {
        self.resources[BYTES].account
    }

    pub(crate) const fn parts(&self) -> Account {
        self.resources[PARTS].account
    }

    pub(crate) const fn slots(&self) -> Account {
        self.resources[SLOTS].account
    }

    pub(crate) const fn small_slots(&self) -> Account {
        self.resources[SMALL_SLOTS].account
    }

    pub(crate) const fn workers(&self) -> Account {
        self.resources[WORKERS].account
    }

    /// Whether `fits` holds for every resource of which `cost` takes something.
    fn every(&self, cost: Cost, fits: impl Fn(&Resource, u64) -> bool) -> bool {
        let taken = self.resources.iter().zip(cost.amounts());
        taken
            .filter(|&(_, amount)| amount > 0)
            .all(|(resource, amount)| fits(resource, amount))
    }

    /// Whether `cost` can be granted now without touching the reserve.
    pub(crate) fn fits_general(&self, cost: Cost) -> bool {
        self.every(cost, |resource, amount| {
            resource.account.free >= amount + resource.kept()
        })
    }

    /// Whether an urgent `cost` can be granted now from all that is free.
    pub(crate) fn fits_urgent(&self, cost: Cost) -> bool {
        self.every(cost, |resource, amount| resource.account.free >= amount)
    }

    /// Whether an urgent `cost` can be granted now from the reserve alone, so that a lower class
    /// that gathers permits is not set back.
    pub(crate) fn fits_reserve(&self, cost: Cost) -> bool {
        self.every(cost, |resource, amount| {
            resource.account.free >= amount && resource.urgent + amount <= resource.reserve
        })
    }

    /// Whether `cost` could be granted if everything in flight came back. Without quarantine,
    /// always: the planner makes no larger part.
    pub(crate) fn can_ever_fit(&self, cost: Cost, urgent: bool) -> bool {
        self.every(cost, |resource, amount| {
            let kept = if urgent { 0 } else { resource.reserve };
            resource.account.usable() >= amount + kept
        })
    }

    /// Moves a part's permits from one standing to another.
    pub(crate) fn shift(&mut self, cost: Cost, urgent: bool, from: Standing, to: Standing) {
        for (resource, amount) in self.resources.iter_mut().zip(cost.amounts()) {
            if amount == 0 {
                continue;
            }
            resource.account.shift(amount, from, to);
            if !urgent {
                continue;
            }
            if from == Standing::Free {
                resource.urgent += amount;
            } else if matches!(to, Standing::Free | Standing::Quarantined) {
                resource.urgent -= amount;
            }
        }
    }

    /// Gives a worker back ahead of its part: what is left of the part occupies none.
    pub(crate) fn free_worker(&mut self, urgent: bool) {
        let workers = &mut self.resources[WORKERS];
        workers.account.shift(1, Standing::Issued, Standing::Free);
        workers.urgent -= u64::from(urgent);
    }

    /// Gives a slot back ahead of its part: what a broken policy does.
    pub(crate) fn free_slot_early(&mut self, size: SlotSize) {
        let slots = match size {
            SlotSize::Small => SMALL_SLOTS,
            SlotSize::Large => SLOTS,
        };
        self.resources[slots]
            .account
            .shift(1, Standing::Issued, Standing::Free);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Cost = Cost {
        bytes: 100,
        slot: None,
        worker: false,
    };
    const LARGE: Cost = Cost {
        slot: Some(SlotSize::Large),
        ..PLAIN
    };
    const GENERAL: bool = false;
    const URGENT: bool = true;

    /// Bytes for ten parts, one of them urgent; two large slots, one of them for urgent parts.
    fn budget() -> Budget {
        let limit = |capacity, reserve| Limit { capacity, reserve };
        Budget::new(&Limits {
            bytes: limit(1000, 100),
            parts: limit(100, 10),
            slots: limit(2, 1),
            small_slots: limit(0, 0),
            workers: limit(0, 0),
            queued_max: 1,
            quiet_limit: std::time::Duration::ZERO,
        })
    }

    fn take(budget: &mut Budget, cost: Cost, urgent: bool) {
        budget.shift(cost, urgent, Standing::Free, Standing::Reserved);
        budget.shift(cost, urgent, Standing::Reserved, Standing::Issued);
    }

    fn end(budget: &mut Budget, cost: Cost, urgent: bool, as_what: Standing) {
        budget.shift(cost, urgent, Standing::Issued, as_what);
    }

    #[test]
    fn the_reserve_is_what_urgent_parts_hold_at_most_by_it() {
        let mut budget = budget();
        assert!(budget.fits_reserve(PLAIN));
        take(&mut budget, PLAIN, GENERAL);
        assert!(budget.fits_reserve(PLAIN), "others take nothing of it");
        take(&mut budget, PLAIN, URGENT);
        assert!(!budget.fits_reserve(PLAIN), "it is taken");
        assert!(budget.fits_urgent(PLAIN) && budget.fits_general(PLAIN));
        end(&mut budget, PLAIN, GENERAL, Standing::Free);
        assert!(
            !budget.fits_reserve(PLAIN),
            "others give nothing back to it"
        );
        end(&mut budget, PLAIN, URGENT, Standing::Free);
        assert!(budget.fits_reserve(PLAIN));
    }

    #[test]
    fn what_urgent_parts_hold_is_not_kept_free_a_second_time() {
        let mut budget = budget();
        let most = Cost {
            bytes: 900,
            ..PLAIN
        };
        let one_more = Cost {
            bytes: 901,
            ..PLAIN
        };
        assert!(budget.fits_general(most) && !budget.fits_general(one_more));
        assert!(budget.fits_urgent(one_more));
        take(&mut budget, PLAIN, URGENT);
        assert!(budget.fits_general(most));
        take(&mut budget, most, GENERAL);
        assert!(!budget.fits_urgent(PLAIN) && !budget.fits_reserve(PLAIN));
    }

    #[test]
    fn what_an_urgent_part_lost_is_gone_from_what_is_free_and_not_from_the_reserve() {
        let mut budget = budget();
        take(&mut budget, PLAIN, URGENT);
        end(&mut budget, PLAIN, URGENT, Standing::Quarantined);
        assert!(budget.fits_reserve(PLAIN));
        let eight = Cost {
            bytes: 800,
            ..PLAIN
        };
        assert!(budget.fits_general(eight));
        let nine = Cost {
            bytes: 900,
            ..PLAIN
        };
        assert!(!budget.fits_general(nine) && budget.fits_urgent(nine));
        assert!(!budget.can_ever_fit(nine, GENERAL) && budget.can_ever_fit(nine, URGENT));
        take(&mut budget, nine, URGENT);
        assert!(!budget.fits_reserve(PLAIN), "nothing is free");
    }

    #[test]
    fn a_part_is_held_up_only_by_what_it_takes() {
        let mut budget = budget();
        take(&mut budget, LARGE, URGENT);
        take(&mut budget, LARGE, GENERAL);
        end(&mut budget, LARGE, URGENT, Standing::Quarantined);
        assert!(!budget.fits_general(LARGE) && !budget.fits_urgent(LARGE));
        assert!(budget.fits_general(PLAIN) && budget.fits_urgent(PLAIN));
        end(&mut budget, LARGE, GENERAL, Standing::Quarantined);
        assert!(!budget.can_ever_fit(LARGE, URGENT));
        assert!(budget.can_ever_fit(PLAIN, GENERAL));
    }

    #[test]
    fn more_urgent_slots_than_the_reserve_has_hold_up_no_part_without_one() {
        let mut budget = budget();
        take(&mut budget, LARGE, URGENT);
        end(
            &mut budget,
            Cost {
                slot: None,
                ..LARGE
            },
            URGENT,
            Standing::Free,
        );
        let slot_alone = Cost { bytes: 0, ..LARGE };
        take(&mut budget, slot_alone, URGENT);
        assert!(!budget.fits_reserve(LARGE));
        assert!(budget.fits_reserve(PLAIN));
    }
}
