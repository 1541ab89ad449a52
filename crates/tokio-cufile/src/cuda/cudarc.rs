//! cudarc's slices, streams and events, for applications that use cudarc: feature `cudarc`.
//!
//! The application chooses: cudarc refuses to be built without a version of CUDA and a way to link
//! it, two versions of CUDA exclude each other, and so do most ways to link. So this crate enables
//! none of them, and an application has a dependency of its own that does:
//!
//! ```toml
//! tokio-cufile = { version = "0.1", features = ["cudarc"] }
//! cudarc = { version = "0.19", default-features = false, features = [
//!     "std", "driver", "dynamic-loading", "cuda-13000", # or "cuda-version-from-build-system", …
//! ] }
//! ```
//!
//! Both must resolve to one version of cudarc. With an older one than the newest that this crate
//! takes, cargo may choose two, and the build of the second fails for want of a version of CUDA; then
//! `cargo update -p cudarc@NEWER --precise OLDER` makes them one.
//!
//! Nothing of cudarc is under the engine. It has handles of its own to the same primary contexts, and
//! uses cudarc for what only cudarc knows: the address of a slice, and the events on which its own
//! accesses from several streams wait.
#![allow(
    unsafe_code,
    reason = "vouches that the memory of a slice stays where it is while an operation owns the slice"
)]

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use ::cudarc::driver::{
    CudaContext, CudaEvent as CudarcEvent, CudaSlice, CudaStream, DevicePtrMut, DriverError,
};
use bytemuck::AnyBitPattern;
use nvidia_dl::cuda::{Context, Event, Stream};

use super::event::CudaEvent;
use super::handles;
use crate::compat::DeviceSide;
use crate::engine::{Disposed, Engine, Shared};
use crate::error::{Error, ErrorKind, Operation, Result, VendorCode};
use crate::memory::sealed::Memory;
use crate::memory::{EngineId, ForeignMemory, IoBuf, IoBufMut, Region};
use crate::op::Request;

/// A [`CudaSlice`] lent to an engine: a source of writes and, where every bit pattern is a value of
/// `T`, a destination of reads. Feature `cudarc`.
///
/// Operations wait for all work that was queued on the slice when it was lent, its allocation and
/// its `memset` among it, so a slice fresh from `alloc_zeros` can be lent at once. Nothing reaches
/// the slice before [`into_slice`](Self::into_slice) gives it back; then the bytes of every operation
/// that has ended are there, for every stream.
///
/// Dropping it is safe at any time and calls no CUDA function on the dropping thread.
///
/// ```no_run
/// use cudarc::driver::{CudaContext, CudaSlice};
/// use tokio_cufile::{AsyncCuFile, Engine, LentSlice};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let slice: CudaSlice<f32> = stream.alloc_zeros(1 << 20)?;
/// let engine = Engine::builder().build().await?;
/// let file = AsyncCuFile::open(&engine, "weights.bin").await?;
/// let lent = LentSlice::new(&engine, slice).await?;
/// let done = file.read_exact_at(lent, 0).await?;
/// let slice = done.buf.into_slice();
/// # Ok(())
/// # }
/// ```
pub struct LentSlice<T: 'static> {
    memory: ForeignMemory<Owner<T>>,
}

/// Emptied only by whoever takes the slice back.
type Owner<T> = Disposed<Mutex<Option<CudaSlice<T>>>>;

impl<T: 'static> LentSlice<T> {
    /// Lends a slice of a device's primary context, which is what `CudaContext::new` gives. On an
    /// engine thread: an event is recorded in the slice's stream.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a slice of another context, or of the per-thread default stream, which the
    /// engine cannot wait for; `DeviceFailed`, also for an error that cudarc has kept from before;
    /// `Unsupported`. The slice is dropped then, on an engine thread.
    pub fn new(engine: &Engine, slice: CudaSlice<T>) -> Request<Self> {
        let shared = Arc::clone(&engine.shared);
        Request::detached(&engine.shared, Operation::Buffer, move || {
            Self::lend(&shared, slice)
        })
    }

    fn lend(shared: &Shared, mut slice: CudaSlice<T>) -> Result<Self> {
        let stream = Arc::clone(slice.stream());
        let side = side_of(shared, stream.context())?;
        let (address, len) = (address_of(&mut slice, &stream)?, slice.num_bytes());
        // SAFETY: the slice keeps its stream, and the context was found to be the device's.
        let event = unsafe { CudaEvent::record_at_once(shared, Arc::clone(&side), raw(&stream)) }?;
        let owner = Disposed::new(shared, Mutex::new(Some(slice)));
        // SAFETY: the slice owns the allocation, and is reached again only by value. What is queued
        // on it comes before the event: in its own stream, or in others that this one waits for.
        let memory = unsafe { ForeignMemory::classified(shared.id, &side, address, len, owner) }?;
        Ok(Self {
            memory: memory.when(Arc::new(event)),
        })
    }

    /// Takes the slice back.
    #[must_use]
    pub fn into_slice(self) -> CudaSlice<T> {
        let slice = self.memory.owner().lock();
        let slice = slice.unwrap_or_else(PoisonError::into_inner).take();
        slice.expect("it is taken by value, so once")
    }
}

