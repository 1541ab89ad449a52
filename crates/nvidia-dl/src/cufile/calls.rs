//! Opening and closing, files and buffers.
//!
//! Unsafe, because every call of the library is foreign, and what is registered is named by number
//! and address afterwards.
#![allow(
    unsafe_code,
    reason = "foreign calls that answer through pointers and keep addresses"
)]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};

use super::error::{CufileError, Misuse};
use super::library::{Library, check, present};
use super::types::{BufferFlags, Descriptor, DriverProperties, FileHandle, P2pFlags, StatusFlags};
use super::version::Version;

/// Version, opening and closing.
impl Library {
    /// `cuFileGetVersion`; `None` where there is no such function, which came with 1.8. Works
    /// before everything else, without a GPU, and has no side effect.
    ///
    /// # Errors
    ///
    /// What the library says.
    pub fn version(&self) -> Result<Option<Version>, CufileError> {
        let Some(get) = self.symbols.get_version else {
            return Ok(None);
        };
        let mut version: c_int = 0;
        // SAFETY: writes one integer to a place that lives.
        let status = unsafe { get(&raw mut version) };
        check("cuFileGetVersion", status)?;
        Ok(Some(Version(version)))
    }

    /// `cuFileDriverOpen`. Counted: each open wants one [close](Self::driver_close). Other calls
    /// open by themselves, and parameters cannot be set any more afterwards.
    ///
    /// Call it only where libcuda works, a context is current in this thread, and `/proc/modules`
    /// can be read, and from a thread that may be lost: without libcuda 1.16 and later **never
    /// return** where that file is missing, and up to 1.15 they print to the standard output. The
    /// first call writes a log, by default into the current folder. Descriptors 0 to 2 should be
    /// open.
    ///
    /// That it succeeds says nothing about GPUDirect Storage, nor even about a GPU.
    ///
    /// # Errors
    ///
    /// [`DRIVER_NOT_INITIALIZED`](super::Code::DRIVER_NOT_INITIALIZED) without nvidia-fs where
    /// compatibility mode is not allowed; others.
    pub fn driver_open(&self) -> Result<(), CufileError> {
        // SAFETY: takes nothing.
        let status = unsafe { (self.symbols.driver_open)() };
        check("cuFileDriverOpen", status)
    }

    /// `cuFileDriverClose_v2`: gives one open back. The last makes every registered handle invalid.
    ///
    /// # Safety
    ///
    /// Nothing is in flight, and nothing is registered any more. Not called while the process
    /// exits: from a destructor of a static or a function of `atexit` it crashes.
    ///
    /// # Errors
    ///
    /// [`DRIVER_NOT_INITIALIZED`](super::Code::DRIVER_NOT_INITIALIZED) without an open.
    pub unsafe fn driver_close(&self) -> Result<(), CufileError> {
        // SAFETY: the caller has ended all use.
        let status = unsafe { (self.symbols.driver_close)() };
        check("cuFileDriverClose_v2", status)
    }

    /// `cuFileUseCount`: how often the library is open.
    #[must_use]
    pub fn use_count(&self) -> i64 {
        // SAFETY: takes nothing.
        unsafe { (self.symbols.use_count)() }
    }

    /// `cuFileDriverGetProperties`. Before the library is open, 1.17 and later leave most fields
    /// unwritten, which are 0 here; earlier ones fail.
    ///
    /// # Errors
    ///
    /// What the library says.
    pub fn driver_properties(&self) -> Result<DriverProperties, CufileError> {
        let mut properties = DriverProperties::default();
        // SAFETY: writes at most one structure to a place that lives, and all of it is zeros
        // before, which are a value of every field.
        let status = unsafe { (self.symbols.driver_get_properties)(&raw mut properties) };
        check("cuFileDriverGetProperties", status)?;
        Ok(properties)
    }

    /// `cuFileDriverSetPollMode`: waits for requests of up to `threshold_kb` KiB by polling. Acts
    /// only before the library is open, as all of these settings.
    ///
    /// # Errors
    ///
    /// What the library says.
    pub fn set_poll_mode(&self, poll: bool, threshold_kb: usize) -> Result<(), CufileError> {
        // SAFETY: takes numbers only.
        let status = unsafe { (self.symbols.driver_set_poll_mode)(poll, threshold_kb) };
        check("cuFileDriverSetPollMode", status)
    }

    /// `cuFileDriverSetMaxDirectIOSize`, in KiB: the largest piece that a request is cut into.
    ///
    /// # Errors
    ///
    /// What the library says.
    pub fn set_max_direct_io_size(&self, kb: usize) -> Result<(), CufileError> {
        // SAFETY: takes a number only.
        let status = unsafe { (self.symbols.driver_set_max_direct_io_size)(kb) };
        check("cuFileDriverSetMaxDirectIOSize", status)
    }

    /// `cuFileDriverSetMaxCacheSize`, in KiB: GPU memory for bounce buffers.
    ///
    /// # Errors
    ///
    /// What the library says.
    pub fn set_max_cache_size(&self, kb: usize) -> Result<(), CufileError> {
        // SAFETY: takes a number only.
        let status = unsafe { (self.symbols.driver_set_max_cache_size)(kb) };
        check("cuFileDriverSetMaxCacheSize", status)
    }

    /// `cuFileDriverSetMaxPinnedMemSize`, in KiB: GPU memory that may be registered, the bounce
    /// buffers included.
    ///
    /// # Errors
    ///
    /// What the library says.
    pub fn set_max_pinned_mem_size(&self, kb: usize) -> Result<(), CufileError> {
        // SAFETY: takes a number only.
        let status = unsafe { (self.symbols.driver_set_max_pinned_mem_size)(kb) };
        check("cuFileDriverSetMaxPinnedMemSize", status)
    }

