//! What a read does, on every engine.
//!
//! Failure: bytes missing, shifted, too many, or written beside the destination.
//! Mechanism: direct I/O wants aligned offsets, lengths and addresses, so a request is cut into
//! parts that are over-read, staged and copied.
//! Method: every combination of such edges, in memory surrounded by bytes that must not change.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::fs;
use std::os::unix::fs::FileExt;

use tokio_cufile::{ErrorKind, HostBuffer};
use tokio_cufile_tests::bench::Bench;
use tokio_cufile_tests::memory::{Memory, kinds, read, split};
use tokio_cufile_tests::{each, pattern};

/// No multiple of anything.
const LEN: usize = 300_007;

/// Checks a read of `len` bytes at `offset` of a file with `content` against the slice that it is.
async fn check(
    bench: &Bench,
    file: &tokio_cufile::AsyncCuFile,
    memory: Memory,
    content: &[u8],
    (offset, len): (usize, usize),
) {
    let start = offset.min(content.len());
    let end = (offset + len).min(content.len());
    let outcome = read(&bench.engine, file, memory, len, offset as u64).await;
    assert_eq!(
        outcome.bytes,
        end - start,
        "{len} bytes at {offset} of {}, {memory:?}: {outcome:?}",
        content.len()
    );
    outcome.assert_read(&content[start..end]);
}

#[test]
fn a_read_gives_the_files_bytes_whatever_the_alignment_of_offset_length_and_address() {
    each(async |bench| {
        let content = pattern::bytes(1, LEN);
        let file = bench.file(&content).await.unwrap();
        let offsets = [0, 1, 511, 512, 4095, 4096, 65_537, LEN - 4097];
        let lens = [1, 511, 512, 513, 4096, 8191, 70_001, 131_072];
        for memory in kinds() {
            for offset in offsets {
                for len in lens {
                    check(bench, &file, memory, &content, (offset, len)).await;
                }
            }
        }
    });
}

#[test]
fn a_read_of_no_bytes_is_done_and_changes_nothing() {
    each(async |bench| {
        let file = bench.file(b"content").await.unwrap();
        for memory in kinds() {
            for offset in [0, 3, 7, 4096, i64::MAX.cast_unsigned()] {
                let outcome = read(&bench.engine, &file, memory, 0, offset).await;
                outcome.assert_read(&[]);
            }
        }
        let done = file.read_exact_at(Vec::new(), 100).await.unwrap();
        assert_eq!((done.bytes, done.receipt.parts), (0, 0));
    });
}

#[test]
fn a_read_ends_where_the_file_ends() {
    each(async |bench| {
        for len in [0, 1, 511, 512, 4096, 4097, 70_001] {
            let content = pattern::bytes(2, len);
            let file = bench.file(&content).await.unwrap();
            for memory in [
                Memory::Buffer,
                Memory::Part(1),
                Memory::Part(512),
                Memory::Vec,
            ] {
                for offset in [0, 1, len.saturating_sub(1), len, len + 1, len + 100_000] {
                    check(bench, &file, memory, &content, (offset, 90_000)).await;
                }
            }
        }
    });
}

#[test]
fn the_end_of_the_file_cuts_no_part_before_it_whichever_comes_first() {
    each(async |bench| {
        // The last full part and the short one behind it are under way together.
        let content = pattern::bytes(9, 131_072 + 1);
        let file = bench.file(&content).await.unwrap();
        for _ in 0..400 {
            let done = file.read_at(vec![0; 200_000], 0).await.unwrap();
            assert_eq!(done.bytes, content.len());
        }
    });
}

#[test]
fn a_read_far_behind_the_end_gives_nothing() {
    each(async |bench| {
        let file = bench.file(b"content").await.unwrap();
        let last = i64::MAX.cast_unsigned();
        for offset in [1 << 40, 1 << 62, last - 8192, last - 4096, last - 5000] {
            let outcome = read(&bench.engine, &file, Memory::Buffer, 4096, offset).await;
            outcome.assert_read(&[]);
        }
    });
}

