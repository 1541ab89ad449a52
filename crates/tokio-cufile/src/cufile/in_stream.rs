//! An operation in a CUDA stream, a user's or the engine's own: `cuFileReadAsync`, `cuFileWriteAsync`.
//!
//! The call says only that the operation was put there. The library reads its numbers when the
//! operation runs and writes their last when it ends, so they live, at one place, until an event
//! behind the operation is complete: together with the memory, the file and the ticket.
#![allow(
    unsafe_code,
    reason = "hands memory and numbers to a stream, which uses them later"
)]

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use completion::{PartOutcome, Ticket};
use nvidia_dl::cuda::Stream;
use nvidia_dl::cufile::{Cells, CufileError, decode_done};
use tokio::sync::oneshot;

use super::leaving::{InUse, Purpose};
use super::part::{CufilePart, Lost, SoFar, error_of, is_passing};
use super::places::{Queued, Turn};
use super::registration::Registration;
use super::streams::OwnStream;
use super::workers::{Inbox, Rest};
use crate::compat::DeviceSide;
use crate::cuda::{Device, Event, Watched};
use crate::engine::{Model, PartReport};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::EngineId;
use crate::plan::Kind;
use crate::receipt::DataPath;
use crate::stats::Counters;

/// Nobody knows when between the call and the event it runs.
const NOT_TOLD: &str = "cuFile's counts do not tell what went by a stream";

/// From then on it is asked whether an operation in a stream was given up: to ask takes the scheduler's
/// lock.
const LATE: Duration = Duration::from_millis(10);

/// The user's stream that an operation is put into, and who waits for that.
#[derive(Debug)]
pub(crate) struct InStream {
    stream: Stream,
    /// Whose operation it is.
    engine: EngineId,
    /// Bytes of the budget that the operation takes, however long it is: it has no memory but the
    /// user's.
    bytes_max: u64,
    told: Mutex<Option<oneshot::Sender<()>>>,
}

impl InStream {
    /// And the end that resolves when the operation is in the stream, or will never be.
    pub(crate) fn new(
        stream: Stream,
        engine: EngineId,
        bytes_max: usize,
    ) -> (Arc<Self>, oneshot::Receiver<()>) {
        let (told, enqueued) = oneshot::channel();
        let into = Self {
            stream,
            engine,
            bytes_max: bytes_max as u64,
            told: Mutex::new(Some(told)),
        };
        (Arc::new(into), enqueued)
    }

    /// What it costs of the budget.
    pub(crate) fn cost(&self, bytes: u64) -> u64 {
        bytes.min(self.bytes_max)
    }

    fn tell(&self) {
        let told = self
            .told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(told) = told {
            // Nobody may wait any more.
            let _: std::result::Result<(), ()> = told.send(());
        }
    }
}

/// The engine's stream that a part is put into.
pub(super) struct OwnPlace {
    pub(super) stream: Arc<OwnStream>,
    pub(super) queued: Queued,
    /// To the workers, who do what the stream leaves undone.
    pub(super) inbox: Inbox,
}

/// Whose stream it is.
pub(super) enum Whose {
    User(Arc<InStream>),
    Own(OwnPlace),
}

/// A part that is not in a stream, and nobody has seen it.
pub(super) struct Refused {
    pub(super) ticket: Ticket<Model>,
    pub(super) part: Box<CufilePart>,
    pub(super) error: Error,
}

/// An operation in a stream.
struct Underway {
    /// What the stream may use. `None` once finished; dropped before, it is leaked (I3, I4).
    held: Option<Held>,
    counters: Arc<Counters>,
    asked_at: Instant,
    /// What the library said when it was given the operation.
    refusal: Option<Error>,
}

struct Held {
    ticket: Ticket<Model>,
    part: Box<CufilePart>,
    cells: Box<Cells>,
    event: Event,
    queued: Queued,
    then: Then,
    /// From the call on.
    in_use: Option<InUse>,
}

