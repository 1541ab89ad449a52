//! Checksums of what an operation moved.
//!
//! Failure: a checksum of bytes that had not arrived, of the wrong range, or of more than was moved;
//! memory released, or an operation quarantined, while it is read for a checksum.
//! Mechanism: parts end in any order and are cut elsewhere than chunks; a short part ends the
//! operation in the middle of a chunk.
//! Method: every cut on every engine against checksums of the content; a file system that answers
//! in the order that the test wants.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::time::Instant;

use fuser::Errno;
use futures::executor::block_on;
use tokio_cufile::{
    AsyncCuFile, DataPath, DeviceBuffer, Digest, DigestKind, Digests, Engine, EngineBuilder,
    ErrorKind, FileRange, HostBuffer, PathClass,
};
use tokio_cufile_tests::life::{IN_FLIGHT_BY, open, poll_once, until, until_idle};
use tokio_cufile_tests::slow_fs::{Kind, pattern as slow_pattern};
use tokio_cufile_tests::{SlowFs, each, gpu, pattern};

const LEN: usize = 200_003;
const BLOCK: usize = 4096;

#[track_caller]
fn assert_digests(found: Option<&Digests>, kind: DigestKind, chunk: usize, content: &[u8]) {
    let expected: Vec<Digest> = content.chunks(chunk).map(|bytes| kind.of(bytes)).collect();
    let found = found.expect("digests were asked for");
    assert_eq!((found.kind, found.chunk), (kind, chunk));
    assert!(found.values == expected, "{kind}, chunks of {chunk}");
}

#[test]
fn a_reads_digests_are_of_its_chunks_however_parts_are_cut() {
    each(async |bench| {
        let content = pattern::bytes(1, LEN);
        let file = bench.file(&content).await.unwrap();
        for kind in DigestKind::ALL {
            for chunk in [513, 4096, 30_000, 65_536, LEN, usize::MAX] {
                for (offset, len) in [(0, LEN), (4096, 131_072), (777, 100_001)] {
                    let wanted = &content[offset..offset + len];
                    let whole = HostBuffer::new(&bench.engine, len).unwrap();
                    let read = file.read_at(whole, offset as u64);
                    let done = read.digest(kind, chunk).await.unwrap();
                    assert_digests(done.digests(), kind, chunk, wanted);
                    let mut buffer = HostBuffer::new(&bench.engine, len + 1).unwrap();
                    let part = buffer.part(1..len + 1).unwrap();
                    let read = file.read_exact_at(part, offset as u64);
                    let done = read.digest(kind, chunk).await.unwrap();
                    pattern::assert_same(done.buf.as_slice(), wanted);
                    assert_digests(done.digests(), kind, chunk, wanted);
                }
            }
        }
    });
}

#[test]
fn a_short_reads_digests_are_of_what_arrived() {
    each(async |bench| {
        let content = pattern::bytes(2, LEN);
        let file = bench.file(&content).await.unwrap();
        for chunk in [1000, 4096, 100_000, 1 << 20] {
            for offset in [0, 1, 4096, 150_000, LEN - 1, LEN, LEN + 5000] {
                let read = file.read_at(vec![0; LEN + 70_000], offset as u64);
                let done = read.digest(DigestKind::Crc32c, chunk).await.unwrap();
                let arrived = content.get(offset..).unwrap_or_default();
                assert_eq!(done.bytes, arrived.len());
                assert_digests(done.digests(), DigestKind::Crc32c, chunk, arrived);
            }
        }
        let read = file.read_exact_at(vec![0; LEN + 1], 0);
        let failed = read.digest(DigestKind::Xxh3, 4096).await.unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::UnexpectedEof);
    });
}

#[test]
fn a_writes_digests_are_of_its_source() {
    each(async |bench| {
        let file = bench.file(&[]).await.unwrap();
        for kind in DigestKind::ALL {
            for (offset, chunk) in [(0, 4096), (1, 65_536), (5000, LEN), (4096, 777)] {
                let source = pattern::bytes(3, LEN);
                let write = file.write_all_at(source, offset).digest(kind, chunk);
                let done = write.await.unwrap();
                assert_digests(done.digests(), kind, chunk, &done.buf);
            }
        }
    });
}

