//! A bounded pool of buffers: the service's memory, all of it.

use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_cufile::{AsyncCuFile, DeviceBuffer, Engine, Error, HostBuffer, Priority};

use crate::blobs::{Receipted, Wishes};

/// Which memory buffers are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Host,
    Cuda(u32),
}

impl FromStr for Place {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "host" {
            return Ok(Self::Host);
        }
        let ordinal = text
            .strip_prefix("cuda:")
            .and_then(|text| text.parse().ok());
        ordinal.map(Self::Cuda).ok_or("use host or cuda:N")
    }
}

#[derive(Debug)]
pub(crate) struct Pool {
    engine: Engine,
    place: Place,
    /// What the driver calls the device.
    place_name: String,
    buffer_size: usize,
    count: usize,
    idle: Mutex<Vec<Memory>>,
    /// A permit for each buffer. Who waits, waits here in order, and holds none.
    shared: Arc<Semaphore>,
    /// Those that only urgent requests take: a load of bulk requests does not stand before them.
    reserved: Arc<Semaphore>,
}

#[derive(Debug)]
enum Memory {
    Host(HostBuffer),
    Device(DeviceBuffer),
}

impl Pool {
    /// At most `memory` bytes, in buffers of `buffer_size`.
    pub(crate) async fn new(
        engine: &Engine,
        place: Place,
        memory: usize,
        buffer_size: usize,
    ) -> Result<Self, crate::Failure> {
        let count = memory.checked_div(buffer_size).unwrap_or(0);
        if count == 0 {
            return Err("the memory does not hold one buffer".into());
        }
        let place_name = match place {
            Place::Host => "host".to_owned(),
            Place::Cuda(ordinal) => {
                let devices = engine.devices().await?;
                let device = devices.iter().find(|device| device.ordinal == ordinal);
                let device = device
                    .ok_or_else(|| format!("no cuda:{ordinal}: CUDA sees {}", devices.len()))?;
                format!("cuda:{ordinal}, {}", device.name)
            }
        };
        let reserved = if count > 1 { count.div_ceil(8) } else { 0 };
        Ok(Self {
            engine: engine.clone(),
            place,
            place_name,
            buffer_size,
            count,
            idle: Mutex::default(),
            shared: Arc::new(Semaphore::new(count - reserved)),
            reserved: Arc::new(Semaphore::new(reserved)),
        })
    }

    pub(crate) fn place_name(&self) -> &str {
        &self.place_name
    }

    pub(crate) const fn buffer_size(&self) -> usize {
        self.buffer_size
    }

    /// Bytes that all buffers may have.
    pub(crate) const fn capacity(&self) -> usize {
        self.count * self.buffer_size
    }

    /// Bytes of the buffers that are taken.
    pub(crate) fn in_use(&self) -> usize {
        let free = self.shared.available_permits() + self.reserved.available_permits();
        (self.count - free) * self.buffer_size
    }

    /// A buffer, when there is one. Waits for as long as it takes: bound it.
    pub(crate) async fn take(self: &Arc<Self>, priority: Priority) -> Result<Pooled, Error> {
        const OPEN: &str = "the pool closes no semaphore";
        let shared = Arc::clone(&self.shared).acquire_owned();
        let permit = if priority == Priority::Urgent {
            let reserved = Arc::clone(&self.reserved).acquire_owned();
            tokio::select! {
                biased;
                permit = shared => permit.expect(OPEN),
                permit = reserved => permit.expect(OPEN),
            }
        } else {
            shared.await.expect(OPEN)
        };
        let memory = self.idle().pop();
        let memory = match memory {
            Some(memory) => memory,
            None => self.allocate().await?,
        };
        Ok(Pooled {
            memory: Some(memory),
            pool: Arc::clone(self),
            permit: Some(permit),
        })
    }

