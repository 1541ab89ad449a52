//! Failure: a kernel that refuses to be entered, or many more requests than a ring holds, lose a
//! request, answer one twice, or break the budget.
//! Mechanism: entries that were pushed are taken for refused, or the queues overflow.
//! Method: strace makes the Nth entering of the kernel fail, in a process of its own; thousands of
//! reads at once.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use futures::executor::block_on;
use futures::future::join_all;
use tokio_cufile::{AsyncCuFile, Engine, HostBuffer, IoEngine, OpenOptions};
use tokio_cufile_tests::bench::{self, assert_all_home};
use tokio_cufile_tests::child::{self, Child};
use tokio_cufile_tests::{need, pattern};

const PAGE: usize = 4096;

#[test]
fn entering_that_fails_loses_and_doubles_nothing() {
    let Some(directory) = child::directory() else {
        if need::tool("strace") {
            let home = tempfile::tempdir_in(bench::disk()).unwrap();
            for errno in ["EINTR", "EAGAIN", "EBUSY", "EINVAL", "ENXIO"] {
                // The first is the trial of the ring: without it there is none.
                let inject = format!("inject=io_uring_enter:error={errno}:when=4+2");
                let trace = home.path().join("trace");
                let trace = trace.to_str().unwrap();
                Child::new(&["strace", "-f", "-o", trace, "-e", &inject], home.path()).run();
                let traced = fs::read_to_string(trace).unwrap();
                assert!(
                    traced.matches("(INJECTED)").count() >= 10,
                    "{errno}: {traced}"
                );
            }
        }
        return;
    };
    let path = directory.join("content");
    let engine = Engine::builder().io(IoEngine::Uring).queue_depth(16);
    let engine = engine.build_blocking().unwrap();
    let count = 100;
    let content = pattern::bytes(1, count * PAGE);
    bench::block_on(async {
        let options = OpenOptions::new().read(true).write(true).create(true);
        let file = options.open(&engine, &path).await.unwrap();
        let places = (0..count).map(|index| index * PAGE);
        // One after the other, so that there is an entering for each.
        for at in places.clone() {
            let piece = content[at..at + PAGE].to_vec();
            let done = file.write_at(piece, at as u64).await.unwrap();
            assert_eq!(done.bytes, PAGE);
        }
        file.sync_all().await.unwrap();
        file.drop_cache().await.unwrap();
        let mut buffer = HostBuffer::new(&engine, content.len()).unwrap();
        let reads = places.map(|at| file.read_at(buffer.part(at..at + PAGE).unwrap(), at as u64));
        for (index, done) in join_all(reads).await.into_iter().enumerate() {
            let done = done.unwrap();
            let at = index * PAGE;
            pattern::assert_same(done.buf.as_slice(), &content[at..at + PAGE]);
        }
        let stats = engine.stats();
        assert_eq!(
            (stats.stray_completions, stats.operations_quarantined),
            (0, 0)
        );
        assert_all_home(&engine).await;
    });
}

#[test]
fn ten_thousand_reads_at_once_keep_to_the_budget_and_all_arrive() {
    let count = 10_000;
    let directory = tempfile::tempdir_in(bench::disk()).unwrap();
    let path = directory.path().join("content");
    let content = pattern::bytes(2, count * PAGE);
    fs::write(&path, &content).unwrap();
    for (depth, budget) in [
        (1, 16 * PAGE),
        (128, 16 * PAGE),
        (128, 64 << 20),
        (4096, 64 << 20),
    ] {
        let builder = Engine::builder().io(IoEngine::Uring).queue_depth(depth);
        let builder = builder.task_size(PAGE).bounce_buffer_size(PAGE);
        let engine = builder.budget(budget).build_blocking().unwrap();
        bench::block_on(async {
            let file = AsyncCuFile::open(&engine, &path).await.unwrap();
            file.drop_cache().await.unwrap();
            let mut buffer = HostBuffer::new(&engine, content.len()).unwrap();
            let part = |index: usize| index * PAGE..(index + 1) * PAGE;
            let mut reads: Vec<_> = (0..count)
                .map(|index| {
                    let at = (index * PAGE) as u64;
                    file.read_exact_at(buffer.part(part(index)).unwrap(), at)
                })
                .map(|read| Some(read.start()))
                .collect();
            // In an order of its own, so that the engine is looked at while thousands wait.
            for index in 0..count {
                let read = reads[(index * 7919) % count].take().unwrap();
                let done = read.await.unwrap();
                assert_eq!(done.bytes, PAGE);
                let stats = engine.stats();
                assert!(stats.bytes.in_flight <= budget as u64, "{stats:?}");
                assert!(stats.parts.in_flight <= stats.parts.capacity, "{stats:?}");
            }
            buffer.idle().await;
            pattern::assert_same(buffer.as_slice().unwrap(), &content);
            let stats = engine.stats();
            assert_eq!(
                (stats.stray_completions, stats.operations_quarantined),
                (0, 0)
            );
            drop(file);
            assert_all_home(&engine).await;
        });
    }
}

#[test]
fn without_2_mib_pages_everything_works() {
    let Some(directory) = child::directory() else {
        let home = tempfile::tempdir_in(bench::disk()).unwrap();
        Child::new::<&str>(&[], home.path()).run();
        return;
    };
    rustix::thread::disable_transparent_huge_pages(true).unwrap();
    let len = 8 << 20;
    let content = pattern::bytes(4, len);
    fs::write(directory.join("content"), &content).unwrap();
    let builder = Engine::builder().io(IoEngine::Uring);
    let engine = builder.registered_buffers(true).build_blocking().unwrap();
    let file = block_on(AsyncCuFile::open(&engine, directory.join("content"))).unwrap();
    let mut buffer = HostBuffer::new(&engine, len).unwrap();
    let done = block_on(file.read_exact_at(buffer.part(0..len).unwrap(), 0)).unwrap();
    pattern::assert_same(done.buf.as_slice(), &content);
    let done = block_on(file.read_exact_at(vec![0; 5 << 20], 12_345)).unwrap();
    pattern::assert_same(&done.buf, &content[12_345..12_345 + (5 << 20)]);
    drop((done, file));
    block_on(assert_all_home(&engine));
}
