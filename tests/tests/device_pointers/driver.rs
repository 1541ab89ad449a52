//! The driver's own functions, asked apart from the library, and memory of every kind that they make.
#![allow(
    unsafe_code,
    reason = "calls functions of a library that is loaded at run time, and knows memory by address"
)]

use std::ffi::c_void;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use nvidia_dl::cuda::AllocationKind;
use tokio_cufile::PointerClass;
use tokio_cufile_tests::gpu;

/// What direct I/O takes in place.
pub(crate) const BLOCK: usize = 4096;
/// What new memory is full of.
pub(crate) const CANARY: u8 = 0xee;

/// The driver has no such function: `CUDA_ERROR_NOT_FOUND`.
const NOT_FOUND: i32 = 500;
/// It has the function and does not do it: `CUDA_ERROR_NOT_PERMITTED`, `CUDA_ERROR_NOT_SUPPORTED`.
const REFUSED: [i32; 2] = [800, 801];

macro_rules! api {
    ($($name:ident ( $($arg:ident : $type:ty),* );)*) => {
        #[allow(non_snake_case, reason = "the names are those of the C interface")]
        pub(crate) struct Api {
            $($name: Option<unsafe extern "C" fn($($type),*) -> i32>,)*
            _library: Library,
        }

        impl Api {
            fn load() -> Result<Self, libloading::Error> {
                // SAFETY: the engine has loaded it before.
                let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL) }?;
                Ok(Self {
                    $($name: {
                        // SAFETY: the signature is that of the C interface.
                        let found = unsafe { library.get(concat!(stringify!($name), "\0")) };
                        found.ok().map(|symbol| *symbol)
                    },)*
                    _library: library,
                })
            }

            $(#[allow(non_snake_case, reason = "the names are those of the C interface")]
            pub(crate) fn $name(&self, $($arg: $type),*) -> i32 {
                let Some(call) = self.$name else {
                    return NOT_FOUND;
                };
                // SAFETY: the callers below pass places that live, and memory that is there.
                unsafe { call($($arg),*) }
            })*
        }
    };
}

api! {
    cuDriverGetVersion(version: *mut i32);
    cuDevicePrimaryCtxRetain(context: *mut usize, device: i32);
    cuCtxSetCurrent(context: usize);
    cuCtxGetCurrent(context: *mut usize);
    cuCtxSynchronize();
    cuStreamCreate(stream: *mut usize, flags: u32);
    cuStreamSynchronize(stream: usize);
    cuStreamDestroy_v2(stream: usize);
    cuMemAlloc_v2(pointer: *mut u64, len: usize);
    cuMemFree_v2(pointer: u64);
    cuMemAllocAsync(pointer: *mut u64, len: usize, stream: usize);
    cuMemFreeAsync(pointer: u64, stream: usize);
    cuMemAllocManaged(pointer: *mut u64, len: usize, flags: u32);
    cuMemGetAllocationGranularity(bytes: *mut usize, what: *const Physical, option: u32);
    cuMemAddressReserve(pointer: *mut u64, len: usize, align: usize, hint: u64, flags: u64);
    cuMemAddressFree(pointer: u64, len: usize);
    cuMemCreate(handle: *mut u64, len: usize, what: *const Physical, flags: u64);
    cuMemMap(pointer: u64, len: usize, offset: usize, handle: u64, flags: u64);
    cuMemSetAccess(pointer: u64, len: usize, access: *const Access, count: usize);
    cuMemUnmap(pointer: u64, len: usize);
    cuMemRelease(handle: u64);
    cuMemRetainAllocationHandle(handle: *mut u64, address: u64);
    cuMemHostAlloc(pointer: *mut u64, len: usize, flags: u32);
    cuMemFreeHost(pointer: u64);
    cuMemHostRegister_v2(pointer: u64, len: usize, flags: u32);
    cuMemHostUnregister(pointer: u64);
    cuMemsetD8_v2(pointer: u64, byte: u8, len: usize);
    cuMemcpyDtoH_v2(to: *mut u8, from: u64, len: usize);
    cuPointerGetAttributes(count: u32, which: *const u32, to: *const *mut c_void, pointer: u64);
}

