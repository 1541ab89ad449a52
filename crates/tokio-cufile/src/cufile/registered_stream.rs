//! Users' CUDA streams that cuFile was told of.
//!
//! The value, and every operation in the stream, has a share of what is known of it. The last gives it
//! to the disposer, which deregisters the stream; a shutdown does so before.
#![allow(
    unsafe_code,
    reason = "a stream is known by handle, until it is deregistered"
)]

use std::ffi::c_void;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use nvidia_dl::cuda::Stream;
use tokio::sync::watch;

use super::part::error_of;
use super::places::Turn;
use super::registration::Registered;
use super::session::Session;
use super::{Cufile, streams};
use crate::cuda::{Device, is_per_thread, stream_of};
use crate::engine::{Disposed, Engine, Shared};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::memory::ProcessMark;
use crate::op::Request;

/// A user's CUDA stream that is registered with cuFile (`cuFileStreamRegister`), so that it can hold
/// several operations at a time: see [`Transfer::enqueue_on`](crate::Transfer::enqueue_on), which takes
/// one at a time into a stream that is not registered.
///
/// The stream stays registered as long as the value lives, until the engine's
/// [`shutdown`](Engine::shutdown). It takes operations of that engine only.
///
/// Dropping it is safe at any time and calls no function of CUDA's or cuFile's on the dropping thread:
/// nothing more can be put into the stream then, and when what is in it has ended, the engine deregisters
/// it in the background. [`deregister`](Self::deregister) tells when that is done.
pub struct RegisteredStream {
    known: Arc<Known>,
    progress: watch::Receiver<Progress>,
    engine_ended: watch::Receiver<bool>,
    mark: Arc<ProcessMark>,
    device: u32,
}

/// What is known of a registered stream.
pub(super) type Known = Disposed<User>;

#[derive(Debug)]
pub(crate) struct User {
    /// Ended when this goes.
    _registered: Registered<Registration>,
    stream: Stream,
    turn: Turn,
    /// Its owner has let go of it.
    is_closed: AtomicBool,
    progress: watch::Sender<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    /// Operations in the stream.
    operations: usize,
    /// Of those, the ones that were given up.
    given_up: usize,
    /// What came of deregistering it.
    ended: Option<Result<()>>,
}

/// A registration, ended when it is dropped.
#[derive(Debug)]
struct Registration {
    session: Arc<Session>,
    device: Arc<Device>,
    stream: Stream,
    progress: watch::Sender<Progress>,
}

/// An operation's share of a registered stream.
#[derive(Debug)]
pub(super) struct Share {
    known: Arc<Known>,
    is_given_up: bool,
}

impl RegisteredStream {
    /// Registers `stream` (`CUstream`, of the primary context of the device with that CUDA ordinal; null is
    /// the legacy default stream). Opens libcufile, if that was not done before.
    ///
    /// # Safety
    ///
    /// The stream belongs to that context, and is alive until [`deregister`](Self::deregister) has resolved
    /// without an error. Where it ends with one, or is not awaited, as long as the process: a
    /// [`shutdown`](Engine::shutdown) deregisters what is left, and does not say whether the library let go
    /// of it.
    ///
    /// # Errors
    ///
    /// `Unsupported` where there is no cuFile, or one before 1.7, with the reason; `Busy` where the stream is
    /// registered already, by any engine of the process, or has an operation of cuFile's; `InvalidInput` for
    /// the per-thread default stream (`CU_STREAM_PER_THREAD`); `DeviceNotFound`, `DeviceFailed`; what cuFile
    /// says.
    ///
    /// # Cancellation
    ///
    /// Dropped after it was issued, what it registers is deregistered in the background.
    pub unsafe fn new(engine: &Engine, device: u32, stream: *mut c_void) -> Request<Self> {
        let shared = Arc::clone(&engine.shared);
        let stream = stream_of(stream);
        Request::detached(&engine.shared, Operation::Stream, move || {
            if is_per_thread(stream.as_raw()) {
                let reason = "the per-thread default stream is another one on the engine's threads";
                return Err(Error::new(ErrorKind::InvalidInput, reason));
            }
            let side = shared.devices.get(device)?;
            // SAFETY: the caller of `new` vouches for the stream.
            let known = unsafe {
                let cufile = &shared.executors.cufile;
                cufile.register_stream(&shared, side.device(), stream)
            };
            let known = known.map_err(|error| error.with_device(device))?;
            Ok(Self {
                progress: known.progress.subscribe(),
                engine_ended: shared.when_ended(),
                mark: Arc::clone(&shared.mark),
                known,
                device,
            })
        })
    }

    /// The stream (`CUstream`).
    #[must_use]
    pub fn stream(&self) -> *mut c_void {
        self.known.stream.as_raw()
    }

    /// The CUDA ordinal of its device.
    #[must_use]
    pub const fn device(&self) -> u32 {
        self.device
    }

    /// Lets nothing more into the stream, and deregisters it, on a thread of the engine's, when what was put
    /// there has ended. Resolves when that is done: then the stream may be destroyed.
    ///
    /// libcufile may wait for what else is in the stream. Meanwhile the engine frees no buffer, no outcome of
    /// a dropped write is told, for which [`sync_data`](crate::AsyncCuFile::sync_data) and `close` may wait,
    /// and a [`shutdown`](Engine::shutdown) does not end: so nothing in the stream may wait for those.
    ///
    /// # Errors
    ///
    /// `Quarantined` where an operation in the stream was given up: as far as is known it stays there, and the
    /// stream registered, for good. That is not known of an operation that was given up while the stream was
    /// full, before the engine has shut down. `Forked`; what cuFile says. The stream has to live on then.
    ///
    /// # Cancellation
    ///
    /// Dropped, polled or not, it goes on in the background.
    #[must_use = "it tells when the stream may be destroyed"]
    pub fn deregister(self) -> impl Future<Output = Result<()>> + Send + 'static {
        deregister(self)
    }
}

