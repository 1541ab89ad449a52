//! What a receipt says, on every engine: which way the bytes went, and that it is true.
//!
//! Failure: a receipt that promises direct I/O for bytes that went through the page cache.
//! Mechanism: the path is stated by the code that moves the bytes.
//! Method: the page cache is asked what it has of the file (`cachestat`, or `mincore`).
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::fs::{self, File};
use std::path::Path;

use measure::residency;
use tokio_cufile::{AsyncCuFile, CacheMode, DataPath, ErrorKind, PathClass, Receipt};
use tokio_cufile_tests::bench::{self, Bench, cached_bytes, direct_bytes};
use tokio_cufile_tests::memory::{Memory, kinds, read, split, write};
use tokio_cufile_tests::{each_compat, each_in, pattern};

const PAGE: usize = 4096;

fn only(receipt: &Receipt, path: DataPath, bytes: usize) {
    let all: Vec<_> = receipt.paths.iter().collect();
    assert_eq!(all, [(path, bytes as u64)]);
}

/// Whether the file's first page is in the page cache. Brings nothing there, as a read that may not wait
/// does: the kernel starts reading what it did not find.
fn first_page_cached(path: &Path) -> Option<bool> {
    let residency = residency::of_range(&File::open(path).unwrap(), 0..1);
    residency.ok().map(|residency| residency.resident > 0)
}

/// A file that is on the disk and not in the page cache.
async fn cold_file(bench: &Bench, content: &[u8]) -> AsyncCuFile {
    let file = bench.file(content).await.unwrap();
    file.sync_all().await.unwrap();
    file.drop_cache().await.unwrap();
    file
}

/// Whether the file system answers the question, and drops pages when it is asked to.
async fn cache_can_be_asked(bench: &Bench) -> bool {
    let file = cold_file(bench, &[1; 5_000]).await;
    let is_cold = first_page_cached(file.path()) == Some(false);
    fs::read(file.path()).unwrap();
    is_cold && first_page_cached(file.path()) == Some(true)
}

#[test]
fn a_read_takes_a_way_that_the_settings_allow_at_any_alignment() {
    each_compat(async |bench| {
        let content = pattern::bytes(1, 200_000);
        let file = bench.file(&content).await.unwrap();
        for memory in kinds() {
            for (offset, len) in [(0, 131_072), (1, 100_000), (512, 7), (4_095, 2)] {
                let outcome = read(&bench.engine, &file, memory, len, offset).await;
                bench.assert_read_paths(outcome.paths());
                assert_eq!(outcome.paths().total(), len as u64);
            }
        }
    });
}

#[test]
fn a_write_takes_the_main_path_for_whole_pages_and_is_buffered_at_its_edges() {
    each_compat(async |bench| {
        let file = bench.file(&[]).await.unwrap();
        let content = pattern::bytes(2, 100_000);
        // First page after the offset, last page before the end.
        for (offset, len, whole_pages) in [
            (0, 8 * PAGE, 8 * PAGE),
            (1, 8 * PAGE, 7 * PAGE),
            (4_000, PAGE, 0),
            (10, 20, 0),
            (PAGE, PAGE + 1, PAGE),
            (PAGE - 1, PAGE + 1, PAGE),
            (512, 3 * PAGE, 2 * PAGE),
        ] {
            for memory in kinds() {
                let source = &content[..len];
                let outcome = write(&bench.engine, &file, memory, source, offset as u64).await;
                let paths = outcome.paths();
                outcome.assert_wrote(len);
                let edges = len - whole_pages;
                if bench.main_path() == bench.edge_path() {
                    assert_eq!(paths.get(bench.main_path()), len as u64);
                } else {
                    assert_eq!(paths.get(bench.main_path()), whole_pages as u64);
                    assert_eq!(paths.get(bench.edge_path()), edges as u64);
                }
            }
        }
    });
}

#[test]
fn a_read_said_to_be_direct_leaves_the_page_cache_empty_and_a_cached_one_fills_it() {
    each_in(&bench::disk(), async |bench| {
        if !cache_can_be_asked(bench).await {
            return;
        }
        for (memory, offset, len) in [(Memory::Buffer, 0, 65_536), (Memory::Part(1), 3, 90_000)] {
            let file = cold_file(bench, &pattern::bytes(3, 100_000)).await;
            let outcome = read(&bench.engine, &file, memory, len, offset).await;
            let direct = direct_bytes(outcome.paths()) == len as u64;
            assert_eq!(direct, bench.goes_direct());
            assert_eq!(first_page_cached(file.path()), Some(!direct));
        }
    });
}

#[test]
fn a_write_said_to_be_direct_leaves_the_page_cache_empty_and_a_cached_one_fills_it() {
    each_in(&bench::disk(), async |bench| {
        if !cache_can_be_asked(bench).await {
            return;
        }
        let content = pattern::bytes(5, 65_536);
        for memory in [Memory::Buffer, Memory::Part(1)] {
            let file = cold_file(bench, &pattern::bytes(4, 100_000)).await;
            let outcome = write(&bench.engine, &file, memory, &content, 0).await;
            let direct = outcome.paths().get(bench.setup.subject.direct) == 65_536;
            assert_eq!(direct, bench.goes_direct());
            assert_eq!(first_page_cached(file.path()), Some(!direct));
        }
    });
}

