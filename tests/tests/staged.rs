//! Writes in two awaits: the source back, and the outcome.
//!
//! Failure: a source that its owner changes while the disk or a copy may read it; one that never
//! comes back; an outcome that gets lost on the way.
//! Mechanism: the source is given back by a part that ends, not by the last; a later attempt of a
//! request reads the source again; an early end is not told to who waits for the source.
//! Method: a file system that holds the writes; the source is overwritten the moment it comes back.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use fuser::Errno;
use futures::executor::block_on;
use tokio_cufile::{
    AsyncCuFile, DataPath, DigestKind, Engine, EngineBuilder, ErrorKind, HostBuffer, HostPart,
    IoEngine, PathClass, Staged, Written,
};
use tokio_cufile_tests::life::{open, open_again, poll_once, until, until_idle};
use tokio_cufile_tests::slow_fs::Kind;
use tokio_cufile_tests::{SlowFs, each, gpu, pattern};

const BLOCK: usize = 4096;
const LEN: usize = 3 * BLOCK;

/// More threads than a source has parts.
fn engine() -> EngineBuilder {
    let builder = Engine::builder().num_threads(4).task_size(BLOCK);
    builder.bounce_buffer_size(BLOCK)
}

/// A source that direct I/O takes where it lies, or one that has to be copied.
fn source(engine: &Engine, in_place: bool) -> (HostBuffer, HostPart) {
    let start = if in_place { 0 } else { 1 };
    let mut buffer = HostBuffer::new(engine, LEN + BLOCK).unwrap();
    let bytes = buffer.as_mut_slice().unwrap();
    bytes[start..start + LEN].copy_from_slice(&pattern::bytes(1, LEN));
    let part = buffer.part(start..start + LEN).unwrap();
    (buffer, part)
}

fn write(file: &AsyncCuFile, part: HostPart) -> (Staged<HostPart>, Written) {
    file.write_all_at(part, 0).staged()
}

fn spoil(part: &mut HostPart) {
    pattern::assert_same(part.as_slice(), &pattern::bytes(1, LEN));
    part.as_mut_slice().fill(0xee);
}

#[test]
fn the_source_comes_back_unchanged_and_may_be_changed_at_once() {
    each(async |bench| {
        for skew in [0, 1, 512] {
            for (offset, len) in [(0, 200_003), (4096, 131_072), (777, 3000), (0, 0)] {
                let content = pattern::bytes(2, len);
                let file = bench.file(&[]).await.unwrap();
                let mut buffer = HostBuffer::new(&bench.engine, len + 4096).unwrap();
                let bytes = buffer.as_mut_slice().unwrap();
                bytes[skew..skew + len].copy_from_slice(&content);
                let part = buffer.part(skew..skew + len).unwrap();
                let (staged, written) = file.write_at(part, offset as u64).staged();
                let mut part = staged.await.unwrap();
                pattern::assert_same(part.as_slice(), &content);
                part.as_mut_slice().fill(0xee);
                let done = written.await.unwrap();
                assert_eq!((done.bytes, done.digests()), (len, None));
                let mut expected = vec![0; if len == 0 { 0 } else { offset }];
                expected.extend_from_slice(&content);
                pattern::assert_same(&std::fs::read(file.path()).unwrap(), &expected);
            }
        }
    });
}

#[test]
fn device_memory_comes_back_unchanged_and_may_be_overwritten_at_once() {
    if gpu::count() == 0 {
        return; // The step with simulated devices has them.
    }
    each(async |bench| {
        for (offset, len) in [(0, 200_003), (4096, 131_072), (777, 3000), (0, 0)] {
            let content = pattern::bytes(4, len);
            let file = bench.file(&[]).await.unwrap();
            let buffer = gpu::buffer(&bench.engine, 0, &content).await;
            let (staged, written) = file.write_at(buffer, offset as u64).staged();
            let spoilt = staged.await.unwrap();
            let spoilt = spoilt.copy_from_host(&bench.engine, 0, vec![0xee; len]);
            drop(spoilt.await.unwrap());
            assert_eq!(written.await.unwrap().bytes, len);
            let mut expected = vec![0; if len == 0 { 0 } else { offset }];
            expected.extend_from_slice(&content);
            pattern::assert_same(&std::fs::read(file.path()).unwrap(), &expected);
        }
    });
}