/// What comes after the operation.
enum Then {
    /// What the user has put behind it, which has run by then: it ends as it is. With the bytes that
    /// there were when it was put there.
    Users { expected: usize },
    /// The rest of it, if there is any.
    Rest(Arc<OwnStream>, Inbox),
}

impl Drop for Underway {
    fn drop(&mut self) {
        let Some(mut held) = self.held.take() else {
            return;
        };
        held.queued.give_up();
        let Held {
            ticket,
            part,
            cells,
            event,
            queued,
            then,
            in_use,
        } = held;
        #[expect(clippy::disallowed_methods, reason = "the stream may still use them")]
        std::mem::forget((part, cells, event, queued, then, in_use));
        // Unfinished, which quarantines the operation.
        drop(ticket);
    }
}

/// Puts a part into a stream, and has its device's thread look after it. Blocks: where the stream is
/// full, until it is not.
///
/// # Errors
///
/// The part, where no call was made.
pub(super) fn put(
    ticket: Ticket<Model>,
    part: Box<CufilePart>,
    into: Whose,
    counters: &Arc<Counters>,
) -> std::result::Result<(), Box<Refused>> {
    let asked_at = Instant::now();
    let (place, event, cells) = match prepare(&part) {
        Ok(prepared) => prepared,
        Err(error) => return Refused::new(ticket, part, error),
    };
    let into = match into.ready(&part, &place) {
        Ok(into) => into,
        Err(error) => return Refused::new(ticket, part, error),
    };
    let side = Arc::clone(&place.side);
    // From here on it is leaked where its end is not seen.
    let mut underway = Underway {
        held: Some(Held {
            ticket,
            part,
            cells,
            event,
            queued: into.queued,
            then: into.then,
            in_use: None,
        }),
        counters: Arc::clone(counters),
        asked_at,
        refusal: None,
    };
    let turn = underway.turn();
    let _turn = turn.as_ref().map(Turn::take);
    if turn.is_some() && underway.is_given_up() {
        // While it waited. An operation whose end was told changes its file no more.
        let reason = "it was given up before it came into the stream";
        return underway.give_back(Error::new(ErrorKind::Cancelled, reason));
    }
    match underway.submit(place, into.stream) {
        Ok(()) => {}
        // There was no call.
        Err(error) if error.failure().is_none() => return underway.give_back(error_of(error)),
        // Whether it is in the stream is not known: on as if it were.
        Err(error) => underway.refusal = Some(error_of(error)),
    }
    let is_taken = underway.refusal.is_none();
    match underway.record(into.stream) {
        Ok(()) => side.watch(Box::new(underway)),
        Err(error) => {
            tracing::error!(%error, "no event behind an operation in a stream: it is quarantined");
            return Ok(());
        }
    }
    if let Some(user) = into.user.filter(|_| is_taken) {
        user.tell();
    }
    Ok(())
}

/// What is known of a stream when something is put there.
struct Ready {
    stream: Stream,
    queued: Queued,
    then: Then,
    user: Option<Arc<InStream>>,
}

impl Whose {
    fn ready(self, part: &CufilePart, place: &Place) -> Result<Ready> {
        let places = place.registration.session().places();
        Ok(match self {
            Self::User(user) => Ready {
                stream: user.stream,
                queued: places
                    .take_in((user.stream, place.side.device().ordinal()), user.engine)?,
                then: Then::Users {
                    expected: part.expected()?,
                },
                user: Some(user),
            },
            Self::Own(own) => Ready {
                stream: own.stream.raw(),
                queued: own.queued,
                then: Then::Rest(own.stream, own.inbox),
                user: None,
            },
        })
    }
}

/// How cuFile is told of an operation. Gone before the operation can end: it has a share of the file's
/// registration.
struct Place {
    side: Arc<DeviceSide>,
    registration: Arc<Registration>,
    /// And the offset in the cells is from there: both of one look, since somebody may be
    /// registering the memory just now.
    base: *mut c_void,
}