/// `CUmemAllocationProp`, with what is not used here as words.
#[repr(C)]
pub(crate) struct Physical {
    kind: u32,
    handle_types: u32,
    place: Place,
    rest: [u64; 2],
}

/// `CUmemLocation`.
#[repr(C)]
pub(crate) struct Place {
    kind: u32,
    ordinal: i32,
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub(crate) struct Access {
    place: Place,
    flags: u32,
}

pub(crate) const ON_DEVICE: Place = Place {
    kind: 1,
    ordinal: 0,
};
static PINNED: Physical = Physical {
    kind: 1,
    handle_types: 0,
    place: ON_DEVICE,
    rest: [0; 2],
};
static READ_WRITE: Access = Access {
    place: ON_DEVICE,
    flags: 3,
};

/// By which calls memory is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Alloc,
    AllocAsync,
    AllocManaged,
    /// Reserved, and mapped in so many pieces.
    Mapped(usize),
    HostAlloc,
    HostRegister,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] = [
        Self::Alloc,
        Self::AllocAsync,
        Self::AllocManaged,
        Self::Mapped(1),
        Self::HostAlloc,
        Self::HostRegister,
    ];

    pub(crate) const fn class(self) -> PointerClass {
        match self {
            Self::Alloc => PointerClass::Device,
            Self::AllocAsync => PointerClass::Pool,
            Self::AllocManaged => PointerClass::Managed,
            Self::Mapped(_) => PointerClass::Virtual,
            Self::HostAlloc | Self::HostRegister => PointerClass::Host,
        }
    }

    pub(crate) const fn allocation(self) -> AllocationKind {
        match self {
            Self::Alloc => AllocationKind::Device,
            Self::AllocAsync => AllocationKind::Pool,
            Self::AllocManaged => AllocationKind::Managed,
            Self::Mapped(_) => AllocationKind::Virtual,
            Self::HostAlloc | Self::HostRegister => AllocationKind::Host,
        }
    }

    const fn is_on_host(self) -> bool {
        matches!(self, Self::HostAlloc | Self::HostRegister)
    }
}

/// Memory, all initialised.
pub(crate) struct Memory {
    pub(crate) kind: Kind,
    pub(crate) address: u64,
    pub(crate) len: usize,
    /// What is registered, which the driver did not allocate.
    _heap: Vec<u8>,
}

/// Which context the thread that asks has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    InContext,
    InNone,
}

impl Asker {
    pub(crate) const ALL: [Self; 2] = [Self::InContext, Self::InNone];
}

/// What the driver says of an address, asked apart from the library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) memory_type: u64,
    pub(crate) ordinal: i32,
    pub(crate) is_managed: bool,
    pub(crate) is_mapped: bool,
    pub(crate) in_pool: bool,
    pub(crate) has_context: bool,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// What it answered when asked for the handle behind a mapping.
    handle: i32,
}

impl Told {
    /// Whether it says that these bytes are there, so far as it says anything.
    pub(crate) fn holds(&self, address: u64, len: usize) -> bool {
        let end = u128::from(address) + len as u128;
        let is_inside =
            self.start <= address && end <= u128::from(self.start) + u128::from(self.bytes);
        self.memory_type != 0 && (self.start == 0 || is_inside)
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.memory_type {
            0 => "unknown",
            1 => "host",
            2 => "device",
            _ => "other",
        };
        write!(
            f,
            "type {kind} ({}), device {}, range {:#x}+{:#x}",
            self.memory_type, self.ordinal, self.start, self.bytes
        )?;
        for (holds, word) in [
            (self.is_mapped, "mapped"),
            (self.is_managed, "managed"),
            (self.in_pool, "of a pool"),
            (self.has_context, "of a context"),
        ] {
            if holds {
                write!(f, ", {word}")?;
            }
        }
        write!(f, ", asked for a handle: {}", self.handle)
    }
}

/// Where tests share a process they take turns: an address that one freed may be another's next.
static TURN: Mutex<()> = Mutex::new(());

