//! Reading and writing: at once, in a stream, and in batches.
//!
//! Unsafe, because memory and files are named by address and number, and most of these calls go on
//! after they have returned.
#![allow(unsafe_code, reason = "memory is named by address, across time")]

use std::ffi::{c_uint, c_void};
use std::io;
use std::time::Duration;

use super::decode::decode_sync;
use super::error::{CufileError, Misuse};
use super::library::{Library, check, named, present};
use super::types::{Batch, FileHandle, IoEvent, IoParams, IoVec, Opcode, StreamRegisterFlags};
use crate::cuda::Stream;

/// What is moved between where and where.
///
/// Offsets and lengths are unsigned, and [checked](Misuse) before a call: the library takes signed
/// ones, and with a negative buffer offset it has been seen to write before the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The start of the memory: of the registered range where it is registered, or of any range on
    /// a device ([`DevicePtr::as_void`](crate::cuda::DevicePtr::as_void)) or on the host.
    pub base: *mut c_void,
    /// Bytes from `base` on where the transfer begins.
    pub buf_offset: usize,
    /// Bytes from the start of the file on where the transfer begins.
    pub file_offset: u64,
    /// Bytes to move. One call moves no more than 2 GiB less a page.
    pub len: usize,
}

impl Transfer {
    /// Length and offsets as the library takes them: length, file, buffer.
    fn checked(&self) -> Result<(usize, i64, i64), Misuse> {
        let (len, file_offset, buf_offset) = cells(self.len, self.file_offset, self.buf_offset)?;
        let end = self.base.addr().checked_add(self.buf_offset);
        match end.and_then(|start| start.checked_add(self.len)) {
            Some(_) => Ok((len, file_offset, buf_offset)),
            None => Err(Misuse::Range),
        }
    }
}

fn cells(len: usize, file_offset: u64, buf_offset: usize) -> Result<(usize, i64, i64), Misuse> {
    if isize::try_from(len).is_err() {
        return Err(Misuse::Length);
    }
    let file_offset = i64::try_from(file_offset).map_err(|_| Misuse::FileOffset)?;
    let buf_offset = i64::try_from(buf_offset).map_err(|_| Misuse::BufferOffset)?;
    Ok((len, file_offset, buf_offset))
}

/// The numbers of one operation in a stream. The library has their addresses: it reads three of
/// them *when the operation runs*, whatever flags the stream was registered with, and writes the
/// fourth when it ends.
///
/// So they live, at one place, until the stream has passed the operation.
#[repr(C)]
#[derive(Debug)]
pub struct Cells {
    len: usize,
    file_offset: i64,
    buf_offset: i64,
    done: isize,
}

impl Cells {
    /// What [`done`](Self::done) is before the library has written it: no count, and no error that
    /// there is.
    pub const NOT_DONE: isize = isize::MIN;

    /// An operation on `len` bytes. They are the most that it may move, if they are changed before
    /// it runs.
    ///
    /// # Errors
    ///
    /// What no operation can have.
    pub fn new(len: usize, file_offset: u64, buf_offset: usize) -> Result<Self, Misuse> {
        let (len, file_offset, buf_offset) = cells(len, file_offset, buf_offset)?;
        Ok(Self {
            len,
            file_offset,
            buf_offset,
            done: Self::NOT_DONE,
        })
    }

    /// What the library has written: for [`decode_done`](super::decode_done), unless it is still
    /// [`NOT_DONE`](Self::NOT_DONE). That it was written is no proof that the operation has ended:
    /// that is an event behind it.
    ///
    /// # Safety
    ///
    /// `cells` points to cells that live.
    #[must_use]
    pub unsafe fn done(cells: *const Self) -> isize {
        // SAFETY: the caller keeps the cells.
        let done = unsafe { &raw const (*cells).done };
        // SAFETY: as above; the library may write it at any time, and it is one word.
        unsafe { done.read_volatile() }
    }
}

