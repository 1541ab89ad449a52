//! Which queued operation is granted its next part.
//!
//! - Classes in order: urgent, normal, bulk; inside a class, the oldest operation first.
//! - Nothing overtakes the chosen part while it gathers permits, or a large part would wait for
//!   ever behind small ones. Except: an urgent part may take permits from the reserve, which no
//!   other class can use. So an urgent part that the reserve can hold waits for urgent ones only.
//! - A class that was passed over [`PASSED_OVER_MAX`] times is granted next, so that none starves.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::budget::{Budget, Cost};
use crate::domain::{Class, Domain, Part};
use crate::operation::Operation;

/// Grants to other classes that a waiting class sees at most before it has its turn.
pub(crate) const PASSED_OVER_MAX: u32 = 16;

/// The parts of an operation, planned as they are granted.
pub(crate) type Parts<D> = Box<dyn Iterator<Item = Part<D>> + Send>;

/// What an operation has yet to issue: the next part, and the rest. It does not name its operation,
/// so that the operation itself can keep it.
pub(crate) struct Remainder<D: Domain> {
    pub(crate) head: Part<D>,
    pub(crate) rest: Parts<D>,
}

struct Entry<D: Domain> {
    operation: Arc<Operation<D>>,
    remainder: Remainder<D>,
}

/// What to do next.
pub(crate) enum Pick<D: Domain> {
    /// Nothing, until permits come back or something is queued.
    Wait,
    /// Issue this part.
    Grant {
        operation: Arc<Operation<D>>,
        part: Part<D>,
        class: Class,
        /// When the operation has no more: its iterator, to be dropped without the lock.
        spent: Option<Parts<D>>,
    },
    /// This operation can never be served: too much of the budget is quarantined.
    Hopeless(Arc<Operation<D>>, Remainder<D>),
}

pub(crate) struct Scheduler<D: Domain> {
    classes: [Queue<D>; 3],
    next_age: u64,
}

struct Queue<D: Domain> {
    by_age: BTreeMap<u64, Entry<D>>,
    passed_over: u32,
}

impl<D: Domain> Queue<D> {
    fn head_cost(&self) -> Option<Cost> {
        let oldest = self.by_age.values().next();
        oldest.map(|entry| entry.remainder.head.cost)
    }
}

impl<D: Domain> Scheduler<D> {
    pub(crate) fn new() -> Self {
        let queue = |_| Queue {
            by_age: BTreeMap::new(),
            passed_over: 0,
        };
        Self {
            classes: Class::ALL.map(queue),
            next_age: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.classes.iter().all(|queue| queue.by_age.is_empty())
    }

    pub(crate) fn queued(&self) -> usize {
        self.classes.iter().map(|queue| queue.by_age.len()).sum()
    }

    /// Queues an operation behind its class. Gives its age, by which it can be withdrawn.
    pub(crate) fn push(
        &mut self,
        class: Class,
        operation: Arc<Operation<D>>,
        remainder: Remainder<D>,
    ) -> u64 {
        let age = self.next_age;
        self.next_age += 1;
        let entry = Entry {
            operation,
            remainder,
        };
        self.classes[class.index()].by_age.insert(age, entry);
        age
    }

    pub(crate) fn remove(&mut self, class: Class, age: u64) -> Option<Remainder<D>> {
        let entry = self.classes[class.index()].by_age.remove(&age);
        entry.map(|entry| entry.remainder)
    }

    /// Any queued operation, for shutdown.
    pub(crate) fn any(&self) -> Option<Arc<Operation<D>>> {
        let heads = self
            .classes
            .iter()
            .filter_map(|queue| queue.by_age.values().next());
        heads.map(|entry| Arc::clone(&entry.operation)).next()
    }

    pub(crate) fn pick(&mut self, budget: &Budget) -> Pick<D> {
        let Some((class, starving)) = self.choose() else {
            return Pick::Wait;
        };
        let urgent = class == Class::Urgent;
        let Some(cost) = self.classes[class.index()].head_cost() else {
            return Pick::Wait;
        };
        if !budget.can_ever_fit(cost, urgent) {
            let hopeless = self.classes[class.index()].by_age.pop_first();
            return hopeless.map_or(Pick::Wait, |(_, entry)| {
                Pick::Hopeless(entry.operation, entry.remainder)
            });
        }
        let fits = if urgent {
            budget.fits_urgent(cost)
        } else {
            budget.fits_general(cost)
        };
        if fits {
            self.count_passed_over(class);
            return self.take(class);
        }
        let urgent_cost = self.classes[Class::Urgent.index()].head_cost();
        match urgent_cost {
            Some(cost) if !urgent && starving && budget.fits_reserve(cost) => {
                self.take(Class::Urgent)
            }
            _ => Pick::Wait,
        }
    }

    /// The class whose turn it is, and whether it has it for having waited.
    fn choose(&self) -> Option<(Class, bool)> {
        let waiting = |class: &Class| !self.classes[class.index()].by_age.is_empty();
        let starved = |class: &Class| self.classes[class.index()].passed_over >= PASSED_OVER_MAX;
        let lowest_first = || Class::ALL.into_iter().rev().filter(waiting);
        if let Some(class) = lowest_first().find(starved) {
            return Some((class, true));
        }
        Class::ALL
            .into_iter()
            .find(waiting)
            .map(|class| (class, false))
    }

    fn count_passed_over(&mut self, granted: Class) {
        for class in Class::ALL {
            let queue = &mut self.classes[class.index()];
            if class == granted || queue.by_age.is_empty() {
                queue.passed_over = 0;
            } else {
                queue.passed_over += 1;
            }
        }
    }

    fn take(&mut self, class: Class) -> Pick<D> {
        let Some(mut oldest) = self.classes[class.index()].by_age.first_entry() else {
            return Pick::Wait;
        };
        let entry = oldest.get_mut();
        let operation = Arc::clone(&entry.operation);
        let (part, spent) = match entry.remainder.rest.next() {
            Some(next) => (std::mem::replace(&mut entry.remainder.head, next), None),
            None => {
                let Remainder { head, rest } = oldest.remove().remainder;
                (head, Some(rest))
            }
        };
        Pick::Grant {
            operation,
            part,
            class,
            spent,
        }
    }
}
