//! Random operations against the simplest model there is: a `Vec<u8>`.
//!
//! Failure: any byte that differs, after any sequence of operations.
//! Mechanism: cuts, over-reads, staging, edges, and the page cache beside direct I/O.
//! Method: proptest. A failure prints the shortest sequence that it found, and the seed:
//! `PROPTEST_RNG_SEED=… cargo nextest run -p tokio-cufile-tests --test property` repeats the run.
//! `PROPTEST_CASES=…` makes it longer. No file of old failures is kept: one that was a bug gets a
//! test with a name.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use proptest::prelude::*;
use tokio_cufile::CacheMode;
use tokio_cufile_tests::bench::{self, Bench, Setup, block_on};
use tokio_cufile_tests::memory::{Memory, read, write};
use tokio_cufile_tests::{gpu, pattern, random};

/// Files stay below this.
const LEN_MAX: usize = 150_000;

#[derive(Clone, Debug)]
enum Step {
    Read {
        memory: Memory,
        offset: usize,
        len: usize,
    },
    Write {
        memory: Memory,
        offset: usize,
        len: usize,
    },
    SetLen(usize),
    /// Others, through a descriptor of their own.
    OthersWrite {
        offset: usize,
        len: usize,
    },
    OthersSetLen(usize),
    /// What is in the page cache goes.
    SyncAndDropCache,
    /// Several at once, over ranges that do not overlap.
    Together {
        cuts: Vec<usize>,
        write: bool,
    },
}

/// Numbers near the edges that alignment makes, and all others.
fn number(max: usize) -> impl Strategy<Value = usize> {
    let near_edge = (0..max / 512, -2_isize..=2)
        .prop_map(move |(block, beside)| (block * 512).saturating_add_signed(beside).min(max));
    prop_oneof![
        0..max,
        near_edge,
        (0..max / 4096).prop_map(|page| page * 4096),
        Just(0)
    ]
}

