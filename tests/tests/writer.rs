//! Writers: a sink of buffers, and tokio's `AsyncWrite`.
//!
//! Failure: bytes lost, doubled or misplaced; a flush or a close that says yes too early; an error
//! that is forgotten; unbounded writes in flight.
//! Mechanism: writes run beside one another, and what is not full waits in a buffer.
//! Method: every engine, pieces of sizes that agree with nothing, and a file system that holds or
//! fails the writes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io;
use std::task::{Context, Poll, Waker};

use fuser::Errno;
use futures::executor::block_on;
use futures::sink::{Sink, SinkExt};
use futures::stream::StreamExt;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio_cufile::{AsyncFileWriter, Engine, EngineBuilder, ErrorKind, FileWriter, HostBuffer};
use tokio_cufile_tests::life::{open, poll_once, until, until_idle};
use tokio_cufile_tests::slow_fs::Kind;
use tokio_cufile_tests::{SlowFs, each, pattern};

const BLOCK: usize = 4096;
const LEN: usize = 16 * BLOCK;

/// Lengths that agree with no alignment, and some that do.
const PIECES: [usize; 9] = [1, 4096, 511, 0, 70_001, 8192, 4095, 20_480, 3];

fn engine() -> EngineBuilder {
    Engine::builder().task_size(BLOCK)
}

fn poll_ready(writer: &mut FileWriter<Vec<u8>>) -> Poll<Result<(), tokio_cufile::Error>> {
    Sink::poll_ready(
        std::pin::Pin::new(writer),
        &mut Context::from_waker(Waker::noop()),
    )
}

/// What the file holds after `written` was written at `offset` of `content`.
fn overwritten(content: &[u8], offset: usize, written: &[u8]) -> Vec<u8> {
    let mut expected = content.to_vec();
    expected.resize(content.len().max(offset + written.len()), 0);
    expected[offset..offset + written.len()].copy_from_slice(written);
    expected
}

#[test]
fn what_a_sink_is_sent_lies_in_the_file_one_behind_the_other() {
    each(async |bench| {
        let (old, new) = (
            pattern::bytes(1, 30_000),
            pattern::bytes(2, PIECES.iter().sum()),
        );
        for offset in [0, 4096, 1001] {
            let file = bench.file(&old).await.unwrap();
            let mut writer = file.writer(offset);
            let mut rest = &new[..];
            for len in PIECES {
                let (piece, behind) = rest.split_at(len);
                writer.feed(piece.to_vec()).await.unwrap();
                rest = behind;
            }
            assert_eq!(writer.position(), offset + new.len() as u64);
            SinkExt::<Vec<u8>>::close(&mut writer).await.unwrap();
            let expected = overwritten(&old, usize::try_from(offset).unwrap(), &new);
            pattern::assert_same(&fs::read(file.path()).unwrap(), &expected);
        }
    });
}

#[test]
fn a_sink_takes_buffers_of_the_engine() {
    each(async |bench| {
        let file = bench.file(&[]).await.unwrap();
        let mut writer = file.writer(0);
        for seed in 0..3 {
            let mut buffer = HostBuffer::new(&bench.engine, 10_000).unwrap();
            buffer
                .as_mut_slice()
                .unwrap()
                .copy_from_slice(&pattern::bytes(seed, 10_000));
            writer.send(buffer).await.unwrap();
        }
        let expected: Vec<_> = (0..3)
            .flat_map(|seed| pattern::bytes(seed, 10_000))
            .collect();
        pattern::assert_same(&fs::read(file.path()).unwrap(), &expected);
    });
}

#[test]
fn a_streams_chunks_are_written_from_where_they_lie() {
    each(async |bench| {
        let content = pattern::bytes(8, 100_001);
        let (from, to) = (
            bench.file(&content).await.unwrap(),
            bench.file(&[]).await.unwrap(),
        );
        // As many chunks as there are writes: the stream waits for the writer.
        let chunks = from.read_stream(1001..).chunk_size(8192).chunks_max(2);
        let mut writer = to.writer(1001).in_flight_max(1);
        chunks.forward(&mut writer).await.unwrap();
        pattern::assert_same(&fs::read(to.path()).unwrap()[1001..], &content[1001..]);
    });
}

