//! Many ranges in one read, on every engine.
//!
//! Failure: a range gets another's bytes, bytes beside a destination change, a range behind the end
//! of the file passes for full, or a request is made for each of a thousand neighbours.
//! Mechanism: close ranges are read by one request into a slot and copied out of it.
//! Method: proptest against a slice of the file, with canaries between the destinations. A failure
//! prints the seed: `PROPTEST_RNG_SEED=… cargo nextest run -p tokio-cufile-tests --test ranges`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use fuser::Errno;
use futures::executor::block_on;
use proptest::prelude::*;
use tokio_cufile::{Done, Engine, ErrorKind, FileRange, HostBuffer, OpError, Ranges, VendorCode};
use tokio_cufile_tests::bench::{self, Bench, Setup, setups};
use tokio_cufile_tests::life::{open, until_idle};
use tokio_cufile_tests::memory::Memory;
use tokio_cufile_tests::slow_fs::{self, Kind};
use tokio_cufile_tests::{SlowFs, each, gpu, pattern, random};

const CANARY: u8 = 0xee;

fn range(file_offset: usize, len: usize, buf_offset: usize) -> FileRange {
    FileRange {
        file_offset: file_offset as u64,
        len,
        buf_offset,
    }
}

/// Ranges of so many bytes each, so far apart, one behind the other in memory.
fn every(step: usize, len: usize, count: usize) -> Vec<FileRange> {
    let nth = |index| range(index * step, len, index * len);
    (0..count).map(nth).collect()
}

/// What a reader of one range after the other would see.
fn assert_scattered(buf: &[u8], ranges: &[FileRange], content: &[u8]) {
    let mut expected = vec![CANARY; buf.len()];
    // An empty one may lie behind the end.
    for range in ranges.iter().filter(|range| range.len > 0) {
        let from = usize::try_from(range.file_offset).unwrap();
        let to = range.buf_offset..range.buf_offset + range.len;
        expected[to].copy_from_slice(&content[from..from + range.len]);
    }
    pattern::assert_same(buf, &expected);
}

#[derive(Clone, Debug)]
struct Case {
    setup: Setup,
    file_len: usize,
    ranges: Vec<FileRange>,
    buf_len: usize,
    gap_max: u64,
    memory: Memory,
}

/// Ranges in any order of the file, with destinations in an order of their own and gaps between.
fn case(file_len: usize, beyond: usize) -> impl Strategy<Value = Case> {
    let near_block = (0..file_len / 512, 0..3_usize)
        .prop_map(|(block, beside)| (block * 512 + beside).saturating_sub(1));
    let start = prop_oneof![0..file_len + beyond, near_block];
    let len = prop_oneof![6 => 0..600_usize, 2 => 0..9000_usize, 1 => 60_000..80_000_usize];
    let wanted = prop::collection::vec((start, len, 0..40_usize), 0..60);
    let gap_max = prop_oneof![Just(0), Just(100), Just(4096), Just(100_000)];
    let setup = prop::sample::select(setups());
    let on_device = if gpu::count() > 0 { 2 } else { 0 };
    let memory = prop_oneof![
        2 => Just(Memory::Vec),
        2 => Just(Memory::Buffer),
        on_device => Just(Memory::Device),
    ];
    (setup, wanted, gap_max, memory, any::<bool>()).prop_map(
        move |(setup, wanted, gap_max, memory, reverse)| {
            let (mut ranges, mut place) = (Vec::new(), 0);
            for (start, len, gap) in wanted {
                let len = len.min((file_len + beyond).saturating_sub(start));
                ranges.push(range(start, len, place + gap));
                place += gap + len;
            }
            if reverse {
                ranges.reverse();
            }
            Case {
                setup,
                file_len,
                ranges,
                buf_len: place + 17,
                gap_max,
                memory,
            }
        },
    )
}

type Bytes = Result<usize, (ErrorKind, usize)>;

/// All bytes and those that the receipt counts, or the error and the bytes before it; the buffer.
fn split<B>(result: Result<Done<B>, OpError<B>>) -> (Bytes, Option<u64>, B) {
    match result {
        Ok(done) => (Ok(done.bytes), Some(done.receipt.paths.total()), done.buf),
        Err(error) => {
            let failed = (error.error().kind(), error.bytes_done());
            (Err(failed), None, error.into_parts().1.unwrap())
        }
    }
}