fn prepare(part: &CufilePart) -> Result<(Place, Event, Box<Cells>)> {
    let Some(side) = part.device.clone() else {
        let reason = "only device memory has an order in a stream";
        return Err(Error::new(ErrorKind::Unsupported, reason));
    };
    side.device().check()?;
    side.device().bind()?;
    let event = Event::new(side.device())?;
    let registration = part.registration()?;
    let (base, offset) = part.place(registration.session());
    let cells = Cells::new(part.memory.len(), part.file_offset, offset);
    let cells = cells.map_err(|misuse| {
        Error::new(ErrorKind::InvalidInput, misuse.to_string()).with_source(misuse)
    })?;
    let place = Place {
        side,
        registration,
        base,
    };
    Ok((place, event, Box::new(cells)))
}

impl Refused {
    fn new<T>(
        ticket: Ticket<Model>,
        part: Box<CufilePart>,
        error: Error,
    ) -> std::result::Result<T, Box<Self>> {
        Err(Box::new(Self {
            ticket,
            part,
            error,
        }))
    }
}

impl Underway {
    /// Of the stream, if others may be putting something there.
    fn turn(&self) -> Option<Turn> {
        let held = self.held.as_ref()?;
        match &held.then {
            Then::Rest(own, _) => Some(own.turn().clone()),
            Then::Users { .. } => held.queued.turn(),
        }
    }

    fn is_given_up(&self) -> bool {
        let held = self.held.as_ref();
        held.is_some_and(|held| held.ticket.is_given_up())
    }

    /// No call was made.
    fn give_back(mut self, error: Error) -> std::result::Result<(), Box<Refused>> {
        match self.held.take() {
            Some(held) => Refused::new(held.ticket, held.part, error),
            None => Ok(()),
        }
    }

    fn submit(&mut self, place: Place, stream: Stream) -> std::result::Result<(), CufileError> {
        let Some(held) = &mut self.held else {
            return Ok(());
        };
        let _submitting = match &held.then {
            Then::Rest(own, _) => Some(own.submitting()),
            Then::Users { .. } => None,
        };
        let registration = &place.registration;
        let file = registration.handle();
        let library = registration.session().library().call(Purpose::Stream);
        held.in_use = Some(library.goes_on());
        let cells: *mut Cells = &raw mut *held.cells;
        match held.part.kind {
            // SAFETY: this value keeps memory (by the ticket), file, handle and cells until an event
            // behind the operation is complete, and is leaked where that cannot be seen; it keeps the
            // engine's own stream as well, and the user keeps theirs; its context is bound.
            Kind::Read => unsafe { library.read_async(file, place.base, cells, stream) },
            // SAFETY: as above.
            Kind::Write => unsafe { library.write_async(file, place.base, cells, stream) },
        }
    }

    /// An event behind the operation. The thread is free then.
    fn record(&self, stream: Stream) -> Result<()> {
        let Some(held) = &self.held else {
            return Ok(());
        };
        // SAFETY: the stream is alive until the operation has ended, and of the event's device: the
        // engine's own by the share of it that this value has, a user's by the user's word.
        let recorded = unsafe { held.event.record(stream) };
        held.ticket.free_worker();
        recorded
    }
}

/// What became of an operation that a stream has passed.
enum Ended {
    /// All of it was moved, or nothing more can be.
    For(Result<usize>),
    /// It goes on there.
    InPart(Moved, Inbox),
}

/// What a stream did of a part, and is not all of it.
#[derive(Clone, Copy, Default)]
struct Moved {
    done: usize,
    calls: u32,
    retries: u64,
}