impl<T> fmt::Debug for LentSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentSlice")
            .field("memory", &self.memory)
            .finish()
    }
}

// SAFETY: as for the memory, which it owns and gives no other access to.
unsafe impl<T: 'static> Memory for LentSlice<T> {
    fn prepare(&mut self, engine: EngineId) -> Result<Region> {
        self.memory.prepare(engine)
    }

    fn device(&self) -> Option<Arc<DeviceSide>> {
        self.memory.device()
    }

    fn suits_cufile(&self) -> bool {
        self.memory.suits_cufile()
    }

    fn ready(&self) -> Option<Arc<CudaEvent>> {
        self.memory.ready()
    }
}

impl<T: 'static> IoBuf for LentSlice<T> {}
// A file may hold anything: into a slice of `bool` it would bring values that no `bool` has.
impl<T: AnyBitPattern> IoBufMut for LentSlice<T> {}

impl CudaEvent {
    /// What is in cudarc's `stream` when this resolves, for [`after`](crate::Transfer::after).
    /// Feature `cudarc`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a stream of another context than a device's primary one, and for the
    /// per-thread default stream; `Unsupported`, `DeviceFailed`.
    pub fn of_stream(engine: &Engine, stream: &Arc<CudaStream>) -> Request<Self> {
        let (shared, stream) = (Arc::clone(&engine.shared), Arc::clone(stream));
        Request::detached(&engine.shared, Operation::Event, move || {
            let side = side_of(&shared, stream.context())?;
            // SAFETY: the closure has a share of the stream, whose context is the device's.
            unsafe { Self::record_at_once(&shared, side, raw(&stream)) }
        })
    }

    /// What cudarc's `event` stands for when this resolves: recorded anew, it changes nothing here.
    /// One that was never recorded is complete. Feature `cudarc`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for an event of another context than a device's primary one; `Unsupported`,
    /// `DeviceFailed`.
    pub fn of_event(engine: &Engine, event: impl Into<Arc<CudarcEvent>>) -> Request<Self> {
        let (shared, event) = (Arc::clone(&engine.shared), event.into());
        Request::detached(&engine.shared, Operation::Event, move || {
            let side = side_of(&shared, event.context())?;
            let device = side.device();
            device.bind()?;
            // An event of our own behind it, since cudarc's may be recorded again at any time.
            let stream = handles::Stream::new(device)?;
            let theirs = Event::from_raw(event.cu_event().cast());
            // SAFETY: both are alive, and of this device.
            let waits = unsafe { device.driver.stream_wait_event(stream.raw, theirs) };
            waits.map_err(|error| device.error(error))?;
            // SAFETY: the stream is alive, and of this device.
            unsafe { Self::record_at_once(&shared, Arc::clone(&side), stream.raw) }
        })
    }
}

/// The engine's side of the device that a context of cudarc's is the primary one of.
fn side_of(shared: &Shared, context: &CudaContext) -> Result<Arc<DeviceSide>> {
    // No device has the highest number.
    let ordinal = u32::try_from(context.ordinal()).unwrap_or(u32::MAX);
    let side = shared.devices.get(ordinal)?;
    if !side
        .device()
        .has_context(Context::from_raw(context.cu_ctx().cast()))
    {
        let reason = "a context that is not the device's primary one: use `CudaContext::new`";
        return Err(Error::new(ErrorKind::InvalidInput, reason).with_device(ordinal));
    }
    Ok(side)
}

/// Where the slice lies. Has its own stream wait for what others do with it, as far as cudarc knows.
fn address_of<T>(slice: &mut CudaSlice<T>, stream: &CudaStream) -> Result<u64> {
    let (address, noted) = slice.device_ptr_mut(stream);
    // Notes an access that is not there: whoever takes the slice back may go on at once.
    drop(noted);
    // It keeps errors of the above for whoever asks next, and waits for nothing then.
    stream.context().check_err().map_err(|error| {
        let ordinal = u32::try_from(stream.context().ordinal()).unwrap_or(u32::MAX);
        refused(error).with_device(ordinal)
    })?;
    Ok(address)
}

fn refused(error: DriverError) -> Error {
    let code = VendorCode::Cuda(error.0 as i32);
    Error::new(ErrorKind::DeviceFailed, format!("cudarc: {error}")).with_vendor_code(code)
}

fn raw(stream: &CudaStream) -> Stream {
    Stream::from_raw(stream.cu_stream().cast())
}