#[test]
fn device_memory_comes_back_once_it_is_copied_while_the_disk_is_slow() {
    if gpu::count() == 0 {
        return;
    }
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, engine());
    let content = pattern::bytes(1, LEN);
    let buffer = block_on(gpu::buffer(&engine, 0, &content));
    fs.hold(Kind::Write);
    let (staged, mut written) = file.write_all_at(buffer, 0).staged();
    let buffer = block_on(staged).unwrap();
    let spoilt = buffer.copy_from_host(&engine, 0, vec![0xee; LEN]).start();
    assert!(poll_once(&mut written).is_pending());
    drop(fs.next_held_of(3));
    assert_eq!(block_on(written).unwrap().bytes, LEN);
    pattern::assert_same(&fs.content(), &content);
    drop(block_on(spoilt).unwrap());
    until_idle(&engine);
}

#[test]
fn the_outcome_may_be_awaited_first_and_a_vec_comes_back_too() {
    each(async |bench| {
        let file = bench.file(&[]).await.unwrap();
        let (staged, written) = file.write_all_at(pattern::bytes(3, 70_001), 0).staged();
        assert_eq!(written.await.unwrap().bytes, 70_001);
        pattern::assert_same(&staged.await.unwrap(), &pattern::bytes(3, 70_001));
    });
}

#[test]
fn a_copied_source_comes_back_while_the_disk_is_slow() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, engine());
    let (_buffer, part) = source(&engine, false);
    fs.hold(Kind::Write);
    let (staged, mut written) = write(&file, part);
    let mut part = block_on(staged).unwrap();
    spoil(&mut part);
    assert!(poll_once(&mut written).is_pending());
    drop(fs.next_held_of(3));
    assert_eq!(block_on(written).unwrap().bytes, LEN);
    pattern::assert_same(&fs.content(), &pattern::bytes(1, LEN));
    until_idle(&engine);
}

#[test]
fn a_source_that_the_ring_copied_comes_back_while_the_disk_is_slow() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let builder = Engine::builder().io(IoEngine::Uring);
    let engine = builder.build_blocking().unwrap();
    let file = open_again(&fs, &engine);
    let (_buffer, part) = source(&engine, false);
    fs.hold(Kind::Write);
    let (staged, mut written) = write(&file, part);
    let held = fs.next_held();
    spoil(&mut block_on(staged).unwrap());
    assert!(poll_once(&mut written).is_pending());
    held.release();
    let done = block_on(written).unwrap();
    assert_eq!(done.receipt.paths.get(DataPath::UringDirect), LEN as u64);
    pattern::assert_same(&fs.content(), &pattern::bytes(1, LEN));
    until_idle(&engine);
}

/// The control: what the tests above would see if the source came back before it was copied.
#[test]
fn control_a_source_changed_too_early_is_seen() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, engine());
    let (_buffer, mut part) = source(&engine, false);
    spoil(&mut part);
    let (staged, written) = write(&file, part);
    drop((block_on(staged).unwrap(), block_on(written).unwrap()));
    assert!(fs.content() != pattern::bytes(1, LEN));
}

#[test]
fn a_source_in_place_comes_back_with_the_outcome() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, engine());
    let (_buffer, part) = source(&engine, true);
    fs.hold(Kind::Write);
    let (mut staged, mut written) = write(&file, part);
    let mut held = fs.next_held_of(3);
    let last = held.pop().unwrap();
    drop(held);
    until(|| engine.stats().parts.in_flight == 1);
    assert!(poll_once(&mut staged).is_pending());
    assert!(poll_once(&mut written).is_pending());
    last.release();
    spoil(&mut block_on(staged).unwrap());
    assert_eq!(block_on(written).unwrap().bytes, LEN);
    pattern::assert_same(&fs.content(), &pattern::bytes(1, LEN));
}