/// The buffer, and either all bytes or the error and the bytes before it.
async fn read(bench: &Bench, case: &Case, content: &[u8]) -> (Vec<u8>, Bytes) {
    let file = bench.file(content).await.unwrap();
    if case.file_len.is_multiple_of(2) {
        file.sync_data().await.unwrap();
        file.drop_cache().await.unwrap();
    }
    let ranges = Ranges::new(case.ranges.clone()).gap_max(case.gap_max);
    let fill = vec![CANARY; case.buf_len];
    let (bytes, paths, buf) = match case.memory {
        Memory::Vec => split(file.read_ranges(fill, ranges).await),
        Memory::Device => {
            let buf = gpu::buffer(&bench.engine, 0, &fill).await;
            let (bytes, paths, buf) = split(file.read_ranges(buf, ranges).await);
            (bytes, paths, gpu::content(&bench.engine, buf).await)
        }
        Memory::Buffer | Memory::Part(_) | Memory::DevicePart(_) => {
            let mut buf = HostBuffer::new(&bench.engine, case.buf_len).unwrap();
            buf.as_mut_slice().unwrap().fill(CANARY);
            let (bytes, paths, buf) = split(file.read_ranges(buf, ranges).await);
            (bytes, paths, buf.as_slice().unwrap().to_vec())
        }
    };
    if let Some(paths) = paths {
        assert_eq!(bytes.ok(), usize::try_from(paths).ok());
    }
    (buf, bytes)
}

fn run(case: &Case, parent: &Path) {
    if case.setup.cache == tokio_cufile::CacheMode::Direct && !bench::takes_direct(parent) {
        return;
    }
    let content = pattern::bytes(3, case.file_len);
    let wanted: usize = case.ranges.iter().map(|range| range.len).sum();
    let inside = |range: &FileRange| {
        let end = range.file_offset + range.len as u64;
        range.len == 0 || end <= case.file_len as u64
    };
    bench::block_on(async {
        let bench = Bench::new(&case.setup, parent);
        let (buf, result) = read(&bench, case, &content).await;
        if case.ranges.iter().all(inside) {
            assert_eq!(result, Ok(wanted));
            assert_scattered(&buf, &case.ranges, &content);
        } else {
            let (kind, bytes) = result.unwrap_err();
            assert_eq!(kind, ErrorKind::UnexpectedEof);
            let left = |range: &FileRange| {
                case.file_len
                    .saturating_sub(usize::try_from(range.file_offset).unwrap())
            };
            let there = case.ranges.iter().map(|range| left(range).min(range.len));
            assert!(bytes <= there.sum(), "{bytes} bytes");
        }
        bench::assert_all_home(&bench.engine).await;
    });
}

#[test]
fn ranges_in_the_file_are_its_slices_and_nothing_else_changes() {
    let values = case(150_001, 0);
    random::check(300, &values, |case| run(&case, &bench::disk()));
    if let Some(tmpfs) = bench::tmpfs() {
        random::check(100, &values, |case| run(&case, tmpfs));
    }
}

#[test]
fn a_range_that_the_file_does_not_fill_is_an_error() {
    let values = case(100_000, 20_000);
    random::check(150, &values, |case| run(&case, &bench::disk()));
}

#[test]
fn the_end_of_the_file_is_named_and_what_lies_before_it_counts() {
    each(async |bench| {
        let content = pattern::bytes(4, 10_000);
        let file = bench.file(&content).await.unwrap();
        let ranges = vec![
            range(9_000, 2_000, 0),
            range(0, 500, 3_000),
            range(20_000, 10, 4_000),
        ];
        let failed = file.read_ranges(vec![0; 5_000], ranges).await.unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::UnexpectedEof);
        assert!(failed.error().reason().contains("10000"), "{failed}");
        assert_eq!(failed.bytes_done(), 1_500);
        let buf = failed.into_parts().1.unwrap();
        pattern::assert_same(&buf[..1_000], &content[9_000..]);
        pattern::assert_same(&buf[3_000..3_500], &content[..500]);
    });
}

#[test]
fn what_cannot_be_is_refused_with_the_buffer_and_nothing_is_issued() {
    each(async |bench| {
        let file = bench.file(&[1; 100]).await.unwrap();
        let cases = [
            vec![range(0, 10, 91)],
            vec![range(0, 10, usize::MAX)],
            vec![range(0, 10, 0), range(50, 10, 9)],
            vec![FileRange {
                file_offset: u64::MAX,
                len: 1,
                buf_offset: 0,
            }],
            vec![range(0, 1, 0); Ranges::MAX + 1],
        ];
        for ranges in cases {
            let failed = file.read_ranges(vec![7; 100], ranges).await.unwrap_err();
            assert_eq!(failed.error().kind(), ErrorKind::InvalidInput, "{failed}");
            assert_eq!(failed.bytes_done(), 0);
            assert_eq!(failed.into_parts().1.unwrap(), vec![7; 100]);
        }
        assert_eq!(bench.engine.stats().paths.total(), 0);
    });
}

