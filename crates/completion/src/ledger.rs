//! Outcomes of writes that nobody awaited, kept for their file's next sync, close or commit (I8).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use crate::sync::{Mutex, lock};

/// How an orphaned write was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss<F> {
    /// It failed.
    Failed(F),
    /// Its future was dropped when some of its parts had been issued and others had not.
    Torn,
    /// It could not be proved to have ended.
    Quarantined,
}

/// Why the content of a file is not what its writers think.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt<F> {
    /// The first loss; later ones do not replace it.
    pub first: Loss<F>,
    /// The lowest file offset, in bytes, whose content is in doubt by any loss.
    pub offset: u64,
    /// How many writes were lost.
    pub writes: u64,
}

/// One file's ledger: which writes are outstanding, and what became of the orphaned ones.
#[derive(Debug)]
pub struct Ledger<F> {
    path: Arc<Path>,
    inner: Mutex<Inner<F>>,
}

#[derive(Debug)]
struct Inner<F> {
    next_ticket: u64,
    outstanding: BTreeSet<u64>,
    /// Operations that wait for every write below a ticket.
    barriers: BTreeMap<u64, u64>,
    doubt: Option<Doubt<F>>,
    unread: bool,
    file_gone: bool,
}

impl<F: Clone> Ledger<F> {
    /// A ledger with nothing in it, for the file at that path.
    #[must_use]
    pub fn new(path: Arc<Path>) -> Self {
        Self {
            path,
            inner: Mutex::new(Inner {
                next_ticket: 0,
                outstanding: BTreeSet::new(),
                barriers: BTreeMap::new(),
                doubt: None,
                unread: false,
                file_gone: false,
            }),
        }
    }

    /// The file's path, for reports.
    #[must_use]
    pub const fn path(&self) -> &Arc<Path> {
        &self.path
    }

    /// What is in doubt. Sticky: once a write was lost, every later call says so. The loss counts
    /// as read.
    #[must_use]
    pub fn doubt(&self) -> Option<Doubt<F>> {
        let mut inner = lock(&self.inner);
        inner.unread = false;
        inner.doubt.clone()
    }

    /// The file is gone: no sync will come. Gives what nobody read; what is lost from now on goes
    /// to [`Environment::lost_write`](crate::Environment::lost_write).
    #[must_use]
    pub fn abandon(&self) -> Option<Doubt<F>> {
        let mut inner = lock(&self.inner);
        inner.file_gone = true;
        if std::mem::take(&mut inner.unread) {
            inner.doubt.clone()
        } else {
            None
        }
    }

    /// Writes that have not settled, orphaned ones included.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        lock(&self.inner).outstanding.len()
    }

    pub(crate) fn begin(&self) -> u64 {
        let mut inner = lock(&self.inner);
        let ticket = inner.next_ticket;
        inner.next_ticket += 1;
        inner.outstanding.insert(ticket);
        ticket
    }

    /// A write has settled. Gives the operations whose barrier it was the last to hold down.
    pub(crate) fn finish(&self, ticket: u64) -> Vec<u64> {
        let mut inner = lock(&self.inner);
        let was_outstanding = inner.outstanding.remove(&ticket);
        assert!(was_outstanding, "write {ticket} ends twice");
        let oldest = inner.outstanding.first().copied().unwrap_or(u64::MAX);
        let open = |(&operation, &below): (&u64, &u64)| (below <= oldest).then_some(operation);
        let opened: Vec<u64> = inner.barriers.iter().filter_map(open).collect();
        for operation in &opened {
            inner.barriers.remove(operation);
        }
        opened
    }

    /// Whether `operation` must wait for writes that began before it.
    pub(crate) fn wait(&self, operation: u64) -> bool {
        let mut inner = lock(&self.inner);
        if inner.outstanding.is_empty() {
            return false;
        }
        let below = inner.next_ticket;
        inner.barriers.insert(operation, below);
        true
    }

    pub(crate) fn forget(&self, operation: u64) {
        lock(&self.inner).barriers.remove(&operation);
    }

    /// Keeps a loss. Gives the doubt back when the file is gone and nobody will ask.
    #[must_use]
    pub(crate) fn record(&self, loss: Loss<F>, offset: u64) -> Option<Doubt<F>> {
        let mut inner = lock(&self.inner);
        let doubt = match inner.doubt.take() {
            None => Doubt {
                first: loss,
                offset,
                writes: 1,
            },
            Some(mut doubt) => {
                doubt.offset = doubt.offset.min(offset);
                doubt.writes += 1;
                doubt
            }
        };
        inner.unread = !inner.file_gone;
        let untold = inner.file_gone.then(|| doubt.clone());
        inner.doubt = Some(doubt);
        untold
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        lock(&self.inner).file_gone
    }
}

#[cfg(all(test, not(any(completion_loom, completion_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_first_loss_is_sticky_and_the_lowest_offset_is_kept() {
        let ledger = Ledger::new(Path::new("file").into());
        assert_eq!(ledger.record(Loss::Failed("EIO"), 8192), None);
        assert_eq!(ledger.record(Loss::Failed("ENOSPC"), 4096), None);
        let doubt = Doubt {
            first: Loss::Failed("EIO"),
            offset: 4096,
            writes: 2,
        };
        assert_eq!(ledger.doubt(), Some(doubt.clone()));
        assert_eq!(ledger.doubt(), Some(doubt));
    }

    #[test]
    fn a_barrier_opens_with_the_last_write_before_it_and_ignores_later_ones() {
        let ledger = Ledger::<()>::new(Path::new("file").into());
        let (first, second) = (ledger.begin(), ledger.begin());
        assert!(ledger.wait(7));
        let later = ledger.begin();
        assert!(ledger.finish(second).is_empty());
        assert_eq!(ledger.finish(first), [7]);
        assert!(ledger.finish(later).is_empty());
        assert!(!ledger.wait(8));
    }

    #[test]
    fn a_barrier_that_was_withdrawn_is_not_opened() {
        let ledger = Ledger::<()>::new(Path::new("file").into());
        let write = ledger.begin();
        assert!(ledger.wait(7) && ledger.wait(8));
        ledger.forget(7);
        assert_eq!(ledger.finish(write), [8]);
    }

    #[test]
    fn an_unread_loss_is_given_out_when_the_file_goes_and_a_read_one_is_not() {
        let unread = Ledger::new(Path::new("file").into());
        assert_eq!(unread.record(Loss::<()>::Torn, 0), None);
        assert!(unread.abandon().is_some());
        assert!(
            unread.record(Loss::Torn, 0).is_some(),
            "nobody else will report it"
        );

        let read = Ledger::new(Path::new("file").into());
        assert_eq!(read.record(Loss::<()>::Torn, 0), None);
        assert!(read.doubt().is_some());
        assert_eq!(read.abandon(), None);
    }
}