    async fn allocate(&self) -> Result<Memory, Error> {
        Ok(match self.place {
            Place::Host => Memory::Host(HostBuffer::new(&self.engine, self.buffer_size)?),
            Place::Cuda(ordinal) => {
                let buffer = DeviceBuffer::new(&self.engine, ordinal, self.buffer_size);
                Memory::Device(buffer.await?)
            }
        })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Memory>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A buffer of the pool's. Dropped, it goes back: at once, or when a read that was dropped before it
/// has ended.
#[derive(Debug)]
pub(crate) struct Pooled {
    memory: Option<Memory>,
    pool: Arc<Pool>,
    /// Held until the memory is idle again or gone, whoever has it.
    permit: Option<OwnedSemaphorePermit>,
}

impl Pooled {
    /// Reads exactly `len` bytes into its front; `wishes` is what the read keeps to.
    pub(crate) async fn read(
        &mut self,
        file: &AsyncCuFile,
        offset: u64,
        len: usize,
        wishes: Wishes,
    ) -> Result<Receipted, Error> {
        match self.memory.as_mut().expect(HELD) {
            Memory::Host(buffer) => {
                let part = buffer.part(0..len)?;
                wishes.settle(file.read_exact_at(part, offset), len).await
            }
            Memory::Device(buffer) => {
                let part = buffer.part(0..len)?;
                wishes.settle(file.read_exact_at(part, offset), len).await
            }
        }
    }

    /// The first `len` bytes, for a body that has the buffer until it is sent.
    pub(crate) async fn into_bytes(mut self, len: usize) -> Result<Bytes, Error> {
        let device = match self.memory.take().expect(HELD) {
            Memory::Host(buffer) => {
                self.memory = Some(Memory::Host(buffer));
                return Ok(Bytes::from_owner(OnHost { pooled: self, len }));
            }
            Memory::Device(buffer) => buffer,
        };
        let copy = device.copy_to_host(&self.pool.engine, 0..len);
        // In a task: were it dropped in the middle, the permit would be back before the memory is.
        let copied = tokio::spawn(async move {
            let (buffer, bytes) = copy.await?;
            self.memory = Some(Memory::Device(buffer));
            Ok(Bytes::from_owner(Copied {
                bytes,
                _pooled: self,
            }))
        });
        match copied.await {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }
}

const HELD: &str = "it is taken out where the whole is consumed";

impl Drop for Pooled {
    fn drop(&mut self) {
        let (memory, permit) = (self.memory.take(), self.permit.take());
        let Some(memory) = memory else {
            return;
        };
        if memory.parts_out() == 0 {
            return self.pool.idle().push(memory);
        }
        // The disk or the device may still write to it. Without a runtime the service is at its end.
        if let Ok(runtime) = Handle::try_current() {
            let pool = Arc::clone(&self.pool);
            runtime.spawn(async move {
                memory.idle().await;
                pool.idle().push(memory);
                drop(permit);
            });
        }
    }
}

impl Memory {
    fn parts_out(&self) -> usize {
        match self {
            Self::Host(buffer) => buffer.parts_out(),
            Self::Device(buffer) => buffer.parts_out(),
        }
    }

    async fn idle(&self) {
        match self {
            Self::Host(buffer) => buffer.idle().await,
            Self::Device(buffer) => buffer.idle().await,
        }
    }
}

/// Bytes that are sent from where they were read to.
struct OnHost {
    pooled: Pooled,
    len: usize,
}

impl AsRef<[u8]> for OnHost {
    fn as_ref(&self) -> &[u8] {
        match &self.pooled.memory {
            // No part is out: the read has ended, and nobody else has the buffer.
            Some(Memory::Host(buffer)) => buffer.as_slice().map_or(&[], |all| &all[..self.len]),
            _ => &[],
        }
    }
}

/// Bytes that came back from a device. As much host memory as the buffer, and for as long.
struct Copied {
    bytes: Vec<u8>,
    _pooled: Pooled,
}

impl AsRef<[u8]> for Copied {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