/// The driver, with a context that this process keeps.
pub(crate) struct Cuda {
    pub(crate) api: Api,
    context: usize,
    stream: usize,
    /// What was not as it has to be.
    wrong: Mutex<Vec<String>>,
    _turn: MutexGuard<'static, ()>,
}

impl Cuda {
    /// The driver, in whose context the calling thread is then.
    pub(crate) fn here() -> Option<Self> {
        if gpu::count() == 0 {
            return None; // The step with simulated devices has them.
        }
        let mut cuda = Self {
            api: Api::load().expect("the engine has loaded it"),
            context: 0,
            stream: 0,
            wrong: Mutex::default(),
            _turn: TURN.lock().unwrap_or_else(PoisonError::into_inner),
        };
        let mut version = 0;
        done(cuda.api.cuDriverGetVersion(&raw mut version));
        println!("driver of CUDA {version}");
        done(
            cuda.api
                .cuDevicePrimaryCtxRetain(&raw mut cuda.context, ON_DEVICE.ordinal),
        );
        done(cuda.api.cuCtxSetCurrent(cuda.context));
        done(cuda.api.cuStreamCreate(&raw mut cuda.stream, 1));
        Some(cuda)
    }

    /// To be called last: fails with all that was wrong.
    pub(crate) fn end(self) {
        done(self.api.cuStreamDestroy_v2(self.stream));
        let wrong = self.wrong.into_inner().expect("nobody panicked with it");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    pub(crate) fn check(&self, holds: bool, what: impl fmt::Display) {
        if !holds {
            println!("  WRONG: {what}");
            self.wrong.lock().expect("no panic").push(what.to_string());
        }
    }

    /// Runs it on a new thread, whose context must be the same afterwards.
    pub(crate) fn on<R: Send>(&self, asker: Asker, run: impl FnOnce() -> R + Send) -> R {
        let body = || {
            let wanted = match asker {
                Asker::InContext => self.context,
                Asker::InNone => 0,
            };
            if asker == Asker::InContext {
                done(self.api.cuCtxSetCurrent(self.context));
            }
            let result = run();
            let mut found = usize::MAX;
            done(self.api.cuCtxGetCurrent(&raw mut found));
            self.check(
                found == wanted,
                format!("a thread {asker:?} is in another one"),
            );
            result
        };
        thread::scope(|scope| scope.spawn(body).join().expect("it does not panic"))
    }

    /// Memory of that kind, full of canaries; none where the driver has none.
    pub(crate) fn make(&self, kind: Kind, len: usize) -> Option<Memory> {
        let (api, mut address, mut heap) = (&self.api, 0_u64, Vec::new());
        let to = &raw mut address;
        let (mut len, mut code) = (len, 0);
        match kind {
            Kind::Alloc => code = api.cuMemAlloc_v2(to, len),
            Kind::AllocAsync => code = api.cuMemAllocAsync(to, len, self.stream),
            Kind::AllocManaged => code = api.cuMemAllocManaged(to, len, 1),
            Kind::Mapped(pieces) => match self.map(len, pieces) {
                Ok(made) => (address, len) = made,
                Err(error) => code = error,
            },
            Kind::HostAlloc => code = api.cuMemHostAlloc(to, len, 1),
            Kind::HostRegister => {
                heap = vec![0; len + BLOCK];
                address =
                    (heap.as_mut_ptr().expose_provenance() as u64).next_multiple_of(BLOCK as u64);
                code = api.cuMemHostRegister_v2(address, len, 1);
            }
        }
        if code == NOT_FOUND || REFUSED.contains(&code) {
            println!("{kind:?}: this driver has none ({code})");
            return None;
        }
        assert_eq!(code, 0, "{kind:?}");
        done(api.cuStreamSynchronize(self.stream));
        let memory = Memory {
            kind,
            address,
            len,
            _heap: heap,
        };
        self.fill(&memory);
        Some(memory)
    }

    /// At least so much in every piece. Address and length, or the driver's code.
    fn map(&self, len: usize, pieces: usize) -> Result<(u64, usize), i32> {
        let (api, mut grain, mut start) = (&self.api, 0, 0);
        ok(api.cuMemGetAllocationGranularity(&raw mut grain, &raw const PINNED, 0))?;
        let each = len.next_multiple_of(grain);
        let whole = each * pieces;
        ok(api.cuMemAddressReserve(&raw mut start, whole, 0, 0, 0))?;
        for at in (0..whole).step_by(each) {
            let mut handle = 0;
            done(api.cuMemCreate(&raw mut handle, each, &raw const PINNED, 0));
            done(api.cuMemMap(start + at as u64, each, 0, handle, 0));
            // The mapping keeps the memory.
            done(api.cuMemRelease(handle));
        }
        done(api.cuMemSetAccess(start, whole, &raw const READ_WRITE, 1));
        Ok((start, whole))
    }

    pub(crate) fn free(&self, memory: Memory) {
        let (api, address) = (&self.api, memory.address);
        done(match memory.kind {
            Kind::Alloc | Kind::AllocManaged => api.cuMemFree_v2(address),
            Kind::AllocAsync => api.cuMemFreeAsync(address, self.stream),
            Kind::Mapped(_) => {
                done(api.cuMemUnmap(address, memory.len));
                api.cuMemAddressFree(address, memory.len)
            }
            Kind::HostAlloc => api.cuMemFreeHost(address),
            Kind::HostRegister => api.cuMemHostUnregister(address),
        });
        done(api.cuStreamSynchronize(self.stream));
    }

    pub(crate) fn fill(&self, memory: &Memory) {
        if memory.kind.is_on_host() {
            // SAFETY: it has that length, and no operation has it.
            unsafe { on_host(memory.address).write_bytes(CANARY, memory.len) };
            return;
        }
        done(self.api.cuMemsetD8_v2(memory.address, CANARY, memory.len));
        done(self.api.cuCtxSynchronize());
    }

    /// What is in the first bytes.
    pub(crate) fn content(&self, memory: &Memory, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        if memory.kind.is_on_host() {
            // SAFETY: it has that length, and no operation has it.
            let from = unsafe { std::slice::from_raw_parts(on_host(memory.address), len) };
            bytes.copy_from_slice(from);
        } else {
            let to = bytes.as_mut_ptr();
            done(self.api.cuMemcpyDtoH_v2(to, memory.address, len));
        }
        bytes
    }

    /// What the driver says, or its code.
    pub(crate) fn ask(&self, address: u64) -> Result<Told, i32> {
        const ASKED: [u32; 8] = [2, 9, 8, 13, 17, 1, 11, 12];
        let mut cells = [0_u64; ASKED.len()];
        let to = cells
            .each_mut()
            .map(|cell| std::ptr::from_mut(cell).cast::<c_void>());
        let count = u32::try_from(ASKED.len()).expect("few");
        ok(self
            .api
            .cuPointerGetAttributes(count, ASKED.as_ptr(), to.as_ptr(), address))?;
        let mut handle = 0;
        let retained = self
            .api
            .cuMemRetainAllocationHandle(&raw mut handle, address);
        if retained == 0 {
            done(self.api.cuMemRelease(handle));
        }
        let [kind, ordinal, managed, mapped, pool, context, start, bytes] = cells;
        let [a, b, c, d, ..] = ordinal.to_ne_bytes();
        Ok(Told {
            memory_type: kind,
            ordinal: i32::from_ne_bytes([a, b, c, d]),
            is_managed: managed != 0,
            is_mapped: mapped != 0,
            in_pool: pool != 0,
            has_context: context != 0,
            start,
            bytes,
            handle: retained,
        })
    }
}

fn on_host(address: u64) -> *mut u8 {
    let address = usize::try_from(address).expect("an address");
    std::ptr::with_exposed_provenance_mut(address)
}

pub(crate) const fn ok(code: i32) -> Result<(), i32> {
    match code {
        0 => Ok(()),
        code => Err(code),
    }
}

#[track_caller]
pub(crate) fn done(code: i32) {
    assert_eq!(code, 0, "the driver does what it is asked");
}