#[test]
fn digests_of_device_memory_are_those_of_the_same_bytes() {
    if gpu::count() == 0 {
        return; // The step with simulated devices has them.
    }
    each(async |bench| {
        let content = pattern::bytes(7, LEN);
        let file = bench.file(&content).await.unwrap();
        for (kind, chunk) in [
            (DigestKind::Crc32c, 513),
            (DigestKind::Xxh3, 65_536),
            (DigestKind::Blake3, LEN),
        ] {
            for (offset, len) in [(0, LEN), (777, 100_001), (150_000, LEN), (LEN, BLOCK)] {
                let wanted = &content[offset..LEN.min(offset + len)];
                let buffer = gpu::buffer(&bench.engine, 0, &vec![0; len]).await;
                let read = file.read_at(buffer, offset as u64).digest(kind, chunk);
                let done = read.await.unwrap();
                assert_eq!(done.bytes, wanted.len());
                assert_digests(done.digests(), kind, chunk, wanted);
                let found = gpu::content(&bench.engine, done.buf).await;
                pattern::assert_same(&found[..wanted.len()], wanted);
            }
            let target = bench.file(&[]).await.unwrap();
            let buffer = gpu::buffer(&bench.engine, 0, &content).await;
            let write = target.write_all_at(buffer, 5000).digest(kind, chunk);
            assert_digests(write.await.unwrap().digests(), kind, chunk, &content);
        }
    });
}

#[test]
fn a_read_into_device_memory_of_which_a_part_fails_has_no_digests_and_others_have() {
    if gpu::count() == 0 {
        return;
    }
    let Some(fs) = SlowFs::mount(FOUR) else {
        return;
    };
    let (engine, file) = open(&fs, engine(5).bounce_buffer_size(BLOCK));
    let read = || {
        let buffer = block_on(DeviceBuffer::new(&engine, 0, FOUR)).unwrap();
        file.read_at(buffer, 0).digest(DigestKind::Crc32c, BLOCK)
    };
    for failing in 0..4 {
        fs.hold(Kind::Read);
        let failed = read().start();
        let mut held = fs.next_held_of(4);
        held.sort_by_key(|held| held.seen().offset);
        held.remove(failing).fail(Errno::EIO);
        drop(held);
        let failed = block_on(failed).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::Io);
        assert_eq!(failed.bytes_done(), failing * BLOCK);
        fs.pass(Kind::Read);
        let done = block_on(read()).unwrap();
        let content = slow_pattern(0, FOUR);
        assert_digests(done.digests(), DigestKind::Crc32c, BLOCK, &content);
    }
    until_idle(&engine);
}

#[test]
fn nobody_who_did_not_ask_gets_digests_and_no_bytes_have_none() {
    each(async |bench| {
        let file = bench.file(&pattern::bytes(4, BLOCK)).await.unwrap();
        let done = file.read_at(vec![0; BLOCK], 0).await.unwrap();
        assert_eq!(done.digests(), None);
        let empty = file.read_at(Vec::new(), 0).digest(DigestKind::Blake3, 1);
        assert_digests(empty.await.unwrap().digests(), DigestKind::Blake3, 1, &[]);
    });
}

#[test]
fn chunks_that_cannot_be_are_refused_before_anything_is_issued() {
    each(async |bench| {
        let file = bench.file(&pattern::bytes(5, BLOCK)).await.unwrap();
        let many = Digests::CHUNKS_MAX + 1;
        for (len, chunk) in [(BLOCK, 0), (0, 0), (many, 1)] {
            for write in [false, true] {
                let buf = vec![7; len];
                let transfer = if write {
                    file.write_at(buf, 0)
                } else {
                    file.read_at(buf, 0)
                };
                let failed = transfer.digest(DigestKind::Xxh3, chunk).await.unwrap_err();
                assert_eq!(failed.error().kind(), ErrorKind::InvalidInput);
                assert!(failed.receipt().is_none());
                assert_eq!(failed.into_parts().1, Some(vec![7; len]));
            }
        }
        let ranges = vec![FileRange {
            file_offset: 0,
            len: 10,
            buf_offset: 0,
        }];
        let read = file.read_ranges(vec![0; 10], ranges);
        let failed = read.digest(DigestKind::Xxh3, 10).await.unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::Unsupported);
    });
}

#[test]
fn what_is_digested_goes_by_the_pool_and_says_so() {
    each(async |bench| {
        let file = bench.file(&pattern::bytes(6, LEN)).await.unwrap();
        let read = || file.read_at(vec![0; LEN], 0).digest(DigestKind::Xxh3, LEN);
        let paths = read().await.unwrap().receipt.paths;
        assert_eq!(paths.get(DataPath::UringDirect), 0, "{paths:?}");
        let ring = PathClass::Exactly(DataPath::UringDirect);
        let refused = read().require(ring).await.unwrap_err();
        assert_eq!(refused.error().kind(), ErrorKind::PathRefused);
    });
}

/// As many parts at once as there are threads.
fn engine(threads: usize) -> EngineBuilder {
    Engine::builder().num_threads(threads).task_size(BLOCK)
}

/// A read of four blocks, all in flight, in chunks of two.
const FOUR: usize = 4 * BLOCK;

