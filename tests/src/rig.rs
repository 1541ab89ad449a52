//! A file, an engine and a simulated device with which one test does what it likes.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;
use tokio_cufile::{
    AsyncCuFile, DeviceBuffer, DevicePart, Engine, EngineBuilder, IoEngine, OpenOptions,
};

use crate::bench::{self, block_on};
use crate::sim::{Lease, Sim};
use crate::{gpu, life, pattern};

/// What surrounds parts in device memory, and fills them before a read.
pub const CANARY: u8 = 0xee;

/// Who reads, and who copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Workers read; the device's thread copies.
    Pool,
    /// The ring's thread does both.
    Ring,
    /// The ring reads; the device's thread copies.
    RingAndThread,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Pool, Self::Ring, Self::RingAndThread];

    /// The settings that choose it.
    pub fn of(self, builder: EngineBuilder) -> EngineBuilder {
        match self {
            Self::Pool => builder.io(IoEngine::Pool),
            Self::Ring => builder.io(IoEngine::Uring).copy_threads(false),
            Self::RingAndThread => builder.io(IoEngine::Uring).copy_threads(true),
        }
    }
}

/// A file, an engine and a device.
#[derive(Debug)]
pub struct Rig {
    /// The device. Gone last, so that it sees what is left.
    pub device: Lease,
    /// The engine.
    pub engine: Engine,
    /// The file, open for both.
    pub file: AsyncCuFile,
    /// What is in it.
    pub content: Vec<u8>,
    folder: TempDir,
}

impl Rig {
    /// A file of `len` bytes, and an engine that goes the way.
    ///
    /// # Panics
    ///
    /// When either cannot be had.
    #[must_use]
    pub fn new(sim: &'static Sim, way: Way, builder: EngineBuilder, len: usize) -> Self {
        let folder = tempfile::tempdir_in(bench::disk()).expect("a folder");
        let path = folder.path().join("file");
        let content = pattern::bytes(len as u64, len);
        fs::write(&path, &content).expect("the content can be written");
        let engine = way.of(builder).build_blocking().expect("an engine");
        let open = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&engine, &path);
        let file = block_on(open).expect("the file opens");
        Self {
            device: sim.lease(),
            engine,
            file,
            content,
            folder,
        }
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("file")
    }

    /// A buffer on the device, filled with [`CANARY`].
    #[must_use]
    pub fn buffer(&self, len: usize) -> DeviceBuffer {
        block_on(gpu::buffer(
            &self.engine,
            self.device.ordinal,
            &vec![CANARY; len],
        ))
    }

    /// All that is in a buffer, of which no part is out.
    #[must_use]
    pub fn content_of(&self, buffer: DeviceBuffer) -> Vec<u8> {
        block_on(gpu::content(&self.engine, buffer))
    }

    /// The bytes of a part, as they are now.
    #[must_use]
    pub fn peek(&self, part: &DevicePart) -> Vec<u8> {
        self.device.peek(part.address(), part.len())
    }

    /// Checks that the engine has everything back.
    pub fn assert_idle(&self) {
        life::until_idle(&self.engine);
    }

    /// Shuts the engine down, drops all, and checks that nothing is left and no harm was done.
    ///
    /// # Panics
    ///
    /// When something is left.
    pub fn end(self) {
        let report = block_on(self.engine.shutdown());
        assert_eq!(report.quarantined, 0);
        let Self {
            device,
            engine,
            file,
            ..
        } = self;
        drop((engine, file));
        device.assert_all_gone();
    }
}

/// Runs `test` for every way, each time with a device of its own.
pub fn each_way(sim: &'static Sim, builder: &EngineBuilder, len: usize, test: impl Fn(Way, Rig)) {
    for way in Way::ALL {
        // Shown when the test fails.
        eprintln!("{way:?}");
        test(way, Rig::new(sim, way, builder.clone(), len));
    }
}
