//! Failure: bytes that are in the page cache are read from the disk again, or bytes that are not
//! are read twice, or dragged into the page cache; a file that others own gives wrong bytes.
//! Mechanism: the question what is cached is refused, asked of the wrong range, or not asked.
//! Method: a process of its own, whose bytes read from disks the kernel counts; files that are in
//! the page cache wholly, by half and not at all.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use futures::executor::block_on;
use measure::residency;
use rustix::fs::Advice;
use tokio_cufile::{AsyncCuFile, Done, Engine, HostBuffer, HostPart};
use tokio_cufile_tests::bench::{self, cached_bytes, direct_bytes, subjects};
use tokio_cufile_tests::child::{self, Child};
use tokio_cufile_tests::{need, pattern};

const LEN: usize = 16 << 20;
const LEN_64: u64 = LEN as u64;

/// What else is read from the disk meanwhile: where the file lies, and pages of this program.
const METADATA_MAX: u64 = 1 << 20;

/// Bytes that disks have read for this process.
fn from_disk() -> u64 {
    let counters = fs::read_to_string("/proc/self/io").unwrap();
    let line = counters
        .lines()
        .find_map(|line| line.strip_prefix("read_bytes: "));
    line.unwrap().parse().unwrap()
}

/// Drops the file's pages, and reads the bytes before `warm` into the page cache again. Whether both
/// can be seen: the kernel leaves pages there that somebody looks at, and takes others when it likes.
fn warm_up(path: &Path, warm: usize) -> bool {
    let file = fs::File::open(path).unwrap();
    let is_evicted = residency::evict(&file).is_ok_and(|left| left.resident == 0);
    // No more than what is asked for.
    rustix::fs::fadvise(&file, 0, None, Advice::Random).unwrap();
    for at in (0..warm).step_by(1 << 20) {
        rustix::io::pread(&file, &mut vec![0; 1 << 20][..], at as u64).unwrap();
    }
    is_evicted && cached_of(path) == warm as u64
}

fn cached_of(path: &Path) -> u64 {
    let file = fs::File::open(path).unwrap();
    residency::of(&file).unwrap().resident
}

/// Attempts at a file whose pages stay where they are.
const ATTEMPTS_MAX: usize = 50;

fn engines() -> impl Iterator<Item = Engine> {
    let builders = subjects().into_iter().map(|subject| {
        eprintln!("{}", subject.name);
        Engine::builder().io(subject.io)
    });
    builders.map(|builder| builder.build_blocking().unwrap())
}

fn read(engine: &Engine, path: &Path, buffer: &mut HostBuffer) -> Done<HostPart> {
    let file = block_on(AsyncCuFile::open(engine, path)).unwrap();
    block_on(file.read_exact_at(buffer.part(0..LEN).unwrap(), 0)).unwrap()
}

#[test]
fn a_byte_is_read_from_the_disk_once_and_not_at_all_when_cached() {
    let Some(directory) = child::directory() else {
        let home = tempfile::tempdir_in(bench::disk()).unwrap();
        if bench::takes_direct(home.path()) {
            Child::new::<&str>(&[], home.path()).run();
        }
        return;
    };
    let path = directory.join("content");
    let content = pattern::bytes(3, LEN);
    fs::write(&path, &content).unwrap();
    for engine in engines() {
        let mut buffer = HostBuffer::new(&engine, LEN).unwrap();
        for warm in [0, LEN / 2, LEN] {
            // Also afterwards: else the kernel took pages meanwhile, and nothing is known.
            let is_seen = (0..ATTEMPTS_MAX).any(|_| {
                if !warm_up(&path, warm) {
                    return false;
                }
                let before = from_disk();
                let done = read(&engine, &path, &mut buffer);
                let read = from_disk() - before;
                pattern::assert_same(done.buf.as_slice(), &content);
                let paths = done.receipt.paths;
                drop(done);
                let cached = cached_of(&path);
                assert!(
                    cached <= warm as u64,
                    "{cached} bytes are in the page cache now"
                );
                if cached < warm as u64 {
                    return false;
                }
                let cold = LEN_64 - warm as u64;
                assert_eq!(cached_bytes(paths), warm as u64, "{paths:?}");
                assert_eq!(direct_bytes(paths), cold, "{paths:?}");
                let expected = cold..cold + METADATA_MAX;
                assert!(expected.contains(&read), "{read}; {warm} bytes were cached");
                true
            });
            assert!(is_seen, "the kernel takes the pages of a file at once");
        }
    }
}

#[test]
fn a_file_that_others_own_is_read_right_cold_and_warm() {
    let Some(directory) = child::directory() else {
        let home = tempfile::tempdir_in("/var/tmp").unwrap();
        if need::root() && need::tool("setpriv") && bench::takes_direct(home.path()) {
            for (name, warm) in [("cold", 0), ("half", LEN / 2), ("warm", LEN)] {
                let path = home.path().join(name);
                fs::write(&path, pattern::bytes(warm as u64, LEN)).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
                let is_seen = (0..ATTEMPTS_MAX).any(|_| warm_up(&path, warm));
                assert!(is_seen, "the kernel takes the pages of a file at once");
            }
            Child::as_nobody(home.path()).run();
        }
        return;
    };
    assert!(!rustix::process::geteuid().is_root());
    for (name, warm) in [("cold", 0), ("half", LEN / 2), ("warm", LEN)] {
        for subject in subjects() {
            let engine = Engine::builder().io(subject.io).build_blocking().unwrap();
            let mut buffer = HostBuffer::new(&engine, LEN).unwrap();
            let done = read(&engine, &directory.join(name), &mut buffer);
            pattern::assert_same(done.buf.as_slice(), &pattern::bytes(warm as u64, LEN));
            let paths = done.receipt.paths;
            let (cached, direct) = (cached_bytes(paths), direct_bytes(paths));
            assert_eq!(cached + direct, LEN_64, "{name}: {paths:?}");
            // Not exactly: asking a page of such a file brings in what lies behind it.
            assert!(warm == 0 || cached > 0, "{name}: {paths:?}");
            assert!(warm == LEN || direct > 0, "{name}: {paths:?}");
        }
    }
}
