//! The simulated driver of this process, found as the real library finds the real one: by name,
//! when it is first needed.
#![allow(
    unsafe_code,
    reason = "functions of another library, found at run time by name"
)]

use std::ffi::{CStr, c_void};
use std::sync::OnceLock;

use crate::code::{CUDA_POINTER_INVALID, Fail, Result};

type Run = unsafe extern "C" fn(*mut c_void, *mut c_void);
/// Gets its argument, and whether its turn has come.
pub(crate) type Turn = unsafe extern "C" fn(*mut c_void, i32);

type AccessFn = unsafe extern "C" fn(usize, usize, i32, Option<Run>, *mut c_void) -> i32;
type EnqueueFn = unsafe extern "C" fn(usize, Option<Turn>, *mut c_void) -> i32;
type ContextFn = unsafe extern "C" fn(*mut i32) -> i32;
type DeviceOfFn = unsafe extern "C" fn(usize) -> i32;
type BytesFn = unsafe extern "C" fn(usize) -> *mut c_void;

#[derive(Debug)]
pub(crate) struct Cuda {
    access: AccessFn,
    enqueue: EnqueueFn,
    context: ContextFn,
    device_of: DeviceOfFn,
    bytes: BytesFn,
}

static CUDA: OnceLock<Cuda> = OnceLock::new();

/// The driver, if there is one; one that is not simulated counts as none.
pub(crate) fn get() -> Option<&'static Cuda> {
    if let Some(cuda) = CUDA.get() {
        return Some(cuda);
    }
    let found = find()?;
    Some(CUDA.get_or_init(|| found))
}

fn find() -> Option<Cuda> {
    // SAFETY: opens what is loaded already, or else runs the constructors of the library of that
    // name, of which the simulated driver has none.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return None;
    }
    let symbol = |name: &CStr| {
        // SAFETY: the library is never closed, so the handle is good.
        let address = unsafe { libc::dlsym(library, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    };
    let access = symbol(c"sim_cuda_access")?;
    let enqueue = symbol(c"sim_cuda_enqueue")?;
    let context = symbol(c"sim_cuda_context")?;
    let device_of = symbol(c"sim_cuda_device_of")?;
    let bytes = symbol(c"sim_cuda_bytes")?;
    Some(Cuda {
        // SAFETY: only the simulated driver has a function of this name, and it is of this type.
        access: unsafe { std::mem::transmute::<*mut c_void, AccessFn>(access) },
        // SAFETY: as above.
        enqueue: unsafe { std::mem::transmute::<*mut c_void, EnqueueFn>(enqueue) },
        // SAFETY: as above.
        context: unsafe { std::mem::transmute::<*mut c_void, ContextFn>(context) },
        // SAFETY: as above.
        device_of: unsafe { std::mem::transmute::<*mut c_void, DeviceOfFn>(device_of) },
        // SAFETY: as above.
        bytes: unsafe { std::mem::transmute::<*mut c_void, BytesFn>(bytes) },
    })
}

impl Cuda {
    /// The device of the thread's context, or that context's error.
    pub(crate) fn context(&self) -> Result<i32> {
        let mut ordinal = 0;
        // SAFETY: writes one number to a place that lives.
        match unsafe { (self.context)(&raw mut ordinal) } {
            0 => Ok(ordinal),
            code => Err(Fail::Cuda(code)),
        }
    }

    pub(crate) fn device_of(&self, address: usize) -> Option<i32> {
        // SAFETY: takes any address, and looks it up only.
        let ordinal = unsafe { (self.device_of)(address) };
        (ordinal >= 0).then_some(ordinal)
    }

    /// Whether there is memory at an address of a device. Counts as no access.
    pub(crate) fn is_allocated(&self, address: usize) -> bool {
        // SAFETY: tells where the bytes are, which nobody follows.
        let bytes = unsafe { (self.bytes)(address) };
        !bytes.is_null()
    }

    /// Lets `run` at the bytes behind a range of device memory, as the device itself.
    pub(crate) fn access<R>(
        &self,
        (address, len): (usize, usize),
        write: bool,
        run: impl FnOnce(usize) -> R,
    ) -> Result<R> {
        let mut task = Task {
            run: Some(run),
            result: None,
        };
        let call = task.call();
        let argument = (&raw mut task).cast();
        // SAFETY: the function is called, if at all, before this returns, and its argument is what
        // it takes.
        let code = unsafe { (self.access)(address, len, write.into(), Some(call), argument) };
        match (code, task.result) {
            (0, Some(result)) => Ok(result),
            // An address where nothing is, or not as much.
            (1, _) => Err(Fail::Code(CUDA_POINTER_INVALID)),
            (code, _) => Err(Fail::Cuda(code)),
        }
    }

    /// Puts a function into a stream of the thread's context.
    ///
    /// # Safety
    ///
    /// `run` takes `argument`, once, on any thread.
    pub(crate) unsafe fn enqueue(&self, stream: usize, run: Turn, argument: *mut c_void) -> Result {
        // SAFETY: as the caller vouches.
        match unsafe { (self.enqueue)(stream, Some(run), argument) } {
            0 => Ok(()),
            code => Err(Fail::Cuda(code)),
        }
    }
}

struct Task<F, R> {
    run: Option<F>,
    result: Option<R>,
}

impl<F: FnOnce(usize) -> R, R> Task<F, R> {
    /// The function that takes a task of this type.
    fn call(&self) -> Run {
        call::<F, R>
    }
}

unsafe extern "C" fn call<F: FnOnce(usize) -> R, R>(bytes: *mut c_void, argument: *mut c_void) {
    // SAFETY: the argument is the task of the call that is under way, and nobody else has it.
    let task = unsafe { &mut *argument.cast::<Task<F, R>>() };
    if let Some(run) = task.run.take() {
        task.result = Some(run(bytes as usize));
    }
}
