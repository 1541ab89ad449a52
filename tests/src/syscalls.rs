//! The Nth system call of a kind fails, without a change to the program that makes it.
//!
//! The kernel asks a listener about every call that a filter names, and does what it answers: refuse
//! with an error number, or carry the call out. A thread has the filter, and so has every thread that
//! it starts; the listener's thread has not. It runs until all of them are gone, so whoever gets an
//! answer knows that none is left.
#![allow(
    unsafe_code,
    reason = "no kept crate installs a seccomp filter with a listener, or answers for it"
)]

pub mod subjects;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::panic::resume_unwind;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io, mem, thread};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::skip::skip;

/// From `linux/seccomp.h`: the size of what they move is a part of the numbers.
const NOTIF_RECV: libc::c_ulong = 0xc050_2100;
const NOTIF_SEND: libc::c_ulong = 0xc018_2101;

/// Longer than any work of a test: then it hangs, and the process ends.
const HANGS_AFTER: Duration = Duration::from_secs(60);

/// The arguments of a call.
pub type Args = [u64; 6];

/// Which calls fail, and how.
#[derive(Clone, Copy, Debug)]
pub struct Refusal {
    /// Their numbers.
    pub calls: &'static [libc::c_long],
    /// Of these, the ones that are meant.
    pub matches: fn(&Args) -> bool,
    /// What the caller gets.
    pub errno: Errno,
    /// The first that fails, from 1.
    pub nth: u64,
    /// Whether all that come later fail too.
    pub for_good: bool,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls that were meant.
    pub seen: u64,
    /// Of these, those that failed.
    pub refused: u64,
}

/// Whether system calls can be supervised here; a skip is noted where not.
#[must_use = "a test without it returns"]
#[track_caller]
pub fn need() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    let can = *CAN.get_or_init(|| {
        let nothing = Refusal {
            calls: &[libc::SYS_getpid],
            matches: |_| false,
            errno: Errno::PERM,
            nth: 1,
            for_good: false,
        };
        supervise(nothing, "a trial", || ()).is_ok()
    });
    if !can {
        skip("needs-seccomp-notify", "no listener for a seccomp filter");
    }
    can
}

/// Does `work` on a thread whose calls, and those of the threads that it starts, fail as said. Returns
/// when all of these threads are gone. `name` says what is done, should it hang.
///
/// # Errors
///
/// Why the kernel does not let calls be supervised.
///
/// # Panics
///
/// When `work` does. The whole process ends when the threads have not after a minute.
pub fn supervise<T: Send>(
    refusal: Refusal,
    name: &str,
    work: impl FnOnce() -> T + Send,
) -> io::Result<(T, Counts)> {
    let (give, take) = std::sync::mpsc::sync_channel(1);
    let counts = Shared::default();
    thread::scope(|scope| {
        let filtered = move || {
            let listener = install(refusal.calls);
            let is_installed = listener.is_ok();
            // Its receiver waits for this one answer.
            drop(give.send(listener));
            is_installed.then(work)
        };
        let worker = scope.spawn(filtered);
        let listener = take.recv().expect("the thread answers")?;
        answer_all(&listener, &refusal, &counts, name);
        let result = worker.join().unwrap_or_else(|panic| resume_unwind(panic));
        let result = result.expect("the filter was installed");
        Ok((result, counts.read()))
    })
}

#[derive(Default)]
struct Shared {
    seen: AtomicU64,
    refused: AtomicU64,
}

