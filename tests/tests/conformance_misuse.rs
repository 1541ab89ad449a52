//! Misuse, on every engine: the same kind everywhere, a message with file, offset and reason, the
//! buffer back, and nothing changed.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::fs;

use tokio_cufile::{
    AsyncCuFile, CompatMode, CuFileConfig, Engine, Error, ErrorKind, HostBuffer, IoBuf,
    OpenOptions, Operation, Transfer,
};
use tokio_cufile_tests::bench::{Bench, block_on, setups};
use tokio_cufile_tests::memory::split;
use tokio_cufile_tests::{each, pattern};

/// Awaits a failure and checks everything that every one of them has.
async fn refused<B: IoBuf>(
    file: &AsyncCuFile,
    transfer: Transfer<B>,
    (operation, kind, offset): (Operation, ErrorKind, u64),
) -> (Error, B) {
    let (outcome, buf) = split(transfer.await);
    let error = outcome.error.expect("it has to fail");
    assert_eq!(error.kind(), kind, "{error}");
    assert_eq!(error.operation(), Some(operation), "{error}");
    assert_eq!(error.path(), Some(file.path()), "{error}");
    assert_eq!(error.offset(), Some(offset), "{error}");
    assert!(!error.reason().is_empty());
    let text = error.to_string();
    for piece in [
        operation.to_string(),
        file.path().display().to_string(),
        format!("offset {offset}"),
        kind.description().to_owned(),
        error.reason().to_owned(),
    ] {
        assert!(text.contains(&piece), "{piece:?} is not in {text:?}");
    }
    assert_eq!(
        (outcome.bytes, outcome.receipt),
        (0, None),
        "nothing was submitted"
    );
    (error, buf)
}

async fn only_readable(bench: &Bench, content: &[u8]) -> AsyncCuFile {
    let path = bench.fresh_path();
    fs::write(&path, content).unwrap();
    AsyncCuFile::open(&bench.engine, &path).await.unwrap()
}

#[test]
fn a_read_through_a_handle_for_writing_is_not_readable() {
    each(async |bench| {
        let file = AsyncCuFile::create(&bench.engine, bench.fresh_path())
            .await
            .unwrap();
        let expected = (Operation::Read, ErrorKind::NotReadable, 5);
        for len in [0, 1, 4_096] {
            let buf = vec![7; len];
            let (_, buf) = refused(&file, file.read_at(buf, 5), expected).await;
            assert_eq!(buf, vec![7; len]);
            let _ = refused(&file, file.read_exact_at(buf, 5), expected).await;
        }
    });
}

#[test]
fn a_write_through_a_handle_for_reading_is_not_writable() {
    each(async |bench| {
        let file = only_readable(bench, b"content").await;
        let expected = (Operation::Write, ErrorKind::NotWritable, 4_096);
        for len in [0, 1, 4_096] {
            let (_, buf) = refused(&file, file.write_at(vec![7; len], 4_096), expected).await;
            let _ = refused(&file, file.write_all_at(buf, 4_096), expected).await;
        }
        let error = file.set_len(3).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotWritable);
        assert_eq!(error.operation(), Some(Operation::SetLen));
        assert_eq!(error.path(), Some(file.path()));
        assert_eq!(fs::read(file.path()).unwrap(), b"content");
    });
}

#[test]
fn from_std_keeps_the_files_access() {
    each(async |bench| {
        let path = bench.fresh_path();
        fs::write(&path, b"content").unwrap();
        let reader = fs::File::open(&path).unwrap();
        let reader = AsyncCuFile::from_std(&bench.engine, reader).await.unwrap();
        let writer = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let writer = AsyncCuFile::from_std(&bench.engine, writer).await.unwrap();
        let read = (Operation::Read, ErrorKind::NotReadable, 0);
        let write = (Operation::Write, ErrorKind::NotWritable, 0);
        let _ = refused(&writer, writer.read_at(vec![0; 1], 0), read).await;
        let _ = refused(&reader, reader.write_at(vec![0; 1], 0), write).await;
    });
}

#[test]
fn a_range_that_no_file_can_have_is_invalid_input() {
    each(async |bench| {
        let file = bench.file(b"content").await.unwrap();
        let last = i64::MAX.cast_unsigned();
        for offset in [u64::MAX, u64::MAX - 3, last + 1, last, last - 2] {
            let read = (Operation::Read, ErrorKind::InvalidInput, offset);
            let write = (Operation::Write, ErrorKind::InvalidInput, offset);
            let (error, buf) = refused(&file, file.read_at(vec![7; 4], offset), read).await;
            assert_eq!((error.length(), buf), (Some(4), vec![7; 4]));
            let _ = refused(&file, file.read_exact_at(vec![7; 4], offset), read).await;
            let _ = refused(&file, file.write_at(vec![7; 4], offset), write).await;
            let _ = refused(&file, file.write_all_at(vec![7; 4], offset), write).await;
        }
        let read = (Operation::Read, ErrorKind::InvalidInput, last + 1);
        let _ = refused(&file, file.read_at(Vec::new(), last + 1), read).await;
        assert_eq!(fs::read(file.path()).unwrap(), b"content");
    });
}

