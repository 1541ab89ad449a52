//! Reading through tokio's traits.
//!
//! Failure: bytes lost, doubled or taken from where a seek left; an error that a second read turns
//! into the end of the file.
//! Mechanism: the reader has read ahead, and a seek lands inside, before or behind that.
//! Method: random reads and seeks beside those of a `std::io::Cursor`, on every engine.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{self, Cursor, Read, Seek, SeekFrom};

use fuser::Errno;
use futures::executor::block_on;
use proptest::prelude::*;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncSeekExt};
use tokio_cufile::{Engine, ErrorKind};
use tokio_cufile_tests::bench::{self, Bench, Setup, setups};
use tokio_cufile_tests::life::{open, until_idle};
use tokio_cufile_tests::slow_fs::{self, Kind};
use tokio_cufile_tests::{SlowFs, each, pattern, random};

const LEN: usize = 50_001;

#[derive(Clone, Debug)]
enum Step {
    Read(usize),
    Seek(SeekFrom),
}

fn step() -> impl Strategy<Value = Step> {
    let len = i64::try_from(LEN).unwrap();
    prop_oneof![
        4 => (0..9000_usize).prop_map(Step::Read),
        1 => (0..60_000_u64).prop_map(|to| Step::Seek(SeekFrom::Start(to))),
        2 => (-5000..5000_i64).prop_map(|by| Step::Seek(SeekFrom::Current(by))),
        1 => (-len - 10..100_i64).prop_map(|by| Step::Seek(SeekFrom::End(by))),
    ]
}

async fn take(reader: &mut tokio_cufile::FileReader, model: &mut Cursor<&[u8]>, step: &Step) {
    match *step {
        Step::Read(len) => {
            let mut expected = vec![0; len];
            let there = Read::read(model, &mut expected).unwrap();
            let mut found = vec![0; there];
            reader.read_exact(&mut found).await.unwrap();
            pattern::assert_same(&found, &expected[..there]);
            if there < len {
                assert_eq!(reader.read(&mut [0]).await.unwrap(), 0);
            }
        }
        Step::Seek(to) => {
            let found = reader.seek(to).await.map_err(|error| error.kind());
            let expected = Seek::seek(model, to).map_err(|error| error.kind());
            assert_eq!(found, expected);
        }
    }
    assert_eq!(reader.position(), model.position());
}

fn run(setup: &Setup, chunk_size: usize, steps: &[Step]) {
    let content = pattern::bytes(6, LEN);
    let parent = bench::disk();
    if setup.cache == tokio_cufile::CacheMode::Direct && !bench::takes_direct(&parent) {
        return;
    }
    bench::block_on(async {
        let bench = Bench::new(setup, &parent);
        let file = bench.file(&content).await.unwrap();
        let mut reader = file.reader(0).chunk_size(chunk_size).read_ahead(2);
        let mut model = Cursor::new(&content[..]);
        for step in steps {
            take(&mut reader, &mut model, step).await;
        }
        drop(reader);
        bench::assert_all_home(&bench.engine).await;
    });
}

#[test]
fn reads_and_seeks_are_those_of_a_cursor_over_the_files_bytes() {
    let sizes = prop::sample::select(vec![1 << 20, 4096, 5000]);
    let steps = prop::collection::vec(step(), 1..30);
    let values = (prop::sample::select(setups()), sizes, steps);
    random::check(150, &values, |(setup, size, steps)| {
        run(&setup, size, &steps)
    });
}

#[test]
fn all_from_an_offset_on_is_read_to_the_end() {
    each(async |bench| {
        let content = pattern::bytes(7, LEN);
        let file = bench.file(&content).await.unwrap();
        for offset in [0, 1, 4096, 50_000, 60_000] {
            let mut bytes = Vec::new();
            file.reader(offset).read_to_end(&mut bytes).await.unwrap();
            let start = usize::try_from(offset).unwrap().min(LEN);
            pattern::assert_same(&bytes, &content[start..]);
        }
    });
}

#[test]
fn lines_are_read_across_chunks() {
    each(async |bench| {
        let lines: Vec<_> = (0..2000).map(|line| format!("line {line}")).collect();
        let file = bench.file(lines.join("\n").as_bytes()).await.unwrap();
        let mut found = file.reader(0).chunk_size(4096).lines();
        for line in &lines {
            assert_eq!(found.next_line().await.unwrap().as_ref(), Some(line));
        }
        assert_eq!(found.next_line().await.unwrap(), None);
    });
}

#[test]
fn an_error_stays_until_a_seek_and_is_never_the_end_of_the_file() {
    let Some(fs) = SlowFs::mount(4 * 4096) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder());
    fs.fail_next(Kind::Read, Errno::EIO);
    let mut reader = file.reader(0).chunk_size(4096).read_ahead(1);
    let mut bytes = [0; 100];
    for _ in 0..3 {
        let error = block_on(reader.read(&mut bytes)).unwrap_err();
        let error = error.downcast::<tokio_cufile::Error>().unwrap();
        assert_eq!(error.kind(), ErrorKind::Io);
    }
    assert_eq!(block_on(reader.seek(SeekFrom::Current(0))).unwrap(), 0);
    block_on(reader.read_exact(&mut bytes)).unwrap();
    assert_eq!(&bytes[..], slow_fs::pattern(0, 100));
    drop(reader);
    until_idle(&engine);
}

#[test]
fn a_seek_to_before_the_start_is_refused_and_changes_nothing() {
    each(async |bench| {
        let file = bench.file(&[5; 100]).await.unwrap();
        let mut reader = file.reader(10);
        for to in [SeekFrom::Current(-11), SeekFrom::End(-101)] {
            let error = reader.seek(to).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert_eq!(reader.position(), 10);
        }
        assert_eq!(reader.read(&mut [0; 200]).await.unwrap(), 90);
    });
}

#[test]
fn dropped_with_reads_in_flight_it_leaves_them_to_the_engine() {
    let Some(fs) = SlowFs::mount(16 * 4096) else {
        return;
    };
    let (engine, file) = open(&fs, Engine::builder());
    fs.hold(Kind::Read);
    let mut reader = file.reader(0).chunk_size(4096);
    let mut bytes = [0; 100];
    {
        let mut read = Box::pin(reader.read(&mut bytes));
        assert!(tokio_cufile_tests::life::poll_once(&mut read).is_pending());
    }
    let held = fs.next_held_of(4);
    drop(reader);
    assert_eq!(engine.stats().parts.in_flight, 4);
    drop(held);
    fs.pass(Kind::Read);
    until_idle(&engine);
}
