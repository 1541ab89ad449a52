//! Both simulated libraries as a program sees them: through the dynamic loader.
#![allow(
    unsafe_code,
    reason = "calls functions of libraries that are loaded at run time"
)]
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::ffi::{CString, c_char};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::OnceLock;

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};
use nvidia_dl::Search;
use nvidia_dl::cuda::{DevicePtr, Driver, Stream, StreamFlags};
use nvidia_dl::cufile::{
    BufferFlags, Cells, CufileError, Failure, FileHandle, Library, PathCounts, StatsLevel,
    Transfer, decode_done,
};
use tempfile::{NamedTempFile, TempDir};
use xtask::simulator;

pub(crate) const LATEST: &str = "1.20";

/// The libraries, opened, in a process that has no others. Tests of one process take a device each,
/// and files of their own.
pub(crate) struct Sims {
    pub(crate) driver: &'static Driver,
    pub(crate) library: &'static Library,
    cuda: Handle,
    cufile: Handle,
}

/// The libraries of the latest version, open, and counting at level 3.
pub(crate) fn sims() -> &'static Sims {
    static SIMS: OnceLock<Sims> = OnceLock::new();
    let sims = SIMS.get_or_init(|| {
        let sims = Sims::load(LATEST);
        sims.opt_in();
        sims.library
            .set_stats_level(StatsLevel::PER_GPU)
            .expect("a level");
        sims.enter(0);
        sims.quiet();
        sims.library.driver_open().expect("the library opens");
        sims.library.stats_start().expect("it counts");
        sims
    });
    // The thread's context, as the driver wants it.
    sims.enter(0);
    sims
}

macro_rules! call {
    ($library:expr, $name:literal, fn($($type:ty),*) -> $result:ty, $($argument:expr),*) => {{
        // SAFETY: the type is that of the simulator's function.
        let function = unsafe {
            $library.get::<unsafe extern "C" fn($($type),*) -> $result>(concat!($name, "\0"))
        };
        let function = *function.expect("the simulator has the function");
        // SAFETY: the tests pass memory that is there.
        unsafe { function($($argument),*) }
    }};
}

impl Sims {
    /// Loads both, and asks them nothing.
    pub(crate) fn load(version: &str) -> Self {
        let cuda = simulator::cuda().expect("the driver can be built");
        let cuda = cuda.join("libcuda.so.1");
        let cufile = simulator::cufile_of(version, None).expect("the library can be built");
        let cufile = cufile.join("libcufile.so.0");
        // SAFETY: these are the simulators.
        let driver = unsafe { Driver::load(&Search::named([&cuda])) };
        // SAFETY: as above.
        let library = unsafe { Library::load(&Search::named([&cufile])) };
        Self {
            driver: driver.expect("the driver loads"),
            library: library.expect("the library loads"),
            cuda: handle(&cuda),
            cufile: handle(&cufile),
        }
    }

    pub(crate) fn opt_in(&self) {
        let asked = call!(self.cuda, "sim_cuda_opt_in", fn(u32, u64) -> i32, 16, 0);
        assert_eq!(asked, 0);
        let asked = call!(self.cufile, "sim_cufile_opt_in", fn(u64) -> i32, 0);
        assert_eq!(asked, 0);
        self.driver.init().expect("the driver starts");
    }

    /// No log in the current folder.
    pub(crate) fn quiet(&self) {
        use nvidia_dl::cufile::StringParameter;
        let path = StringParameter::LOG_FILE_PATH;
        let quiet = self.library.set_string_parameter(path, "/dev/null");
        quiet.expect("the log can be sent away");
    }

    /// Makes a device's context the thread's.
    pub(crate) fn enter(&self, ordinal: i32) {
        let device = self.driver.device(ordinal).expect("a device");
        let context = self.driver.primary_ctx_retain(device).expect("a context");
        // SAFETY: it is never released.
        unsafe { self.driver.ctx_set_current(Some(context)) }.expect("it is current");
    }

    /// Faults of the library.
    pub(crate) fn faults(&self, script: &str) {
        let script = CString::new(script).expect("a script has no zero");
        let set = call!(
            self.cufile,
            "sim_cufile_fault_set",
            fn(*const c_char) -> i32,
            script.as_ptr()
        );
        assert_eq!(set, 0, "{script:?}");
    }

    pub(crate) fn clear(&self) {
        let cleared = call!(self.cufile, "sim_cufile_faults_clear", fn() -> i32,);
        assert_eq!(cleared, 0);
    }

    /// Faults of a simulated device.
    pub(crate) fn device_faults(&self, ordinal: i32, script: &str) {
        let script = CString::new(script).expect("a script has no zero");
        let set = call!(
            self.cuda,
            "sim_cuda_fault_set",
            fn(i32, *const c_char) -> i32,
            ordinal,
            script.as_ptr()
        );
        assert_eq!(set, 0, "{script:?}");
    }

    pub(crate) fn device_clear(&self, ordinal: i32) {
        let cleared = call!(self.cuda, "sim_cuda_faults_clear", fn(i32) -> i32, ordinal);
        assert_eq!(cleared, 0);
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats {
            size: size_of::<Stats>() as u64,
            ..Stats::default()
        };
        let to = &raw mut stats;
        let told = call!(self.cufile, "sim_cufile_stats", fn(*mut Stats) -> i32, to);
        assert_eq!(told, 0);
        assert_eq!(stats.size, size_of::<Stats>() as u64);
        stats
    }