#[test]
fn a_source_that_waits_for_slots_comes_back_when_the_last_part_has_one() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    // One part at a time.
    let (engine, file) = open(&fs, engine().num_threads(1));
    let (_buffer, part) = source(&engine, false);
    fs.hold(Kind::Write);
    let (mut staged, written) = write(&file, part);
    for _ in 0..2 {
        let held = fs.next_held();
        assert!(poll_once(&mut staged).is_pending());
        held.release();
    }
    let last = fs.next_held();
    spoil(&mut block_on(staged).unwrap());
    last.release();
    assert_eq!(block_on(written).unwrap().bytes, LEN);
    pattern::assert_same(&fs.content(), &pattern::bytes(1, LEN));
}

#[test]
fn what_is_repeated_buffered_comes_from_the_copy() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, engine());
    let (_buffer, part) = source(&engine, false);
    fs.hold(Kind::Write);
    let (staged, written) = write(&file, part);
    let held = fs.next_held_of(3);
    spoil(&mut block_on(staged).unwrap());
    fs.pass(Kind::Write);
    for held in held {
        if held.seen().offset == 0 {
            held.cut_short(BLOCK / 2);
        } else {
            held.fail(Errno::EINVAL);
        }
    }
    let done = block_on(written).unwrap();
    assert_eq!((done.bytes, done.receipt.notes.len()), (LEN, 1));
    pattern::assert_same(&fs.content(), &pattern::bytes(1, LEN));
    until_idle(&engine);
}

#[test]
fn a_failed_write_gives_the_source_and_then_the_error() {
    for in_place in [true, false] {
        let Some(fs) = SlowFs::mount(LEN) else {
            return;
        };
        let (engine, file) = open(&fs, engine());
        let (_buffer, part) = source(&engine, in_place);
        fs.hold(Kind::Write);
        let (staged, written) = write(&file, part);
        let mut held = fs.next_held_of(3);
        held.sort_by_key(|held| held.seen().offset);
        held.remove(1).fail(Errno::EIO);
        drop(held);
        spoil(&mut block_on(staged).unwrap());
        let failed = block_on(written).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::Io);
        assert_eq!(failed.bytes_done(), BLOCK);
        block_on(file.sync_data()).unwrap();
        until_idle(&engine);
    }
}

#[test]
fn cancelled_the_source_comes_back_when_no_issued_part_reads_it() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    for in_place in [true, false] {
        let (engine, file) = open(&fs, engine().num_threads(1));
        let (_buffer, part) = source(&engine, in_place);
        fs.hold(Kind::Write);
        let (mut staged, written) = write(&file, part);
        let held = fs.next_held();
        assert!(poll_once(&mut staged).is_pending());
        written.cancel_handle().cancel();
        if in_place {
            assert!(poll_once(&mut staged).is_pending());
            held.release();
            spoil(&mut block_on(staged).unwrap());
        } else {
            spoil(&mut block_on(staged).unwrap());
            held.release();
        }
        let failed = block_on(written).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::Cancelled);
        assert_eq!(failed.bytes_done(), BLOCK);
        pattern::assert_same(&fs.content()[..BLOCK], &pattern::bytes(1, LEN)[..BLOCK]);
        fs.pass(Kind::Write);
        until_idle(&engine);
    }
}

/// Records that it was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn dropped_in_flight_the_write_gives_its_source_and_its_loss_to_the_file() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, engine());
    let (_buffer, part) = source(&engine, true);
    fs.hold(Kind::Write);
    let (staged, written) = write(&file, part);
    let mut staged = pin!(staged);
    let mut held = fs.next_held_of(3);
    drop(written);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let polled = staged.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending(), "the file system reads it");
    held.pop().unwrap().fail(Errno::EIO);
    fs.pass(Kind::Write);
    drop(held);
    until(|| woken.0.load(Ordering::SeqCst));
    spoil(&mut block_on(staged).unwrap());
    let lost = block_on(file.sync_data()).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::OrphanedWrite);
    until_idle(&engine);
}

