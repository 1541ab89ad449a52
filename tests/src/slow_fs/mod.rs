//! A file system of one file whose every request the test sees, holds, fails or cuts short.
//!
//! With it an I/O stays in flight exactly as long as a test wants, without a sleep: the test
//! [holds](SlowFs::hold) a kind of request, waits until one [has arrived](SlowFs::next_held), does
//! what it came for, and lets the request go. Requests reach the server one for one: the kernel
//! caches nothing of the file and lets writes to it run in parallel.

mod control;
mod held;
mod policy;
mod server;

use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::{fmt, thread};

use fuser::Errno;
use rustix::mount::{UnmountFlags, unmount};

use self::control::Control;
pub use self::held::Held;
pub use self::policy::{Fate, Policy};
use self::server::{Server, serve};
use crate::need;

const NAME: &str = "file";

/// What the kernel asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A descriptor more.
    Open,
    /// A read.
    Read,
    /// A write.
    Write,
    /// `fsync` or `fdatasync`.
    Sync,
    /// `close` of a descriptor: it waits for the answer.
    Flush,
    /// The last descriptor of an opening is gone.
    Release,
    /// `ftruncate`.
    Resize,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What was asked.
    pub kind: Kind,
    /// Where, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub len: usize,
    /// The name of the thread that asked; empty when it is not of this process.
    pub thread: String,
}

/// The mounted file system. Dropping it answers everything that is held and unmounts.
pub struct SlowFs {
    control: Arc<Control>,
    server: Option<thread::JoinHandle<()>>,
    folder: tempfile::TempDir,
    _turn: Turn,
}

/// Only one of them is mounted at a time. Where tests share a process, a second one's server would
/// close its copies of the first one's descriptors, and be seen doing so.
struct Turn;

static TAKEN: Mutex<bool> = Mutex::new(false);
static GIVEN_BACK: Condvar = Condvar::new();

impl Turn {
    fn wait() -> Self {
        let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let free = GIVEN_BACK.wait_while(taken, |taken| *taken);
        *free.unwrap_or_else(PoisonError::into_inner) = true;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) = false;
        GIVEN_BACK.notify_one();
    }
}

impl fmt::Debug for SlowFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlowFs")
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

impl SlowFs {
    /// Mounts one with a file of `len` bytes, the [`pattern`]. `None`, with a skip noted, where
    /// the machine allows none. Waits until no other is mounted in this process.
    ///
    /// # Panics
    ///
    /// When mounting fails for another reason.
    #[must_use = "a test without it returns"]
    #[track_caller]
    pub fn mount(len: usize) -> Option<Self> {
        Self::mount_served(pattern(0, len), None)
    }

    /// Mounts one with a file of that content, where `policy` says what becomes of reads and writes;
    /// nothing is logged. `None` as for [`mount`](Self::mount).
    ///
    /// # Panics
    ///
    /// When mounting fails for another reason.
    #[must_use = "a test without it returns"]
    #[track_caller]
    pub fn mount_with(content: Vec<u8>, policy: Policy) -> Option<Self> {
        Self::mount_served(content, Some(policy))
    }

    #[track_caller]
    fn mount_served(content: Vec<u8>, policy: Option<Policy>) -> Option<Self> {
        // An ordinary user mounts through the set-uid helper.
        let may_mount = rustix::process::geteuid().is_root();
        if !need::fuse() || !(may_mount || need::tool("fusermount3")) {
            return None;
        }
        let turn = Turn::wait();
        let folder = tempfile::tempdir().expect("a folder to mount on");
        let control = Arc::new(Control::new(content));
        let (orders, inbox) = channel();
        let (mounted, is_mounted) = channel();
        let server = Server {
            control: Arc::clone(&control),
            orders,
            policy: policy.map(|policy| (policy, policy::waiting_room())),
        };
        let path = folder.path().to_owned();
        let server = thread::spawn(move || serve(server, &path, inbox, &mounted));
        let result = is_mounted.recv().expect("the server answers");
        result.expect("FUSE mounts here");
        Some(Self {
            control,
            server: Some(server),
            folder,
            _turn: turn,
        })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder.path().join(NAME)
    }

    /// From now on requests of this kind wait for [`next_held`](Self::next_held).
    pub fn hold(&self, kind: Kind) {
        self.control.lock().holding.insert(kind);
    }

    /// From now on requests of this kind are answered at once. What is held stays held.
    pub fn pass(&self, kind: Kind) {
        self.control.lock().holding.remove(&kind);
    }

    /// The next request of this kind fails.
    pub fn fail_next(&self, kind: Kind, errno: Errno) {
        self.control.lock().failures.push_back((kind, errno));
    }

