//! Sinks: pieces of a part, one behind the other, sent, flushed and closed, or dropped anywhere.

use std::collections::VecDeque;
use std::pin::pin;

use futures::SinkExt;
use measure::data::Draws;
use tokio_cufile::{Error, ErrorKind, FileWriter, IoBufMut};

use super::arena::{Access, Ground, Held};
use super::content::Written;
use super::counts::{Harm, Point};
use super::fate::{Fate, in_time, poll_once};
use super::fly::Flight;

/// Pieces of one part, at most.
const PIECES_MAX: u64 = 6;

/// What is still to be sent, and what was.
struct Sending<P> {
    pieces: VecDeque<P>,
    writer: FileWriter<P>,
    /// Whether the data is to be durable, in the end.
    closes: bool,
    /// It failed, and gave another answer afterwards.
    forgot: bool,
}

/// How it ended.
enum End {
    All,
    /// Told to whoever sent.
    Failed(Error),
    Dropped(Point),
}

/// Writes a part in pieces. A sink knows no deadline and no cancel: who is late drops it.
pub(super) async fn write<G, A>(
    flight: Flight<G, A>,
    held: Held<G::Part>,
    part: G::Part,
    draws: &mut Draws,
) where
    G: Ground<Part: IoBufMut>,
    A: Access<G::Part>,
{
    let offset = flight.claim.range.start;
    let in_flight = 1 + usize::try_from(draws.below(4)).unwrap_or(0);
    let writer = flight.with_handle(|handle| handle.writer(offset));
    let mut sending = Sending {
        pieces: cut::<G>(part, draws),
        writer: writer.in_flight_max(in_flight),
        closes: draws.below(3) == 0,
        forgot: false,
    };
    let is_one = sending.pieces.len() == 1;
    let sends = draws.below(PIECES_MAX + 1);
    let end = sending.meet(flight.fate, sends).await;
    if let End::All = end {
        return flight.all_written(held, sending).await;
    }
    let forgot = u64::from(sending.forgot);
    drop(sending);
    let message = || "the first error of a sink is not the answer to a call after it".to_owned();
    flight.epoch.counts.harm(Harm::Lost, forgot, message);
    let written = match end {
        End::Dropped(Point::Unpolled) => Written::Nothing,
        End::Dropped(_) if is_one => Written::Dropped,
        // Of pieces that waited for their turn nobody is told: who drops a sink knows.
        End::All | End::Failed(_) | End::Dropped(_) => Written::Failed,
    };
    match end {
        End::Failed(error) => flight.judge(&error),
        End::Dropped(point) => flight.epoch.counts.dropped(point),
        End::All => {}
    }
    flight.orphan(held, Some(written));
}

/// Some pieces; one of them may be empty.
fn cut<G: Ground>(part: G::Part, draws: &mut Draws) -> VecDeque<G::Part> {
    let mut pieces = VecDeque::from([part]);
    for _ in 0..draws.below(PIECES_MAX) {
        let Some(last) = pieces.back_mut() else {
            break;
        };
        let len = G::range(last).len() as u64;
        let at = draws.below(len + 1);
        let behind = G::split(last, usize::try_from(at).unwrap_or(0));
        pieces.push_back(behind);
    }
    pieces
}

impl<P: IoBufMut> Sending<P> {
    /// Lets the sink meet its fate.
    async fn meet(&mut self, fate: Fate, sends: u64) -> End {
        match fate {
            Fate::Dropped(Point::Unpolled) => End::Dropped(Point::Unpolled),
            Fate::Dropped(_) => self.some(sends).await,
            fate => {
                let whole = in_time(fate, self.whole()).await;
                whole.unwrap_or(End::Dropped(Point::UnderWay))
            }
        }
    }

    /// Sends all, and waits for it.
    async fn whole(&mut self) -> End {
        while let Some(piece) = self.pieces.pop_front() {
            if let Err(error) = self.writer.feed(piece).await {
                return self.failed(error).await;
            }
        }
        let ended = match self.closes {
            true => self.writer.close().await,
            false => self.writer.flush().await,
        };
        match ended {
            Ok(()) => End::All,
            // A loss of somebody else's, of which the sync tells: it comes when all is written.
            Err(error) if error.kind() == ErrorKind::OrphanedWrite => End::All,
            Err(error) => self.failed(error).await,
        }
    }

    /// Sends some, asks once for the rest, and goes.
    async fn some(&mut self, sends: u64) -> End {
        for _ in 0..sends {
            let Some(piece) = self.pieces.pop_front() else {
                break;
            };
            if let Err(error) = self.writer.feed(piece).await {
                return self.failed(error).await;
            }
        }
        let rest = pin!(self.whole());
        let ended = poll_once(rest).await;
        ended.unwrap_or(End::Dropped(Point::UnderWay))
    }

    /// The first error is the answer to every call after it.
    async fn failed(&mut self, error: Error) -> End {
        let again = self.writer.flush().await;
        self.forgot = !again.is_err_and(|again| again.kind() == error.kind());
        End::Failed(error)
    }
}

impl<G, A> Flight<G, A>
where
    G: Ground<Part: IoBufMut>,
    A: Access<G::Part>,
{
    /// A flush says that nothing is in flight: all pieces are back.
    async fn all_written(self, held: Held<G::Part>, sending: Sending<G::Part>) {
        let position = sending.writer.position();
        let misplaced = u64::from(position != self.claim.range.end);
        let message = || format!("a sink is at {position} behind {:?}", self.claim);
        self.epoch.counts.harm(Harm::Other, misplaced, message);
        let Some(part) = self.arena.recover(&held) else {
            let message = || format!("a sink that was flushed has memory of {:?}", self.claim);
            self.epoch.counts.harm(Harm::Leaked, 1, message);
            return;
        };
        drop(sending);
        self.note_done(usize::try_from(position - self.claim.range.start).unwrap_or(0));
        self.check_own(&part, "the source of a sink");
        self.read_back(held, part).await;
    }
}