/// At once: these calls return when the bytes have moved, and have nothing to do with any stream.
impl Library {
    /// `cuFileRead`: from the file to memory. How many bytes were moved: fewer than asked for only
    /// at the end of the file.
    ///
    /// # Safety
    ///
    /// The handle is registered and its descriptor open. The memory is valid for writes from
    /// `base` on up to the end of the transfer, and nothing else uses those bytes until the call
    /// has returned; work of a stream that touched them before has ended. A context of the memory's
    /// device is current in this thread.
    ///
    /// # Errors
    ///
    /// What the library says, and [`CufileError::Refused`].
    pub unsafe fn read(&self, file: FileHandle, what: &Transfer) -> Result<usize, CufileError> {
        const CALL: &str = "cuFileRead";
        let (len, at, within) = allowed(CALL, what.checked())?;
        let (returned, errno) = with_errno(|| {
            // SAFETY: the caller vouches for handle and memory; no argument is negative.
            unsafe { (self.symbols.read)(file, what.base, len, at, within) }
        });
        named(CALL, decode_sync(returned, errno, len))
    }

    /// `cuFileWrite`: from memory to the file.
    ///
    /// # Safety
    ///
    /// As for [`read`](Self::read), but that the memory is valid for reads, and nothing changes it.
    ///
    /// # Errors
    ///
    /// What the library says, and [`CufileError::Refused`].
    pub unsafe fn write(&self, file: FileHandle, what: &Transfer) -> Result<usize, CufileError> {
        const CALL: &str = "cuFileWrite";
        let (len, at, within) = allowed(CALL, what.checked())?;
        let (returned, errno) = with_errno(|| {
            // SAFETY: the caller vouches for handle and memory; no argument is negative.
            unsafe { (self.symbols.write)(file, what.base, len, at, within) }
        });
        named(CALL, decode_sync(returned, errno, len))
    }

    /// `cuFileReadv`: from one range of the file to several pieces of memory.
    ///
    /// # Safety
    ///
    /// As for [`read`](Self::read), for every piece.
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.19; what the library says; [`CufileError::Refused`].
    pub unsafe fn readv(
        &self,
        file: FileHandle,
        pieces: &[IoVec],
        file_offset: u64,
    ) -> Result<usize, CufileError> {
        const CALL: &str = "cuFileReadv";
        let readv = present(self.symbols.readv, CALL)?;
        let (len, at, _) = allowed(CALL, vector(pieces, file_offset))?;
        let (returned, errno) = with_errno(|| {
            // SAFETY: the caller vouches for handle and memory; the pieces live.
            unsafe { readv(file, pieces.as_ptr(), pieces.len(), at, 0) }
        });
        named(CALL, decode_sync(returned, errno, len))
    }

    /// `cuFileWritev`: from several pieces of memory to one range of the file.
    ///
    /// # Safety
    ///
    /// As for [`write`](Self::write), for every piece.
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.19; what the library says; [`CufileError::Refused`].
    pub unsafe fn writev(
        &self,
        file: FileHandle,
        pieces: &[IoVec],
        file_offset: u64,
    ) -> Result<usize, CufileError> {
        const CALL: &str = "cuFileWritev";
        let writev = present(self.symbols.writev, CALL)?;
        let (len, at, _) = allowed(CALL, vector(pieces, file_offset))?;
        let (returned, errno) = with_errno(|| {
            // SAFETY: the caller vouches for handle and memory; the pieces live.
            unsafe { writev(file, pieces.as_ptr(), pieces.len(), at, 0) }
        });
        named(CALL, decode_sync(returned, errno, len))
    }
}

/// In streams.
impl Library {
    /// `cuFileReadAsync`: puts a read into a stream. Success means that it was put there; how it
    /// ended is in its [cells](Cells::done), once the stream has passed it.
    ///
    /// A full stream blocks the caller, for as long as its work takes. With memory that is not
    /// registered the offset in the buffer must be 0, or the operation fails.
    ///
    /// # Safety
    ///
    /// As for [`read`](Self::read), from the call on until the stream has passed the operation; the
    /// cells stay at their place, and nobody but the library writes them, as long. The stream is
    /// alive, and this thread's context is its. No other thread is in such a call for the same stream,
    /// and no other operation is in it unless it is [registered](Self::stream_register): the library ends
    /// the process, or corrupts its heap (seen with 1.15 and 1.20).
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.7; what the library says. After one, nothing is known
    /// to be in the stream, but the library has had the addresses.
    pub unsafe fn read_async(
        &self,
        file: FileHandle,
        base: *mut c_void,
        cells: *mut Cells,
        stream: Stream,
    ) -> Result<(), CufileError> {
        const CALL: &str = "cuFileReadAsync";
        let read = present(self.symbols.read_async, CALL)?;
        // SAFETY: the caller keeps memory, cells and stream until the stream has passed.
        let status = unsafe { submit(read, file, base, cells, stream) };
        check(CALL, status)
    }