    /// A call past the crate that would refuse it.
    pub(crate) fn read_raw(&self, file: FileHandle, base: *mut u8, within: i64) -> isize {
        let handle = file.as_raw().addr();
        call!(
            self.cufile,
            "cuFileRead",
            fn(usize, *mut u8, usize, i64, i64) -> isize,
            handle,
            base,
            1,
            0,
            within
        )
    }

    pub(crate) fn read(&self, file: FileHandle, what: &Transfer) -> Result<usize, CufileError> {
        // SAFETY: the tests keep file and memory; where they do not, that is what is tested, on
        // memory that the simulator keeps.
        unsafe { self.library.read(file, what) }
    }

    /// Bytes of device memory.
    pub(crate) fn bytes(&self, from: DevicePtr, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: both sides have as many bytes.
        unsafe { self.driver.memcpy_dtoh(bytes.as_mut_ptr(), from, len) }.expect("copied");
        bytes
    }

    pub(crate) fn stream(&self) -> Stream {
        let made = self.driver.stream_create(StreamFlags::NON_BLOCKING);
        made.expect("a stream")
    }

    pub(crate) fn synchronize(&self, stream: Stream) {
        // SAFETY: the tests destroy no stream.
        unsafe { self.driver.stream_synchronize(stream) }.expect("the stream is well");
    }

    pub(crate) fn memory(&self, len: usize) -> DevicePtr {
        self.driver.mem_alloc(len).expect("device memory")
    }

    /// Memory that stays until the process ends, unless that it does not is what is tested.
    pub(crate) fn register_buffer(&self, memory: DevicePtr, len: usize) -> Result<(), CufileError> {
        let flags = BufferFlags::NONE;
        // SAFETY: the simulated library only keeps the address.
        unsafe { self.library.buf_register(memory.as_void(), len, flags) }
    }

    pub(crate) fn register(&self, file: &File) -> FileHandle {
        self.library
            .handle_register(file.as_fd())
            .expect("registered")
    }

    pub(crate) fn deregister(&self, handle: FileHandle) {
        // SAFETY: the tests have ended all use, or that is what is tested.
        unsafe { self.library.handle_deregister(handle) };
    }

    /// Puts a read into a stream.
    pub(crate) fn put(&self, stream: Stream, file: FileHandle, to: DevicePtr, cells: *mut Cells) {
        // SAFETY: the tests keep the cells until the stream has passed.
        let put = unsafe { self.library.read_async(file, to.as_void(), cells, stream) };
        put.expect("it is in the stream");
    }

    pub(crate) fn reads_by_path(&self) -> PathCounts {
        self.library.stats_l3().expect("statistics").reads_by_path()
    }
}

/// The numbers of an operation, until the test ends.
pub(crate) fn cells(len: usize, file: u64, within: usize) -> *mut Cells {
    Box::into_raw(Box::new(Cells::new(len, file, within).expect("cells")))
}

/// What is in them; `None` before it is.
pub(crate) fn done(cells: *mut Cells, asked: usize) -> Option<Result<usize, Failure>> {
    // SAFETY: the tests never free cells.
    let done = unsafe { Cells::done(cells) };
    (done != Cells::NOT_DONE).then(|| decode_done(done, asked))
}

pub(crate) fn whole(memory: DevicePtr, len: usize) -> Transfer {
    Transfer {
        base: memory.as_void(),
        buf_offset: 0,
        file_offset: 0,
        len,
    }
}

/// A file of those bytes, with a path that no other test has.
pub(crate) fn file(bytes: &[u8]) -> NamedTempFile {
    let file = NamedTempFile::new_in(folder().path()).expect("a file");
    fs::write(file.path(), bytes).expect("it takes the bytes");
    file
}

/// The part of its path that is a file's own.
pub(crate) fn name(file: &NamedTempFile) -> &str {
    let name = file.path().file_name().and_then(|name| name.to_str());
    name.expect("a name")
}

fn folder() -> &'static TempDir {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| tempfile::tempdir().expect("a folder"))
}

fn handle(path: &Path) -> Handle {
    // SAFETY: it is loaded already, and never unloaded.
    unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.expect("it is loaded")
}

/// What `sim_cufile_stats` fills.
#[repr(C)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    pub(crate) size: u64,
    pub(crate) calls: u64,
    pub(crate) rules: u64,
    pub(crate) faults_fired: u64,
    pub(crate) opens: u64,
    pub(crate) files: u64,
    pub(crate) buffers: u64,
    pub(crate) streams: u64,
    pub(crate) freed_buffers: u64,
    pub(crate) nvidia_fs: u64,
    pub(crate) p2pdma: u64,
    pub(crate) posix: u64,
    pub(crate) stale_files: u64,
    pub(crate) files_ended_in_flight: u64,
    pub(crate) files_closed_early: u64,
    pub(crate) buffers_ended_in_flight: u64,
    pub(crate) streams_ended_in_flight: u64,
    pub(crate) closed_with_files: u64,
    pub(crate) negative_offsets: u64,
    pub(crate) abandoned: u64,
    pub(crate) in_flight_max: u64,
    pub(crate) blocked_submissions: u64,
    pub(crate) elsewhere: u64,
    pub(crate) unregistered_together: u64,
    pub(crate) rules_fired: [u64; 16],
}
