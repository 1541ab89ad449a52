//! Results of direct requests that are shorter than a block.
//!
//! Failure: a read that ends early as if the file did, or a write that fails, though every request
//! moved something.
//! Mechanism: direct I/O goes on at a block, so a second short result may reach no further than the
//! first; that looks like the end of the file, where a request gives the same again and again.
//! Method: a file system that cuts the first requests to given lengths, the later ones shorter.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Mutex;

use futures::executor::block_on;
use tokio_cufile::{AsyncCuFile, CacheMode, Engine, IoEngine, OpenOptions};
use tokio_cufile_tests::SlowFs;
use tokio_cufile_tests::slow_fs::{Fate, pattern};

const LEN: usize = 3 * 4096;

/// A file whose first requests are cut to these lengths, read and written around the page cache.
fn cutting(io: IoEngine, lens: &[usize]) -> Option<(SlowFs, Engine, AsyncCuFile)> {
    let lens = Mutex::new(lens.to_vec());
    let policy = move |_: &_| {
        let mut lens = lens.lock().unwrap();
        match lens.is_empty() {
            true => Fate::Give,
            false => Fate::CutShort(lens.remove(0)),
        }
    };
    let fs = SlowFs::mount_with(pattern(0, LEN), Box::new(policy))?;
    let engine = Engine::builder().io(io).build_blocking().unwrap();
    let options = OpenOptions::new().cache(CacheMode::Direct);
    let open = options.read(true).write(true).open(&engine, fs.path());
    let file = block_on(open).unwrap();
    Some((fs, engine, file))
}

/// Later ones reach no further than the first.
const SHORTER: [&[usize]; 3] = [&[300, 100], &[4096 + 700, 600, 500, 800], &[5000, 800, 1]];

#[test]
fn a_second_result_shorter_than_the_first_is_not_the_end_of_the_file() {
    for io in [IoEngine::Pool, IoEngine::Auto] {
        for lens in SHORTER {
            let Some((_fs, _engine, file)) = cutting(io, lens) else {
                return;
            };
            let done = block_on(file.read_at(vec![0; LEN], 0)).unwrap();
            assert_eq!(done.bytes, LEN, "{lens:?}, {io:?}");
            assert!(done.buf == pattern(0, LEN), "{lens:?}, {io:?}");
        }
    }
}

#[test]
fn a_second_result_shorter_than_the_first_is_no_refusal_to_write() {
    for io in [IoEngine::Pool, IoEngine::Auto] {
        for lens in SHORTER {
            let Some((fs, _engine, file)) = cutting(io, lens) else {
                return;
            };
            let done = block_on(file.write_all_at(vec![7; LEN], 0)).unwrap();
            assert_eq!(done.bytes, LEN, "{lens:?}, {io:?}");
            assert!(fs.content() == [7; LEN], "{lens:?}, {io:?}");
        }
    }
}

#[test]
fn the_end_of_the_file_is_still_met() {
    for io in [IoEngine::Pool, IoEngine::Auto] {
        let Some((_fs, _engine, file)) = cutting(io, &[300, 100]) else {
            return;
        };
        let done = block_on(file.read_at(vec![0; LEN + 700], 0)).unwrap();
        assert_eq!(done.bytes, LEN, "{io:?}");
        let none = block_on(file.read_at(vec![0; 10], LEN as u64)).unwrap();
        assert_eq!(none.bytes, 0, "{io:?}");
    }
}