    /// `cuFileWriteAsync`: puts a write into a stream.
    ///
    /// # Safety
    ///
    /// As for [`read_async`](Self::read_async), but that the memory is read, and nothing changes it.
    ///
    /// # Errors
    ///
    /// As for [`read_async`](Self::read_async).
    pub unsafe fn write_async(
        &self,
        file: FileHandle,
        base: *mut c_void,
        cells: *mut Cells,
        stream: Stream,
    ) -> Result<(), CufileError> {
        const CALL: &str = "cuFileWriteAsync";
        let write = present(self.symbols.write_async, CALL)?;
        // SAFETY: the caller keeps memory, cells and stream until the stream has passed.
        let status = unsafe { submit(write, file, base, cells, stream) };
        check(CALL, status)
    }

    /// `cuFileStreamRegister`: readies a stream, which spares its first operation doing so. Register every
    /// stream that is to hold more than one operation: in one that is not registered a second operation
    /// beside the first corrupts the heap of the process (seen with 1.15 and 1.20, see `docs/cufile.md`).
    ///
    /// # Safety
    ///
    /// The stream is alive, and is [deregistered](Self::stream_deregister) before it is destroyed.
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.7; what the library says.
    pub unsafe fn stream_register(
        &self,
        stream: Stream,
        flags: StreamRegisterFlags,
    ) -> Result<(), CufileError> {
        const CALL: &str = "cuFileStreamRegister";
        let register = present(self.symbols.stream_register, CALL)?;
        // SAFETY: the caller keeps the stream alive.
        let status = unsafe { register(stream, flags.0) };
        check(CALL, status)
    }

    /// `cuFileStreamDeregister`.
    ///
    /// # Safety
    ///
    /// The stream is alive, and has passed every operation that was put into it.
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.7; what the library says.
    pub unsafe fn stream_deregister(&self, stream: Stream) -> Result<(), CufileError> {
        const CALL: &str = "cuFileStreamDeregister";
        let deregister = present(self.symbols.stream_deregister, CALL)?;
        // SAFETY: the caller keeps the stream alive, and its operations have ended.
        let status = unsafe { deregister(stream) };
        check(CALL, status)
    }
}

/// In batches.
impl Library {
    /// `cuFileBatchIOSetUp`: a batch with room for `entries_max` requests, at most the parameter
    /// [`IO_BATCHSIZE`](super::SizeParameter::IO_BATCHSIZE).
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.6; what the library says.
    pub fn batch_set_up(&self, entries_max: u32) -> Result<Batch, CufileError> {
        const CALL: &str = "cuFileBatchIOSetUp";
        let set_up = present(self.symbols.batch_set_up, CALL)?;
        let mut batch = Batch::NULL;
        // SAFETY: writes one handle to a place that lives.
        let status = unsafe { set_up(&raw mut batch, entries_max) };
        check(CALL, status)?;
        Ok(batch)
    }

    /// `cuFileBatchIOSubmit`. The requests run in no order.
    ///
    /// # Safety
    ///
    /// The batch is set up, with room for as many. For each request, as for [`read`](Self::read) or
    /// [`write`](Self::write), until an event has told its end or the batch is destroyed.
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.6; what the library says; [`Misuse::Count`].
    pub unsafe fn batch_submit(
        &self,
        batch: Batch,
        requests: &mut [IoParams],
    ) -> Result<(), CufileError> {
        const CALL: &str = "cuFileBatchIOSubmit";
        let submit = present(self.symbols.batch_submit, CALL)?;
        let count = allowed(CALL, count(requests.len()))?;
        // SAFETY: the requests live while the call runs; the caller keeps what they name.
        let status = unsafe { submit(batch, count, requests.as_mut_ptr(), 0) };
        check(CALL, status)
    }

