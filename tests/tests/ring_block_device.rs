//! Failure: memory that a disk still writes to is released, and the bytes turn up in somebody
//! else's.
//! Mechanism: on a block device a cancel does nothing, and closing a ring, a file or an engine does
//! not wait. The kernel has pinned the pages and fills them when the disk answers.
//! Method: a disk that stands still, with direct reads in flight in its queue; futures, engine and
//! runtime are dropped, or the ring is refused; what is freed by mistake is allocated again and
//! watched; then the disk goes on.
#![allow(
    unsafe_code,
    reason = "looks at memory that is in quarantine, where the disk writes late"
)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::executor::block_on;
use rustix::io::Errno;
use tokio_cufile::{AsyncCuFile, Engine, ErrorKind, HostBuffer, HostPart, IoEngine, Transfer};
use tokio_cufile_tests::life::{engine_threads, until};
use tokio_cufile_tests::pattern;
use tokio_cufile_tests::paused_disk::PausedDisk;
use tokio_cufile_tests::syscalls::{self, Refusal, supervise};

const BLOCK: usize = 64 << 10;
/// Every second block is read.
const READS: usize = 4;
const LEN: usize = 2 * READS * BLOCK;
const CANARY: u8 = 0xa5;

/// Reads in flight, and where they go.
struct Bed {
    engine: Engine,
    file: AsyncCuFile,
    buffer: HostBuffer,
    reads: Vec<Transfer<HostPart>>,
    content: Vec<u8>,
    start: *const u8,
}

impl Bed {
    /// Starts reads of a new file, and waits until the disk has them and stands still.
    fn new(disk: &mut PausedDisk, name: &str) -> Self {
        let path = disk.path().join(name);
        let content = pattern::bytes(9, LEN);
        write_and_sync(&path, &content);
        let engine = Engine::builder().io(IoEngine::Uring).task_size(BLOCK);
        let engine = engine.build_blocking().unwrap();
        let file = block_on(AsyncCuFile::open(&engine, &path)).unwrap();
        assert_eq!(file.route().resolved, "uring-direct");
        block_on(file.drop_cache()).unwrap();
        let mut buffer = HostBuffer::new(&engine, LEN).unwrap();
        let bytes = buffer.as_mut_slice().unwrap();
        bytes.fill(CANARY);
        let start = bytes.as_ptr();
        disk.pause();
        let reads = (0..READS).map(|index| 2 * index * BLOCK).map(|at| {
            let part = buffer.part(at..at + BLOCK).unwrap();
            file.read_at(part, at as u64).start()
        });
        let reads = reads.collect();
        until(|| disk.reads_in_flight() >= READS as u64);
        Self {
            engine,
            file,
            buffer,
            reads,
            content,
            start,
        }
    }
}

fn write_and_sync(path: &Path, content: &[u8]) {
    fs::write(path, content).unwrap();
    let file = fs::File::open(path).unwrap();
    file.sync_all().unwrap();
}

fn canaries() -> Vec<Vec<u8>> {
    vec![vec![CANARY; BLOCK]; 4 * READS]
}

/// What was read is there, and nothing else has changed.
fn assert_landed(found: &[u8], content: &[u8], canaries: &[Vec<u8>]) {
    for (index, (found, content)) in found.chunks(BLOCK).zip(content.chunks(BLOCK)).enumerate() {
        if index % 2 == 0 {
            pattern::assert_same(found, content);
        } else {
            assert!(found.iter().all(|&byte| byte == CANARY), "block {index}");
        }
    }
    assert!(canaries.iter().flatten().all(|&byte| byte == CANARY));
}

fn dropped(disk: &mut PausedDisk, name: &str, drop_it: impl FnOnce(Vec<Transfer<HostPart>>)) {
    let bed = Bed::new(disk, name);
    drop_it(bed.reads);
    drop((bed.engine, bed.file));
    assert_eq!(bed.buffer.parts_out(), READS);
    let canaries = canaries();
    assert!(
        disk.reads_in_flight() >= READS as u64,
        "nothing can stop them"
    );
    disk.resume();
    block_on(bed.buffer.idle());
    assert_landed(bed.buffer.as_slice().unwrap(), &bed.content, &canaries);
    until(|| engine_threads() == 0);
}

#[test]
fn everything_dropped_with_the_disk_at_work_keeps_the_memory_until_it_answers() {
    let Some(mut disk) = PausedDisk::mount() else {
        return;
    };
    dropped(&mut disk, "futures", drop);
    dropped(&mut disk, "cancelled", |reads| {
        for read in &reads {
            read.cancel_handle().cancel();
        }
    });
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(1).build().unwrap();
    dropped(&mut disk, "runtime", |reads| {
        for read in reads {
            runtime.spawn(read);
        }
        runtime.shutdown_background();
    });
}

static REFUSED: AtomicBool = AtomicBool::new(false);

fn ring_lost(disk: &mut PausedDisk) {
    let bed = Bed::new(disk, "ring");
    REFUSED.store(true, Ordering::Relaxed);
    // It wakes the thread, which is refused.
    drop(bed.file.read_at(vec![0; BLOCK], 0).start());
    for read in bed.reads {
        let failed = block_on(read).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::Quarantined);
    }
    drop((bed.engine, bed.file));
    let canaries = canaries();
    assert_eq!(bed.buffer.parts_out(), READS, "never reused");
    let start = bed.start;
    disk.resume();
    // Not the thread's end: that waits for no disk.
    until(|| disk.reads_in_flight() == 0);
    until(|| engine_threads() == 0);
    // SAFETY: inside the buffer, which lives; a byte is whole at any time.
    let byte = |at: usize| unsafe { start.wrapping_add(at).read_volatile() };
    let found: Vec<u8> = (0..LEN).map(byte).collect();
    assert_landed(&found, &bed.content, &canaries);
}

#[test]
fn a_lost_ring_with_the_disk_at_work_leaves_the_memory_to_it_for_ever() {
    if !syscalls::need() {
        return;
    }
    let Some(mut disk) = PausedDisk::mount() else {
        return;
    };
    let refusal = Refusal {
        calls: &[libc::SYS_io_uring_enter],
        matches: |_| REFUSED.load(Ordering::Relaxed),
        errno: Errno::PERM,
        nth: 1,
        for_good: true,
    };
    supervise(refusal, "a lost ring", || ring_lost(&mut disk)).unwrap();
}