#[test]
fn parts_that_end_in_any_order_give_the_same_digests() {
    let Some(fs) = SlowFs::mount(FOUR) else {
        return;
    };
    let content = slow_pattern(0, FOUR);
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]] {
        let (_engine, file) = open(&fs, engine(5));
        for chunk in [BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK, FOUR] {
            fs.hold(Kind::Read);
            let read = file
                .read_at(vec![0; FOUR], 0)
                .digest(DigestKind::Blake3, chunk);
            let read = read.start();
            let mut held: Vec<_> = fs.next_held_of(4).into_iter().map(Some).collect();
            held.sort_by_key(|held| held.as_ref().unwrap().seen().offset);
            for index in order {
                held[index].take().unwrap().release();
            }
            let done = block_on(read).unwrap();
            assert_digests(done.digests(), DigestKind::Blake3, chunk, &content);
        }
    }
}

#[test]
fn a_file_that_ends_in_an_early_part_is_digested_up_to_there() {
    let Some(fs) = SlowFs::mount(FOUR) else {
        return;
    };
    let content = slow_pattern(0, FOUR);
    for late in [true, false] {
        let (engine, file) = open(&fs, engine(5));
        fs.hold(Kind::Read);
        let read = file.read_at(vec![0; FOUR], 0);
        let read = read.digest(DigestKind::Crc32c, 3 * BLOCK).start();
        let mut held = fs.next_held_of(4);
        held.sort_by_key(|held| held.seen().offset);
        let first = held.remove(0);
        let short = held.remove(0);
        fs.pass(Kind::Read);
        if late {
            drop(held);
            first.release();
            short.cut_short(0);
        } else {
            short.cut_short(0);
            drop(held);
            first.release();
        }
        let done = block_on(read).unwrap();
        assert_eq!(done.bytes, BLOCK);
        assert_digests(
            done.digests(),
            DigestKind::Crc32c,
            3 * BLOCK,
            &content[..BLOCK],
        );
        until_idle(&engine);
    }
}

fn held_read(
    fs: &SlowFs,
    file: &AsyncCuFile,
) -> (
    tokio_cufile::Transfer<Vec<u8>>,
    Vec<tokio_cufile_tests::slow_fs::Held>,
) {
    fs.hold(Kind::Read);
    let read = file.read_at(vec![0; FOUR], 0);
    let read = read.digest(DigestKind::Blake3, 2 * BLOCK).start();
    let held = fs.next_held_of(4);
    fs.pass(Kind::Read);
    (read, held)
}

#[test]
fn a_failed_operation_is_quiet_before_it_ends() {
    let Some(fs) = SlowFs::mount(FOUR) else {
        return;
    };
    let (engine, file) = open(&fs, engine(5));
    let (mut read, mut held) = held_read(&fs, &file);
    held.sort_by_key(|held| held.seen().offset);
    held.remove(1).fail(Errno::EIO);
    assert!(poll_once(&mut read).is_pending());
    drop(held);
    let failed = block_on(read).unwrap_err();
    assert_eq!(failed.bytes_done(), BLOCK);
    until_idle(&engine);
}

#[test]
fn dropped_in_flight_it_is_digested_for_nobody_and_leaves_nothing() {
    let Some(fs) = SlowFs::mount(FOUR) else {
        return;
    };
    let (engine, file) = open(&fs, engine(5));
    let (read, held) = held_read(&fs, &file);
    drop(read);
    assert_ne!(engine.stats().operations_live, 0);
    drop(held);
    until_idle(&engine);
    let report = block_on(engine.shutdown());
    assert_eq!(report.quarantined, 0);
}

#[test]
fn a_stop_after_everything_was_issued_leaves_the_outcome_and_its_digests() {
    let Some(fs) = SlowFs::mount(FOUR) else {
        return;
    };
    let content = slow_pattern(0, FOUR);
    let (engine, file) = open(&fs, engine(5));
    let (read, held) = held_read(&fs, &file);
    read.cancel_handle().cancel();
    drop(held);
    let done = block_on(read).unwrap();
    assert_digests(done.digests(), DigestKind::Blake3, 2 * BLOCK, &content);

    fs.hold(Kind::Read);
    let deadline = Instant::now() + IN_FLIGHT_BY;
    let read = file.read_at(vec![0; FOUR], 0).deadline(deadline);
    let read = read.digest(DigestKind::Blake3, 2 * BLOCK).start();
    let held = fs.next_held_of(4);
    until(|| Instant::now() > deadline);
    drop(held);
    let done = block_on(read).unwrap();
    assert_digests(done.digests(), DigestKind::Blake3, 2 * BLOCK, &content);
    until_idle(&engine);
}
