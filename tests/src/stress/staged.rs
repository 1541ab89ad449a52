//! A write in two awaits: its source may be changed once it is given back, whatever the disk does.

use std::sync::Arc;
use std::time::Instant;

use futures::future::join;
use tokio_cufile::{Error, ErrorKind, IoBufMut};

use super::arena::{Access, Ground, Held};
use super::content::Written;
use super::counts::{Harm, Point, add};
use super::fate::Fate;
use super::field::Late;
use super::fly::Flight;
use super::foreign::Carries;
use super::lock;

/// Dropped ones are dropped when the source is back: between the copy and the disk, where the way
/// of the bytes has both.
pub(super) async fn write<G, A, B>(flight: Flight<G, A>, held: Held<G::Part>, memory: B)
where
    G: Ground<Part: IoBufMut>,
    A: Access<G::Part>,
    B: Carries<G::Part>,
{
    let offset = flight.claim.range.start;
    let transfer = flight.with_handle(|handle| handle.write_all_at(memory, offset));
    let transfer = match flight.fate {
        Fate::Deadline(after) => {
            add(&flight.epoch.counts.timed_out, 1);
            transfer.deadline(Instant::now() + after)
        }
        _ => transfer,
    };
    let (staged, written) = transfer.staged();
    if let Fate::Dropped(_) = flight.fate {
        return drop_staged(flight, held, staged, written).await;
    }
    if let Fate::Cancelled(turns) = flight.fate {
        add(&flight.epoch.counts.cancelled, 1);
        let handle = written.cancel_handle();
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        handle.cancel();
    }
    let arena = Arc::clone(&flight.arena);
    let scribble = async {
        let mut source = Box::pin(staged).await.map(B::into_part);
        if let Ok(source) = &mut source {
            // From now on nothing of the write may come from here.
            arena.fill(source, |bytes| bytes.fill(0x5c));
        }
        source
    };
    let (source, outcome) = join(scribble, Box::pin(written)).await;
    match (source, outcome) {
        (Ok(source), Ok(done)) => {
            flight.note_done(done.bytes);
            flight.read_back(held, source).await;
        }
        (source, Err(failed)) => {
            let (error, _) = failed.into_parts();
            flight.judge(&error);
            if error.kind() == ErrorKind::Quarantined {
                flight.note_quarantined(Some(Written::Failed));
                // What is in flight of it is between a slot and the disk.
                if let Ok(source) = source {
                    let _whole = flight.arena.give_back(held, source);
                }
            } else {
                match source {
                    Ok(source) => flight.over(held, source, Some(Written::Failed)),
                    Err(error) => flight.lost_source(&error),
                }
            }
        }
        (Err(error), Ok(_)) => flight.lost_source(&error),
    }
}

impl<G, A> Flight<G, A>
where
    G: Ground<Part: IoBufMut>,
    A: Access<G::Part>,
{
    /// Only of a write that is quarantined may the source be.
    fn lost_source(&self, error: &Error) {
        let message = || format!("the source of {:?} is gone with: {error}", self.claim);
        self.epoch.counts.harm(Harm::Leaked, 1, message);
    }
}

async fn drop_staged<G, A, B>(
    flight: Flight<G, A>,
    held: Held<G::Part>,
    staged: tokio_cufile::Staged<B>,
    written: tokio_cufile::Written,
) where
    G: Ground<Part: IoBufMut>,
    A: Access<G::Part>,
    B: Carries<G::Part>,
{
    let source = Box::pin(staged).await.map(B::into_part);
    drop(written);
    let Ok(mut source) = source else {
        flight.note_quarantined(Some(Written::Dropped));
        return;
    };
    flight.epoch.counts.dropped(Point::Between);
    flight.arena.fill(&mut source, |bytes| bytes.fill(0x5d));
    let _whole = flight.arena.give_back(held, source);
    // A sync begins when the writes before it are over.
    let synced = flight.epoch.handles(flight.subject)[flight.handle].sync_data();
    match synced.await {
        Err(error) if error.kind() != ErrorKind::OrphanedWrite => {
            let late = Late {
                subject: flight.subject,
                claim: flight.claim.clone(),
                written: Some(Written::Dropped),
            };
            lock(&flight.epoch.late).push(late);
        }
        _ => {
            let written = Some(Written::Dropped);
            flight
                .epoch
                .end_claim(flight.subject, &flight.claim, written);
        }
    }
}
