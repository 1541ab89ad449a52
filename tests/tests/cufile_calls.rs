//! Failure looked for: a library that does something else than we know of it, in a version that
//! nobody tried.
//!
//! Mechanism: NVIDIA documents less than what callers meet, and the simulated library is made from
//! what was measured.
//!
//! Method: the same calls on whatever library is there, real or simulated, with what they return
//! compared to what has been measured. One process, as the library is one a process; this file
//! alone can be carried to another machine as its test binary.
//!
//! | variable | |
//! |---|---|
//! | `TOKIO_CUFILE_LIBCUFILE` | the library, where the loader does not find it |
//! | `TOKIO_CUFILE_TEST_FOLDER` | where files are made; the folder for temporary files unless said |
//!
//! Unsafe, because the calls are.
#![allow(unsafe_code, reason = "the calls under test are unsafe")]
#![allow(
    clippy::disallowed_methods,
    reason = "a variable says where files may be"
)]

use std::env;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::ptr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nvidia_dl::cuda::{DevicePtr, Driver, Stream, StreamFlags};
use nvidia_dl::cufile::{
    BoolParameter, BufferFlags, Cells, Code, CufileError, Failure, FileHandle, Library,
    OPTIONAL_SYMBOLS, SizeParameter, StatsLevel, StreamRegisterFlags, StringParameter, Transfer,
    Version, decode_done,
};
use tokio_cufile_tests::cufile_sim::CufileSim;
use tokio_cufile_tests::nvidia;
use tokio_cufile_tests::pattern::{self, assert_same};

const MIB: usize = 1 << 20;
/// Two pieces of the library, and a tail that ends in no page.
const FILE_BYTES: usize = 2 * MIB + 1000;
/// Opening looks at the whole bus; one that has not ended by then hangs.
const OPEN_SECONDS_MAX: u64 = 60;

#[test]
fn a_library_has_the_symbols_of_its_version_and_no_newer_one() {
    let Some(library) = nvidia::cufile() else {
        return;
    };
    let version = library.version().expect("it tells its version");
    let version = version.expect("versions before 1.8 are not looked at");
    println!("cuFile {version}: {}", library.path().display());
    let missing = library.missing_symbols();
    for symbol in OPTIONAL_SYMBOLS {
        let since = Version::since(symbol).expect("every optional symbol came with a version");
        let is_there = !missing.contains(symbol);
        assert_eq!(
            is_there,
            since <= version,
            "{symbol} of {since}, in {version}"
        );
    }
}

/// These calls are for machines without a GPU as well.
#[test]
fn the_parameters_of_the_version_are_told() {
    let Some(library) = nvidia::cufile() else {
        return;
    };
    let version = library.version().expect("a version").unwrap_or(Version(0));
    if version < Version(1140) {
        let missing = library.size_parameter(SizeParameter::IO_BATCHSIZE);
        assert!(
            matches!(missing, Err(CufileError::Unsupported { .. })),
            "{missing:?}"
        );
        return;
    }
    for parameter in SizeParameter::ALL {
        let value = library.size_parameter(*parameter).expect("a number");
        println!("{} = {value}", parameter.key().unwrap_or_default());
    }
    // The last two came with 1.19, and NVTX went with 1.16.
    let known = |number: u32, last: u32| number <= last || version >= Version(1190);
    for parameter in BoolParameter::ALL {
        let value = library.bool_parameter(*parameter);
        println!("{} = {value:?}", parameter.key().unwrap_or_default());
        let is_gone = *parameter == BoolParameter::NVTX && version >= Version(1160);
        assert_eq!(value.is_ok(), known(parameter.0, 11) && !is_gone);
    }
    for parameter in StringParameter::ALL {
        let value = library.string_parameter(*parameter);
        println!("{} = {value:?}", parameter.key().unwrap_or_default());
        // A path is an error until there is one.
        if *parameter != StringParameter::LOG_FILE_PATH {
            assert_eq!(value.is_ok(), known(parameter.0, 2));
        }
    }
    assert!(library.size_parameter(SizeParameter(99)).is_err());
}

