//! How an operation may end, and what is done with what it leaves.

use std::sync::Arc;

use tokio_cufile::{Backend, Error, ErrorKind, IoBufMut, OpError};

use super::arena::{Access, Ground, Held};
use super::content::Written;
use super::counts::{Fault, Harm, add};
use super::devices::{Device, Role};
use super::fate::Fate;
use super::field::{Epoch, Late, Orphan};
use super::fly::Flight;
use super::foreign::Carries;
use super::lock;

impl<G, A> Flight<G, A>
where
    G: Ground<Part: IoBufMut>,
    A: Access<G::Part>,
{
    pub(super) fn note_done(&self, bytes: usize) {
        add(&self.epoch.counts.done, 1);
        let acts = &self.epoch.counts.acts;
        acts.ended_well(self.act);
        if self.is_foreign {
            acts.ended_well_on_foreign();
        }
        self.epoch.note_bytes(bytes);
    }

    /// Looks whether it may have failed so. Gives the memory, unless it is quarantined.
    pub(super) fn failed<B: Carries<G::Part>>(
        &self,
        held: Held<G::Part>,
        error: OpError<B>,
    ) -> Option<(Held<G::Part>, G::Part)> {
        let written = self.claim.generation.map(|_| Written::Failed);
        self.failed_as(held, error, written)
    }

    pub(super) fn failed_as<B: Carries<G::Part>>(
        &self,
        held: Held<G::Part>,
        error: OpError<B>,
        written: Option<Written>,
    ) -> Option<(Held<G::Part>, G::Part)> {
        let (error, part) = error.into_parts();
        self.judge(&error);
        if error.kind() == ErrorKind::Quarantined {
            let count = u64::from(part.is_some());
            let message = || "a quarantined operation gave its memory back".to_owned();
            self.epoch.counts.harm(Harm::Double, count, message);
            self.note_quarantined(written);
            return None;
        }
        let part = part.or_else(|| {
            let message = || format!("memory is gone with: {error}");
            self.epoch.counts.harm(Harm::Leaked, 1, message);
            None
        });
        part.map(|part| (held, part.into_part()))
    }

    pub(super) fn note_quarantined(&self, written: Option<Written>) {
        self.epoch.note_quarantined(Late {
            subject: self.subject,
            claim: self.claim.clone(),
            written,
        });
    }

    /// Whether it may fail so.
    pub(super) fn judge(&self, error: &Error) {
        let device = self.turn.as_ref().map(|turn| &*turn.0);
        judge(&self.epoch, self.subject, self.fate, device, error);
    }

    /// The operation has ended and gave its memory back.
    pub(super) fn over(self, held: Held<G::Part>, part: G::Part, written: Option<Written>) {
        self.epoch.end_claim(self.subject, &self.claim, written);
        let whole = self.arena.give_back(held, part);
        let message = || format!("a store outside of the memory of {:?}", self.claim);
        self.epoch
            .counts
            .harm(Harm::Corrupt, u64::from(!whole), message);
    }

    /// Nobody awaits it any more: it is over when its memory has come back.
    pub(super) fn orphan(self, held: Held<G::Part>, written: Option<Written>) {
        let epoch = Arc::clone(&self.epoch);
        let waiting = Waiting {
            flight: Some((self, held)),
            written,
        };
        lock(&epoch.orphans).push(Box::new(waiting));
    }
}

/// Whether an operation on that file and device may fail so.
pub(super) fn judge(
    epoch: &Epoch,
    subject: usize,
    fate: Fate,
    device: Option<&Device>,
    error: &Error,
) {
    add(&epoch.counts.failed, 1);
    let role = device.map(|device| device.role);
    let doomed = device.filter(|device| device.is_doomed());
    let device_ends = matches!(
        error.kind(),
        ErrorKind::DeviceFailed | ErrorKind::Quarantined
    );
    if let Some(device) = doomed.filter(|_| device_ends) {
        device.note_dead();
    }
    let may = match error.kind() {
        ErrorKind::Cancelled => matches!(fate, Fate::Cancelled(_)),
        ErrorKind::DeadlineExceeded => matches!(fate, Fate::Deadline(_)),
        ErrorKind::Io if may_be_cufiles(epoch, error) => true,
        ErrorKind::Io | ErrorKind::StorageFull | ErrorKind::InvalidInput => {
            epoch.subject(subject).is_faulty
        }
        ErrorKind::DeviceFailed => role.is_some_and(|role| role != Role::Sound),
        ErrorKind::Quarantined => {
            let is_meant = doomed.is_some() || epoch.is_stuck || epoch.is_ending();
            is_meant || epoch.counts.stood_still_since(epoch.since)
        }
        ErrorKind::ShuttingDown => epoch.is_ending(),
        _ => false,
    };
    let message = || format!("{fate:?} on {role:?}: {error}");
    epoch.counts.harm(Harm::Other, u64::from(!may), message);
}

/// Whether cuFile says so, and is to.
fn may_be_cufiles(epoch: &Epoch, error: &Error) -> bool {
    let is_cufiles = error.backend() == Some(Backend::CuFile);
    is_cufiles && epoch.faults.contains(&Fault::CufileError)
}

type InFlight<G, A> = (Flight<G, A>, Held<<G as Ground>::Part>);

struct Waiting<G: Ground, A> {
    /// Until it has come back.
    flight: Option<InFlight<G, A>>,
    written: Option<Written>,
}

impl<G, A> Orphan for Waiting<G, A>
where
    G: Ground<Part: IoBufMut>,
    A: Access<G::Part>,
{
    fn is_back(&mut self) -> bool {
        let Some((flight, held)) = self.flight.take() else {
            return true;
        };
        match flight.arena.recover(&held) {
            Some(part) => {
                flight.over(held, part, self.written);
                true
            }
            None => {
                self.flight = Some((flight, held));
                false
            }
        }
    }

    fn late(self: Box<Self>) -> Late {
        let (flight, _) = self.flight.expect("one that is back is no orphan");
        Late {
            subject: flight.subject,
            claim: flight.claim,
            written: self.written,
        }
    }
}
