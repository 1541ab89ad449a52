//! A file system of one file whose every request the test sees, holds, fails or cuts short.
//!
//! With it an I/O stays in flight exactly as long as a test wants, without a sleep: the test
//! [holds](SlowFs::hold) a kind of request, waits until one [has arrived](SlowFs::next_held), does
//! what it came for, and lets the request go. Requests reach the server one for one: the kernel
//! caches nothing of the file and lets writes to it run in parallel.
//!
//! The server's threads have a table of descriptors of their own. With one table for the process, a
//! test that dies with a file of its own file system open could never end: the kernel closes the
//! file first, waits for the server's answer, and the server is dead; its connection would be
//! closed next. So replies, which write to the connection, never leave those threads.
#![allow(
    unsafe_code,
    reason = "no kept crate gives a thread its own table of descriptors"
)]

mod policy;

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use std::{fmt, fs, io, thread};

use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, Session, TimeOrNow, WriteFlags,
};
use rustix::mount::{UnmountFlags, unmount};

use self::policy::Waiting;
pub use self::policy::{Fate, Policy};
use crate::need;

const FILE: INodeNo = INodeNo(2);
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

/// Mounts and serves, until the last descriptor of the unmounted file system is closed.
fn serve(server: Server, path: &Path, inbox: Receiver<Order>, mounted: &Sender<io::Result<()>>) {
    const CLOSE_RANGE_UNSHARE: libc::c_int = 2;
    // SAFETY: this thread was just started and has used no descriptor; whatever opens one from
    // here on, and whoever uses it, is this thread or one that it starts.
    let result = unsafe { libc::close_range(3, libc::c_uint::MAX, CLOSE_RANGE_UNSHARE) };
    let alone = match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    let session = alone.and_then(|()| {
        let control = Arc::clone(&server.control);
        thread::spawn(move || control.carry_out(&inbox));
        Session::new(server, path, &Config::default())
    });
    match session {
        Ok(session) => {
            let _ = mounted.send(Ok(()));
            let _ = session.run();
        }
        Err(error) => {
            let _ = mounted.send(Err(error));
        }
    }
}

/// What a test wants done with a held request, for a thread of the server to do.
enum Order {
    Give(Seen, Answer),
    Fail(Errno, Answer),
}

/// The bytes that a new file has from `offset` on.
#[must_use]
pub fn pattern(offset: usize, len: usize) -> Vec<u8> {
    (offset..offset + len)
        .map(|at| u8::try_from(at % 251).unwrap_or(0))
        .collect()
}

/// A request that waits for its answer. Dropped, it is answered as [`release`](Self::release) does.
#[must_use = "dropped, it is answered"]
pub struct Held {
    seen: Seen,
    answer: Option<Answer>,
    orders: Sender<Order>,
}

enum Answer {
    Data(ReplyData),
    Written(ReplyWrite, Vec<u8>),
    Empty(ReplyEmpty),
    Opened(ReplyOpen),
    Resized(ReplyAttr, u64),
}

impl Held {
    /// What is asked.
    #[must_use]
    pub const fn seen(&self) -> &Seen {
        &self.seen
    }

    /// Does what is asked.
    pub fn release(self) {
        drop(self);
    }

    /// Does it for the first `len` bytes only.
    pub fn cut_short(mut self, len: usize) {
        self.seen.len = len;
        drop(self);
    }

    /// Refuses.
    pub fn fail(mut self, errno: Errno) {
        if let Some(answer) = self.answer.take() {
            order(&self.orders, Order::Fail(errno, answer));
        }
    }
}

fn order(orders: &Sender<Order>, order: Order) {
    if let Err(undone) = orders.send(order) {
        // The server is gone. Here its replies would write to somebody else's descriptor.
        #[expect(clippy::disallowed_methods, reason = "see above")]
        std::mem::forget(undone);
    }
}

impl Answer {
    fn fail(self, errno: Errno) {
        match self {
            Self::Data(reply) => reply.error(errno),
            Self::Written(reply, _) => reply.error(errno),
            Self::Empty(reply) => reply.error(errno),
            Self::Opened(reply) => reply.error(errno),
            Self::Resized(reply, _) => reply.error(errno),
        }
    }

    fn give(self, seen: &Seen, content: &mut Vec<u8>) {
        let at = usize::try_from(seen.offset).unwrap_or(usize::MAX);
        match self {
            Self::Data(reply) => {
                let end = at.saturating_add(seen.len).min(content.len());
                reply.data(content.get(at..end).unwrap_or_default());
            }
            Self::Written(reply, mut data) => {
                data.truncate(seen.len);
                let end = at + data.len();
                content.resize(content.len().max(end), 0);
                content[at..end].copy_from_slice(&data);
                reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX));
            }
            Self::Empty(reply) => reply.ok(),
            Self::Opened(reply) => reply.opened(
                FileHandle(0),
                FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
            ),
            Self::Resized(reply, size) => {
                content.resize(usize::try_from(size).unwrap_or(usize::MAX), 0);
                reply.attr(&Duration::ZERO, &attributes(size));
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            order(&self.orders, Order::Give(self.seen.clone(), answer));
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.seen.fmt(f)
    }
}

