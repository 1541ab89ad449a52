//! The threads that answer the kernel.
//!
//! They have a table of descriptors of their own. With one table for the process, a test that dies
//! with a file of its own file system open could never end: the kernel closes the file first, waits
//! for the server's answer, and the server is dead; its connection would be closed next. So replies,
//! which write to the connection, never leave those threads.
#![allow(
    unsafe_code,
    reason = "no kept crate gives a thread its own table of descriptors"
)]

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant, SystemTime};
use std::{fs, io, thread};

use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, Session, TimeOrNow, WriteFlags,
};

use super::control::Control;
use super::held::{Answer, Held, Order};
use super::policy::Waiting;
use super::{Fate, Kind, NAME, Policy, Seen};

const FILE: INodeNo = INodeNo(2);

/// Mounts and serves, until the last descriptor of the unmounted file system is closed.
pub(super) fn serve(
    server: Server,
    path: &Path,
    inbox: Receiver<Order>,
    mounted: &Sender<io::Result<()>>,
) {
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
pub(super) struct Server {
    pub(super) control: Arc<Control>,
    pub(super) orders: Sender<Order>,
    pub(super) policy: Option<(Policy, Waiting)>,
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
        Held::new(seen, answer, self.orders.clone())
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
pub(super) fn attributes(size: u64) -> FileAttr {
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