impl Shared {
    fn read(&self) -> Counts {
        Counts {
            seen: self.seen.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// Until no thread has the filter any more. Takes no memory and no lock: a thread that waits for an
/// answer may hold any.
fn answer_all(listener: &OwnedFd, refusal: &Refusal, counts: &Shared, name: &str) {
    let start = Instant::now();
    let second = Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    loop {
        let mut asked = [PollFd::new(listener, PollFlags::IN)];
        let ready = poll(&mut asked, Some(&second));
        let events = asked[0].revents();
        if events.contains(PollFlags::IN) {
            answer_one(listener, refusal, counts);
        } else if events.contains(PollFlags::HUP) {
            return;
        } else if ready.is_ok() && start.elapsed() > HANGS_AFTER {
            give_up(name, counts);
        }
    }
}

/// A thread that hangs cannot be ended from outside.
fn give_up(name: &str, counts: &Shared) -> ! {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
    for task in tasks.flatten() {
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        eprintln!("{} {}", read("comm").trim_end(), read("wchan"));
    }
    eprintln!("{name} hangs, {:?}", counts.read());
    std::process::abort();
}

fn answer_one(listener: &OwnedFd, refusal: &Refusal, counts: &Shared) {
    // SAFETY: plain numbers, of which all zero is a value; the kernel wants that.
    let mut asked: libc::seccomp_notif = unsafe { mem::zeroed() };
    // SAFETY: the kernel fills one notification.
    let received = unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_RECV, &raw mut asked) };
    if received != 0 {
        // Interrupted, or the caller is gone.
        return;
    }
    let mut errno = None;
    if (refusal.matches)(&asked.data.args) {
        let seen = counts.seen.fetch_add(1, Ordering::Relaxed) + 1;
        if seen == refusal.nth || (refusal.for_good && seen > refusal.nth) {
            counts.refused.fetch_add(1, Ordering::Relaxed);
            errno = Some(refusal.errno);
        }
    }
    let answer = libc::seccomp_notif_resp {
        id: asked.id,
        val: 0,
        error: errno.map_or(0, |errno| -errno.raw_os_error()),
        flags: match errno {
            Some(_) => 0,
            None => u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).expect("a small number"),
        },
    };
    // SAFETY: the kernel reads one answer. It fails where the caller is gone, which changes nothing.
    unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_SEND, &raw const answer) };
}

/// Has the kernel ask about these calls of the calling thread and of those that it starts.
fn install(calls: &[libc::c_long]) -> io::Result<OwnedFd> {
    let step = |code: u32, operand: u32, yes: usize, no: u8| libc::sock_filter {
        code: u16::try_from(code).expect("codes are small"),
        jt: u8::try_from(yes).expect("a short program"),
        jf: no,
        k: operand,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    // The call's number is the first field of what the kernel shows.
    let mut program = vec![step(load, 0, 0, 0)];
    for (index, &call) in calls.iter().enumerate() {
        let number = u32::try_from(call).expect("calls have small numbers");
        // Over the other comparisons and the answer for all others.
        program.push(step(equals, number, calls.len() - index, 0));
    }
    program.push(step(libc::BPF_RET, libc::SECCOMP_RET_ALLOW, 0, 0));
    program.push(step(libc::BPF_RET, libc::SECCOMP_RET_USER_NOTIF, 0, 0));
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).expect("a short program"),
        filter: program.as_mut_ptr(),
    };
    // SAFETY: plain numbers. An ordinary user may install a filter only after giving up set-uid.
    let alone = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if alone != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel copies the program, which lives until the call returns.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            std::ptr::from_ref(&filter),
        )
    };
    let listener = i32::try_from(listener).unwrap_or(-1);
    if listener < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(listener) })
}

#[cfg(test)]
mod tests {
    use rustix::fs::MemfdFlags;

    use super::*;

    fn memfds(nth: u64, for_good: bool) -> (Vec<bool>, Counts) {
        let refusal = Refusal {
            calls: &[libc::SYS_getpid, libc::SYS_memfd_create],
            matches: |args| args[1] == u64::from(libc::MFD_CLOEXEC),
            errno: Errno::XFULL,
            nth,
            for_good,
        };
        let ask = |flags| match rustix::fs::memfd_create("try", flags) {
            Ok(_) => false,
            Err(errno) => {
                assert_eq!(errno, Errno::XFULL);
                true
            }
        };
        let work = || {
            let mut refused = vec![ask(MemfdFlags::CLOEXEC)];
            assert!(!ask(MemfdFlags::empty()), "it is not meant");
            let started = thread::spawn(move || ask(MemfdFlags::CLOEXEC));
            refused.push(started.join().unwrap());
            refused.push(ask(MemfdFlags::CLOEXEC));
            refused
        };
        supervise(refusal, "memfd", work).unwrap()
    }

    #[test]
    fn the_nth_call_fails_on_whichever_thread_once_or_for_good() {
        if !need() {
            return;
        }
        let counts = |refused| Counts { seen: 3, refused };
        assert_eq!(memfds(1, false), (vec![true, false, false], counts(1)));
        assert_eq!(memfds(2, false), (vec![false, true, false], counts(1)));
        assert_eq!(memfds(2, true), (vec![false, true, true], counts(2)));
        assert_eq!(memfds(4, true), (vec![false, false, false], counts(0)));
    }
}
