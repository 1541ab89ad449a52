//! The engine's own CUDA streams, for parts that go by cuFile's stream calls.
//!
//! A few for each device: with one, a backlog holds up whoever submits for most of the time that it
//! takes; with four, for less than half (measured). They are made when they are needed, on the workers,
//! and end with the last worker or in a shutdown, when nothing is in flight: what is in a stream has a
//! share of it.
#![allow(
    unsafe_code,
    reason = "streams are registered with cuFile by handle, until they are deregistered"
)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nvidia_dl::cuda;
use nvidia_dl::cufile::{CufileError, StreamRegisterFlags};

use super::leaving::Purpose;
use super::part::CufilePart;
use super::places::{Queued, Turn};
use super::session::Session;
use crate::cuda::{Device, Stream};
use crate::error::Result;

/// For each device.
const STREAMS_MAX: usize = 4;

/// Operations in streams, of the whole process, that the engines' own parts make up at most: others
/// report that the library fails them beyond about 133.
pub(super) const QUEUED_MAX: usize = 128;

/// Of them in one stream: with too many there, whoever puts the next one into it is held up. Where all
/// streams are to be had no place is lost by it; with fewer, the rest goes by synchronous calls.
const IN_ONE_MAX: usize = QUEUED_MAX / STREAMS_MAX;

/// All of an engine's, by device.
#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<BTreeMap<u32, Vec<Arc<OwnStream>>>>);

impl Streams {
    /// A stream for a part, and a place in it. `None` where it is to go by a synchronous call: it has
    /// to, or too much is in streams, or there is none to be had.
    pub(super) fn choose(&self, part: &CufilePart) -> Option<(Arc<OwnStream>, Queued)> {
        let device = part.device.as_ref().filter(|_| part.may_be_streamed())?;
        let registration = part.registration().ok()?;
        let session = registration.session();
        let stream = self.stream(device.device(), session)?;
        let places = session.places();
        let queued = places.take(stream.raw, stream.is_registered, QUEUED_MAX)?;
        Some((stream, queued))
    }

    /// The one that holds least. `None` where all are full, or none is to be had.
    fn stream(&self, device: &Arc<Device>, session: &Arc<Session>) -> Option<Arc<OwnStream>> {
        // Held while one is made: only workers come here, and they may wait.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let streams = all.entry(device.ordinal()).or_default();
        let usable = streams.iter().filter(|stream| stream.takes_more());
        let loaded = usable.map(|stream| (stream.load(), stream));
        let best = loaded.min_by_key(|(load, _)| *load);
        let is_idle = best.is_some_and(|(load, _)| load == IDLE);
        let best = best.map(|(_, stream)| Arc::clone(stream));
        if is_idle || streams.len() >= STREAMS_MAX {
            return best;
        }
        match OwnStream::new(device, session) {
            Ok(stream) => {
                let stream = Arc::new(stream);
                streams.push(Arc::clone(&stream));
                Some(stream)
            }
            Err(error) => {
                tracing::warn!(device = device.ordinal(), %error, "no further stream for cuFile");
                best
            }
        }
    }
}

/// One stream, and what cuFile was told of it.
#[derive(Debug)]
pub(super) struct OwnStream {
    session: Arc<Session>,
    /// `None` once it was leaked.
    stream: Option<Stream>,
    raw: cuda::Stream,
    is_registered: bool,
    /// An operation in it was given up: what comes behind may wait for ever.
    is_stuck: AtomicBool,
    submitters: AtomicUsize,
    turn: Turn,
}

/// The load of a stream with nothing in it: but for the one in the table, nobody has a share.
const IDLE: (usize, usize) = (0, 1);

impl OwnStream {
    fn new(device: &Arc<Device>, session: &Arc<Session>) -> Result<Self> {
        device.check()?;
        device.bind()?;
        let stream = Stream::new(device)?;
        let raw = stream.raw();
        // SAFETY: the stream is alive, and deregistered before it is destroyed: in this value's drop.
        let registered = unsafe { register(session, raw) };
        if let Err(error) = &registered {
            // With one operation at a time it takes others too.
            tracing::debug!(%error, "a stream is used without being registered");
        }
        Ok(Self {
            session: Arc::clone(session),
            stream: Some(stream),
            raw,
            is_registered: registered.is_ok(),
            is_stuck: AtomicBool::new(false),
            submitters: AtomicUsize::new(0),
            turn: Turn::default(),
        })
    }

    /// The handle, for as long as this value lives.
    pub(super) const fn raw(&self) -> cuda::Stream {
        self.raw
    }

    fn takes_more(self: &Arc<Self>) -> bool {
        // One share is the table's.
        let held = Arc::strong_count(self) - 1;
        !self.is_stuck.load(Ordering::Relaxed) && held < IN_ONE_MAX
    }

    /// Nothing more is to be put there.
    pub(super) fn give_up(&self) {
        self.is_stuck.store(true, Ordering::Relaxed);
    }

    /// Who is in a call that puts something there, which may block; and how many shares there are,
    /// one for each operation in it.
    fn load(self: &Arc<Self>) -> (usize, usize) {
        let submitters = self.submitters.load(Ordering::Relaxed);
        (submitters, Arc::strong_count(self))
    }

    pub(super) const fn turn(&self) -> &Turn {
        &self.turn
    }

    /// Somebody puts something there, until the value goes.
    pub(super) fn submitting(&self) -> Submitting<'_> {
        self.submitters.fetch_add(1, Ordering::Relaxed);
        Submitting(&self.submitters)
    }
}

#[derive(Debug)]
pub(super) struct Submitting<'a>(&'a AtomicUsize);

impl Drop for Submitting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells cuFile of a stream, on a thread that has its context bound.
///
/// # Safety
///
/// The stream is alive, and deregistered before it is destroyed.
pub(super) unsafe fn register(
    session: &Session,
    stream: cuda::Stream,
) -> std::result::Result<(), CufileError> {
    // Nothing in the cells of an operation is changed.
    let flags = StreamRegisterFlags::FIXED_BUF_OFFSET
        | StreamRegisterFlags::FIXED_FILE_OFFSET
        | StreamRegisterFlags::FIXED_FILE_SIZE;
    let library = session.library().call(Purpose::Stream);
    // SAFETY: as the caller vouches.
    unsafe { library.stream_register(stream, flags) }
}

/// Has cuFile forget a stream. `None` once the process ends: nobody needs that then.
///
/// # Safety
///
/// The stream was registered, is alive, and has passed all that was put there.
pub(super) unsafe fn deregister(
    session: &Session,
    device: &Device,
    stream: cuda::Stream,
) -> Option<std::result::Result<(), CufileError>> {
    let library = session.library().call_unless_leaving(Purpose::Stream)?;
    drop(device.bind());
    // SAFETY: as the caller vouches.
    let deregistered = unsafe { library.stream_deregister(stream) };
    if let Err(error) = &deregistered {
        tracing::warn!(%error, "a stream was not deregistered from cuFile, and stays");
    }
    Some(deregistered)
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        let Some(stream) = self.stream.take().filter(|_| self.is_registered) else {
            return; // Destroyed by now.
        };
        // SAFETY: registered in `new`, and alive; it has passed all that was put there: every
        // operation in it had a share of this value, or is quarantined with its share.
        let deregistered = unsafe { deregister(&self.session, stream.device(), self.raw) };
        if !matches!(deregistered, Some(Ok(()))) {
            #[expect(clippy::disallowed_methods, reason = "cuFile may still know it")]
            std::mem::forget(stream);
        }
    }
}
