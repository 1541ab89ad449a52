//! An operation in a user's CUDA stream: `cuFileReadAsync`, `cuFileWriteAsync`.
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
use std::time::Instant;

use completion::{PartOutcome, Ticket};
use nvidia_dl::cuda::Stream;
use nvidia_dl::cufile::{Cells, CufileError, decode_done};
use tokio::sync::oneshot;

use super::part::{CufilePart, Lost, error_of};
use super::registration::Registration;
use crate::compat::DeviceSide;
use crate::cuda::{Device, Event, Watched};
use crate::engine::{Model, PartReport};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Kind;
use crate::receipt::DataPath;
use crate::stats::Counters;

/// The stream that an operation is put into, and who waits for that.
#[derive(Debug)]
pub(crate) struct InStream {
    stream: Stream,
    /// Bytes of the budget that the operation takes, however long it is: it has no memory but the
    /// user's.
    bytes_max: u64,
    told: Mutex<Option<oneshot::Sender<()>>>,
}

impl InStream {
    /// And the end that resolves when the operation is in the stream, or will never be.
    pub(crate) fn new(stream: Stream, bytes_max: usize) -> (Arc<Self>, oneshot::Receiver<()>) {
        let (told, enqueued) = oneshot::channel();
        let into = Self {
            stream,
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
    /// The bytes that there were when it was put there.
    expected: usize,
}

impl Drop for Underway {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else {
            return;
        };
        let Held {
            ticket,
            part,
            cells,
            event,
            ..
        } = held;
        #[expect(clippy::disallowed_methods, reason = "the stream may still use them")]
        std::mem::forget((part, cells, event));
        // Unfinished, which quarantines the operation.
        drop(ticket);
    }
}

/// Puts a part into its stream, and has its device's thread look after it. Blocks: where the stream is
/// full, until it is not.
pub(super) fn put(
    ticket: Ticket<Model>,
    part: Box<CufilePart>,
    into: &InStream,
    counters: &Arc<Counters>,
) {
    let asked_at = Instant::now();
    let (place, event, cells) = match prepare(&part) {
        Ok(prepared) => prepared,
        Err(error) => return fail(ticket, part, error),
    };
    let expected = place.expected;
    let side = Arc::clone(&place.side);
    // From here on it is leaked where its end is not seen.
    let mut underway = Underway {
        held: Some(Held {
            ticket,
            part,
            cells,
            event,
            expected,
        }),
        counters: Arc::clone(counters),
        asked_at,
        refusal: None,
    };
    match underway.submit(place, into.stream) {
        Ok(()) => {}
        Err(error) if error.failure().is_none() => {
            // There was no call.
            if let Some(held) = underway.held.take() {
                fail(held.ticket, held.part, error_of(error));
            }
            return;
        }
        // Whether it is in the stream is not known: on as if it were.
        Err(error) => underway.refusal = Some(error_of(error)),
    }
    let is_taken = underway.refusal.is_none();
    match underway.record(into.stream) {
        Ok(()) => side.watch(Box::new(underway)),
        Err(error) => {
            tracing::error!(%error, "no event behind an operation in a stream: it is quarantined");
            return;
        }
    }
    if is_taken {
        into.tell();
    }
}

fn fail(ticket: Ticket<Model>, part: Box<CufilePart>, error: Error) {
    let fault = Some(part.describe(error, 0));
    // Before the operation ends: it may hold the last share of a file.
    drop(part);
    ticket.finish(PartOutcome {
        bytes: 0,
        fault,
        report: PartReport::default(),
    });
}

/// How cuFile is told of an operation. Gone before the operation can end: it has a share of the file's
/// registration.
struct Place {
    side: Arc<DeviceSide>,
    registration: Arc<Registration>,
    /// And the offset in the cells is from there: both of one look, since somebody may be
    /// registering the memory just now.
    base: *mut c_void,
    /// The bytes that there are.
    expected: usize,
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
        expected: part.expected()?,
    };
    Ok((place, event, Box::new(cells)))
}

impl Underway {
    fn submit(&mut self, place: Place, stream: Stream) -> std::result::Result<(), CufileError> {
        let Some(held) = &mut self.held else {
            return Ok(());
        };
        let registration = &place.registration;
        let (library, file) = (registration.session().library(), registration.handle());
        let cells: *mut Cells = &raw mut *held.cells;
        match held.part.kind {
            // SAFETY: this value keeps memory (by the ticket), file, handle and cells until an event
            // behind the operation is complete, and is leaked where that cannot be seen; the user
            // keeps the stream; its context is bound.
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
        // SAFETY: the user keeps the stream alive until the operation has ended, and it is of the
        // event's device, as was promised when it was named.
        let recorded = unsafe { held.event.record(stream) };
        held.ticket.free_worker();
        recorded
    }
}

impl Held {
    /// How many bytes it moved. The stream has passed it.
    fn result(&self, refusal: Option<Error>) -> std::result::Result<Result<usize>, Lost> {
        // SAFETY: they live as long as this value.
        let done = unsafe { Cells::done(&raw const *self.cells) };
        if done == Cells::NOT_DONE {
            // Taken, and passed without a word: nobody knows what it still does (I18).
            return refusal.map(Err).ok_or(Lost);
        }
        let call = match self.part.kind {
            Kind::Read => "cuFileReadAsync",
            Kind::Write => "cuFileWriteAsync",
        };
        match decode_done(done, self.part.memory.len()) {
            Ok(bytes) => Ok(self.part.check_in_one_go(bytes, self.expected)),
            Err(failure) => self.part.error(CufileError::failed(call, failure)).map(Err),
        }
    }
}

impl Underway {
    /// The stream has passed the operation.
    fn finish(&mut self) {
        let result = self
            .held
            .as_ref()
            .map(|held| held.result(self.refusal.take()));
        let Some(Ok(result)) = result else {
            return; // Dropped unfinished.
        };
        let Some(Held { ticket, part, .. }) = self.held.take() else {
            return;
        };
        let mut report = PartReport::started_at(self.asked_at);
        report.io_time = self.asked_at.elapsed();
        let bytes = *result.as_ref().unwrap_or(&0);
        report.moved(DataPath::CufileUnverified, bytes);
        let outcome = PartOutcome {
            bytes: bytes as u64,
            fault: result.err().map(|error| part.describe(error, 0)),
            report,
        };
        self.counters.add(&outcome.report);
        // Before the operation ends: it may hold the last share of a file.
        drop(part);
        ticket.finish(outcome);
    }
}

impl Watched for Underway {
    fn look(&mut self, device: &Device) -> bool {
        let Some(held) = &self.held else {
            return true;
        };
        match held.event.is_complete() {
            Ok(false) => false,
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
}
