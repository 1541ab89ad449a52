//! Which memory was asked for, and the buffers there: host memory or a device's.

use std::time::Duration;

use measure::usage;
use tokio::runtime::Handle;
use tokio_cufile::{AsyncCuFile, DeviceBuffer, DeviceInfo, Engine, Error, ErrorKind, HostBuffer};

use crate::args::Device;
use crate::memory;
use crate::resolved::{WINDOW_DEFAULT, Windows};
use crate::transfer::{Limits, Settled, length_in_memory};

/// Bytes that are copied between a device and the host at once, to be hashed or made.
const COPY_SIZE: usize = 32 << 20;

/// Memory to read into or to write from.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Host,
    Device(DeviceInfo),
}

impl Place {
    /// What `--device` names on this machine. The reason why it names nothing is for people.
    pub(crate) async fn find(engine: &Engine, asked: Device) -> Result<Self, String> {
        let Device::Cuda(ordinal) = asked else {
            return Ok(Self::Host);
        };
        let devices = engine.devices().await.map_err(|error| {
            let what = match error.kind() {
                // The reason begins with "no CUDA".
                ErrorKind::Unsupported => error.reason().to_owned(),
                kind => format!("{kind}: {}", error.reason()),
            };
            format!("--device cuda:{ordinal}: {what}")
        })?;
        let found = devices.iter().find(|device| device.ordinal == ordinal);
        found
            .cloned()
            .map(Self::Device)
            .ok_or_else(|| format!("--device cuda:{ordinal}: {}", count_text(&devices)))
    }

    /// As it is typed.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Host => "host".into(),
            Self::Device(device) => format!("cuda:{}", device.ordinal),
        }
    }

    /// What the driver calls it.
    pub(crate) fn driver_name(&self) -> Option<String> {
        match self {
            Self::Host => None,
            Self::Device(device) => Some(device.name.clone()),
        }
    }

    /// Bytes that buffers may take, as far as it is known.
    pub(crate) fn available(&self) -> Option<u64> {
        match self {
            Self::Host => memory::available(),
            // What others have of it is not known. Of twice the default window, half is taken.
            Self::Device(device) => {
                let total = u64::try_from(device.total_memory).unwrap_or(u64::MAX);
                Some(total.min(2 * WINDOW_DEFAULT))
            }
        }
    }

    /// Whether bytes can be worked on beside a request without disturbing it. To look at those of a
    /// device they are copied on the way that requests take.
    pub(crate) fn is_worked_on_beside(&self) -> bool {
        matches!(self, Self::Host)
    }

    /// The buffers of `windows`, their pages in place: page faults belong to no figure.
    pub(crate) async fn allocate(
        &self,
        engine: &Engine,
        windows: &Windows,
    ) -> Result<Vec<Buffer>, Error> {
        let size = length_in_memory(windows.buffer_size);
        let mut buffers = Vec::new();
        for _ in 0..windows.buffers {
            buffers.push(match self {
                Self::Host => {
                    let mut buffer = HostBuffer::new(engine, size)?;
                    buffer.prefault()?;
                    Buffer::Host(buffer)
                }
                Self::Device(device) => Buffer::Device(
                    engine.clone(),
                    DeviceBuffer::new(engine, device.ordinal, size).await?,
                ),
            });
        }
        Ok(buffers)
    }
}

fn count_text(devices: &[DeviceInfo]) -> String {
    let names: Vec<_> = devices
        .iter()
        .map(|device| format!("cuda:{} is {}", device.ordinal, device.name))
        .collect();
    match devices.len() {
        0 => "no such device: CUDA sees none".into(),
        1 => format!("no such device: there is 1, {}", names.join("")),
        count => format!("no such device: there are {count}: {}", names.join(", ")),
    }
}

/// One buffer.
#[derive(Debug)]
pub(crate) enum Buffer {
    Host(HostBuffer),
    Device(Engine, DeviceBuffer),
}

impl Buffer {
    /// Reads up to `length` bytes into the front; fewer only at the end of the file.
    pub(crate) async fn read(
        &mut self,
        file: &AsyncCuFile,
        length: usize,
        offset: u64,
        limits: Limits,
    ) -> Result<Settled, Error> {
        match self {
            Self::Host(buffer) => {
                let part = buffer.part(0..length)?;
                limits.settle(file.read_at(part, offset)).await
            }
            Self::Device(_, buffer) => {
                let part = buffer.part(0..length)?;
                limits.settle(file.read_at(part, offset)).await
            }
        }
    }

    /// Writes all `length` bytes at the front.
    pub(crate) async fn write(
        &mut self,
        file: &AsyncCuFile,
        length: usize,
        offset: u64,
        limits: Limits,
    ) -> Result<Settled, Error> {
        match self {
            Self::Host(buffer) => {
                let part = buffer.part(0..length)?;
                limits.settle(file.write_all_at(part, offset)).await
            }
            Self::Device(_, buffer) => {
                let part = buffer.part(0..length)?;
                limits.settle(file.write_all_at(part, offset)).await
            }
        }
    }

    /// Shows the first `length` bytes as they lie there, in order. Blocks, on a thread that may.
    pub(crate) fn show(self, length: usize, mut see: impl FnMut(&[u8])) -> Result<Self, Error> {
        match self {
            Self::Host(buffer) => {
                see(&buffer.as_slice()?[..length]);
                Ok(Self::Host(buffer))
            }
            Self::Device(engine, mut buffer) => {
                for start in (0..length).step_by(COPY_SIZE) {
                    let range = start..length.min(start + COPY_SIZE);
                    let copy = buffer.copy_to_host(&engine, range);
                    let (back, bytes) = Handle::current().block_on(copy)?;
                    buffer = back;
                    see(&bytes);
                }
                Ok(Self::Device(engine, buffer))
            }
        }
    }

    /// Puts bytes that `make` makes into the first `length`, in order. Blocks, as `show`.
    pub(crate) fn fill(
        self,
        length: usize,
        mut make: impl FnMut(&mut [u8]),
    ) -> Result<Self, Error> {
        match self {
            Self::Host(mut buffer) => {
                make(&mut buffer.as_mut_slice()?[..length]);
                Ok(Self::Host(buffer))
            }
            Self::Device(engine, mut buffer) => {
                for start in (0..length).step_by(COPY_SIZE) {
                    let mut bytes = vec![0; COPY_SIZE.min(length - start)];
                    make(&mut bytes);
                    let copy = buffer.copy_from_host(&engine, start, bytes);
                    buffer = Handle::current().block_on(copy)?;
                }
                Ok(Self::Device(engine, buffer))
            }
        }
    }

    /// The clock of what it costs to show or fill it: for a device other threads do the copying, and
    /// nothing else goes on meanwhile.
    pub(crate) fn cpu_clock(&self) -> fn() -> Duration {
        match self {
            Self::Host(_) => usage::thread_cpu,
            Self::Device(..) => usage::process_cpu,
        }
    }
}
