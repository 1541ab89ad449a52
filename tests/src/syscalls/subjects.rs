//! The system calls that the library makes, by kind, and what each may fail with.
//!
//! Not there: errors that a call gives only for a mistake of its caller, `EINTR` for ever, the
//! writing of an eventfd, which cannot fail as it is used here, and the reading of one, whose error
//! means that there was nothing to take back.

use rustix::io::Errno;

use super::Args;

/// A buffer, and the slots of an engine, of lengths that nothing else has.
pub const BUFFER_LEN: usize = 9 * 4096;
/// See [`BUFFER_LEN`].
pub const SLOTS_LEN: usize = 11 * 4096;

/// Calls of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// For messages.
    pub name: &'static str,
    /// Their numbers.
    pub calls: &'static [libc::c_long],
    /// Of these, the ones that the library makes.
    pub matches: fn(&Args) -> bool,
    /// Whether an engine makes such calls with the pool.
    pub with_pool: bool,
    /// The same with the ring.
    pub with_ring: bool,
    /// What they fail with, once.
    pub errnos: &'static [Errno],
    /// What they fail with from some call on.
    pub lasting: &'static [Errno],
}

const fn any(_: &Args) -> bool {
    true
}

/// Memory of the engine's own: the allocator asks for no such lengths, nor does a thread.
fn is_buffers(args: &Args) -> bool {
    [BUFFER_LEN as u64, SLOTS_LEN as u64].contains(&args[1])
}

fn is_rings(args: &Args) -> bool {
    let shared = u64::from((libc::MAP_SHARED | libc::MAP_POPULATE).unsigned_abs());
    args[3] == shared
}

/// Advice of the engine's own; the allocator says when memory is not needed.
fn is_advice(args: &Args) -> bool {
    args[2] != u64::from(libc::MADV_DONTNEED.unsigned_abs())
}

fn is_flags(args: &Args) -> bool {
    let flags = [libc::F_GETFL, libc::F_SETFL].map(|command| u64::from(command.unsigned_abs()));
    flags.contains(&args[1])
}

/// Where there is an older call for it, it may be that.
const OPEN: &[libc::c_long] = &[
    libc::SYS_openat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
];

/// Any of the calls, made with the pool and with the ring.
const USUAL: Subject = Subject {
    name: "",
    calls: &[],
    matches: any,
    with_pool: true,
    with_ring: true,
    errnos: &[],
    lasting: &[],
};

