//! Failure: the library works under one kind of runtime only.
//! Mechanism: it needs a reactor, a timer, a blocking pool or a `Send` context that others lack.
//! Method: one program (build, open, write, sync, read, a deadline that must pass, close, shut
//! down) under each. Its deadline passes while the only worker is held, so that only a clock can
//! end the wait.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio_cufile::{AsyncCuFile, Engine, ErrorKind, OpenOptions, Result};
use tokio_cufile_tests::skip::skip;
use tokio_cufile_tests::slow_fs::{Kind, SlowFs, pattern};

const LEN: usize = 3 * 4096 + 17;

/// What a user writes.
async fn program(path: std::path::PathBuf) -> Result<()> {
    let engine = Engine::builder().num_threads(2).build().await?;
    let file = AsyncCuFile::create(&engine, &path).await?;
    let written = file.write_all_at(pattern(0, LEN), 0).await?;
    assert_eq!(written.bytes, LEN);
    file.sync_all().await?;
    assert_eq!(file.len().await?, LEN as u64);
    file.close().await?;
    let file = AsyncCuFile::open(&engine, &path).await?;
    let done = file.read_exact_at(vec![0; LEN], 0).await?;
    assert!(done.buf == pattern(0, LEN));
    file.close().await?;
    assert_eq!(engine.shutdown().await.quarantined, 0);
    Ok(())
}

async fn deadline(fs: Arc<SlowFs>) -> Result<()> {
    let engine = Engine::builder().num_threads(1).build().await?;
    let file = OpenOptions::new()
        .read(true)
        .open(&engine, fs.path())
        .await?;
    fs.hold(Kind::Read);
    let running = file.read_at(vec![0; 10], 0).start();
    let held = fs.next_held();
    let soon = Instant::now() + Duration::from_millis(5);
    let late = file.read_at(vec![0; 10], 0).deadline(soon).await;
    assert_eq!(
        late.unwrap_err().error().kind(),
        ErrorKind::DeadlineExceeded
    );
    // Also the read that looks for the end of the file.
    fs.pass(Kind::Read);
    held.release();
    assert!(running.await?.buf == pattern(0, 10));
    Ok(())
}

async fn everything(folder: std::path::PathBuf) -> Result<()> {
    program(folder.join("file")).await?;
    match SlowFs::mount(10) {
        Some(fs) => deadline(Arc::new(fs)).await,
        None => Ok(()),
    }
}

fn under(run: impl FnOnce(std::path::PathBuf) -> Result<()>) {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path().to_owned()).unwrap();
}

#[test]
fn tokio_current_thread_without_drivers() {
    let runtime = Builder::new_current_thread().build().unwrap();
    under(|folder| runtime.block_on(everything(folder)));
}

#[test]
fn tokio_current_thread_with_drivers() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    under(|folder| runtime.block_on(everything(folder)));
}

#[test]
fn tokio_multi_thread_without_drivers() {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    under(|folder| runtime.block_on(async { runtime.spawn(everything(folder)).await.unwrap() }));
}

#[test]
fn tokio_multi_thread_with_drivers() {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime.unwrap();
    under(|folder| runtime.block_on(async { runtime.spawn(everything(folder)).await.unwrap() }));
}

#[test]
fn the_executor_of_futures() {
    under(|folder| futures::executor::block_on(everything(folder)));
}

#[test]
fn a_thread_that_parks() {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    under(|folder| {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut future = pin!(everything(folder));
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(result) => return result,
                Poll::Pending => thread::park(),
            }
        }
    });
}

#[test]
fn inside_tokio_uring() {
    let runtime = match tokio_uring::Runtime::new(&tokio_uring::builder()) {
        Ok(runtime) => runtime,
        Err(error) => return skip("needs-io-uring", &format!("no ring can be made: {error}")),
    };
    under(|folder| runtime.block_on(everything(folder)));
}
