//! The simulated driver as a test steers it: faults, counts, and a program's own use of a device.
//!
//! Its functions are found at run time by name, in the library that the engine loads as well. A
//! device is the domain of its faults and counts: a test [leases](Sim::lease) one for itself, since
//! tests may share a process.
#![allow(
    unsafe_code,
    reason = "calls functions of a library that is loaded at run time"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "a variable says whether the simulator was asked for"
)]

mod whole;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::env;
use std::ffi::{CString, c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use tokio_cufile::{CudaEvent, Engine, ForeignMemory};

use crate::bench::block_on;
use crate::skip::skip;

/// The variable by which a program asks for simulated devices.
pub const VARIABLE: &str = "TOKIO_CUFILE_SIMULATE";

/// Whether this process is to have simulated devices.
#[must_use]
pub fn is_asked_for() -> bool {
    env::var_os(VARIABLE).is_some_and(|value| value == "1")
}

macro_rules! api {
    ($($name:ident ( $($arg:ident : $type:ty),* ) -> $result:ty;)*) => {
        #[allow(non_snake_case, reason = "the names are those of the C interface")]
        struct Api {
            $($name: unsafe extern "C" fn($($type),*) -> $result,)*
            _library: Library,
        }

        impl Api {
            fn load() -> Result<Self, libloading::Error> {
                // SAFETY: the library does nothing when it is loaded.
                let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL) }?;
                Ok(Self {
                    $($name: {
                        // SAFETY: the signature is that of the C interface.
                        *unsafe { library.get(concat!(stringify!($name), "\0")) }?
                    },)*
                    _library: library,
                })
            }

            $(#[allow(non_snake_case, reason = "the names are those of the C interface")]
            fn $name(&self, $($arg: $type),*) -> $result {
                // SAFETY: the callers below pass memory that is there.
                unsafe { (self.$name)($($arg),*) }
            })*
        }
    };
}

api! {
    sim_cuda_fault_set(device: i32, script: *const c_char) -> i32;
    sim_cuda_faults_clear(device: i32) -> i32;
    sim_cuda_stats(device: i32, report: *mut u64) -> i32;
    sim_cuda_calls(device: i32, name: *const c_char) -> i64;
    sim_cuda_bytes(pointer: usize) -> *mut c_void;
    cuInit(flags: u32) -> i32;
    cuDevicePrimaryCtxRetain(context: *mut usize, device: i32) -> i32;
    cuDevicePrimaryCtxRelease_v2(device: i32) -> i32;
    cuCtxSetCurrent(context: usize) -> i32;
    cuCtxSynchronize() -> i32;
    cuStreamCreate(stream: *mut usize, flags: u32) -> i32;
    cuStreamSynchronize(stream: usize) -> i32;
    cuStreamDestroy_v2(stream: usize) -> i32;
    cuMemAlloc_v2(pointer: *mut usize, len: usize) -> i32;
    cuMemAllocAsync(pointer: *mut usize, len: usize, stream: usize) -> i32;
    cuMemFree_v2(pointer: usize) -> i32;
    cuMemsetD8Async(pointer: usize, byte: u8, len: usize, stream: usize) -> i32;
    cuMemcpyDtoH_v2(to: *mut u8, from: usize, len: usize) -> i32;
    cuMemcpyHtoDAsync_v2(to: usize, from: usize, len: usize, stream: usize) -> i32;
    cuMemHostAlloc(pointer: *mut *mut u8, len: usize, flags: u32) -> i32;
    cuMemFreeHost(start: *mut u8) -> i32;
}