    /// `cuFileGetBARSizeInKB`: KiB of a GPU's window to the bus, through which registered memory is
    /// reached.
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.15; what the library says.
    pub fn bar_size_kb(&self, gpu: i32) -> Result<usize, CufileError> {
        const CALL: &str = "cuFileGetBARSizeInKB";
        let get = present(self.symbols.get_bar_size_kb, CALL)?;
        let mut kb = 0_usize;
        // SAFETY: writes one size to a place that lives.
        let status = unsafe { get(gpu, &raw mut kb) };
        check(CALL, status)?;
        Ok(kb)
    }

    /// `cuFileDriverGetP2PFlags`: the ways to a device of one kind of storage, which is one bit of
    /// [`StatusFlags`].
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.16; what the library says.
    pub fn p2p_flags(&self, storage: StatusFlags) -> Result<P2pFlags, CufileError> {
        const CALL: &str = "cuFileDriverGetP2PFlags";
        let get = present(self.symbols.get_p2p_flags, CALL)?;
        let mut flags = 0_u32;
        // SAFETY: writes one number to a place that lives.
        let status = unsafe { get(storage.0.trailing_zeros(), &raw mut flags) };
        check(CALL, status)?;
        Ok(P2pFlags(flags))
    }

    /// `cuFileDriverSetP2PFlags`. What may be set depends on the processor.
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.16; what the library says.
    pub fn set_p2p_flags(&self, storage: StatusFlags, flags: P2pFlags) -> Result<(), CufileError> {
        const CALL: &str = "cuFileDriverSetP2PFlags";
        let set = present(self.symbols.set_p2p_flags, CALL)?;
        // SAFETY: takes numbers only.
        let status = unsafe { set(storage.0.trailing_zeros(), flags.0) };
        check(CALL, status)
    }
}

/// Files and buffers.
impl Library {
    /// `cuFileHandleRegister`. Opens the library if need be, with all that
    /// [`driver_open`](Self::driver_open) says.
    ///
    /// The handle goes by the descriptor's *number*. So the descriptor must stay open until after
    /// [`handle_deregister`](Self::handle_deregister): a handle that outlives it reads and writes
    /// whatever file has the number next.
    ///
    /// # Errors
    ///
    /// [`HANDLE_ALREADY_REGISTERED`](super::Code::HANDLE_ALREADY_REGISTERED) for a number that is
    /// registered, [`INVALID_FILE_TYPE`](super::Code::INVALID_FILE_TYPE) for a folder or a pipe,
    /// [`HANDLE_NOT_REGISTERED`](super::Code::HANDLE_NOT_REGISTERED) where the file system is not
    /// recognised, and others.
    pub fn handle_register(&self, file: BorrowedFd<'_>) -> Result<FileHandle, CufileError> {
        let mut handle = FileHandle::NULL;
        let mut descriptor = Descriptor::of(file.as_raw_fd());
        // SAFETY: reads one whole structure, of which all that is not set is 0, and writes one
        // handle; both places live.
        let status =
            unsafe { (self.symbols.handle_register)(&raw mut handle, &raw mut descriptor) };
        check("cuFileHandleRegister", status)?;
        Ok(handle)
    }

    /// `cuFileHandleDeregister`. Has no result: a handle that is none is ignored.
    ///
    /// # Safety
    ///
    /// The caller owns the registration, nothing is in flight on the handle and nothing uses it any
    /// more, and its descriptor is still open.
    pub unsafe fn handle_deregister(&self, handle: FileHandle) {
        // SAFETY: the caller owns the handle and has ended all use of it.
        unsafe { (self.symbols.handle_deregister)(handle) };
    }

    /// `cuFileBufRegister`: pins memory of a device, so that requests go to it directly. Memory that
    /// is not registered can be used too, through bounce buffers.
    ///
    /// # Safety
    ///
    /// `base` is the start of `len` bytes of memory that stay allocated until they are
    /// [deregistered](Self::buf_deregister): freeing registered memory can hang nvidia-fs.
    ///
    /// # Errors
    ///
    /// [`MEMORY_ALREADY_REGISTERED`](super::Code::MEMORY_ALREADY_REGISTERED),
    /// [`INVALID_MAPPING_SIZE`](super::Code::INVALID_MAPPING_SIZE) and
    /// [`GPU_MEMORY_PINNING_FAILED`](super::Code::GPU_MEMORY_PINNING_FAILED) at the limits of what
    /// can be pinned, and others.
    pub unsafe fn buf_register(
        &self,
        base: *mut c_void,
        len: usize,
        flags: BufferFlags,
    ) -> Result<(), CufileError> {
        const CALL: &str = "cuFileBufRegister";
        if isize::try_from(len).is_err() {
            return Err(CufileError::refused(CALL, Misuse::Length));
        }
        if base.addr().checked_add(len).is_none() {
            return Err(CufileError::refused(CALL, Misuse::Range));
        }
        // SAFETY: the caller keeps the memory allocated until it is deregistered.
        let status = unsafe { (self.symbols.buf_register)(base, len, flags) };
        check(CALL, status)
    }

    /// `cuFileBufDeregister`.
    ///
    /// # Safety
    ///
    /// The caller owns the registration, and nothing that names the memory by it is in flight.
    ///
    /// # Errors
    ///
    /// [`MEMORY_NOT_REGISTERED`](super::Code::MEMORY_NOT_REGISTERED).
    pub unsafe fn buf_deregister(&self, base: *mut c_void) -> Result<(), CufileError> {
        // SAFETY: the caller owns the registration and has ended all use of it.
        let status = unsafe { (self.symbols.buf_deregister)(base) };
        check("cuFileBufDeregister", status)
    }
}