impl Drop for RegisteredStream {
    fn drop(&mut self) {
        self.known.is_closed.store(true, Ordering::Release);
    }
}

impl fmt::Debug for RegisteredStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredStream")
            .field("stream", &self.known.stream)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

async fn deregister(stream: RegisteredStream) -> Result<()> {
    let device = stream.device;
    let (mark, mut engine_ended) = (Arc::clone(&stream.mark), stream.engine_ended.clone());
    let mut progress = stream.progress.clone();
    drop(stream);
    let described = |error: Error| error.with_operation(Operation::Stream).with_device(device);
    mark.check().map_err(described)?;
    // Errors say that the engine's threads, or who would tell, are gone.
    {
        let told = |progress: &Progress| progress.ended.is_some() || progress.given_up > 0;
        let mut told = pin!(async { drop(progress.wait_for(told).await) });
        let mut engine_end = pin!(async { drop(engine_ended.wait_for(|&ended| ended).await) });
        poll_fn(|cx| match told.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => engine_end.as_mut().poll(cx),
        })
        .await;
    }
    // What is in a stream by now, nobody waits for.
    let told = |progress: &Progress| progress.ended.is_some() || progress.operations > 0;
    let ended = match progress.wait_for(told).await {
        Ok(progress) => progress.ended.clone(),
        Err(_) => {
            let reason = "the process ends, and the stream stays registered";
            Some(Err(Error::new(ErrorKind::ShuttingDown, reason)))
        }
    };
    let stays = || {
        let reason = "an operation in the stream was given up: the stream stays registered";
        Err(Error::new(ErrorKind::Quarantined, reason))
    };
    ended.unwrap_or_else(stays).map_err(described)
}

impl Share {
    /// `None` where the owner has let go of the stream.
    pub(super) fn new(known: Arc<Known>) -> Option<Self> {
        if known.is_closed.load(Ordering::Acquire) {
            return None;
        }
        known.change(|progress| progress.operations += 1);
        Some(Self {
            known,
            is_given_up: false,
        })
    }

    pub(super) fn turn(&self) -> &Turn {
        &self.known.turn
    }

    /// The operation was given up, and may be in the stream for ever.
    pub(super) fn give_up(&mut self) {
        if !self.is_given_up {
            self.is_given_up = true;
            let progress = &self.known.progress;
            progress.send_modify(|progress| progress.given_up += 1);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let given_up = usize::from(self.is_given_up);
        self.known.change(|progress| {
            progress.operations -= 1;
            progress.given_up -= given_up;
        });
    }
}

impl User {
    /// What nobody waits for.
    fn change(&self, change: impl FnOnce(&mut Progress)) {
        self.progress.send_if_modified(|progress| {
            change(progress);
            false
        });
    }
}

impl Cufile {
    /// Registers a user's stream. Blocks.
    ///
    /// # Errors
    ///
    /// As [`RegisteredStream::new`].
    ///
    /// # Safety
    ///
    /// The stream is of the device's context, and alive until the registration has ended: with what is given
    /// back, or with the engine.
    unsafe fn register_stream(
        &self,
        engine: &Shared,
        device: &Arc<Device>,
        stream: Stream,
    ) -> Result<Arc<Known>> {
        let absent = |reason| Error::new(ErrorKind::Unsupported, reason);
        let session = self.session().map_err(absent)?;
        let takes = session.takes_streams();
        takes.map_err(|reason| Error::new(ErrorKind::Unsupported, reason.to_owned()))?;
        session
            .places()
            .begin((stream, device.ordinal()), engine.id)?;
        let progress = watch::Sender::default();
        // SAFETY: as the caller vouches.
        let registration = unsafe { Registration::new(&session, device, stream, &progress) };
        let registration = registration.inspect_err(|_| session.places().end(stream))?;
        let registered = Registered::default();
        registered.set(registration);
        self.registered.add(&registered);
        let user = User {
            _registered: registered,
            stream,
            turn: Turn::default(),
            is_closed: AtomicBool::new(false),
            progress,
        };
        let known = Arc::new(Disposed::new(engine, user));
        session.places().open(stream, &known);
        Ok(known)
    }
}

impl Registration {
    /// Registers the stream, of which it is known that somebody does.
    ///
    /// # Errors
    ///
    /// What cuFile says.
    ///
    /// # Safety
    ///
    /// The stream is of the device's context, and outlives the value.
    unsafe fn new(
        session: &Arc<Session>,
        device: &Arc<Device>,
        stream: Stream,
        progress: &watch::Sender<Progress>,
    ) -> Result<Self> {
        device.check()?;
        device.bind()?;
        // SAFETY: the stream is alive, as the caller vouches, until this value has deregistered it.
        unsafe { streams::register(session, stream) }.map_err(error_of)?;
        Ok(Self {
            session: Arc::clone(session),
            device: Arc::clone(device),
            stream,
            progress: progress.clone(),
        })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: registered in `new`, and alive, as its caller vouched; it has passed all that was put
        // there: every operation in it had a share of what owns this value, or the engine has ended with
        // nothing in flight.
        let ended = unsafe { streams::deregister(&self.session, &self.device, self.stream) };
        let Some(ended) = ended else {
            return;
        };
        // Whether cuFile still knows it or not: one operation at a time does no harm.
        self.session.places().end(self.stream);
        let ended = Some(ended.map_err(error_of));
        self.progress.send_modify(|progress| progress.ended = ended);
    }
}