#[test]
fn calls_do_on_this_library_what_has_been_measured() {
    let Some(library) = nvidia::cufile() else {
        return;
    };
    let Some(driver) = nvidia::driver() else {
        return;
    };
    nvidia::enter(driver, 0);
    let rig = Rig::open(library, driver);
    if let Some(files) = rig.files() {
        rig.register(&files);
        let handle = library.handle_register(files.read.as_fd()).expect("again");
        let memory = driver.mem_alloc(FILE_BYTES + 4096).expect("device memory");
        rig.buffers(memory);
        rig.reads(handle, memory);
        rig.streams(handle, memory);
        rig.writes(&files, handle, memory);
        if let Some(sim) = CufileSim::here() {
            assert!(sim.calls("cuFileRead") > 0, "it is the simulated library");
        }
        // SAFETY: nothing is in flight, and the file is open.
        unsafe { library.handle_deregister(handle) };
        // SAFETY: nothing uses it any more.
        unsafe { driver.mem_free(memory) }.expect("freed");
    }
    rig.close();
    if let Some(sim) = CufileSim::here() {
        let report = sim.report();
        assert_eq!((report.harm(), report.live()), (0, 0), "{report:?}");
    }
}

struct Rig {
    library: &'static Library,
    driver: &'static Driver,
    version: Version,
    content: Vec<u8>,
}

struct Files {
    _folder: tempfile::TempDir,
    path: PathBuf,
    read: File,
    write: File,
}