    /// `cuFileBatchIOGetStatus`: waits until at least `events_min` requests have ended or the time
    /// is over, and says how many events it wrote, from the first on.
    ///
    /// # Safety
    ///
    /// The batch is set up.
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.6; what the library says; [`Misuse::Count`].
    pub unsafe fn batch_status(
        &self,
        batch: Batch,
        events_min: u32,
        events: &mut [IoEvent],
        timeout: Duration,
    ) -> Result<usize, CufileError> {
        const CALL: &str = "cuFileBatchIOGetStatus";
        let get = present(self.symbols.batch_get_status, CALL)?;
        let mut told = allowed(CALL, count(events.len()))?;
        let mut timeout = libc::timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let (to, count, time) = (events.as_mut_ptr(), &raw mut told, &raw mut timeout);
        // SAFETY: the caller owns the batch. Writes at most as many events as it is told that there
        // is room for.
        let status = unsafe { get(batch, events_min, count, to, time) };
        check(CALL, status)?;
        Ok(usize::try_from(told).unwrap_or(0).min(events.len()))
    }

    /// `cuFileBatchIOCancel`: asks for an end. What runs may run on.
    ///
    /// # Safety
    ///
    /// The batch is set up.
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.6; what the library says.
    pub unsafe fn batch_cancel(&self, batch: Batch) -> Result<(), CufileError> {
        const CALL: &str = "cuFileBatchIOCancel";
        let cancel = present(self.symbols.batch_cancel, CALL)?;
        // SAFETY: the caller owns the batch.
        let status = unsafe { cancel(batch) };
        check(CALL, status)
    }

    /// `cuFileBatchIODestroy`. Has no result.
    ///
    /// # Safety
    ///
    /// The caller owns the batch, and an event has told the end of each of its requests.
    ///
    /// # Errors
    ///
    /// [`CufileError::Unsupported`] before 1.6.
    pub unsafe fn batch_destroy(&self, batch: Batch) -> Result<(), CufileError> {
        let destroy = present(self.symbols.batch_destroy, "cuFileBatchIODestroy")?;
        // SAFETY: the caller owns the batch, and nothing of it is in flight.
        unsafe { destroy(batch) };
        Ok(())
    }
}

impl IoParams {
    /// One request of a batch; `cookie` tells it from others in its event.
    ///
    /// # Errors
    ///
    /// What no request can have.
    pub fn new(
        opcode: Opcode,
        file: FileHandle,
        what: &Transfer,
        cookie: usize,
    ) -> Result<Self, Misuse> {
        let numbers = what.checked()?;
        Ok(Self::of(file, what.base, numbers, (opcode, cookie)))
    }
}

type Submit = unsafe extern "C" fn(
    FileHandle,
    *mut c_void,
    *mut usize,
    *mut i64,
    *mut i64,
    *mut isize,
    Stream,
) -> super::Status;

/// # Safety
///
/// As for [`Library::read_async`].
#[allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the places of four fields, and the call that takes them, by one promise"
)]
unsafe fn submit(
    call: Submit,
    file: FileHandle,
    base: *mut c_void,
    cells: *mut Cells,
    stream: Stream,
) -> super::Status {
    // SAFETY: the caller keeps memory, cells and stream until the stream has passed the operation.
    // The cells were checked when they were made: nothing in them is negative.
    unsafe {
        call(
            file,
            base,
            &raw mut (*cells).len,
            &raw mut (*cells).file_offset,
            &raw mut (*cells).buf_offset,
            &raw mut (*cells).done,
            stream,
        )
    }
}

/// The `errno` of a call, which counts only if the call sets it: so it is 0 before, and taken
/// before anything else of this thread can set it.
fn with_errno(call: impl FnOnce() -> isize) -> (isize, i32) {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: only tells where this thread's number is.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: the place is this thread's, and stays.
        unsafe { errno.write(0) };
    }
    let returned = call();
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    (returned, errno)
}

fn allowed<T>(call: &'static str, checked: Result<T, Misuse>) -> Result<T, CufileError> {
    checked.map_err(|misuse| CufileError::refused(call, misuse))
}

/// All bytes of the pieces, and the offset in the file.
fn vector(pieces: &[IoVec], file_offset: u64) -> Result<(usize, i64, i64), Misuse> {
    let mut len = 0_usize;
    for piece in pieces {
        piece
            .base
            .addr()
            .checked_add(piece.len)
            .ok_or(Misuse::Range)?;
        len = len.checked_add(piece.len).ok_or(Misuse::Length)?;
    }
    cells(len, file_offset, 0)
}

fn count(len: usize) -> Result<c_uint, Misuse> {
    c_uint::try_from(len).map_err(|_| Misuse::Count)
}
