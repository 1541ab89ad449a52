//! Bytes that cuFile and the page cache write together, and reads of every shape.
//!
//! Failure: a byte beside a write that is changed, or one inside that is not.
//! Mechanism: a write's whole pages go by cuFile, its edges by another descriptor of the same file.
//! Method: ranges around page and part borders, against a `Vec<u8>`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use tokio_cufile::{AsyncCuFile, DataPath, EngineBuilder};
use tokio_cufile_tests::bench::{self, block_on};
use tokio_cufile_tests::life::until;
use tokio_cufile_tests::{Bed, Sim, pattern};

const PAGE: usize = 4096;
const PART: usize = 3 * PAGE;

fn home() -> tempfile::TempDir {
    tempfile::tempdir_in(bench::disk()).unwrap()
}

fn small_parts(builder: EngineBuilder) -> EngineBuilder {
    builder
        .task_size(PART)
        .bounce_buffer_size(PAGE)
        .num_threads(3)
}

/// Offsets and lengths around every border.
fn shapes() -> Vec<(usize, usize)> {
    let near = |border: usize| [border - 1, border, border + 1];
    let mut shapes = Vec::new();
    for offset in [[0, 1, 511].as_slice(), &near(PAGE), &near(PART)].concat() {
        for len in [
            [0, 1, 100].as_slice(),
            &near(PAGE),
            &near(PART),
            &near(5 * PART),
        ]
        .concat()
        {
            shapes.push((offset, len));
        }
    }
    shapes
}

fn write(
    bed: &Bed,
    file: &AsyncCuFile,
    model: &mut Vec<u8>,
    (seed, offset, len): (u64, usize, usize),
) {
    let bytes = pattern::bytes(seed, len);
    let done = block_on(file.write_all_at(bed.buffer(&bytes), offset as u64)).unwrap();
    if len > 0 {
        model.resize(model.len().max(offset + len), 0);
        model[offset..offset + len].copy_from_slice(&bytes);
    }
    let first = offset.next_multiple_of(PAGE);
    let pages = ((offset + len) / PAGE * PAGE).saturating_sub(first) as u64;
    let paths = done.receipt.paths;
    assert_eq!(
        paths.get(DataPath::CufileUnverified),
        pages,
        "{offset} {len}"
    );
    assert_eq!(paths.total(), len as u64, "{offset} {len}");
    pattern::assert_same(&bed.content(done.buf), &bytes);
}

#[test]
fn writes_of_every_shape_change_their_bytes_and_no_others() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), small_parts);
    for (seed, (offset, len)) in (1..).zip(shapes()) {
        let mut model = pattern::bytes(seed + 1000, 4 * PART + 77);
        let file = bed.file("file", &model);
        write(&bed, &file, &mut model, (seed, offset, len));
        pattern::assert_same(&fs::read(file.path()).unwrap(), &model);
        block_on(file.close()).unwrap();
    }
    bed.end();
}

#[test]
fn a_file_grows_by_what_was_written_and_not_by_a_page() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), small_parts);
    let file = bed.file("file", b"");
    let mut model = Vec::new();
    for (seed, (offset, len)) in [(0, 1), (1, PAGE), (PAGE + 7, 2 * PART), (5 * PART, 333)]
        .into_iter()
        .enumerate()
    {
        write(&bed, &file, &mut model, (seed as u64, offset, len));
        assert_eq!(block_on(file.len()).unwrap(), model.len() as u64);
        pattern::assert_same(&fs::read(file.path()).unwrap(), &model);
    }
    drop(file);
    bed.end();
}

#[test]
fn reads_of_every_shape_get_their_bytes_and_touch_no_others() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), small_parts);
    let content = pattern::bytes(3, 4 * PART + 77);
    let file = bed.file("file", &content);
    for (offset, len) in shapes() {
        let mut buffer = bed.buffer(&vec![0xee; len + 200]);
        let part = buffer.part(100..100 + len).unwrap();
        let done = block_on(file.read_at(part, offset as u64)).unwrap();
        let bytes = content.len().saturating_sub(offset).min(len);
        assert_eq!(done.bytes, bytes, "{offset} {len}");
        drop(done);
        let found = bed.content(buffer);
        pattern::assert_same(&found[100..100 + bytes], &content[offset..offset + bytes]);
        let around = found[..100].iter().chain(&found[100 + len..]);
        assert!(
            around.into_iter().all(|&byte| byte == 0xee),
            "{offset} {len}"
        );
    }
    drop(file);
    bed.end();
}

#[test]
fn many_at_once_are_each_their_own() {
    let Some(sim) = Sim::need() else { return };
    let home = home();
    let bed = Bed::on(sim, home.path(), |builder| {
        small_parts(builder).budget(1 << 20).num_threads(6)
    });
    bed.cufile
        .fault("cuFileRead:slow=50,chance=1/4;cuFileWrite:slow=50,chance=1/4");
    let (count, each) = (64, PART + 1000);
    let content = pattern::bytes(9, count * each);
    let file = bed.file("file", b"");
    let mut source = bed.buffer(&content);
    let writes: Vec<_> = (0..count)
        .map(|index| {
            let part = source.part(index * each..(index + 1) * each).unwrap();
            file.write_all_at(part, (index * each) as u64).start()
        })
        .collect();
    for write in writes {
        block_on(write).unwrap();
    }
    pattern::assert_same(&fs::read(file.path()).unwrap(), &content);
    // Several are in the library at once.
    bed.cufile.clear();
    bed.cufile.fault("cuFileRead:never,times=3");
    let before = bed.fired();
    let mut target = bed.buffer(&vec![0; content.len()]);
    let reads: Vec<_> = (0..count)
        .rev()
        .map(|index| {
            let part = target.part(index * each..(index + 1) * each).unwrap();
            file.read_exact_at(part, (index * each) as u64).start()
        })
        .collect();
    until(|| bed.fired() == before + 3);
    bed.cufile.clear();
    for read in reads {
        block_on(read).unwrap();
    }
    pattern::assert_same(&bed.content(target), &content);
    drop((source, file));
    bed.end();
}