impl Held {
    fn ended(&self, refusal: Option<Error>) -> std::result::Result<Ended, Lost> {
        // SAFETY: they live as long as this value.
        let done = unsafe { Cells::done(&raw const *self.cells) };
        if done == Cells::NOT_DONE {
            return match (refusal, &self.then) {
                // Taken, and passed without a word: nobody knows what it still does (I18).
                (None, _) => Err(Lost),
                (Some(refusal), Then::Users { .. }) => Ok(Ended::For(Err(refusal))),
                (Some(_), Then::Rest(_, inbox)) => {
                    Ok(Ended::InPart(Moved::default(), inbox.clone()))
                }
            };
        }
        let call = match self.part.kind {
            Kind::Read => "cuFileReadAsync",
            Kind::Write => "cuFileWriteAsync",
        };
        let len = self.part.memory.len();
        let in_part = |done, retries, inbox: &Inbox| {
            let calls = 1;
            let moved = Moved {
                done,
                calls,
                retries,
            };
            Ok(Ended::InPart(moved, inbox.clone()))
        };
        match (decode_done(done, len), &self.then) {
            (Ok(bytes), Then::Users { expected }) => {
                Ok(Ended::For(self.part.check_in_one_go(bytes, *expected)))
            }
            (Ok(done), _) if done == len => Ok(Ended::For(Ok(done))),
            (Ok(done), Then::Rest(_, inbox)) => in_part(done, 0, inbox),
            (Err(failure), Then::Rest(_, inbox)) if is_passing(failure) => in_part(0, 1, inbox),
            (Err(failure), _) => {
                let error = self.part.error(CufileError::failed(call, failure))?;
                Ok(Ended::For(Err(error)))
            }
        }
    }
}

impl Underway {
    /// The stream has passed the operation.
    fn finish(&mut self) {
        let ended = self
            .held
            .as_ref()
            .map(|held| held.ended(self.refusal.take()));
        let Some(Ok(ended)) = ended else {
            return; // Dropped unfinished.
        };
        // What is not kept goes here, before the operation can end: a stream has a share of the library.
        let Some(Held {
            ticket,
            part,
            queued,
            ..
        }) = self.held.take()
        else {
            return;
        };
        let mut report = PartReport::started_at(self.asked_at);
        report.io_time = self.asked_at.elapsed();
        match ended {
            Ended::InPart(moved, inbox) => {
                report.moved(DataPath::CufileUnverified, moved.done);
                report.note(NOT_TOLD.into());
                report.retries = moved.retries;
                inbox.go_on(Rest {
                    ticket,
                    part,
                    so_far: SoFar {
                        done: moved.done,
                        calls: moved.calls,
                        report,
                    },
                    queued,
                });
            }
            Ended::For(result) => {
                let bytes = *result.as_ref().unwrap_or(&0);
                report.moved(DataPath::CufileUnverified, bytes);
                report.note(NOT_TOLD.into());
                let outcome = PartOutcome {
                    bytes: bytes as u64,
                    fault: result.err().map(|error| part.describe(error, 0)),
                    report,
                };
                self.counters.add(&outcome.report);
                // Before the operation ends: it may hold the last share of a file.
                drop((part, queued));
                ticket.finish(outcome);
            }
        }
    }
}

impl Watched for Underway {
    fn look(&mut self, device: &Device) -> bool {
        let Some(held) = &mut self.held else {
            return true;
        };
        match held.event.is_complete() {
            Ok(false) => {
                if self.asked_at.elapsed() > LATE && held.ticket.is_given_up() {
                    match &held.then {
                        Then::Users { .. } => held.queued.give_up(),
                        Then::Rest(stream, _) => stream.give_up(),
                    }
                }
                false
            }
            Ok(true) => {
                self.finish();
                true
            }
            Err(error) => {
                device.give_up(&error);
                true // Dropped unfinished.
            }
        }
    }

    fn is_near(&self) -> bool {
        let held = self.held.as_ref();
        held.is_some_and(|held| matches!(held.then, Then::Rest(..)))
    }
}
