//! An engine that cuFile alone serves, and a program's own use of the device: streams, fills, copies.
#![allow(
    unsafe_code,
    reason = "fills and copies in streams name memory by address"
)]

use std::fs;

use nvidia_dl::cuda::{DevicePtr, Driver, Event, EventFlags, Stream, StreamFlags};
use nvidia_dl::cufile::Code;
use tempfile::TempDir;
use tokio_cufile::{
    AsyncCuFile, CompatMode, CuFileCalls, Engine, Enqueue, IoBuf, OpenOptions, RegisteredStream,
    Request, Transfer, VendorCode,
};
use tokio_cufile_tests::bench::{self, block_on};
use tokio_cufile_tests::sim::{self, Lease, Sim};
use tokio_cufile_tests::{CufileSim, cufile, nvidia};

pub(crate) const PAGE: usize = 4096;
/// What new memory is full of.
pub(crate) const CANARY: u8 = 0xee;

/// How many fills of how many bytes take longer than it takes to put operations behind them.
const HOLD_UP: (u8, usize) = (32, 256 << 20);
/// A simulated device is as slow with less.
const HOLD_UP_SIMULATED: (u8, usize) = (1, 16 << 20);

pub(crate) struct Rig {
    pub(crate) engine: Engine,
    pub(crate) ordinal: u32,
    driver: &'static Driver,
    scratch: DevicePtr,
    hold_up: (u8, usize),
    folder: TempDir,
    /// Of a simulated device.
    lease: Option<Lease>,
}

impl Rig {
    /// None, with a skip noted, where this machine has no device or no cuFile, or that takes no files.
    #[track_caller]
    pub(crate) fn open(calls: CuFileCalls) -> Option<Self> {
        // Before anything is counted: such tests take turns.
        let sim = if sim::is_asked_for() {
            Sim::need()
        } else {
            None
        };
        let (_, driver) = (nvidia::cufile()?, nvidia::driver()?);
        if let Some(cufile) = CufileSim::here() {
            // A test before this one may have failed.
            cufile.clear();
        }
        let lease = sim.map(Sim::lease);
        let ordinal = lease.as_ref().map_or(0, |lease| lease.ordinal);
        nvidia::enter(driver, ordinal);
        let mut config = bench::cufile_here();
        config.calls = calls;
        let builder = Engine::builder()
            .compat_mode(CompatMode::Off)
            .cufile(config);
        // As many as a test puts into streams at once, also where there is no ring.
        let engine = builder.num_threads(64).build_blocking().expect("an engine");
        let hold_up = match lease {
            Some(_) => HOLD_UP_SIMULATED,
            None => HOLD_UP,
        };
        let rig = Self {
            engine,
            ordinal,
            driver,
            scratch: driver.mem_alloc(hold_up.1).expect("device memory"),
            hold_up,
            folder: tempfile::tempdir_in(bench::disk()).expect("a folder"),
            lease,
        };
        if rig.takes_files() {
            return Some(rig);
        }
        rig.end();
        None
    }

    /// Notes a skip where it does not.
    #[track_caller]
    fn takes_files(&self) -> bool {
        let path = self.folder.path().join("probe");
        fs::write(&path, [0; PAGE]).expect("a file");
        let Err(error) = block_on(AsyncCuFile::open(&self.engine, &path)) else {
            return true;
        };
        let code = match error.vendor_code() {
            Some(VendorCode::CuFile(code)) => Some(Code(code)),
            _ => None,
        };
        nvidia::skip_unknown_disk(&path, code, &error);
        false
    }

    /// A new file with that content, open for both.
    pub(crate) fn file(&self, name: &str, content: &[u8]) -> AsyncCuFile {
        let path = self.folder.path().join(name);
        fs::write(&path, content).expect("the content can be written");
        let options = OpenOptions::new().read(true).write(true);
        block_on(options.open(&self.engine, path)).expect("the file opens")
    }

    /// A stream that has nothing to do with the default one.
    pub(crate) fn stream(&self) -> Stream {
        let created = self.driver.stream_create(StreamFlags::NON_BLOCKING);
        created.expect("a stream")
    }

    pub(crate) fn destroy(&self, stream: Stream) {
        // SAFETY: `stream` made it, and nobody uses it any more.
        unsafe { self.driver.stream_destroy(stream) }.expect("destroyed");
    }