macro_rules! stats {
    ($($(#[$doc:meta])* $field:ident,)*) => {
        /// What a device counts; the head of the simulator says what each count means.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the names say it")]
        pub struct Stats {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Stats {
            const COUNT: usize = [$(stringify!($field)),*].len();

            fn from_words(words: [u64; Self::COUNT]) -> Self {
                let [$($field),*] = words;
                Self { $($field),* }
            }
        }
    };
}

stats! {
    size, calls, rules, faults_fired, live_allocations, live_bytes, live_streams, live_events,
    context_references, host_ranges, pageable_copies, late_writes, late_reads, early_accesses,
    unregistered_in_use, stale_handles, work_abandoned, bytes_to_device, bytes_to_host,
    bytes_on_device, elsewhere,
}

impl Stats {
    /// What a real device would have done harm by: nothing may ever be counted here.
    #[must_use]
    pub const fn harm(&self) -> u64 {
        self.late_writes
            + self.late_reads
            + self.early_accesses
            + self.unregistered_in_use
            + self.stale_handles
    }

    /// What adds up, from `before` on.
    const fn since(self, before: &Self) -> Self {
        Self {
            calls: self.calls - before.calls,
            faults_fired: self.faults_fired - before.faults_fired,
            pageable_copies: self.pageable_copies - before.pageable_copies,
            late_writes: self.late_writes - before.late_writes,
            late_reads: self.late_reads - before.late_reads,
            early_accesses: self.early_accesses - before.early_accesses,
            unregistered_in_use: self.unregistered_in_use - before.unregistered_in_use,
            stale_handles: self.stale_handles - before.stale_handles,
            work_abandoned: self.work_abandoned - before.work_abandoned,
            bytes_to_device: self.bytes_to_device - before.bytes_to_device,
            bytes_to_host: self.bytes_to_host - before.bytes_to_host,
            bytes_on_device: self.bytes_on_device - before.bytes_on_device,
            elsewhere: self.elsewhere - before.elsewhere,
            ..self
        }
    }

    /// What is still there of what was made.
    #[must_use]
    pub const fn live(&self) -> u64 {
        self.live_allocations + self.live_streams + self.live_events + self.host_ranges
    }
}

/// Where tests share a process, those on simulated devices take turns: they count threads.
static TURN: Mutex<()> = Mutex::new(());

thread_local! {
    /// Held by a test's own thread, to its end.
    static MINE: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
}

fn take_turn() {
    MINE.with_borrow_mut(|mine| {
        mine.get_or_insert_with(|| TURN.lock().unwrap_or_else(PoisonError::into_inner));
    });
}

/// The simulated driver.
pub struct Sim {
    api: Api,
    taken: Mutex<BTreeSet<u32>>,
    devices: u32,
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sim").finish_non_exhaustive()
    }
}

impl Sim {
    /// The simulator; `None`, with a skip noted, where it was not asked for.
    ///
    /// # Panics
    ///
    /// When it was asked for and is not there.
    #[must_use = "a test without it returns"]
    #[track_caller]
    pub fn need() -> Option<&'static Self> {
        if !is_asked_for() {
            skip("needs-simulator", "it was not asked for: `cargo xtask sim`");
            return None;
        }
        take_turn();
        static SIM: OnceLock<Sim> = OnceLock::new();
        Some(SIM.get_or_init(|| {
            let api = Api::load().expect("the simulator is asked for, and first on the path");
            assert_eq!(api.cuInit(0), 0, "the simulator starts");
            let exists = |ordinal: &u32| {
                let name = CString::new("cuMemAlloc_v2").expect("a name");
                api.sim_cuda_calls(int(*ordinal), name.as_ptr()) >= 0
            };
            let devices = (0..64).take_while(exists).count();
            Self {
                api,
                taken: Mutex::default(),
                devices: u32::try_from(devices).expect("few"),
            }
        }))
    }

    /// A device that no other test of this process uses. It is given to others afterwards unless
    /// something of it is left, or its context is lost.
    ///
    /// # Panics
    ///
    /// When all are taken.
    #[must_use = "dropped, it is given back"]
    pub fn lease(&'static self) -> Lease {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let free = (0..self.devices).find(|ordinal| !taken.contains(ordinal));
        let ordinal = free.expect("there are devices enough: TOKIO_CUFILE_SIM_DEVICES");
        taken.insert(ordinal);
        drop(taken);
        let mut lease = Lease {
            sim: self,
            ordinal,
            before: Stats::default(),
            spoiled: AtomicBool::new(false),
        };
        lease.before = lease.stats();
        lease
    }

    /// Makes a device's context the calling thread's.
    fn bind(&self, ordinal: u32) -> i32 {
        let mut context = 0;
        let retained = self
            .api
            .cuDevicePrimaryCtxRetain(&raw mut context, int(ordinal));
        match retained {
            0 => self.api.cuCtxSetCurrent(context),
            error => error,
        }
    }

    fn stats_of(&self, scope: i32) -> Stats {
        let mut words = [0; Stats::COUNT];
        words[0] = (words.len() * size_of::<u64>()) as u64;
        let code = self.api.sim_cuda_stats(scope, words.as_mut_ptr());
        assert_eq!(code, 0, "the simulator tells its counts");
        Stats::from_words(words)
    }

    /// How many devices there are.
    #[must_use]
    pub const fn devices(&self) -> u32 {
        self.devices
    }
}

fn int(number: u32) -> i32 {
    i32::try_from(number).expect("a small number")
}

/// A simulated device that one test has for itself.
#[derive(Debug)]
pub struct Lease {
    sim: &'static Sim,
    /// Its CUDA ordinal.
    pub ordinal: u32,
    /// What others before have added up.
    before: Stats,
    spoiled: AtomicBool,
}

impl Lease {
    /// Keeps the device from other tests: something may yet come of what this one did.
    pub fn spoil(&self) {
        self.spoiled.store(true, Ordering::Relaxed);
    }

    /// Adds faults, in the words of the simulator.
    ///
    /// # Panics
    ///
    /// When it does not understand them.
    pub fn fault(&self, script: &str) {
        let text = CString::new(script).expect("a text");
        let set = self
            .sim
            .api
            .sim_cuda_fault_set(int(self.ordinal), text.as_ptr());
        assert_eq!(set, 0, "`{script}`");
    }

    /// Ends all faults; what hangs goes on.
    pub fn clear(&self) {
        self.sim.api.sim_cuda_faults_clear(int(self.ordinal));
    }

    /// The counts; those that add up begin with the lease.
    ///
    /// # Panics
    ///
    /// When the simulator does not tell.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.sim.stats_of(int(self.ordinal)).since(&self.before)
    }

    /// How often an entry point was called, by others before as well.
    ///
    /// # Panics
    ///
    /// When there is none of that name.
    #[must_use]
    pub fn calls(&self, name: &str) -> u64 {
        let text = CString::new(name).expect("a name");
        let calls = self
            .sim
            .api
            .sim_cuda_calls(int(self.ordinal), text.as_ptr());
        u64::try_from(calls).unwrap_or_else(|_| panic!("no entry point is called {name}"))
    }

    /// Fails where anything was done that would do harm on a real device.
    ///
    /// # Panics
    ///
    /// Where it was.
    #[track_caller]
    pub fn assert_no_harm(&self) {
        let stats = self.stats();
        assert_eq!(stats.harm(), 0, "{stats:?}");
        assert_eq!(stats.pageable_copies, 0, "{stats:?}");
    }

    /// Waits until nothing of what the engine made is left, and checks that no harm was done. To be
    /// called when nothing holds the engine any more.
    ///
    /// # Panics
    ///
    /// When harm was done. A test that waits in vain is ended by its runner.
    pub fn assert_all_gone(&self) {
        crate::life::until(|| self.stats().live() == 0);
        self.assert_no_harm();
    }

    /// The bytes behind a device pointer as they are now, which no real device shows.
    ///
    /// # Panics
    ///
    /// When there is no such memory.
    #[must_use]
    pub fn peek(&self, address: u64, len: usize) -> Vec<u8> {
        let address = usize::try_from(address).expect("an address");
        let bytes = self.sim.api.sim_cuda_bytes(address).cast::<u8>();
        assert!(!bytes.is_null(), "there is no memory at {address:#x}");
        let byte = |at| {
            let byte = bytes.wrapping_add(at);
            // SAFETY: the simulator keeps that much mapped there, as the caller knows; what a
            // device does meanwhile is seen or not, a byte at a time.
            unsafe { byte.read_volatile() }
        };
        (0..len).map(byte).collect()
    }

    /// Changes the bytes behind a device pointer, as no real device lets the host do.
    ///
    /// # Panics
    ///
    /// When there is no such memory.
    pub fn poke(&self, address: u64, bytes: &[u8]) {
        let address = usize::try_from(address).expect("an address");
        let start = self.sim.api.sim_cuda_bytes(address).cast::<u8>();
        assert!(!start.is_null(), "there is no memory at {address:#x}");
        // SAFETY: the simulator keeps that much mapped there, as the caller knows, and no operation
        // has it.
        unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// The calling thread as a program that uses the device by itself.
    #[must_use]
    pub const fn user(&self) -> User<'_> {
        User { lease: self }
    }

    fn is_as_new(&self) -> bool {
        let (sim, ordinal) = (self.sim, self.ordinal);
        let is_well = move || sim.bind(ordinal) == 0 && sim.api.cuCtxSynchronize() == 0;
        let has_nothing = self.stats().live() == 0;
        has_nothing && std::thread::spawn(is_well).join().unwrap_or(false)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.clear();
        if !self.spoiled.load(Ordering::Relaxed) && self.is_as_new() {
            let taken = self.sim.taken.lock();
            taken
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&self.ordinal);
        }
    }
}