impl Rig {
    /// Opens the library on a thread that may be lost.
    fn open(library: &'static Library, driver: &'static Driver) -> Self {
        let version = library.version().expect("a version");
        let version = version.unwrap_or(Version(0));
        if version >= Version(1140) {
            let quiet = library.set_string_parameter(StringParameter::LOG_FILE_PATH, "/dev/null");
            quiet.expect("the log can be sent away");
        }
        if version >= Version(1150) {
            let level = library.set_stats_level(StatsLevel::PER_GPU);
            level.expect("statistics can be asked for before the library is open");
            assert_failed(library.stats_start(), Code::DRIVER_NOT_INITIALIZED);
        }
        // SAFETY: nothing is open.
        let early = unsafe { library.driver_close() };
        assert_failed(early, Code::DRIVER_NOT_INITIALIZED);
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            nvidia::enter(driver, 0);
            let _ = tell.send(library.driver_open());
        });
        let opened = told.recv_timeout(Duration::from_secs(OPEN_SECONDS_MAX));
        opened.expect("opening ends").expect("opening succeeds");
        assert_eq!(library.use_count(), 1);
        let properties = library.driver_properties().expect("properties");
        println!("{properties:?}");
        if version >= Version(1150) {
            parameters_in_force(library);
        }
        if version >= Version(1150) {
            library.stats_start().expect("counting starts");
        }
        let content = pattern::bytes(5, FILE_BYTES);
        Self {
            library,
            driver,
            version,
            content,
        }
    }

    /// Files of a file system that the library takes; a noted skip where it takes none.
    fn files(&self) -> Option<Files> {
        let folder = match env::var_os("TOKIO_CUFILE_TEST_FOLDER") {
            Some(place) => tempfile::tempdir_in(place),
            None => tempfile::tempdir(),
        };
        let folder = folder.expect("a folder");
        let path = folder.path().join("content");
        fs::write(&path, &self.content).expect("a file");
        let open = |options: &mut OpenOptions| {
            let direct = options.custom_flags(libc::O_DIRECT).open(&path);
            direct.expect("the file system takes O_DIRECT")
        };
        let files = Files {
            read: open(OpenOptions::new().read(true)),
            write: open(OpenOptions::new().read(true).write(true)),
            path: path.clone(),
            _folder: folder,
        };
        match self.library.handle_register(files.read.as_fd()) {
            Ok(handle) => {
                // SAFETY: nothing is in flight, and the file is open.
                unsafe { self.library.handle_deregister(handle) };
                Some(files)
            }
            Err(error) => {
                let code = error.failure().and_then(Failure::code);
                nvidia::skip_unknown_disk(&files.path, code, &error);
                None
            }
        }
    }

    fn register(&self, files: &Files) {
        let library = self.library;
        let handle = library
            .handle_register(files.read.as_fd())
            .expect("registered");
        let number = handle.as_raw().addr() & 0xFFFF_FFFF;
        println!("handle {:#x}", handle.as_raw().addr());
        assert_eq!(number, raw(&files.read));
        let twice = library.handle_register(files.read.as_fd());
        assert_failed(twice, Code::HANDLE_ALREADY_REGISTERED);
        let other = files.read.try_clone().expect("another descriptor");
        let again = library
            .handle_register(other.as_fd())
            .expect("a file twice");
        for handle in [again, handle] {
            // SAFETY: nothing is in flight, and both files are open.
            unsafe { library.handle_deregister(handle) };
        }
        let folder = File::open(files.path.parent().expect("it is in a folder")).expect("a folder");
        assert_failed(
            library.handle_register(folder.as_fd()),
            Code::INVALID_FILE_TYPE,
        );
        let null = File::open("/dev/null").expect("a device");
        assert_failed(
            library.handle_register(null.as_fd()),
            Code::INVALID_FILE_TYPE,
        );
        // Deregistering what is not registered does nothing.
        // SAFETY: there is nothing behind it.
        unsafe { library.handle_deregister(FileHandle::NULL) };
    }

    fn buffers(&self, memory: DevicePtr) {
        let (library, base) = (self.library, memory.as_void());
        let register = || {
            // SAFETY: the memory stays until the test ends.
            unsafe { library.buf_register(base, FILE_BYTES, BufferFlags::NONE) }
        };
        // SAFETY: nothing is registered.
        let early = unsafe { library.buf_deregister(base) };
        println!(
            "not registered: {}",
            early.expect_err("it is not registered")
        );
        register().expect("registered");
        assert_failed(register(), Code::MEMORY_ALREADY_REGISTERED);
        // SAFETY: nothing is in flight.
        unsafe { library.buf_deregister(base) }.expect("deregistered");
    }

    fn read(&self, handle: FileHandle, what: &Transfer) -> Result<usize, CufileError> {
        // SAFETY: the handle is registered, and the memory is the test's.
        unsafe { self.library.read(handle, what) }
    }

    fn reads(&self, handle: FileHandle, memory: DevicePtr) {
        let before = self.paths_read();
        let whole = Transfer {
            base: memory.as_void(),
            buf_offset: 4096,
            file_offset: 0,
            len: FILE_BYTES,
        };
        self.zero(memory);
        assert_eq!(self.read(handle, &whole), Ok(FILE_BYTES));
        assert_same(&self.bytes(memory, 4096, FILE_BYTES), &self.content);
        let tail = Transfer {
            file_offset: FILE_BYTES as u64 - 1000,
            ..whole
        };
        assert_eq!(self.read(handle, &tail), Ok(1000), "the end of the file");
        let odd = Transfer {
            file_offset: 333,
            buf_offset: 77,
            len: 5001,
            ..whole
        };
        assert_eq!(
            self.read(handle, &odd),
            Ok(5001),
            "nothing of it is aligned"
        );
        assert_same(
            &self.bytes(memory, 77, 5001),
            &self.content[333..333 + 5001],
        );
        let beyond = Transfer {
            file_offset: 1 << 30,
            ..whole
        };
        assert_eq!(self.read(handle, &beyond), Ok(0), "past the end");
        assert_eq!(self.read(handle, &Transfer { len: 0, ..whole }), Ok(0));
        self.reads_to_host(handle);
        let unknown = FileHandle::from_raw(ptr::without_provenance_mut(0xABAB_ABAB << 32 | 999));
        assert_failed(self.read(unknown, &whole), Code::HANDLE_NOT_REGISTERED);
        if let (Some(before), Some(after)) = (before, self.paths_read()) {
            println!("pieces read by path: {:?}", after.since(before));
            assert!(after.since(before).total() >= 3, "the reads are counted");
        }
    }

    fn reads_to_host(&self, handle: FileHandle) {
        let mut host = vec![0_u8; MIB];
        let to_host = Transfer {
            base: host.as_mut_ptr().cast(),
            buf_offset: 0,
            file_offset: 4096,
            len: MIB,
        };
        assert_eq!(self.read(handle, &to_host), Ok(MIB));
        assert_same(&host, &self.content[4096..4096 + MIB]);
    }

    /// One read in a stream, whose parameters are there when it runs.
    fn streams(&self, handle: FileHandle, memory: DevicePtr) {
        let (library, driver) = (self.library, self.driver);
        let stream = driver
            .stream_create(StreamFlags::NON_BLOCKING)
            .expect("a stream");
        // SAFETY: the stream is alive until it is deregistered.
        let registered = unsafe { library.stream_register(stream, StreamRegisterFlags::ALL) };
        registered.expect("the stream is registered");
        self.zero(memory);
        assert_eq!(
            self.read_in(stream, handle, memory, (MIB, 4096, 0)),
            Ok(MIB)
        );
        assert_same(&self.bytes(memory, 0, MIB), &self.content[4096..4096 + MIB]);
        let tail = FILE_BYTES as u64 - 1000;
        assert_eq!(
            self.read_in(stream, handle, memory, (MIB, tail, 0)),
            Ok(1000)
        );
        assert_eq!(
            self.read_in(stream, handle, memory, (MIB, 1 << 30, 0)),
            Ok(0)
        );
        // Memory that is not registered, from a place within it.
        let within = self.read_in(stream, handle, memory, (MIB, 0, 4096));
        println!("within memory that is not registered: {within:?}");
        assert!(within.is_err());
        // SAFETY: the memory stays until the test ends.
        let registered =
            unsafe { library.buf_register(memory.as_void(), FILE_BYTES, BufferFlags::NONE) };
        registered.expect("the memory is registered");
        assert_eq!(
            self.read_in(stream, handle, memory, (MIB, 0, 4096)),
            Ok(MIB)
        );
        assert_same(&self.bytes(memory, 4096, MIB), &self.content[..MIB]);
        // SAFETY: the stream has passed all of it.
        unsafe { library.buf_deregister(memory.as_void()) }.expect("deregistered");
        // SAFETY: as above.
        unsafe { library.stream_deregister(stream) }.expect("deregistered");
        // SAFETY: as above.
        unsafe { driver.stream_destroy(stream) }.expect("destroyed");
    }

    fn read_in(
        &self,
        stream: Stream,
        handle: FileHandle,
        memory: DevicePtr,
        (len, file, within): (usize, u64, usize),
    ) -> Result<usize, Failure> {
        let cells = Box::into_raw(Box::new(Cells::new(len, file, within).expect("cells")));
        // SAFETY: the cells live until the stream has passed the operation, and so does the memory.
        let put = unsafe {
            self.library
                .read_async(handle, memory.as_void(), cells, stream)
        };
        put.expect("it is in the stream");
        // SAFETY: the stream is alive.
        unsafe { self.driver.stream_synchronize(stream) }.expect("the stream is well");
        // SAFETY: the cells live.
        let done = unsafe { Cells::done(cells) };
        assert_ne!(done, Cells::NOT_DONE, "the stream has passed it");
        // SAFETY: nobody else has them any more.
        drop(unsafe { Box::from_raw(cells) });
        decode_done(done, len)
    }

    fn writes(&self, files: &Files, read_only: FileHandle, memory: DevicePtr) {
        let handle = self
            .library
            .handle_register(files.write.as_fd())
            .expect("registered");
        let bytes = pattern::bytes(6, MIB);
        // SAFETY: the memory is the test's, and large enough.
        unsafe { self.driver.memcpy_htod(memory, bytes.as_ptr(), MIB) }.expect("copied");
        // Memory that is not pinned arrives later.
        self.driver.ctx_synchronize().expect("it has arrived");
        let what = Transfer {
            base: memory.as_void(),
            buf_offset: 0,
            file_offset: 4096,
            len: MIB,
        };
        // SAFETY: the handle is registered, and the memory is the test's.
        let written = unsafe { self.library.write(handle, &what) };
        assert_eq!(written, Ok(MIB));
        // SAFETY: nothing is in flight, and the file is open.
        unsafe { self.library.handle_deregister(handle) };
        let found = fs::read(&files.path).expect("the file");
        assert_same(&found[4096..4096 + MIB], &bytes);
        assert_same(&found[4096 + MIB..], &self.content[4096 + MIB..]);
        // SAFETY: as above; the file is open for reading only.
        let refused = unsafe { self.library.write(read_only, &what) };
        let refused = refused.expect_err("it is for reading").failure();
        println!("a write to a file for reading: {refused:?}");
        // By 1.15 and by 1.20; since which version it is a code is not known.
        let expected = if self.version < Version(1160) {
            Failure::Os(libc::EPERM)
        } else {
            Failure::Code(Code::INVALID_FILE_OPEN_FLAG)
        };
        assert_eq!(refused, Some(expected));
    }

    fn paths_read(&self) -> Option<nvidia_dl::cufile::PathCounts> {
        let counted = self.version >= Version(1150);
        counted.then(|| self.library.stats_l3().expect("statistics").reads_by_path())
    }

    fn zero(&self, memory: DevicePtr) {
        // SAFETY: the memory is the test's, and has as many bytes.
        unsafe { self.driver.memset_d8(memory, 0, FILE_BYTES + 4096) }.expect("filled");
        self.driver.ctx_synchronize().expect("filled");
    }

    fn bytes(&self, memory: DevicePtr, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let from = memory.checked_add(at).expect("an address");
        // SAFETY: the memory is the test's, and both sides have as many bytes.
        unsafe { self.driver.memcpy_dtoh(bytes.as_mut_ptr(), from, len) }.expect("copied");
        bytes
    }

    /// Closing ends at 0; before that, an open more is an open more, but on 1.15.
    fn close(&self) {
        self.library.driver_open().expect("open again");
        let opens = self.library.use_count();
        assert_eq!(opens, if self.version < Version(1160) { 1 } else { 2 });
        for left in (0..opens).rev() {
            // SAFETY: nothing is registered, and nothing in flight.
            unsafe { self.library.driver_close() }.expect("closed");
            assert_eq!(self.library.use_count(), left);
        }
    }
}

/// Once the library is open every number is within its range.
fn parameters_in_force(library: &Library) {
    for parameter in SizeParameter::ALL {
        let value = library.size_parameter(*parameter).expect("a number");
        let range = library.size_parameter_range(*parameter);
        println!(
            "{} = {value} of {range:?}",
            parameter.key().unwrap_or_default()
        );
        if let Ok((min, max)) = range {
            assert!(min > max || (min..=max).contains(&value), "{parameter:?}");
        }
    }
    println!("posix pool: {:?}", library.posix_pool(3));
    println!("bounce buffers: {:?}", library.bounce_buffers(3));
}

#[track_caller]
fn assert_failed<T: std::fmt::Debug>(result: Result<T, CufileError>, code: Code) {
    let error = result.expect_err("it fails");
    let failure = error.failure().expect("the library was asked");
    assert_eq!(failure.code(), Some(code), "{error}");
}

fn raw(file: &File) -> usize {
    usize::try_from(file.as_raw_fd()).expect("a descriptor is not negative")
}