fn memory() -> impl Strategy<Value = Memory> {
    let on_device = if gpu::count() > 0 { 3 } else { 0 };
    prop_oneof![
        2 => Just(Memory::Buffer),
        2 => Just(Memory::Vec),
        2 => number(8_193).prop_map(Memory::Part),
        on_device => Just(Memory::Device),
        on_device => number(8_193).prop_map(Memory::DevicePart),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let range = || (number(LEN_MAX), number(LEN_MAX / 2));
    prop_oneof![
        6 => (memory(), range()).prop_map(|(memory, (offset, len))| Step::Read { memory, offset, len }),
        6 => (memory(), range()).prop_map(|(memory, (offset, len))| Step::Write { memory, offset, len }),
        1 => number(LEN_MAX).prop_map(Step::SetLen),
        2 => range().prop_map(|(offset, len)| Step::OthersWrite { offset, len: len / 4 }),
        1 => number(LEN_MAX).prop_map(Step::OthersSetLen),
        2 => Just(Step::SyncAndDropCache),
        2 => (prop::collection::vec(number(LEN_MAX), 2..9), any::<bool>()).prop_map(|(mut cuts, write)| {
            cuts.sort_unstable();
            Step::Together { cuts, write }
        }),
    ]
}

fn setup(parent: &Path) -> impl Strategy<Value = Setup> {
    let pages = || prop_oneof![Just(1_usize), Just(2), Just(3), Just(5), Just(16), Just(64)];
    let cache = prop_oneof![3 => Just(CacheMode::Auto), 1 => Just(CacheMode::Cached)];
    let subject = prop::sample::select(bench::every_subject(parent));
    (subject, cache, pages(), pages(), 1_usize..5).prop_map(
        |(subject, cache, task, slot, threads)| {
            let builder = subject.builder().cache(cache);
            let builder = builder
                .task_size(task * 4096)
                .bounce_buffer_size(slot * 4096);
            Setup {
                name: format!("{} {cache:?} {task}/{slot} pages, {threads}", subject.name),
                subject,
                cache,
                builder: builder.budget(1 << 20).num_threads(threads),
            }
        },
    )
}

/// What a file is.
#[derive(Default)]
struct Model(Vec<u8>);

impl Model {
    fn read(&self, offset: usize, len: usize) -> &[u8] {
        let end = (offset + len).min(self.0.len());
        &self.0[offset.min(end)..end]
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len();
        self.0.resize(self.0.len().max(end), 0);
        self.0[offset..end].copy_from_slice(bytes);
    }
}

async fn take(
    bench: &Bench,
    file: &tokio_cufile::AsyncCuFile,
    others: &File,
    model: &mut Model,
    (seed, step): (u64, &Step),
) {
    match step {
        &Step::Read {
            memory,
            offset,
            len,
        } => {
            let outcome = read(&bench.engine, file, memory, len, offset as u64).await;
            outcome.assert_read(model.read(offset, len));
        }
        &Step::Write {
            memory,
            offset,
            len,
        } => {
            let bytes = pattern::bytes(seed, len);
            let outcome = write(&bench.engine, file, memory, &bytes, offset as u64).await;
            outcome.assert_wrote(len);
            model.write(offset, &bytes);
        }
        &Step::SetLen(len) => {
            file.set_len(len as u64).await.expect("set_len");
            model.0.resize(len, 0);
        }
        &Step::OthersWrite { offset, len } => {
            let bytes = pattern::bytes(seed, len);
            others.write_all_at(&bytes, offset as u64).expect("pwrite");
            model.write(offset, &bytes);
        }
        &Step::OthersSetLen(len) => {
            others.set_len(len as u64).expect("ftruncate");
            model.0.resize(len, 0);
        }
        Step::SyncAndDropCache => {
            file.sync_data().await.expect("sync");
            file.drop_cache().await.expect("drop_cache");
        }
        Step::Together { cuts, write } => together(file, model, seed, (cuts, *write)).await,
    }
    assert_eq!(file.len().await.expect("len"), model.0.len() as u64);
}

async fn together(
    file: &tokio_cufile::AsyncCuFile,
    model: &mut Model,
    seed: u64,
    (cuts, write): (&[usize], bool),
) {
    let bytes = pattern::bytes(seed, LEN_MAX);
    let mut transfers = Vec::new();
    for cut in cuts.windows(2) {
        let (offset, source) = (cut[0], &bytes[cut[0]..cut[1]]);
        let transfer = if write {
            model.write(offset, source);
            file.write_all_at(source.to_vec(), offset as u64)
        } else {
            file.read_at(vec![0; source.len()], offset as u64)
        };
        transfers.push((offset, transfer.start()));
    }
    while let Some((offset, transfer)) = transfers.pop() {
        let done = transfer.await.expect("it succeeds");
        if !write {
            pattern::assert_same(&done.buf[..done.bytes], model.read(offset, done.buf.len()));
        }
    }
}

fn run(setup: &Setup, parent: &Path, steps: &[Step]) {
    let bench = Bench::new(setup, parent);
    block_on(async {
        let file = bench.file(&[]).await.expect("a file");
        let others = OpenOptions::new()
            .write(true)
            .open(file.path())
            .expect("a file");
        let mut model = Model::default();
        for numbered in (1..).zip(steps) {
            take(&bench, &file, &others, &mut model, numbered).await;
        }
        pattern::assert_same(&fs::read(file.path()).expect("the file"), &model.0);
        file.sync_all().await.expect("sync");
        file.drop_cache().await.expect("drop_cache");
        pattern::assert_same(&fs::read(file.path()).expect("the file"), &model.0);
        bench::assert_all_home(&bench.engine).await;
    });
}

fn check(parent: &Path, cases: u32) {
    let steps = prop::collection::vec(step(), 1..24);
    random::check(cases, &(setup(parent), steps), |(setup, steps)| {
        run(&setup, parent, &steps);
    });
}

#[test]
fn a_file_on_a_disk_is_a_vec_of_bytes() {
    check(&bench::disk(), 400);
}

#[test]
fn a_file_in_memory_is_a_vec_of_bytes() {
    if let Some(tmpfs) = bench::tmpfs() {
        check(tmpfs, 200);
    }
}