#[test]
fn no_ranges_and_empty_ranges_read_nothing() {
    each(async |bench| {
        let file = bench.file(&[1; 100]).await.unwrap();
        for ranges in [vec![], vec![range(5000, 0, 0), range(0, 0, 3)]] {
            let done = file.read_ranges(vec![7; 3], ranges).await.unwrap();
            assert_eq!(
                (done.bytes, done.buf, done.receipt.parts),
                (0, vec![7; 3], 0)
            );
        }
    });
}

#[test]
fn close_ranges_are_one_part_and_distant_ones_are_not() {
    let Some(fs) = SlowFs::mount(256 << 10) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder());
    let close = every(1000, 100, 40);
    let done = block_on(file.read_ranges(vec![CANARY; 4000], close.clone())).unwrap();
    assert_eq!((done.bytes, done.receipt.parts), (4000, 1));
    assert_eq!(fs.count(Kind::Read), 1);
    assert_scattered(&done.buf, &close, &fs.content());
    // No two of them share a block of 4096 bytes.
    let distant = every(8192, 100, 20);
    let ranges = Ranges::new(distant.clone()).gap_max(0);
    let done = block_on(file.read_ranges(vec![CANARY; 2000], ranges)).unwrap();
    assert_eq!((done.bytes, done.receipt.parts), (2000, 20));
    assert_scattered(&done.buf, &distant, &fs.content());
    until_idle(&engine);
}

#[test]
fn a_large_range_goes_in_place_beside_small_ones() {
    let Some(fs) = SlowFs::mount(256 << 10) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder());
    let large = 128 << 10;
    let ranges = vec![
        range(0, large, 0),
        range(large, 10, large),
        range(large + 20, 10, large + 10),
    ];
    let buf = HostBuffer::new(&engine, large + 20).unwrap();
    let done = block_on(file.read_ranges(buf, ranges.clone())).unwrap();
    assert_eq!(done.receipt.parts, 2);
    assert_scattered(done.buf.as_slice().unwrap(), &ranges, &fs.content());
    let lens: Vec<_> = fs.seen(Kind::Read).iter().map(|seen| seen.len).collect();
    assert_eq!(lens.iter().sum::<usize>(), large + 4096, "{lens:?}");
}

#[test]
fn the_first_error_by_file_offset_wins_and_later_bytes_do_not_count() {
    let Some(fs) = SlowFs::mount(256 << 10) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder());
    fs.hold(Kind::Read);
    let ranges = Ranges::new(every(65536, 100, 3)).gap_max(0);
    let read = file.read_ranges(vec![CANARY; 300], ranges).start();
    let mut held = fs.next_held_of(3);
    held.sort_by_key(|held| held.seen().offset);
    held.remove(2).fail(Errno::ENXIO);
    held.remove(1).fail(Errno::EIO);
    held.remove(0).release();
    let failed = block_on(read).unwrap_err();
    assert_eq!(failed.error().vendor_code(), Some(VendorCode::Errno(5)));
    assert_eq!(failed.error().offset(), Some(65536));
    assert_eq!(failed.bytes_done(), 100);
    until_idle(&engine);
}

#[test]
fn dropped_in_flight_the_buffer_is_kept_and_the_copies_are_left_out() {
    let Some(fs) = SlowFs::mount(64 << 10) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder());
    let mut buffer = HostBuffer::new(&engine, 4000).unwrap();
    fs.hold(Kind::Read);
    let part = buffer.part(0..4000).unwrap();
    let read = file.read_ranges(part, every(1000, 100, 40)).start();
    let held = fs.next_held();
    assert_eq!(engine.stats().small_slots.in_flight, 1);
    drop(read);
    assert_eq!(
        (buffer.parts_out(), engine.stats().small_slots.in_flight),
        (1, 1)
    );
    held.release();
    fs.pass(Kind::Read);
    block_on(buffer.idle());
    assert_eq!(buffer.as_slice().unwrap(), vec![0; 4000]);
    until_idle(&engine);
    let done = block_on(file.read_ranges(buffer, every(1000, 100, 40))).unwrap();
    let bytes = done.buf.as_slice().unwrap();
    pattern::assert_same(&bytes[100..200], &slow_fs::pattern(1000, 100));
}
