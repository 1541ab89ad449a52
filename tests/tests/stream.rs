//! A file as a stream of chunks.
//!
//! Failure: bytes lost, doubled or out of order; unbounded memory; a kept chunk that holds up
//! others, or changes under its reader; a stream that sleeps for ever.
//! Mechanism: reads run ahead and end in any order, and a chunk's memory is used again.
//! Method: every engine, chunk sizes that agree with no alignment, and a file system that holds the
//! reads.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake};

use fuser::Errno;
use futures::executor::block_on;
use futures::stream::{FusedStream, StreamExt};
use tokio_cufile::{Chunk, Engine, ErrorKind, PathClass, ReadStream};
use tokio_cufile_tests::life::{open, until};
use tokio_cufile_tests::slow_fs::{self, Kind};
use tokio_cufile_tests::{SlowFs, each, pattern};

const CHUNK: usize = 4096;
const LEN: usize = 16 * CHUNK;

/// Counts how often it is woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll(stream: &mut ReadStream, wakes: &Arc<Wakes>) -> Poll<Option<tokio_cufile::Result<Chunk>>> {
    let waker = Arc::clone(wakes).into();
    stream.poll_next_unpin(&mut Context::from_waker(&waker))
}

/// Waits until every permit came back. Reads that were dropped before a thread came to them give
/// theirs back when one does.
fn until_home(engine: &Engine) {
    until(|| {
        let stats = engine.stats();
        let all = [stats.bytes, stats.parts, stats.slots, stats.small_slots];
        all.iter().all(|permits| permits.free == permits.capacity)
    });
}

/// All bytes of the stream, whose chunks must follow one another.
async fn all(mut stream: ReadStream, mut offset: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.unwrap();
        assert_eq!(chunk.offset(), offset);
        assert!(!chunk.is_empty());
        assert_eq!(chunk.receipt().paths.total(), chunk.len() as u64);
        offset += chunk.len() as u64;
        bytes.extend_from_slice(&chunk);
    }
    assert!(stream.is_terminated());
    assert!(stream.next().await.is_none());
    bytes
}

#[test]
fn its_chunks_are_the_files_bytes_in_order_whatever_the_range_and_the_chunk_size() {
    each(async |bench| {
        let content = pattern::bytes(5, 100_001);
        let file = bench.file(&content).await.unwrap();
        for size in [1 << 20, 4096, 5000, 8191] {
            for (start, end) in [(0, 100_001), (1, 50_000), (4096, 8192), (99_000, 200_000)] {
                let stream = file.read_stream(start..end).chunk_size(size);
                let (from, to) = (
                    usize::try_from(start).unwrap(),
                    usize::try_from(end).unwrap(),
                );
                let expected = &content[from..to.min(content.len())];
                pattern::assert_same(&all(stream, start).await, expected);
            }
        }
        pattern::assert_same(&all(file.read_stream(..), 0).await, &content);
        pattern::assert_same(&all(file.read_stream(..=9), 0).await, &content[..10]);
    });
}

#[test]
fn an_empty_range_and_a_range_behind_the_end_give_no_chunk() {
    each(async |bench| {
        let file = bench.file(&[1; 10]).await.unwrap();
        assert!(file.read_stream(5..5).next().await.is_none());
        assert!(file.read_stream(10..).next().await.is_none());
        assert!(file.read_stream(1 << 40..).next().await.is_none());
    });
}

#[test]
fn chunks_begin_at_multiples_of_their_size_and_are_read_in_place() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder());
    let stream = file.read_stream(100..).chunk_size(2 * CHUNK);
    let chunks: Vec<_> = block_on(stream.take(3).collect());
    let starts: Vec<_> = chunks
        .iter()
        .map(|chunk| chunk.as_ref().unwrap().offset())
        .collect();
    assert_eq!(starts, [100, 8192, 16384]);
    assert_eq!(&**chunks[1].as_ref().unwrap(), slow_fs::pattern(8192, 8192));
    for chunk in &chunks[1..] {
        assert_eq!(
            chunk.as_ref().unwrap().receipt().copy_time,
            std::time::Duration::ZERO
        );
    }
    until_home(&engine);
}

