//! The simulated driver as a program sees it: through the dynamic loader.
#![allow(
    unsafe_code,
    reason = "calls functions of a library that is loaded at run time"
)]
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::ffi::{CString, c_char, c_void};
use std::path::Path;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

pub(crate) const NOT_READY: i32 = 600;

macro_rules! api {
    ($($name:ident ( $($arg:ident : $type:ty),* );)*) => {
        /// The functions by name.
        #[allow(non_snake_case, reason = "the names are those of the C interface")]
        pub(crate) struct Sim {
            pub(crate) library: Library,
            $($name: unsafe extern "C" fn($($type),*) -> i32,)*
        }

        impl Sim {
            pub(crate) fn load(path: &Path) -> Result<Self, libloading::Error> {
                // SAFETY: the library does nothing when it is loaded.
                let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }?;
                Ok(Self {
                    $($name: {
                        // SAFETY: the signature is that of the C interface.
                        *unsafe { library.get(concat!(stringify!($name), "\0")) }?
                    },)*
                    library,
                })
            }

            $(#[allow(non_snake_case, reason = "the names are those of the C interface")]
            pub(crate) fn $name(&self, $($arg: $type),*) -> i32 {
                // SAFETY: the tests pass memory that is there, or what the call must refuse.
                unsafe { (self.$name)($($arg),*) }
            })*
        }

        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

api! {
    cuInit(flags: u32);
    cuDriverGetVersion(version: *mut i32);
    cuDeviceGetCount(count: *mut i32);
    cuDeviceGet(device: *mut i32, ordinal: i32);
    cuDeviceGetName(name: *mut c_char, len: i32, device: i32);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: i32);
    cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32);
    cuDeviceGetPCIBusId(id: *mut c_char, len: i32, device: i32);
    cuDevicePrimaryCtxRetain(context: *mut usize, device: i32);
    cuDevicePrimaryCtxRelease_v2(device: i32);
    cuCtxGetCurrent(context: *mut usize);
    cuCtxSetCurrent(context: usize);
    cuCtxGetDevice(device: *mut i32);
    cuCtxSynchronize();
    cuStreamCreate(stream: *mut usize, flags: u32);
    cuStreamSynchronize(stream: usize);
    cuStreamQuery(stream: usize);
    cuStreamWaitEvent(stream: usize, event: usize, flags: u32);
    cuStreamGetCtx(stream: usize, context: *mut usize);
    cuStreamDestroy_v2(stream: usize);
    cuEventCreate(event: *mut usize, flags: u32);
    cuEventRecord(event: usize, stream: usize);
    cuEventQuery(event: usize);
    cuEventSynchronize(event: usize);
    cuEventDestroy_v2(event: usize);
    cuMemAlloc_v2(pointer: *mut usize, len: usize);
    cuMemFree_v2(pointer: usize);
    cuMemAllocAsync(pointer: *mut usize, len: usize, stream: usize);
    cuMemFreeAsync(pointer: usize, stream: usize);
    cuMemAllocManaged(pointer: *mut usize, len: usize, flags: u32);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemsetD8_v2(pointer: usize, byte: u8, len: usize);
    cuMemsetD8Async(pointer: usize, byte: u8, len: usize, stream: usize);
    cuPointerGetAttributes(count: u32, attributes: *const i32, data: *const *mut c_void, pointer: usize);
    cuMemGetAddressRange_v2(base: *mut usize, size: *mut usize, pointer: usize);
    cuMemRetainAllocationHandle(handle: *mut u64, address: usize);
    cuMemRelease(handle: u64);
    cuMemcpyHtoD_v2(to: usize, from: *const u8, len: usize);
    cuMemcpyDtoH_v2(to: *mut u8, from: usize, len: usize);
    cuMemcpyHtoDAsync_v2(to: usize, from: *const u8, len: usize, stream: usize);
    cuMemcpyDtoHAsync_v2(to: *mut u8, from: usize, len: usize, stream: usize);
    cuMemcpyDtoDAsync_v2(to: usize, from: usize, len: usize, stream: usize);
    cuMemHostAlloc(pointer: *mut *mut u8, len: usize, flags: u32);
    cuMemFreeHost(start: *mut u8);
    cuMemHostRegister_v2(start: *mut u8, len: usize, flags: u32);
    cuMemHostUnregister(start: *mut u8);
    cuMemHostGetDevicePointer_v2(pointer: *mut usize, host: *mut u8, flags: u32);
    cuGetErrorName(code: i32, text: *mut *const c_char);
    cuGetErrorString(code: i32, text: *mut *const c_char);
    sim_cuda_opt_in(devices: u32, seed: u64);
    sim_cuda_fault_set(device: i32, script: *const c_char);
    sim_cuda_faults_clear(device: i32);
    sim_cuda_stats(device: i32, report: *mut Stats);
    sim_cuda_access(
        pointer: usize,
        len: usize,
        write: i32,
        run: unsafe extern "C" fn(*mut c_void, *mut c_void),
        argument: *mut c_void
    );
}