#[test]
fn dropped_the_source_stays_with_the_write_and_is_released_by_the_engine() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    for in_place in [true, false] {
        let (engine, file) = open(&fs, engine());
        let (buffer, part) = source(&engine, in_place);
        fs.hold(Kind::Write);
        let (staged, written) = write(&file, part);
        let held = fs.next_held_of(3);
        drop(staged);
        assert_eq!(buffer.as_slice().unwrap_err().kind(), ErrorKind::Busy);
        drop(held);
        assert_eq!(block_on(written).unwrap().bytes, LEN);
        // The last owner is dropped by the engine's thread, not here.
        until(|| buffer.as_slice().is_ok());
        pattern::assert_same(&fs.content(), &pattern::bytes(1, LEN));
        until_idle(&engine);
    }
}

#[test]
fn quarantined_it_gives_a_copied_source_and_keeps_one_in_place() {
    for in_place in [true, false] {
        let Some(fs) = SlowFs::mount(LEN) else {
            return;
        };
        let builder = engine().quiet_limit(Duration::from_millis(20));
        let (engine, file) = open(&fs, builder);
        let (buffer, part) = source(&engine, in_place);
        fs.hold(Kind::Write);
        let (mut staged, written) = write(&file, part);
        let held = fs.next_held_of(3);
        assert_eq!(poll_once(&mut staged).is_pending(), in_place);
        if !in_place {
            // It was ready, and was taken.
            until(|| buffer.as_slice().is_ok());
        }
        written.cancel_handle().cancel();
        let failed = block_on(written).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::Quarantined);
        if in_place {
            let error = block_on(staged).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Quarantined);
            assert_eq!(error.path(), Some(fs.path().as_path()));
            assert_eq!(buffer.as_slice().unwrap_err().kind(), ErrorKind::Busy);
        }
        drop(held);
    }
}

#[test]
fn what_is_refused_gives_its_source_at_once() {
    each(async |bench| {
        let file = bench.file(&pattern::bytes(5, BLOCK)).await.unwrap();
        let write = file.write_at(vec![7; BLOCK], 0).require(PathClass::Gds);
        let (staged, written) = write.staged();
        assert_eq!(staged.await.unwrap(), vec![7; BLOCK]);
        let failed = written.await.unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::PathRefused);
        let (staged, written) = file.read_at(vec![7; BLOCK], 0).staged();
        let failed = written.await.unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::InvalidInput);
        assert_eq!(staged.await.unwrap(), vec![7; BLOCK]);
        let content = std::fs::read(file.path()).unwrap();
        pattern::assert_same(&content, &pattern::bytes(5, BLOCK));
    });
}

#[test]
#[should_panic(expected = "before the write is started")]
fn after_the_start_it_is_too_late() {
    let engine = Engine::builder().num_threads(1).build_blocking().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let file = block_on(AsyncCuFile::create(&engine, file.path())).unwrap();
    let _ = file.write_at(vec![7; 10], 0).start().staged();
}

#[test]
fn a_digested_source_comes_back_with_the_outcome() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, engine());
    let (_buffer, part) = source(&engine, false);
    fs.hold(Kind::Write);
    let write = file.write_all_at(part, 0).digest(DigestKind::Crc32c, LEN);
    let (mut staged, written) = write.staged();
    let held = fs.next_held_of(3);
    assert!(poll_once(&mut staged).is_pending());
    drop(held);
    spoil(&mut block_on(staged).unwrap());
    let done = block_on(written).unwrap();
    let expected = DigestKind::Crc32c.of(&pattern::bytes(1, LEN));
    assert_eq!(done.digests().unwrap().values, [expected]);
    until_idle(&engine);
}