/// A program's own calls on a device: memory and streams that the engine did not make.
#[derive(Clone, Copy, Debug)]
pub struct User<'a> {
    lease: &'a Lease,
}

impl User<'_> {
    fn api(&self) -> &Api {
        &self.lease.sim.api
    }

    fn call<T: Default>(&self, call: impl FnOnce(&Api, *mut T) -> i32) -> T {
        let bound = self.lease.sim.bind(self.lease.ordinal);
        assert_eq!(bound, 0, "the device has a context");
        let mut result = T::default();
        assert_eq!(call(self.api(), &raw mut result), 0);
        result
    }

    /// A stream that has nothing to do with the default one.
    #[must_use]
    pub fn stream(&self) -> usize {
        self.call(|api, stream| api.cuStreamCreate(stream, 1))
    }

    /// Destroys a stream; what is in it is still done.
    pub fn destroy(&self, stream: usize) {
        self.call(|api, _: *mut usize| api.cuStreamDestroy_v2(stream));
    }

    /// Waits for what is in a stream.
    pub fn synchronize(&self, stream: usize) {
        self.call(|api, _: *mut usize| api.cuStreamSynchronize(stream));
    }

    /// Waits for the whole device; what the driver says of that.
    #[must_use]
    pub fn synchronize_all(&self) -> i32 {
        let bound = self.lease.sim.bind(self.lease.ordinal);
        match bound {
            0 => self.api().cuCtxSynchronize(),
            error => error,
        }
    }

    /// Device memory.
    #[must_use]
    pub fn alloc(&self, len: usize) -> u64 {
        self.call(|api, at: *mut usize| api.cuMemAlloc_v2(at, len)) as u64
    }

    /// Memory of a pool, there when the stream comes to it.
    #[must_use]
    pub fn alloc_async(&self, len: usize, stream: usize) -> u64 {
        self.call(|api, at: *mut usize| api.cuMemAllocAsync(at, len, stream)) as u64
    }

    /// Frees device memory.
    pub fn free(&self, address: u64) {
        let address = usize::try_from(address).expect("an address");
        self.call(|api, _: *mut usize| api.cuMemFree_v2(address));
    }

    /// Queues a fill.
    pub fn fill(&self, address: u64, byte: u8, len: usize, stream: usize) {
        let address = usize::try_from(address).expect("an address");
        self.call(|api, _: *mut usize| api.cuMemsetD8Async(address, byte, len, stream));
    }

    /// Queues a copy from pinned host memory.
    pub fn copy(&self, to: u64, from: u64, len: usize, stream: usize) {
        let [to, from] = [to, from].map(|at| usize::try_from(at).expect("an address"));
        self.call(|api, _: *mut usize| api.cuMemcpyHtoDAsync_v2(to, from, len, stream));
    }

    /// An event of the engine's, behind what is in a stream now.
    ///
    /// # Panics
    ///
    /// When it cannot be recorded.
    #[must_use]
    pub fn record(&self, engine: &Engine, stream: usize) -> Arc<CudaEvent> {
        let handle = std::ptr::without_provenance_mut(stream);
        // SAFETY: the stream is alive and of that device: this type made it.
        let recorded = unsafe { CudaEvent::record(engine, self.lease.ordinal, handle) };
        Arc::new(block_on(recorded).expect("the event is recorded"))
    }

    /// Memory for the engine that it did not allocate.
    ///
    /// # Errors
    ///
    /// As the engine's own call.
    pub fn lend<T: Send + 'static>(
        &self,
        engine: &Engine,
        address: u64,
        len: usize,
        owner: T,
    ) -> tokio_cufile::Result<ForeignMemory<T>> {
        // SAFETY: the tests free what they allocate when no operation has it any more.
        let lent = unsafe { ForeignMemory::new(engine, self.lease.ordinal, address, len, owner) };
        block_on(lent)
    }

    /// What is in device memory, copied by the driver.
    #[must_use]
    pub fn content(&self, address: u64, len: usize) -> Vec<u8> {
        let address = usize::try_from(address).expect("an address");
        let mut bytes = vec![0; len];
        let to = bytes.as_mut_ptr();
        self.call(|api, _: *mut usize| api.cuMemcpyDtoH_v2(to, address, len));
        bytes
    }

    /// Pinned host memory of the driver's, filled with zeros.
    #[must_use]
    pub fn host_alloc(&self, len: usize) -> u64 {
        let start = self.call(|api, at: *mut usize| api.cuMemHostAlloc(at.cast(), len, 1));
        // SAFETY: it was allocated with that length just now, and nobody else knows it.
        unsafe { (start as *mut u8).write_bytes(0, len) };
        start as u64
    }

    /// Fills pinned host memory that nobody else looks at, except where a test wants that.
    pub fn host_fill(&self, address: u64, byte: u8, len: usize) {
        let address = usize::try_from(address).expect("an address");
        // SAFETY: the caller allocated it with at least that length.
        unsafe { (address as *mut u8).write_bytes(byte, len) };
    }

    /// Frees it.
    pub fn host_free(&self, address: u64) {
        let address = usize::try_from(address).expect("an address");
        self.call(|api, _: *mut usize| api.cuMemFreeHost(address as *mut u8));
    }

    /// What is in pinned host memory that nothing writes now.
    #[must_use]
    pub fn host_content(&self, address: u64, len: usize) -> Vec<u8> {
        let address = usize::try_from(address).expect("an address");
        // SAFETY: the caller allocated it with at least that length.
        let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, len) };
        bytes.to_vec()
    }
}
