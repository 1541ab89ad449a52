//! What a write does, on every engine.
//!
//! Failure: bytes lost, shifted, or changed beside the range; the file longer than it should be.
//! Mechanism: pages that a write fills go around the page cache, the edges through it, in parallel.
//! Method: every combination of edges over a file of known content, read back through std.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::fs;
use std::os::unix::fs::FileExt;

use tokio_cufile::{AsyncCuFile, HostBuffer};
use tokio_cufile_tests::bench::Bench;
use tokio_cufile_tests::memory::{Memory, kinds, write};
use tokio_cufile_tests::{each, pattern};

const LEN: usize = 200_003;

/// Puts `news` over `content` at `offset`, as a write does.
fn overlay(content: &mut Vec<u8>, news: &[u8], offset: usize) {
    let end = offset + news.len();
    if content.len() < end && !news.is_empty() {
        content.resize(end, 0);
    }
    if !news.is_empty() {
        content[offset..end].copy_from_slice(news);
    }
}

async fn check(bench: &Bench, memory: Memory, before: &[u8], (offset, len): (usize, usize)) {
    let path = bench.fresh_path();
    fs::write(&path, before).unwrap();
    let file = bench.open(&path).await.unwrap();
    let news = pattern::bytes(offset as u64 + 77, len);
    write(&bench.engine, &file, memory, &news, offset as u64)
        .await
        .assert_wrote(len);
    let mut expected = before.to_vec();
    overlay(&mut expected, &news, offset);
    // Twice: what the cache has, and what the next reader around it gets.
    pattern::assert_same(&fs::read(&path).unwrap(), &expected);
    let done = file
        .read_exact_at(vec![0; expected.len()], 0)
        .await
        .unwrap();
    pattern::assert_same(&done.buf, &expected);
    file.close().await.unwrap();
    fs::remove_file(path).unwrap();
}

#[test]
fn a_write_changes_its_range_and_nothing_else_whatever_the_alignment() {
    each(async |bench| {
        let before = pattern::bytes(1, LEN);
        let offsets = [0, 1, 512, 4095, 4096, 65_537];
        let lens = [1, 512, 4096, 8191, 12_289, 70_001, 131_072];
        for memory in [
            Memory::Buffer,
            Memory::Part(1),
            Memory::Part(512),
            Memory::Vec,
        ] {
            for offset in offsets {
                for len in lens {
                    check(bench, memory, &before, (offset, len)).await;
                }
            }
        }
    });
}

#[test]
fn a_write_over_behind_or_far_behind_the_end_extends_the_file_to_its_own_end() {
    each(async |bench| {
        for len in [0, 1, 4095, 4096, 10_001] {
            let before = pattern::bytes(2, len);
            for memory in kinds() {
                for offset in [len.saturating_sub(1), len, len + 1, len + 50_000] {
                    check(bench, memory, &before, (offset, 9_999)).await;
                }
            }
        }
    });
}

#[test]
fn a_write_of_no_bytes_neither_extends_nor_changes_the_file() {
    each(async |bench| {
        let file = bench.file(b"content").await.unwrap();
        for memory in kinds() {
            for offset in [0, 3, 7, 4096, i64::MAX.cast_unsigned()] {
                write(&bench.engine, &file, memory, &[], offset)
                    .await
                    .assert_wrote(0);
            }
        }
        let done = file.write_all_at(Vec::new(), 100).await.unwrap();
        assert_eq!((done.bytes, done.receipt.parts), (0, 0));
        assert_eq!(fs::read(file.path()).unwrap(), b"content");
    });
}

#[test]
fn a_static_slice_can_be_written_at_any_offset() {
    static SOURCE: [u8; 10_000] = [0x5a; 10_000];
    each(async |bench| {
        for offset in [0, 1, 4096, 5_000] {
            let file = bench.file(&[]).await.unwrap();
            for source in [&SOURCE[..], &SOURCE[1..], &SOURCE[..17]] {
                let done = file.write_all_at(source, offset).await.unwrap();
                assert_eq!(done.bytes, source.len());
                assert_eq!(done.receipt.paths.total(), source.len() as u64);
                assert_eq!(done.buf.as_ptr(), source.as_ptr());
            }
            let mut expected = vec![0; usize::try_from(offset).unwrap()];
            expected.extend_from_slice(&SOURCE);
            pattern::assert_same(&fs::read(file.path()).unwrap(), &expected);
        }
    });
}

#[test]
fn many_writes_to_neighbouring_ranges_do_not_touch_each_other() {
    each(async |bench| {
        let content = pattern::bytes(3, LEN);
        let file = bench.file(&[]).await.unwrap();
        let mut buffer = HostBuffer::new(&bench.engine, LEN).unwrap();
        buffer.as_mut_slice().unwrap().copy_from_slice(&content);
        let cuts = [0, 1, 600, 4_096, 4_097, 70_000, 131_072, 131_583, LEN];
        let mut writes: Vec<_> = cuts
            .windows(2)
            .map(|cut| {
                let part = buffer.part(cut[0]..cut[1]).unwrap();
                file.write_all_at(part, cut[0] as u64).start()
            })
            .collect();
        writes.reverse();
        for write in writes {
            drop(write.await.unwrap());
        }
        pattern::assert_same(&fs::read(file.path()).unwrap(), &content);
    });
}

#[test]
fn writes_through_two_handles_and_through_std_are_seen_by_each_other() {
    each(async |bench| {
        let mut expected = pattern::bytes(4, 60_000);
        let one = bench.file(&expected).await.unwrap();
        let two = bench.open(one.path()).await.unwrap();
        let std_file = fs::OpenOptions::new().write(true).open(one.path()).unwrap();
        for round in 0..6 {
            let offset = 4_000 * round + 3;
            let news = pattern::bytes(200 + round as u64, 9_000);
            match round % 3 {
                0 => std_file.write_all_at(&news, offset as u64).unwrap(),
                1 => drop(one.write_all_at(news.clone(), offset as u64).await.unwrap()),
                _ => drop(two.write_all_at(news.clone(), offset as u64).await.unwrap()),
            }
            overlay(&mut expected, &news, offset);
            for file in [&one, &two] {
                let done = file
                    .read_exact_at(vec![0; expected.len()], 0)
                    .await
                    .unwrap();
                pattern::assert_same(&done.buf, &expected);
            }
        }
    });
}

#[test]
fn what_was_synced_and_dropped_from_the_cache_is_read_back_from_the_disk() {
    each(async |bench| {
        let content = pattern::bytes(5, LEN);
        let path = bench.fresh_path();
        let file = AsyncCuFile::create(&bench.engine, &path).await.unwrap();
        let _ = file.write_all_at(content.clone(), 0).await.unwrap();
        file.sync_data().await.unwrap();
        file.drop_cache().await.unwrap();
        file.sync_all().await.unwrap();
        file.close().await.unwrap();
        pattern::assert_same(&fs::read(&path).unwrap(), &content);
    });
}