    pub(crate) fn try_register(&self, stream: Stream) -> Request<RegisteredStream> {
        cufile::register(&self.engine, self.ordinal, stream.as_raw().addr())
    }

    pub(crate) fn register(&self, stream: Stream) -> RegisteredStream {
        block_on(self.try_register(stream)).expect("the stream is registered")
    }

    /// Has the stream do something else for a while.
    pub(crate) fn hold_up(&self, stream: Stream) {
        let (fills, len) = self.hold_up;
        for byte in 0..fills {
            self.fill(self.scratch.0, byte, len, stream);
        }
    }

    /// The same, and on a simulated device for as long as it takes to [`release`](Self::release) it.
    pub(crate) fn hold(&self, stream: Stream) {
        if let Some(lease) = &self.lease {
            lease.fault("@fill:never,nth=1");
        }
        self.hold_up(stream);
    }

    /// Lets what is held go on.
    pub(crate) fn release(&self) {
        if let Some(lease) = &self.lease {
            lease.clear();
        }
    }

    /// Puts a fill into the stream.
    pub(crate) fn fill(&self, address: u64, byte: u8, len: usize, stream: Stream) {
        if len == 0 {
            return;
        }
        let to = DevicePtr(address);
        // SAFETY: the memory is the test's until the stream is past this, which every test waits for.
        let put = unsafe { self.driver.memset_d8_async(to, byte, len, stream) };
        put.expect("it is in the stream");
    }

    /// Puts a copy within the device into the stream.
    pub(crate) fn copy(&self, to: u64, from: u64, len: usize, stream: Stream) {
        let (to, from) = (DevicePtr(to), DevicePtr(from));
        // SAFETY: as in `fill`, of both sides.
        let put = unsafe { self.driver.memcpy_dtod_async(to, from, len, stream) };
        put.expect("it is in the stream");
    }

    /// Waits for all that is in the stream.
    pub(crate) fn wait(&self, stream: Stream) {
        // SAFETY: the stream is alive.
        unsafe { self.driver.stream_synchronize(stream) }.expect("the stream is well");
    }

    /// An event behind what is in the stream.
    pub(crate) fn mark(&self, stream: Stream) -> Event {
        let event = self.driver.event_create(EventFlags::DISABLE_TIMING);
        let event = event.expect("an event");
        // SAFETY: both are alive, and of one context.
        unsafe { self.driver.event_record(event, stream) }.expect("recorded");
        event
    }

    /// Whether the stream has not come to the event, which is gone then.
    pub(crate) fn is_behind(&self, event: Event) -> bool {
        // SAFETY: it is alive.
        let has_passed = unsafe { self.driver.event_query(event) }.expect("the stream is well");
        // SAFETY: `mark` made it, and nobody asks again; the driver keeps it for as long as it has to.
        unsafe { self.driver.event_destroy(event) }.expect("destroyed");
        !has_passed
    }

    /// What is in device memory.
    pub(crate) fn peek(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: the memory is the test's, no operation has it, and both sides have as many bytes.
        let copied = unsafe {
            self.driver
                .memcpy_dtoh(bytes.as_mut_ptr(), DevicePtr(address), len)
        };
        copied.expect("copied");
        bytes
    }

    /// Shuts the engine down, and checks that everything was given back, and that a simulated library or
    /// device met nothing that would do harm. Files, buffers and registered streams are gone before.
    #[track_caller]
    pub(crate) fn end(self) {
        block_on(bench::assert_all_home(&self.engine));
        drop(self.engine);
        // SAFETY: every test has waited for what it put into its streams.
        unsafe { self.driver.mem_free(self.scratch) }.expect("freed");
        if let (Some(lease), Some(cufile)) = (self.lease, CufileSim::here()) {
            let report = cufile.report();
            assert_eq!((report.opens, report.live()), (0, 0), "{report:?}");
            cufile.assert_no_harm();
            lease.assert_all_gone();
        }
    }
}

/// Puts an operation into a stream that a test has made, and keeps until the engine has shut down.
pub(crate) fn put<B: IoBuf>(transfer: Transfer<B>, stream: Stream) -> Enqueue<B> {
    cufile::enqueue(transfer, stream.as_raw().addr())
}