#[derive(Default)]
struct State {
    content: Vec<u8>,
    log: Vec<Seen>,
    holding: BTreeSet<Kind>,
    failures: VecDeque<(Kind, Errno)>,
    held: VecDeque<Held>,
}

struct Control {
    state: Mutex<State>,
    changed: Condvar,
}

impl Control {
    fn new(content: Vec<u8>) -> Self {
        let state = State {
            content,
            ..State::default()
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let woken = self.changed.wait(state);
        woken.unwrap_or_else(PoisonError::into_inner)
    }

    fn carry_out(&self, inbox: &Receiver<Order>) {
        for order in inbox {
            match order {
                Order::Give(seen, answer) => answer.give(&seen, &mut self.lock().content),
                Order::Fail(errno, answer) => answer.fail(errno),
            }
        }
    }
}

impl Server {
    fn arrived(&self, request: &Request, seen: (Kind, u64, usize), answer: Answer) {
        let (kind, offset, len) = seen;
        if let Some((policy, waiting)) = &self.policy {
            let thread = String::new();
            let seen = Seen {
                kind,
                offset,
                len,
                thread,
            };
            return self.decide(policy, waiting, seen, answer);
        }
        let seen = Seen {
            kind,
            offset,
            len,
            thread: thread_name(request.pid()),
        };
        let mut state = self.control.lock();
        state.log.push(seen.clone());
        self.control.changed.notify_all();
        let failure = state.failures.iter().position(|&(of, _)| of == kind);
        if let Some((_, errno)) = failure.and_then(|at| state.failures.remove(at)) {
            return answer.fail(errno);
        }
        if !state.holding.contains(&kind) {
            return answer.give(&seen, &mut state.content);
        }
        state.held.push_back(self.held(seen, answer));
    }

    fn held(&self, seen: Seen, answer: Answer) -> Held {
        Held {
            seen,
            answer: Some(answer),
            orders: self.orders.clone(),
        }
    }

    fn decide(&self, policy: &Policy, waiting: &Waiting, mut seen: Seen, answer: Answer) {
        let fate = match seen.kind {
            Kind::Read | Kind::Write => policy(&seen),
            _ => Fate::Give,
        };
        match fate {
            Fate::Fail(errno) => return answer.fail(errno),
            Fate::Later(time) => {
                // Where nobody waits any more it is let go at once.
                let _ = waiting.send((Instant::now() + time, self.held(seen, answer)));
                return;
            }
            Fate::Hold => {
                let held = self.held(seen, answer);
                self.control.lock().held.push_back(held);
                self.control.changed.notify_all();
                return;
            }
            Fate::CutShort(len) => seen.len = seen.len.min(len),
            Fate::Give => {}
        }
        answer.give(&seen, &mut self.control.lock().content);
    }
}

/// It waits for the answer, so it is still there.
fn thread_name(id: u32) -> String {
    let name = fs::read_to_string(format!("/proc/self/task/{id}/comm"));
    name.map_or_else(|_| String::new(), |name| name.trim_end().to_owned())
}

fn attributes(size: u64) -> FileAttr {
    FileAttr {
        ino: FILE,
        size,
        blocks: size.div_ceil(512),
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0o666,
        nlink: 1,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        rdev: 0,
        flags: 0,
        blksize: 4096,
    }
}

struct Server {
    control: Arc<Control>,
    orders: Sender<Order>,
    policy: Option<(Policy, Waiting)>,
}

impl Server {
    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let size = self.control.lock().content.len() as u64;
        match inode {
            FILE => attributes(size),
            _ => FileAttr {
                ino: INodeNo::ROOT,
                kind: FileType::Directory,
                perm: 0o777,
                nlink: 2,
                ..attributes(0)
            },
        }
    }
}

impl Filesystem for Server {
    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == NAME {
            reply.entry(&Duration::ZERO, &self.attributes(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::ZERO, &self.attributes(ino));
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _file: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match size {
            Some(size) => {
                let answer = Answer::Resized(reply, size);
                self.arrived(request, (Kind::Resize, size, 0), answer);
            }
            None => reply.attr(&Duration::ZERO, &self.attributes(ino)),
        }
    }

    fn open(&self, request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.arrived(request, (Kind::Open, 0, 0), Answer::Opened(reply));
    }

    fn read(
        &self,
        request: &Request,
        _ino: INodeNo,
        _file: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let asked = (Kind::Read, offset, size as usize);
        self.arrived(request, asked, Answer::Data(reply));
    }

    fn write(
        &self,
        request: &Request,
        _ino: INodeNo,
        _file: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let asked = (Kind::Write, offset, data.len());
        let answer = Answer::Written(reply, data.to_vec());
        self.arrived(request, asked, answer);
    }

    fn fsync(
        &self,
        request: &Request,
        _ino: INodeNo,
        _file: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.arrived(request, (Kind::Sync, 0, 0), Answer::Empty(reply));
    }

    fn flush(
        &self,
        request: &Request,
        _ino: INodeNo,
        _file: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.arrived(request, (Kind::Flush, 0, 0), Answer::Empty(reply));
    }

    fn release(
        &self,
        request: &Request,
        _ino: INodeNo,
        _file: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.arrived(request, (Kind::Release, 0, 0), Answer::Empty(reply));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::thread;

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