#[test]
fn an_exact_read_is_full_or_an_error_that_says_where_the_file_ends() {
    each(async |bench| {
        let content = pattern::bytes(3, 10_000);
        let file = bench.file(&content).await.unwrap();
        let done = file.read_exact_at(vec![0; 9_000], 1_000).await.unwrap();
        pattern::assert_same(&done.buf, &content[1_000..]);

        let failed = file.read_exact_at(vec![0; 9_001], 1_000).await;
        let (outcome, buf) = split(failed);
        let error = outcome.error.unwrap();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        assert!(error.reason().contains("10000"), "{error}");
        assert_eq!((error.offset(), error.length()), (Some(1_000), Some(9_001)));
        assert_eq!(outcome.bytes, 9_000);
        pattern::assert_same(&buf[..9_000], &content[1_000..]);

        let failed = file.read_exact_at(vec![0; 1], 10_000).await.unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(failed.bytes_done(), 0);
    });
}

#[test]
fn holes_read_as_zeros_between_the_bytes_around_them() {
    each(async |bench| {
        let path = bench.fresh_path();
        let std_file = fs::File::create(&path).unwrap();
        let island = pattern::bytes(4, 5_000);
        std_file.write_all_at(&island, 100_001).unwrap();
        std_file.set_len(400_003).unwrap();
        let mut content = vec![0; 400_003];
        content[100_001..105_001].copy_from_slice(&island);
        let file = bench.open(&path).await.unwrap();
        for memory in kinds() {
            for range in [(0, 500_000), (99_999, 10), (104_999, 70_000), (300_001, 5)] {
                check(bench, &file, memory, &content, range).await;
            }
        }
    });
}

#[test]
fn a_vec_is_filled_up_to_its_length_and_not_to_its_capacity() {
    each(async |bench| {
        let content = pattern::bytes(5, 50_000);
        let file = bench.file(&content).await.unwrap();
        let mut buf = Vec::with_capacity(65_536);
        buf.resize(20_000, 0);
        let capacity = buf.capacity();
        let done = file.read_at(buf, 7).await.unwrap();
        assert_eq!((done.bytes, done.buf.len()), (20_000, 20_000));
        assert_eq!(done.buf.capacity(), capacity);
        pattern::assert_same(&done.buf, &content[7..20_007]);
    });
}

#[test]
fn many_reads_into_neighbouring_parts_of_one_buffer_do_not_touch_each_other() {
    each(async |bench| {
        let content = pattern::bytes(6, LEN);
        let file = bench.file(&content).await.unwrap();
        let mut buffer = HostBuffer::new(&bench.engine, LEN).unwrap();
        let cuts = [
            0, 1, 600, 4_096, 4_097, 70_000, 131_072, 131_583, 260_000, LEN,
        ];
        // Started in one order and awaited in the other.
        let mut reads: Vec<_> = cuts
            .windows(2)
            .map(|cut| {
                let part = buffer.part(cut[0]..cut[1]).unwrap();
                file.read_exact_at(part, cut[0] as u64).start()
            })
            .collect();
        reads.reverse();
        for read in reads {
            drop(read.await.unwrap());
        }
        pattern::assert_same(buffer.as_slice().unwrap(), &content);
    });
}

#[test]
fn a_buffer_can_be_used_again_and_again() {
    each(async |bench| {
        let content = pattern::bytes(7, 100_000);
        let file = bench.file(&content).await.unwrap();
        let mut buffer = HostBuffer::new(&bench.engine, 30_000).unwrap();
        for offset in (0..70_000).step_by(9_999) {
            let done = file.read_exact_at(buffer, offset as u64).await.unwrap();
            buffer = done.buf;
            pattern::assert_same(
                buffer.as_slice().unwrap(),
                &content[offset..offset + 30_000],
            );
        }
    });
}

#[test]
fn a_read_sees_what_others_wrote_before_it() {
    each(async |bench| {
        let path = bench.fresh_path();
        fs::write(&path, pattern::bytes(8, 100_000)).unwrap();
        let file = bench.open(&path).await.unwrap();
        let other = fs::OpenOptions::new().write(true).open(&path).unwrap();
        for round in 0..8 {
            let news = pattern::bytes(100 + round, 20_000);
            // Dirty in the page cache, where a direct read must find it.
            other.write_all_at(&news, 30_001).unwrap();
            let outcome = read(&bench.engine, &file, Memory::Buffer, 20_000, 30_001).await;
            outcome.assert_read(&news);
        }
    });
}