#[test]
fn it_reads_ahead_as_far_as_it_may_and_no_further() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder());
    fs.hold(Kind::Read);
    let mut stream = file.read_stream(..).chunk_size(CHUNK).read_ahead(3);
    assert_eq!(engine.stats().operations_live, 0);
    let wakes = Arc::new(Wakes::default());
    assert!(poll(&mut stream, &wakes).is_pending());
    assert_eq!(engine.stats().operations_live, 3);
    let mut held = fs.next_held_of(3);
    held.sort_by_key(|held| held.seen().offset);
    // The second and third are done: the first has still to come.
    held.drain(1..).for_each(slow_fs::Held::release);
    until(|| engine.stats().operations_live == 1);
    assert!(poll(&mut stream, &wakes).is_pending());
    assert_eq!(engine.stats().operations_live, 1);
    held.remove(0).release();
    until(|| wakes.0.load(Ordering::SeqCst) > 0);
    fs.pass(Kind::Read);
    for index in 0..3 {
        let Poll::Ready(Some(Ok(chunk))) = poll(&mut stream, &wakes) else {
            panic!("the chunks that were read are there");
        };
        assert_eq!(&*chunk, slow_fs::pattern(index * CHUNK, CHUNK));
    }
    assert!(fs.count(Kind::Read) <= 6);
}

#[test]
fn a_kept_chunk_holds_no_permit_and_the_stream_waits_for_its_buffer() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder());
    let mut stream = file.read_stream(..).chunk_size(CHUNK).chunks_max(2);
    let kept = block_on(stream.next()).unwrap().unwrap();
    let other = block_on(stream.next()).unwrap().unwrap();
    let wakes = Arc::new(Wakes::default());
    assert!(poll(&mut stream, &wakes).is_pending());
    until_home(&engine);
    assert_eq!(fs.count(Kind::Read), 2);
    assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
    drop(other);
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    let third = block_on(stream.next()).unwrap().unwrap();
    assert_eq!(&*third, slow_fs::pattern(2 * CHUNK, CHUNK));
    assert_eq!(&*kept, slow_fs::pattern(0, CHUNK));
}

#[test]
fn an_error_comes_after_the_chunks_before_it_and_ends_the_stream() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder());
    fs.hold(Kind::Read);
    let mut stream = file.read_stream(..).chunk_size(CHUNK).read_ahead(2);
    assert!(poll(&mut stream, &Arc::default()).is_pending());
    let mut held = fs.next_held_of(2);
    held.sort_by_key(|held| held.seen().offset);
    held.remove(1).fail(Errno::EIO);
    held.remove(0).release();
    fs.pass(Kind::Read);
    assert_eq!(
        &*block_on(stream.next()).unwrap().unwrap(),
        slow_fs::pattern(0, CHUNK)
    );
    let error = block_on(stream.next()).unwrap().unwrap_err();
    assert_eq!(
        (error.kind(), error.offset()),
        (ErrorKind::Io, Some(CHUNK as u64))
    );
    assert!(block_on(stream.next()).is_none());
    until_home(&engine);
}

#[test]
fn settings_that_cannot_be_are_an_error() {
    each(async |bench| {
        let file = bench.file(&[1; 10]).await.unwrap();
        let mut stream = file.read_stream(..).chunk_size(0);
        let error = stream.next().await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(stream.next().await.is_none());
        let mut stream = file.read_stream(..).require(PathClass::Gds);
        let error = stream.next().await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PathRefused);
    });
}

#[test]
fn dropped_with_reads_in_flight_it_leaves_them_to_the_engine() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder());
    fs.hold(Kind::Read);
    let mut stream = file.read_stream(..).chunk_size(CHUNK).read_ahead(3);
    assert!(poll(&mut stream, &Arc::default()).is_pending());
    let held = fs.next_held_of(3);
    drop((stream, file));
    assert_eq!(engine.stats().parts.in_flight, 3);
    drop(held);
    fs.pass(Kind::Read);
    until_home(&engine);
}

#[test]
fn a_chunk_outlives_stream_file_and_engine() {
    let Some(fs) = SlowFs::mount(LEN) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder());
    let mut stream = file.read_stream(..).chunk_size(CHUNK);
    let chunk = block_on(stream.next()).unwrap().unwrap();
    drop((stream, file));
    block_on(engine.shutdown());
    drop(engine);
    assert_eq!(&*chunk, slow_fs::pattern(0, CHUNK));
}