#[test]
fn a_buffer_that_is_lent_out_is_busy_until_its_part_is_back() {
    each(async |bench| {
        let content = pattern::bytes(1, 5_000);
        let file = bench.file(&content).await.unwrap();
        let mut buffer = HostBuffer::new(&bench.engine, 5_000).unwrap();
        let part = buffer.part(10..20).unwrap();
        let read = (Operation::Read, ErrorKind::Busy, 0);
        let (error, buffer) = refused(&file, file.read_at(buffer, 0), read).await;
        assert!(error.is_retryable());
        let write = (Operation::Write, ErrorKind::Busy, 0);
        let (_, buffer) = refused(&file, file.write_at(buffer, 0), write).await;
        // The part itself can be used.
        let done = file.read_exact_at(part, 100).await.unwrap();
        assert_eq!(done.buf.as_slice(), &content[100..110]);
        drop(done);
        let done = file.read_exact_at(buffer, 0).await.unwrap();
        pattern::assert_same(done.buf.as_slice().unwrap(), &content);
    });
}

#[test]
fn memory_of_another_engine_is_refused() {
    each(async |bench| {
        let file = bench.file(b"content").await.unwrap();
        let other = bench.setup.builder.clone().build().await.unwrap();
        let mut buffer = HostBuffer::new(&other, 5_000).unwrap();
        let part = buffer.part(0..10).unwrap();
        let read = (Operation::Read, ErrorKind::WrongEngine, 1);
        let write = (Operation::Write, ErrorKind::WrongEngine, 1);
        let (_, part) = refused(&file, file.read_at(part, 1), read).await;
        drop(refused(&file, file.write_at(part, 1), write).await);
        let (_, buffer) = refused(&file, file.write_at(buffer, 1), write).await;
        let _ = refused(&file, file.read_at(buffer, 1), read).await;
        assert_eq!(fs::read(file.path()).unwrap(), b"content");
    });
}

#[test]
fn what_was_refused_can_be_done_right_at_once() {
    each(async |bench| {
        let file = only_readable(bench, b"content").await;
        for _ in 0..100 {
            let write = (Operation::Write, ErrorKind::NotWritable, 0);
            let (_, buf) = refused(&file, file.write_at(vec![0; 7], 0), write).await;
            assert_eq!(file.read_exact_at(buf, 0).await.unwrap().buf, b"content");
        }
    });
}

#[test]
fn settings_that_cannot_be_followed_here_are_unsupported_and_touch_nothing() {
    each(async |bench| {
        let path = bench.fresh_path();
        fs::write(&path, b"content").unwrap();
        let options = OpenOptions::new().read(true).write(true).truncate(true);
        let mut absent = CuFileConfig::default();
        absent.library = Some("/nowhere/libcufile.so.0".into());
        let builder = bench.setup.builder.clone().cufile(absent);
        let engine = builder.build_blocking().unwrap();
        let options = options.compat_mode(CompatMode::Off);
        let error = options.open(&engine, &path).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert_eq!(error.operation(), Some(Operation::Open));
        assert_eq!(fs::read(&path).unwrap(), b"content");
    });
}

#[test]
fn after_a_shutdown_everything_is_refused_with_its_buffer() {
    for setup in setups() {
        let engine: Engine = setup.builder.clone().build_blocking().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        block_on(async {
            let file = AsyncCuFile::create(&engine, &path).await.unwrap();
            let _ = engine.shutdown().await;
            let (outcome, buf) = split(file.write_at(vec![7; 10], 0).await);
            assert_eq!(outcome.error.unwrap().kind(), ErrorKind::ShuttingDown);
            assert_eq!(buf, [7; 10]);
            for kind in [
                file.len().await.unwrap_err().kind(),
                file.sync_data().await.unwrap_err().kind(),
                file.set_len(1).await.unwrap_err().kind(),
                AsyncCuFile::open(&engine, &path).await.unwrap_err().kind(),
                file.close().await.unwrap_err().kind(),
            ] {
                assert_eq!(kind, ErrorKind::ShuttingDown, "{}", setup.name);
            }
        });
        assert_eq!(fs::read(&path).unwrap(), b"");
    }
}
