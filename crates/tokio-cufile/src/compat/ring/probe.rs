//! Building a ring, as good as the kernel gives one, and reading through it once.
#![allow(unsafe_code, reason = "a read entry names memory by address")]

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;

use crate::memory::SlotArena;

/// How long the first read may take: it reads memory.
const READ_LIMIT: Duration = Duration::from_secs(2);

const PROBE: &[u8; 16] = b"tokio-cufile ok\n";

/// A ring with room for `entries` requests, on the calling thread, where it is to be used.
pub(super) fn build(entries: u32, notes: &mut Vec<String>) -> Result<IoUring, String> {
    let mut best = IoUring::builder();
    best.setup_single_issuer()
        .setup_coop_taskrun()
        .setup_defer_taskrun()
        // Without it, a wait for nothing does not show what has completed.
        .setup_taskrun_flag()
        .dontfork();
    match best.build(entries) {
        Ok(ring) => Ok(ring),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            notes.push("the kernel does not know the ring's set-up flags; built without".into());
            let mut plain = IoUring::builder();
            plain.dontfork();
            plain.build(entries).map_err(|error| refusal(&error))
        }
        Err(error) => Err(refusal(&error)),
    }
}

fn refusal(error: &std::io::Error) -> String {
    let why = match error.raw_os_error() {
        Some(libc::EPERM) => "forbidden by kernel.io_uring_disabled or a seccomp filter",
        Some(libc::ENOSYS) => "not in this kernel, or hidden by a seccomp filter",
        Some(libc::ENOMEM) => "no memory, or too little that may be locked",
        Some(libc::EMFILE | libc::ENFILE) => "no descriptor left",
        _ => "refused",
    };
    format!("{why} ({error})")
}

/// Registers every slot, in order. Whether that was granted.
pub(super) fn register(ring: &IoUring, slots: &SlotArena, notes: &mut Vec<String>) -> bool {
    let vectors: Vec<libc::iovec> = (0..slots.count())
        .map(|index| slots.slot(index))
        .map(|slot| libc::iovec {
            iov_base: slot.as_ptr().cast(),
            iov_len: slot.len(),
        })
        .collect();
    // SAFETY: each vector names a slot of the arena, which outlives the ring: the driver holds it.
    match unsafe { ring.submitter().register_buffers(&vectors) } {
        Ok(()) => true,
        Err(error) => {
            notes.push(format!("slots are not registered: {error}"));
            // A refused registration may have taken some of them.
            if let Err(error) = ring.submitter().unregister_buffers() {
                tracing::trace!(%error, "nothing was registered");
            }
            false
        }
    }
}

/// A file in memory with a few bytes that are known.
#[derive(Debug)]
pub(super) struct KnownFile(OwnedFd);

impl KnownFile {
    pub(super) fn new() -> Result<Self, String> {
        let make = || {
            let file = rustix::fs::memfd_create("tokio-cufile-probe", MemfdFlags::CLOEXEC)?;
            rustix::io::pwrite(&file, PROBE, 0)?;
            Ok(Self(file))
        };
        make().map_err(|error: Errno| format!("no file to try it on: {error}"))
    }
}

/// Reads the bytes that are known. A kernel or a filter can give a ring that does not work.
pub(super) fn try_read(ring: &mut IoUring, known: &KnownFile) -> Result<(), String> {
    let KnownFile(file) = known;
    // Leaked should the read never end: the kernel may still write there.
    let buffer: &'static mut [u8; 16] = Box::leak(Box::default());
    let entry = opcode::Read::new(Fd(file.as_raw_fd()), buffer.as_mut_ptr(), 16)
        .offset(0)
        .build();
    // SAFETY: the buffer is never freed before the completion was seen; the file is open until
    // then, and the kernel takes its own reference at submission.
    let pushed = unsafe { ring.submission().push(&entry) };
    pushed.map_err(|_| "no room for one entry".to_owned())?;
    let result = wait_for_one(ring, READ_LIMIT)?;
    let read_well = result == 16 && buffer == PROBE;
    // SAFETY: it came from `Box::leak` above, and the kernel is done with it.
    drop(unsafe { Box::from_raw(std::ptr::from_mut(buffer)) });
    if read_well {
        Ok(())
    } else {
        Err(format!("a first read gave {result}"))
    }
}

fn wait_for_one(ring: &mut IoUring, limit: Duration) -> Result<i32, String> {
    let give_up = Instant::now() + limit;
    loop {
        if let Some(entry) = ring.completion().next() {
            return Ok(entry.result());
        }
        let left = give_up.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!("a first read did not end in {limit:?}"));
        }
        let timeout = Timespec::from(left);
        let wait = SubmitArgs::new().timespec(&timeout);
        match ring.submitter().submit_with_args(1, &wait) {
            Ok(_) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR)) => {}
            Err(error) => return Err(format!("a first read was not taken: {error}")),
        }
    }
}