#[test]
fn a_sink_is_not_ready_while_as_many_writes_run_as_may() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, engine());
    fs.hold(Kind::Write);
    let mut writer = file.writer(0).in_flight_max(2);
    for byte in [1, 2] {
        assert!(poll_ready(&mut writer).is_ready());
        writer.start_send_unpin(vec![byte; BLOCK]).unwrap();
    }
    assert!(poll_ready(&mut writer).is_pending());
    let mut held = fs.next_held_of(2);
    held.sort_by_key(|held| held.seen().offset);
    held.remove(0).release();
    fs.pass(Kind::Write);
    block_on(std::future::poll_fn(|context| {
        Sink::<Vec<u8>>::poll_ready(std::pin::Pin::new(&mut writer), context)
    }))
    .unwrap();
    held.remove(0).release();
    block_on(writer.flush()).unwrap();
    assert_eq!(fs.count(Kind::Write), 2);
    until_idle(&engine);
}

#[test]
fn a_flush_waits_for_every_write_and_close_makes_them_durable_once() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, engine());
    fs.hold(Kind::Write);
    let mut writer = file.writer(0);
    block_on(writer.feed(vec![1; BLOCK])).unwrap();
    let held = fs.next_held();
    let mut flush = SinkExt::<Vec<u8>>::flush(&mut writer);
    assert!(poll_once(&mut flush).is_pending());
    held.release();
    fs.pass(Kind::Write);
    block_on(flush).unwrap();
    assert_eq!((fs.count(Kind::Write), fs.count(Kind::Sync)), (1, 0));
    block_on(SinkExt::<Vec<u8>>::close(&mut writer)).unwrap();
    block_on(SinkExt::<Vec<u8>>::close(&mut writer)).unwrap();
    assert_eq!(fs.count(Kind::Sync), 1);
    let error = writer.start_send_unpin(vec![1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    until_idle(&engine);
}

#[test]
fn a_sync_that_was_given_up_is_not_taken_for_one_of_later_writes() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, engine());
    let mut writer = file.async_writer(0);
    block_on(writer.write_all(&[1; BLOCK])).unwrap();
    fs.hold(Kind::Sync);
    let mut shutdown = Box::pin(writer.shutdown());
    let mut polled = || poll_once(&mut shutdown).is_pending();
    until(|| polled() && fs.count(Kind::Sync) == 1);
    drop(shutdown);
    fs.pass(Kind::Sync);
    fs.next_held().release();
    block_on(writer.write_all(&[2; BLOCK])).unwrap();
    block_on(writer.shutdown()).unwrap();
    assert_eq!(
        fs.count(Kind::Sync),
        2,
        "the second write is made durable too"
    );
    until_idle(&engine);
}

#[test]
fn the_first_error_of_a_sink_stays() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, engine());
    fs.fail_next(Kind::Write, Errno::ENOSPC);
    let mut writer = file.writer(8192);
    block_on(writer.feed(vec![1; BLOCK])).unwrap();
    let first = block_on(SinkExt::<Vec<u8>>::flush(&mut writer)).unwrap_err();
    assert_eq!(
        (first.kind(), first.offset()),
        (ErrorKind::StorageFull, Some(8192))
    );
    let again = [
        block_on(writer.send(vec![1; BLOCK])),
        block_on(SinkExt::<Vec<u8>>::flush(&mut writer)),
        block_on(SinkExt::<Vec<u8>>::close(&mut writer)),
        writer.start_send_unpin(vec![2; BLOCK]),
    ];
    for result in again {
        assert_eq!(result.unwrap_err().to_string(), first.to_string());
    }
    assert_eq!((fs.count(Kind::Write), fs.count(Kind::Sync)), (1, 0));
    // The failure was told; the file itself has no unread one.
    drop(writer);
    block_on(file.sync_data()).unwrap();
    until_idle(&engine);
}

