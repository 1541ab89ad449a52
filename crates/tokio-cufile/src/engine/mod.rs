//! The engine: settings, threads, permits, and an orderly end.

mod builder;
mod clock;
mod disposed;
mod host;
mod model;
mod shutdown;
mod threads;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use completion::Tick;
use tokio::sync::watch;

pub use self::builder::EngineBuilder;
pub(crate) use self::disposed::Disposed;
pub(crate) use self::host::LostWrites;
pub(crate) use self::model::{Call, Core, Model, PartReport, Task};
pub use self::shutdown::ShutdownReport;

use self::clock::Clock;
use self::threads::Bells;
use crate::compat::{Devices, Executors};
use crate::config::Config;
use crate::cuda::DeviceInfo;
use crate::cufile::CuFileInfo;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::memory::{EngineId, ProcessMark, SlotLayout};
use crate::op::Request;
use crate::plan::route::RingFacts;
use crate::stats::{Counters, Stats};

/// Moves bytes between files and memory for any number of tasks.
///
/// One engine serves a whole process: it owns the worker threads, the staging slots and the one
/// budget that all operations share. Clones are handles to the same engine.
///
/// An engine needs no runtime. Its futures can be awaited on any, with or without tokio's time and
/// I/O drivers.
///
/// # Ending
///
/// [`shutdown`](Self::shutdown) ends it in order and reports. Without it, the engine ends when the
/// last handle and file are gone, and every future that has not begun: what is in flight then is
/// finished in the background, and its memory is released afterwards. Neither blocks the thread that
/// drops. A future that has begun gives its outcome after that as well.
///
/// What is leaked (`std::mem::forget`, a cycle of reference counts) counts as follows:
///
/// | leaked | keeps |
/// |---|---|
/// | a future that was polled, or started | its own memory and its result, the buffer for example; the engine ends without it |
/// | a future that was neither | the engine and its file, as a leaked file: nobody can tell that it will not begin |
/// | an opening or a building that has ended | its result: an open file, an engine |
/// | a file, a stream or writer made of it, an [`Engine`] | the engine, and its file |
/// | a buffer, a part of one | memory; not the engine |
///
/// # At the end of the process
///
/// A process may leave `main`, call `exit` or panic there with operations in flight, with or without a
/// shutdown. What is in flight is not finished for that; the kernel lets a process go when its direct I/O
/// has ended. Where libcufile is used, `exit` first waits until no call of it runs and none of its
/// operations is in a CUDA stream: destroyed in use it would crash the process. That takes as long as they
/// take, and 5 seconds at most. Then the process ends with the status that it was leaving with, but without
/// the exit handlers that were registered before libcufile was used. From then on no operation begins another
/// call of libcufile, and none that needs one ends: an exit handler must not wait for operations. It does not
/// wait for the very first call of a kind (the opening of the library, the first read) where the process
/// leaves in the middle of it. `_exit`, `abort` and signals wait for nothing.
///
/// # After `fork`
///
/// An engine belongs to the process that built it. In a child every call gives
/// [`Forked`](ErrorKind::Forked), and whatever of it the child drops is leaked.
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("config", &self.shared.config)
            .finish_non_exhaustive()
    }
}

/// What every handle and file of an engine holds, and every future that has not begun: whatever may ask
/// for something new. What has begun holds the [`Core`] only, so that a future that is forgotten keeps
/// no thread (I12).
pub(crate) struct Shared {
    pub(crate) id: EngineId,
    pub(crate) config: Config,
    pub(crate) core: Arc<Core>,
    pub(crate) lost_writes: Arc<LostWrites>,
    pub(crate) ring: RingFacts,
    pub(crate) executors: Arc<Executors>,
    pub(crate) devices: Arc<Devices>,
    pub(crate) slots: SlotLayout,
    clock: Clock,
    counters: Arc<Counters>,
    ended: watch::Receiver<bool>,
    pub(crate) mark: Arc<ProcessMark>,
    /// The last: until then the disposer stays, and with it another share of executors and devices.
    closing: Closing,
}

/// Tells the engine's threads, when it goes, that the last handle is gone.
struct Closing {
    bells: Arc<Bells>,
    mark: Arc<ProcessMark>,
}

impl Drop for Closing {
    fn drop(&mut self) {
        if !self.mark.is_forked() {
            self.bells.close();
        }
    }
}

impl Shared {
    /// A deadline on the engine's clock.
    pub(crate) fn tick(&self, at: Instant) -> Tick {
        self.clock.tick(at)
    }

    /// Whether this process is a child of the one that built the engine. Its threads are not
    /// here, and its locks may be held for ever.
    pub(crate) fn is_forked(&self) -> bool {
        self.mark.is_forked()
    }

    /// Set once everything has settled after a shutdown, or after the last handle.
    pub(crate) fn when_ended(&self) -> watch::Receiver<bool> {
        self.ended.clone()
    }

    pub(crate) fn check_process(&self) -> Result<()> {
        self.mark.check()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The last handle is gone, and nobody can begin anything any more: what is live ends by itself,
        // whether anybody waits for it or not. In a forked child the lock might never come free.
        if !self.is_forked() {
            self.core.close_admission();
        }
    }
}

impl Engine {
    /// Settings to build an engine from.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::new(Config::default())
    }

    /// Settings from the environment: see [`Config::from_env`].
    ///
    /// # Errors
    ///
    /// `InvalidInput`, naming the variable whose value cannot be understood.
    pub fn from_env() -> Result<EngineBuilder> {
        Config::from_env().map(EngineBuilder::new)
    }

    /// The settings in force.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// The CUDA devices of this machine. Loads and initialises the driver, on an engine thread.
    ///
    /// # Errors
    ///
    /// `Unsupported` where there is no CUDA; `DeviceFailed` for what the driver says else. No device
    /// is an empty list.
    pub fn devices(&self) -> Request<Vec<DeviceInfo>> {
        let devices = Arc::clone(&self.shared.devices);
        Request::detached(&self.shared, Operation::Devices, move || devices.list())
    }

    /// The process's libcufile: which it is, whether GPUDirect Storage is to be expected, and which
    /// of its settings are in force. Opens it, on an engine thread, if that was not done before.
    ///
    /// # Errors
    ///
    /// `Unsupported`, with the reason, where cuFile cannot be used.
    pub fn cufile(&self) -> Request<CuFileInfo> {
        let cufile = Arc::clone(&self.shared.executors.cufile);
        Request::detached(&self.shared, Operation::CuFile, move || {
            cufile
                .info()
                .map_err(|reason| Error::new(ErrorKind::Unsupported, reason))
        })
    }

    /// What the engine has done and what it holds.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.counters.stats(&self.shared.core.census())
    }
}