#[test]
fn receipt_counts_parts_times_and_no_retries_where_nothing_went_wrong() {
    each_compat(async |bench| {
        let file = bench.file(&pattern::bytes(6, 64 << 10)).await.unwrap();
        let done = file.read_exact_at(vec![0; 64 << 10], 0).await.unwrap();
        let receipt = done.receipt;
        let parts = (64_usize << 10).div_ceil(bench.engine.config().task_size);
        assert!(receipt.parts >= parts as u64, "{receipt:?}");
        assert_eq!(receipt.retries, 0);
        let notes_the_cache = bench.goes_direct() && cached_bytes(receipt.paths) > 0;
        assert_eq!(
            receipt.notes.len(),
            usize::from(notes_the_cache),
            "{receipt:?}"
        );
        assert!(!receipt.io_time.is_zero());
        assert_eq!(&*receipt.route, file.route());
    });
}

#[test]
fn what_the_pool_does_beside_a_ring_is_noted() {
    each_compat(async |bench| {
        let content = pattern::bytes(7, 256 << 10);
        let file = bench.file(&content).await.unwrap();
        for memory in [Memory::Buffer, Memory::Part(1)] {
            let outcome = read(&bench.engine, &file, memory, content.len(), 0).await;
            let by_pool = outcome.paths().get(DataPath::PoolDirect)
                + outcome.paths().get(DataPath::PoolCached);
            let is_beside = bench.main_path() == DataPath::UringDirect && by_pool > 0;
            let notes = outcome.receipt.unwrap().notes;
            let told = notes.iter().any(|note| note.contains("goes by the pool"));
            assert_eq!(told, is_beside, "{memory:?}: {notes:?}");
        }
    });
}

#[test]
fn the_route_names_the_main_path_what_was_asked_and_why() {
    each_compat(async |bench| {
        let file = bench.file(&[]).await.unwrap();
        let route = file.route();
        assert_eq!(route.resolved, bench.main_path().name());
        let asked = match bench.setup.cache {
            CacheMode::Direct => "cache direct",
            CacheMode::Cached => "cache cached",
            _ => "cache auto",
        };
        assert!(route.asked.contains(asked), "{route}");
        assert!(!route.reason.is_empty());
    });
}

#[test]
fn the_engines_statistics_are_the_sum_of_the_receipts() {
    each_compat(async |bench| {
        let file = bench.file(&[]).await.unwrap();
        let source = pattern::bytes(7, 50_000);
        let wrote = write(&bench.engine, &file, Memory::Part(1), &source, 3).await;
        let got = read(&bench.engine, &file, Memory::Part(7), 30_000, 9).await;
        for path in DataPath::ALL {
            let sum = wrote.paths().get(path) + got.paths().get(path);
            assert_eq!(bench.engine.stats().paths.get(path), sum, "{path}");
        }
    });
}

#[test]
fn a_required_path_that_is_the_files_own_is_granted() {
    each_compat(async |bench| {
        let file = bench.file(&pattern::bytes(8, 50_000)).await.unwrap();
        let main = PathClass::Exactly(bench.main_path());
        let done = file
            .read_exact_at(vec![0; 9_999], 7)
            .require(main)
            .await
            .unwrap();
        only(&done.receipt, bench.main_path(), 9_999);
        let aligned = file
            .write_all_at(vec![0; 8_192], 4_096)
            .require(main)
            .await
            .unwrap();
        only(&aligned.receipt, bench.main_path(), 8_192);
        if bench.goes_direct() {
            let class = PathClass::DirectIo;
            let done = file
                .write_all_at(vec![0; 9_999], 1)
                .require(class)
                .await
                .unwrap();
            assert!(
                done.receipt.paths.get(DataPath::Buffered) > 0,
                "edges are stated"
            );
            let done = file
                .read_exact_at(vec![0; 9_999], 1)
                .require(class)
                .await
                .unwrap();
            only(&done.receipt, bench.main_path(), 9_999);
        }
    });
}

#[test]
fn a_required_path_that_is_not_to_be_had_is_refused_and_nothing_is_issued() {
    each_compat(async |bench| {
        let file = bench.file(b"content").await.unwrap();
        let mut refused = vec![
            PathClass::Gds,
            PathClass::Exactly(DataPath::P2pDma),
            PathClass::Exactly(DataPath::CufileUnverified),
        ];
        if bench.goes_direct() {
            refused.push(PathClass::Exactly(bench.setup.subject.cached));
        } else {
            refused.push(PathClass::DirectIo);
            refused.push(PathClass::Exactly(bench.setup.subject.direct));
        }
        for class in refused {
            for len in [4_096, 5] {
                let (outcome, buf) = split(file.write_at(vec![9; len], 0).require(class).await);
                let error = outcome.error.unwrap();
                assert_eq!(error.kind(), ErrorKind::PathRefused, "{class}: {error}");
                assert!(error.reason().contains(&class.to_string()), "{error}");
                assert_eq!(error.path(), Some(file.path()));
                assert!(outcome.receipt.is_none() && buf.len() == len);
                let (outcome, _) = split(file.read_at(vec![9; len], 0).require(class).await);
                assert_eq!(outcome.error.unwrap().kind(), ErrorKind::PathRefused);
            }
        }
        assert_eq!(fs::read(file.path()).unwrap(), b"content");
        assert_eq!(bench.engine.stats().paths.total(), 0);
    });
}

#[test]
fn a_path_required_of_a_write_includes_its_edges() {
    each_compat(async |bench| {
        if !bench.goes_direct() {
            return;
        }
        let file = bench.file(b"content").await.unwrap();
        let direct = PathClass::Exactly(bench.main_path());
        let failed = file
            .write_at(vec![9; 5_000], 0)
            .require(direct)
            .await
            .unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::PathRefused);
        assert_eq!(fs::read(file.path()).unwrap(), b"content");
    });
}
