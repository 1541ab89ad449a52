//! System calls that the kernel refuses, as a container's seccomp profile makes it.
#![allow(unsafe_code, reason = "no kept crate installs a seccomp filter")]

use std::ops::RangeInclusive;
use std::panic::resume_unwind;
use std::thread;

use rustix::io::Errno;

/// `io_uring_setup`, `io_uring_enter` and `io_uring_register`, on every architecture.
pub const IO_URING: RangeInclusive<u32> = 425..=427;
/// Makes a ring.
pub const IO_URING_SETUP: RangeInclusive<u32> = 425..=425;
/// Submits to it and waits for it.
pub const IO_URING_ENTER: RangeInclusive<u32> = 426..=426;
/// Registers memory with it.
pub const IO_URING_REGISTER: RangeInclusive<u32> = 427..=427;

/// Does `work` on a thread that gets `errno` for the system calls whose numbers are in `calls`, and
/// so does every thread that it starts.
///
/// # Panics
///
/// When `work` does, or when the filter cannot be installed.
pub fn refusing<T: Send>(
    calls: RangeInclusive<u32>,
    errno: Errno,
    work: impl FnOnce() -> T + Send,
) -> T {
    let filtered = move || {
        install(&calls, errno);
        work()
    };
    thread::scope(|scope| scope.spawn(filtered).join()).unwrap_or_else(|panic| resume_unwind(panic))
}

fn install(calls: &RangeInclusive<u32>, errno: Errno) {
    let step = |code: u32, operand: u32, no: u8| libc::sock_filter {
        code: u16::try_from(code).expect("codes are small"),
        jt: 0,
        jf: no,
        k: operand,
    };
    let number = u32::try_from(errno.raw_os_error()).expect("error numbers are positive");
    let (load, jump) = (
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_K,
    );
    // A comparison that holds goes one step on; else it skips as many as its last number.
    let mut program = [
        // The call's number is the first field of what the kernel shows.
        step(load, 0, 0),
        step(jump | libc::BPF_JGE, *calls.start(), 1),
        step(jump | libc::BPF_JGE, *calls.end() + 1, 1),
        step(libc::BPF_RET, libc::SECCOMP_RET_ALLOW, 0),
        step(libc::BPF_RET, libc::SECCOMP_RET_ERRNO | number, 0),
    ];
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).expect("a short program"),
        filter: program.as_mut_ptr(),
    };
    // SAFETY: plain numbers. An ordinary user may install a filter only after giving up set-uid.
    let alone = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(alone, 0, "no new privileges");
    // SAFETY: the kernel copies the program, which lives until the call returns.
    let installed = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            std::ptr::from_ref(&filter),
        )
    };
    assert_eq!(installed, 0, "the filter is taken");
}

#[cfg(test)]
mod tests {
    use rustix::fs::MemfdFlags;

    use super::*;

    #[test]
    fn only_the_calls_in_the_range_are_refused_and_only_on_that_thread() {
        let ask = || rustix::fs::memfd_create("try", MemfdFlags::CLOEXEC).map(drop);
        let call = u32::try_from(libc::SYS_memfd_create).expect("a small number");
        for (range, answer) in [
            (call..=call, Err(Errno::XFULL)),
            (call - 1..=call + 1, Err(Errno::XFULL)),
            (call + 1..=call + 1, Ok(())),
            (call - 1..=call - 1, Ok(())),
        ] {
            refusing(range, Errno::XFULL, || assert_eq!(ask(), answer));
            assert_eq!(ask(), Ok(()));
        }
    }
}