/// All kinds.
pub const SUBJECTS: [Subject; 19] = [
    Subject {
        name: "open",
        calls: OPEN,
        errnos: &[
            Errno::INTR,
            Errno::ACCESS,
            Errno::MFILE,
            Errno::NOMEM,
            Errno::IO,
        ],
        lasting: &[Errno::NFILE, Errno::ACCESS],
        ..USUAL
    },
    Subject {
        name: "stat",
        calls: &[
            libc::SYS_fstat,
            libc::SYS_newfstatat,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_stat,
            libc::SYS_statx,
            libc::SYS_fstatfs,
        ],
        errnos: &[Errno::IO, Errno::NOMEM],
        lasting: &[Errno::IO],
        ..USUAL
    },
    Subject {
        name: "fcntl",
        calls: &[libc::SYS_fcntl],
        matches: is_flags,
        errnos: &[Errno::PERM],
        lasting: &[Errno::PERM],
        ..USUAL
    },
    Subject {
        name: "ftruncate",
        calls: &[libc::SYS_ftruncate],
        errnos: &[Errno::INTR, Errno::IO, Errno::FBIG, Errno::PERM],
        lasting: &[Errno::NOSPC],
        ..USUAL
    },
    Subject {
        name: "sync",
        calls: &[libc::SYS_fsync, libc::SYS_fdatasync],
        errnos: &[Errno::IO, Errno::NOSPC, Errno::INTR],
        lasting: &[Errno::IO],
        ..USUAL
    },
    Subject {
        name: "fadvise",
        calls: &[libc::SYS_fadvise64],
        errnos: &[Errno::INVAL],
        lasting: &[Errno::INVAL],
        ..USUAL
    },
    Subject {
        name: "close",
        calls: &[libc::SYS_close],
        errnos: &[Errno::IO, Errno::NOSPC, Errno::INTR],
        lasting: &[Errno::IO],
        ..USUAL
    },
    Subject {
        name: "pread",
        calls: &[libc::SYS_pread64],
        errnos: &[
            Errno::INTR,
            Errno::AGAIN,
            Errno::IO,
            Errno::NOMEM,
            Errno::INVAL,
        ],
        lasting: &[Errno::AGAIN, Errno::IO, Errno::INVAL],
        ..USUAL
    },
    Subject {
        name: "pwrite",
        calls: &[libc::SYS_pwrite64],
        errnos: &[
            Errno::INTR,
            Errno::AGAIN,
            Errno::IO,
            Errno::NOSPC,
            Errno::DQUOT,
            Errno::INVAL,
        ],
        lasting: &[Errno::AGAIN, Errno::NOSPC, Errno::INVAL],
        ..USUAL
    },
    Subject {
        name: "cachestat",
        calls: &[451],
        errnos: &[Errno::PERM, Errno::NOSYS],
        lasting: &[Errno::PERM, Errno::NOSYS],
        ..USUAL
    },
    Subject {
        name: "mmap of buffers and slots",
        calls: &[libc::SYS_mmap],
        matches: is_buffers,
        errnos: &[Errno::NOMEM, Errno::AGAIN],
        lasting: &[Errno::NOMEM],
        ..USUAL
    },
    Subject {
        name: "munmap of buffers and slots",
        calls: &[libc::SYS_munmap],
        matches: is_buffers,
        errnos: &[Errno::NOMEM],
        lasting: &[Errno::NOMEM],
        ..USUAL
    },
    Subject {
        name: "madvise",
        calls: &[libc::SYS_madvise],
        matches: is_advice,
        errnos: &[Errno::INVAL, Errno::NOMEM, Errno::AGAIN],
        lasting: &[Errno::INVAL, Errno::NOMEM],
        ..USUAL
    },
    Subject {
        name: "clone",
        calls: &[libc::SYS_clone3],
        // Others, libc calls `EAGAIN` too.
        errnos: &[Errno::AGAIN, Errno::PERM],
        lasting: &[Errno::AGAIN],
        ..USUAL
    },
    Subject {
        name: "eventfd",
        calls: &[libc::SYS_eventfd2],
        with_pool: false,
        errnos: &[Errno::MFILE, Errno::NFILE, Errno::NOMEM],
        lasting: &[Errno::MFILE],
        ..USUAL
    },
    Subject {
        name: "memfd_create",
        calls: &[libc::SYS_memfd_create],
        with_pool: false,
        errnos: &[Errno::MFILE, Errno::NOMEM, Errno::PERM],
        lasting: &[Errno::PERM],
        ..USUAL
    },
    Subject {
        name: "mmap of a ring",
        calls: &[libc::SYS_mmap],
        matches: is_rings,
        with_pool: false,
        errnos: &[Errno::NOMEM, Errno::AGAIN],
        lasting: &[Errno::NOMEM],
        ..USUAL
    },
    Subject {
        name: "io_uring_setup and io_uring_register",
        calls: &[libc::SYS_io_uring_setup, libc::SYS_io_uring_register],
        with_pool: false,
        errnos: &[Errno::PERM, Errno::NOSYS, Errno::NOMEM, Errno::INVAL],
        lasting: &[Errno::PERM, Errno::INVAL],
        ..USUAL
    },
    Subject {
        name: "io_uring_enter",
        calls: &[libc::SYS_io_uring_enter],
        with_pool: false,
        errnos: &[
            Errno::INTR,
            Errno::AGAIN,
            Errno::BUSY,
            Errno::NOMEM,
            Errno::INVAL,
        ],
        lasting: &[Errno::NOMEM],
        ..USUAL
    },
];