#[test]
fn a_failed_sync_fails_the_close_and_every_later_one() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (_engine, file) = open(&fs, engine());
    let mut writer = file.writer(0);
    block_on(writer.feed(vec![1; BLOCK])).unwrap();
    fs.fail_next(Kind::Sync, Errno::EIO);
    for _ in 0..2 {
        let error = block_on(SinkExt::<Vec<u8>>::close(&mut writer)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
    }
    assert_eq!(fs.count(Kind::Sync), 1);
}

#[test]
fn a_sink_dropped_with_a_write_in_flight_leaves_its_loss_to_the_next_sync() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, engine().num_threads(1));
    fs.hold(Kind::Write);
    let mut writer = file.writer(4096);
    block_on(writer.feed(vec![1; 4 * BLOCK])).unwrap();
    let held = fs.next_held();
    drop(writer);
    held.fail(Errno::EIO);
    until_idle(&engine);
    let error = block_on(file.sync_data()).unwrap_err();
    assert_eq!(
        (error.kind(), error.offset()),
        (ErrorKind::OrphanedWrite, Some(4096))
    );
}

async fn write_pieces(writer: &mut AsyncFileWriter, bytes: &[u8], flush: bool) {
    let mut rest = bytes;
    for len in PIECES {
        let (piece, behind) = rest.split_at(len);
        writer.write_all(piece).await.unwrap();
        if flush {
            writer.flush().await.unwrap();
        }
        rest = behind;
    }
}

#[test]
fn what_is_written_through_tokios_trait_lies_in_the_file() {
    each(async |bench| {
        let (old, new) = (
            pattern::bytes(1, 30_000),
            pattern::bytes(2, PIECES.iter().sum()),
        );
        for (offset, flush) in [(0, false), (4096, true), (1001, false), (77, true)] {
            let file = bench.file(&old).await.unwrap();
            let mut writer = file.async_writer(offset).in_flight_max(2);
            write_pieces(&mut writer, &new, flush).await;
            assert_eq!(writer.position(), offset + new.len() as u64);
            writer.shutdown().await.unwrap();
            let expected = overwritten(&old, usize::try_from(offset).unwrap(), &new);
            pattern::assert_same(&fs::read(file.path()).unwrap(), &expected);
        }
    });
}

#[test]
fn small_writes_gather_to_whole_aligned_ones() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder().task_size(2 * BLOCK));
    let mut writer = file.async_writer(BLOCK as u64);
    for _ in 0..5 * BLOCK / 64 {
        block_on(writer.write_all(&[7; 64])).unwrap();
    }
    block_on(writer.shutdown()).unwrap();
    let mut seen: Vec<_> = fs
        .seen(Kind::Write)
        .iter()
        .map(|seen| (seen.offset, seen.len))
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, [(4096, 4096), (8192, 8192), (16384, 8192)]);
    assert_eq!(fs.count(Kind::Sync), 1);
    until_idle(&engine);
}

#[test]
fn the_first_error_through_tokios_trait_stays() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, engine());
    fs.fail_next(Kind::Write, Errno::ENOSPC);
    let mut writer = file.async_writer(0);
    block_on(writer.write_all(&[1; 100])).unwrap();
    for _ in 0..2 {
        let error = block_on(writer.flush()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let error = error.downcast::<tokio_cufile::Error>().unwrap();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
    }
    let error = block_on(writer.write(&[1])).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    let error = block_on(writer.shutdown()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert_eq!(fs.count(Kind::Sync), 0);
    until_idle(&engine);
}

#[test]
fn a_write_through_tokios_trait_waits_while_every_buffer_is_being_written() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, engine());
    fs.hold(Kind::Write);
    let mut writer = file.async_writer(0).in_flight_max(2);
    block_on(writer.write_all(&[1; 2 * BLOCK])).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let write = AsyncWrite::poll_write(std::pin::Pin::new(&mut writer), &mut context, &[2; 10]);
    assert!(write.is_pending());
    drop(fs.next_held_of(2));
    fs.pass(Kind::Write);
    block_on(writer.write_all(&[2; 10])).unwrap();
    block_on(writer.shutdown()).unwrap();
    pattern::assert_same(&fs.content()[2 * BLOCK..][..10], &[2; 10]);
    until_idle(&engine);
}
