//! Failure: a ring that the kernel refuses for good lets memory go while the kernel still writes
//! there; its operations, or those that come later, wait for ever.
//! Mechanism: who can no longer ask for completions takes their absence for the end.
//! Method: a read that the file system holds; from then on the kernel refuses to be entered, by a
//! seccomp filter. The answer comes after the engine is gone.
#![allow(
    unsafe_code,
    reason = "looks at memory that is in quarantine, where the kernel writes late"
)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, Ordering};

use futures::executor::block_on;
use rustix::io::Errno;
use tokio_cufile::{DataPath, Engine, ErrorKind, HostBuffer, IoEngine, OpenOptions};
use tokio_cufile_tests::SlowFs;
use tokio_cufile_tests::life::{engine_threads, until};
use tokio_cufile_tests::slow_fs::{Kind, pattern};
use tokio_cufile_tests::syscalls::{self, Refusal, supervise};

const BLOCK: usize = 4096;
const CANARY: u8 = 0xa5;

static REFUSED: AtomicBool = AtomicBool::new(false);

fn refusal() -> Refusal {
    Refusal {
        calls: &[libc::SYS_io_uring_enter],
        matches: |_| REFUSED.load(Ordering::Relaxed),
        errno: Errno::PERM,
        nth: 1,
        for_good: true,
    }
}

fn read_and_lose_the_ring(fs: &SlowFs) {
    let engine = Engine::builder().io(IoEngine::Uring).num_threads(1);
    let engine = engine.build_blocking().unwrap();
    let file = block_on(OpenOptions::new().read(true).open(&engine, fs.path())).unwrap();
    let mut buffer = HostBuffer::new(&engine, 3 * BLOCK).unwrap();
    let bytes = buffer.as_mut_slice().unwrap();
    bytes.fill(CANARY);
    let start = bytes.as_ptr();
    // SAFETY: inside the buffer, which lives to the end of the test; a byte is whole at any time.
    let byte = |at: usize| unsafe { start.wrapping_add(at).read_volatile() };
    let part = buffer.part(BLOCK..2 * BLOCK).unwrap();
    fs.hold(Kind::Read);
    let read = file.read_at(part, 0).start();
    let held = fs.next_held();
    REFUSED.store(true, Ordering::Relaxed);
    // It wakes the thread, which is refused; it may be told first.
    let second = file.read_at(vec![0; BLOCK], 0).start();
    let (error, part) = block_on(read).unwrap_err().into_parts();
    assert_eq!(error.kind(), ErrorKind::Quarantined, "{error}");
    assert!(part.is_none());
    let kind = block_on(second).unwrap_err().error().kind();
    assert!(
        [ErrorKind::Quarantined, ErrorKind::Io].contains(&kind),
        "{kind:?}"
    );
    // The engine goes on with its other threads.
    fs.pass(Kind::Read);
    let done = block_on(file.read_at(vec![0; BLOCK], BLOCK as u64)).unwrap();
    assert!(done.buf == pattern(BLOCK, BLOCK));
    let paths = done.receipt.paths;
    assert_eq!(paths.get(DataPath::UringDirect), 0, "{paths:?}");
    let quarantined = engine.stats().operations_quarantined;
    assert_eq!(block_on(engine.shutdown()).quarantined, quarantined);
    drop((file, engine));
    // What was released by mistake would be used again by these.
    let canaries = [(); 64].map(|()| vec![CANARY; 3 * BLOCK]);
    assert_eq!(buffer.parts_out(), 1);
    held.release();
    until(|| engine_threads() == 0);
    let found: Vec<u8> = (0..3 * BLOCK).map(byte).collect();
    let (before, rest) = found.split_at(BLOCK);
    let (middle, behind) = rest.split_at(BLOCK);
    // The kernel waits for it when the thread ends, or drops it.
    assert!(middle == pattern(0, BLOCK) || middle == [CANARY; BLOCK]);
    assert!(before.iter().chain(behind).all(|&byte| byte == CANARY));
    assert!(canaries.iter().flatten().all(|&byte| byte == CANARY));
    assert_eq!(buffer.parts_out(), 1, "never reused");
}

#[test]
fn a_ring_that_is_refused_for_good_keeps_its_memory_and_the_pool_goes_on() {
    if !syscalls::need() {
        return;
    }
    let Some(fs) = SlowFs::mount(4 * BLOCK) else {
        return;
    };
    let work = || read_and_lose_the_ring(&fs);
    let ((), counts) = supervise(refusal(), "a lost ring", work).unwrap();
    assert!(counts.refused >= 1000, "{counts:?}");
}