    /// Waits until a request is held, and takes it: the oldest first.
    #[must_use = "dropped, it is answered"]
    pub fn next_held(&self) -> Held {
        let mut state = self.control.lock();
        loop {
            if let Some(held) = state.held.pop_front() {
                return held;
            }
            state = self.control.wait(state);
        }
    }

    /// As many as that, in the order of arrival.
    #[must_use = "dropped, they are answered"]
    pub fn next_held_of(&self, count: usize) -> Vec<Held> {
        (0..count).map(|_| self.next_held()).collect()
    }

    /// All that are held now.
    #[must_use = "dropped, they are answered"]
    pub fn take_held(&self) -> Vec<Held> {
        self.control.lock().held.drain(..).collect()
    }

    /// Waits until the requests so far satisfy `condition`.
    pub fn wait_until(&self, mut condition: impl FnMut(&[Seen]) -> bool) {
        let mut state = self.control.lock();
        while !condition(&state.log) {
            state = self.control.wait(state);
        }
    }

    /// Waits until every descriptor of the file is closed.
    pub fn wait_until_closed(&self) {
        let of = |log: &[Seen], kind| log.iter().filter(|seen| seen.kind == kind).count();
        self.wait_until(|log| of(log, Kind::Open) == of(log, Kind::Release));
    }

    /// The requests of one kind so far, in order of arrival.
    #[must_use]
    pub fn seen(&self, kind: Kind) -> Vec<Seen> {
        let mut log = self.control.lock().log.clone();
        log.retain(|seen| seen.kind == kind);
        log
    }

    /// How many requests of one kind there were.
    #[must_use]
    pub fn count(&self, kind: Kind) -> usize {
        self.seen(kind).len()
    }

    /// What the file holds now.
    #[must_use]
    pub fn content(&self) -> Vec<u8> {
        self.control.lock().content.clone()
    }
}

impl Drop for SlowFs {
    fn drop(&mut self) {
        // Also when a test fails: whoever is stuck in a request could never end.
        let held = {
            let mut state = self.control.lock();
            state.holding.clear();
            std::mem::take(&mut state.held)
        };
        drop(held);
        // Lazily: an engine may still be closing its descriptors.
        if unmount(self.folder.path(), UnmountFlags::DETACH).is_err() {
            let path = self.folder.path();
            let mut helper = Command::new("fusermount3");
            let _ = helper.args(["-u", "-z"]).arg(path).status();
        }
        // The server ends with the last descriptor, which may be long after.
        drop(self.server.take());
    }
}
/// The bytes that a new file has from `offset` on.
#[must_use]
pub fn pattern(offset: usize, len: usize) -> Vec<u8> {
    (offset..offset + len)
        .map(|at| u8::try_from(at % 251).unwrap_or(0))
        .collect()
}
#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::thread;

    use std::fs;

    use super::*;

    #[test]
    fn a_held_read_is_in_flight_until_it_is_released() {
        let Some(fs) = SlowFs::mount(8192) else {
            return;
        };
        let file = fs::File::open(fs.path()).unwrap();
        fs.hold(Kind::Read);
        let reader = thread::spawn(move || {
            let mut bytes = vec![0; 100];
            let count = file.read_at(&mut bytes, 4096).unwrap();
            (count, bytes)
        });
        let held = fs.next_held();
        assert_eq!((held.seen().offset, held.seen().len), (4096, 100));
        assert!(!reader.is_finished());
        held.cut_short(10);
        let (count, bytes) = reader.join().unwrap();
        assert_eq!((count, &bytes[..10]), (10, &pattern(4096, 10)[..]));
        fs.wait_until_closed();
    }

    #[test]
    fn two_writes_are_in_flight_at_once_and_failures_are_seen() {
        let Some(fs) = SlowFs::mount(8192) else {
            return;
        };
        let file = Arc::new(fs::File::options().write(true).open(fs.path()).unwrap());
        fs.hold(Kind::Write);
        let writers = [0, 4096].map(|offset| {
            let file = Arc::clone(&file);
            thread::spawn(move || file.write_at(&[7; 4096], offset))
        });
        for held in fs.next_held_of(2) {
            if held.seen().offset == 0 {
                held.fail(Errno::EIO);
            } else {
                held.release();
            }
        }
        let [first, second] = writers.map(|writer| writer.join().unwrap());
        assert_eq!(first.unwrap_err().raw_os_error(), Some(5));
        assert_eq!(second.unwrap(), 4096);
        assert_eq!(fs.content()[..4096], pattern(0, 4096));
        assert_eq!(fs.content()[4096..], [7; 4096]);
        fs.fail_next(Kind::Sync, Errno::EIO);
        assert!(file.sync_data().is_err());
        file.sync_data().unwrap();
        assert_eq!(fs.count(Kind::Sync), 2);
    }
}
