//! A stream that is held up for as long as a test wants.

use tempfile::TempDir;
use tokio_cufile::{AsyncCuFile, DeviceBuffer, Enqueue};

use crate::cufile::{Bed, enqueue};
use crate::pattern;
use crate::sim::Sim;

/// Bytes of the file.
pub const LEN: usize = 4 * PAGE;
const PAGE: usize = 4096;

/// What is in the file.
#[must_use]
pub fn content() -> Vec<u8> {
    pattern::bytes(21, LEN)
}

/// A bed with a file, and a stream in which nothing begins before the device's faults are cleared.
#[derive(Debug)]
pub struct Held {
    /// Engine, device and library.
    pub bed: Bed,
    /// A file with [`content`].
    pub file: AsyncCuFile,
    /// The stream.
    pub stream: usize,
    scratch: u64,
}

impl Held {
    /// With a bed's engine.
    #[must_use]
    pub fn new(bed: Bed) -> Self {
        let file = bed.file("file", &content());
        let user = bed.device.user();
        let (stream, scratch) = (user.stream(), user.alloc(PAGE));
        bed.device.fault("@fill:never,nth=1");
        user.fill(scratch, 1, PAGE, stream);
        Self {
            bed,
            file,
            stream,
            scratch,
        }
    }

    /// In a process that others share; a noted skip where nothing is simulated.
    #[must_use]
    #[track_caller]
    pub fn shared(home: &TempDir) -> Option<Self> {
        let sim = Sim::need()?;
        Some(Self::new(Bed::on(sim, home.path(), |builder| builder)))
    }

    /// Lets the stream go on.
    pub fn release(&self) {
        self.bed.device.clear();
    }

    /// A read of all, for the stream.
    pub fn read(&self, buffer: DeviceBuffer) -> Enqueue<DeviceBuffer> {
        enqueue(self.file.read_exact_at(buffer, 0), self.stream)
    }

    /// As [`Bed::end`], once the stream has passed everything.
    pub fn end(self) {
        let user = self.bed.device.user();
        user.synchronize(self.stream);
        user.destroy(self.stream);
        user.free(self.scratch);
        drop(self.file);
        self.bed.end();
    }
}
