//! A disk that stands still when a test wants it to, with a file system on it.
//!
//! nbdkit serves the disk and can be told to pause, nbdfuse shows it as a file, and a loop device
//! makes a disk of it. So an I/O on a file of it is in flight in the block layer, its pages pinned,
//! for as long as a test wants, without a clock.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use tempfile::TempDir;

use crate::mount::{self, Mount};
use crate::need;

const SIZE: u64 = 64 << 20;

/// The mounted file system. Dropping it lets the disk go on and unmounts.
#[derive(Debug)]
pub struct PausedDisk {
    control: UnixStream,
    device: String,
    /// In the order of their end.
    mount: Mount,
    _server: Server,
}

impl PausedDisk {
    /// Mounts one; `None`, with a skip noted, where the machine allows none.
    ///
    /// # Panics
    ///
    /// When one of the tools fails.
    #[must_use = "a test without it returns"]
    #[track_caller]
    pub fn mount() -> Option<Self> {
        let may = need::fuse() && need::mount() && need::loop_device();
        let tools = may && need::tool("nbdkit") && need::tool("nbdfuse") && need::tool("losetup");
        if !(tools && need::tool("fusermount3") && need::tool("mkfs.ext4")) {
            return None;
        }
        let server = Server::start();
        let control = server.home.path().join("control");
        let control = UnixStream::connect(control).expect("the server can be told to pause");
        let (mount, device) = Mount::on_image("ext4", &server.disk);
        Some(Self {
            control,
            device,
            mount,
            _server: server,
        })
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.mount.path()
    }

    /// From now on the disk answers nothing.
    ///
    /// # Panics
    ///
    /// When it does not stop.
    pub fn pause(&mut self) {
        self.tell(*b"p", *b"P");
    }

    /// Answers what it was asked, and goes on.
    ///
    /// # Panics
    ///
    /// When it does not go on.
    pub fn resume(&mut self) {
        self.tell(*b"r", *b"R");
    }

    fn tell(&mut self, word: [u8; 1], answer: [u8; 1]) {
        self.control.write_all(&word).expect("the server listens");
        let mut answered = [0];
        let read = self.control.read_exact(&mut answered);
        read.expect("the server answers");
        assert_eq!(answered, answer);
    }

    /// How many reads the disk has not answered.
    ///
    /// # Panics
    ///
    /// When the kernel does not tell.
    #[must_use]
    pub fn reads_in_flight(&self) -> u64 {
        let path = format!("/sys/block/{}/inflight", self.device);
        let counts = fs::read_to_string(path).expect("the kernel counts");
        let first = counts.split_whitespace().next();
        first
            .and_then(|reads| reads.parse().ok())
            .expect("a number")
    }
}

impl Drop for PausedDisk {
    fn drop(&mut self) {
        // Or nothing could be unmounted.
        drop(self.control.write_all(b"r"));
    }
}

/// nbdkit and nbdfuse.
#[derive(Debug)]
struct Server {
    disk: PathBuf,
    process: Child,
    home: TempDir,
}

impl Server {
    fn start() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let disk = home.path().join("disk");
        fs::write(&disk, "").expect("our own file");
        let control = home.path().join("control");
        let process = Command::new("nbdfuse")
            .arg(&disk)
            .args(["--command", "nbdkit", "-s", "--exit-with-parent"])
            .args(["--filter=pause", "memory", &SIZE.to_string()])
            .arg(format!("pause-control={}", control.display()))
            .stdin(Stdio::null())
            .spawn()
            .expect("nbdfuse is installed");
        let server = Self {
            disk,
            process,
            home,
        };
        while fs::metadata(&server.disk).is_ok_and(|found| found.len() != SIZE) {
            thread::yield_now();
        }
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(reason) = mount::output("fusermount3", [Path::new("-uz"), &self.disk]) {
            eprintln!("{reason}");
        }
        // It has nothing left to serve, and now and then waits for its own child for ever.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