/// What `sim_cuda_stats` fills.
#[repr(C)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    pub(crate) size: u64,
    pub(crate) calls: u64,
    pub(crate) rules: u64,
    pub(crate) faults_fired: u64,
    pub(crate) live_allocations: u64,
    pub(crate) live_bytes: u64,
    pub(crate) live_streams: u64,
    pub(crate) live_events: u64,
    pub(crate) context_references: u64,
    pub(crate) host_ranges: u64,
    pub(crate) pageable_copies: u64,
    pub(crate) late_writes: u64,
    pub(crate) late_reads: u64,
    pub(crate) early_accesses: u64,
    pub(crate) unregistered_in_use: u64,
    pub(crate) stale_handles: u64,
    pub(crate) work_abandoned: u64,
    pub(crate) bytes_to_device: u64,
    pub(crate) bytes_to_host: u64,
    pub(crate) bytes_on_device: u64,
    pub(crate) elsewhere: u64,
    pub(crate) rules_fired: [u64; 16],
}

/// The simulator with 16 devices. Tests of one process take a device each, as a device knows nothing
/// of the others.
pub(crate) fn sim() -> &'static Sim {
    static SIM: OnceLock<Sim> = OnceLock::new();
    SIM.get_or_init(|| {
        let sim = load();
        assert_eq!(sim.sim_cuda_opt_in(16, 0), 0);
        assert_eq!(sim.cuInit(0), 0);
        sim
    })
}

/// The simulator, of which nothing was asked yet.
pub(crate) fn load() -> Sim {
    let folder = xtask::simulator::cuda().expect("the simulator can be built");
    Sim::load(&folder.join("libcuda.so.1")).expect("the simulator can be loaded")
}

impl Sim {
    /// Makes a device's context the thread's.
    pub(crate) fn enter(&self, device: i32) -> usize {
        let context = self.made(|to| self.cuDevicePrimaryCtxRetain(to, device));
        assert_eq!(self.cuCtxSetCurrent(context), 0);
        context
    }

    /// What a call gives.
    pub(crate) fn made(&self, call: impl FnOnce(*mut usize) -> i32) -> usize {
        let mut made = 0;
        assert_eq!(call(&raw mut made), 0);
        made
    }

    pub(crate) fn stream(&self) -> usize {
        self.made(|to| self.cuStreamCreate(to, 1))
    }

    pub(crate) fn event(&self) -> usize {
        self.made(|to| self.cuEventCreate(to, 2))
    }

    pub(crate) fn allocate(&self, len: usize) -> usize {
        self.made(|to| self.cuMemAlloc_v2(to, len))
    }

    pub(crate) fn faults(&self, device: i32, script: &str) {
        let script = CString::new(script).expect("a script has no zero");
        assert_eq!(self.sim_cuda_fault_set(device, script.as_ptr()), 0);
    }

    pub(crate) fn clear(&self, device: i32) {
        assert_eq!(self.sim_cuda_faults_clear(device), 0);
    }

    pub(crate) fn stats(&self, device: i32) -> Stats {
        let mut stats = Stats {
            size: size_of::<Stats>() as u64,
            ..Stats::default()
        };
        assert_eq!(self.sim_cuda_stats(device, &raw mut stats), 0);
        assert_eq!(stats.size, size_of::<Stats>() as u64);
        stats
    }

    /// How often an entry point was called.
    pub(crate) fn calls(&self, device: i32, name: &str) -> i64 {
        type Calls = unsafe extern "C" fn(i32, *const c_char) -> i64;
        let name = CString::new(name).expect("a name has no zero");
        // SAFETY: the signature is that of the library.
        let calls = unsafe { self.library.get::<Calls>("sim_cuda_calls\0") };
        let calls = *calls.expect("the function is exported");
        // SAFETY: the name ends with a zero.
        unsafe { calls(device, name.as_ptr()) }
    }

    /// Bytes of device memory, by a call that waits for them.
    pub(crate) fn read(&self, from: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert_eq!(self.cuMemcpyDtoH_v2(bytes.as_mut_ptr(), from, len), 0);
        bytes
    }
}

/// Host memory that CUDA has pinned.
pub(crate) struct Pinned {
    pub(crate) bytes: *mut u8,
    pub(crate) len: usize,
}

impl Pinned {
    pub(crate) fn new(sim: &Sim, len: usize) -> Self {
        let mut bytes = std::ptr::null_mut();
        assert_eq!(sim.cuMemHostAlloc(&raw mut bytes, len, 1), 0);
        Self { bytes, len }
    }

    pub(crate) fn fill(&mut self, byte: u8) {
        // SAFETY: the memory is ours, and mapped until the test ends.
        unsafe { self.bytes.write_bytes(byte, self.len) };
    }

    pub(crate) fn get(&self) -> Vec<u8> {
        // SAFETY: as above; the tests read it when what writes has ended.
        unsafe { std::slice::from_raw_parts(self.bytes, self.len) }.to_vec()
    }
}
