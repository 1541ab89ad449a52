//! What the tests about dropping, stopping and ending share.

use std::fs;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use tokio_cufile::{AsyncCuFile, Engine, EngineBuilder, IoEngine, OpenOptions, Permits};

use crate::SlowFs;

/// How long after its start the deadline of an operation is that is to be in flight by then, whatever
/// else the machine does. Tests wait this long.
pub const IN_FLIGHT_BY: Duration = Duration::from_secs(1);

/// Waits for what no future announces. Looks again and again, for there is no event to wait for;
/// a test that waits in vain is ended by the runner.
pub fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        thread::yield_now();
    }
}

/// Waits until nothing is in flight or queued, and checks that every permit came back.
///
/// # Panics
///
/// When a permit is lost.
pub fn until_idle(engine: &Engine) {
    until(|| engine.stats().operations_live == 0);
    let stats = engine.stats();
    for permits in [stats.bytes, stats.parts, stats.slots, stats.small_slots] {
        let Permits { free, capacity, .. } = permits;
        assert_eq!(free, capacity, "{stats:?}");
    }
}

/// An engine, and the file of `fs` for reading and writing.
///
/// The engine is the pool: with it a test knows how many parts are in flight at once. The ring
/// starts more, and the kernel runs a ring's writes to one file one after the other.
///
/// # Panics
///
/// When either fails.
#[must_use]
pub fn open(fs: &SlowFs, builder: EngineBuilder) -> (Engine, AsyncCuFile) {
    let engine = builder
        .io(IoEngine::Pool)
        .build_blocking()
        .expect("an engine");
    let file = open_again(fs, &engine);
    (engine, file)
}

/// The file of `fs`.
///
/// # Panics
///
/// When it cannot be opened.
#[must_use]
pub fn open_again(fs: &SlowFs, engine: &Engine) -> AsyncCuFile {
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .open(engine, fs.path());
    futures::executor::block_on(open).expect("the file opens")
}

/// Polls once, with a waker that does nothing.
pub fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// How many engine threads this process has, and threads of libcufile's: once an engine has used that
/// in streams it has some, for good, which have the name of the engine's thread that made them.
///
/// # Panics
///
/// When `/proc` cannot be read.
#[must_use]
pub fn engine_threads() -> usize {
    threads_named("cufile-")
}

/// How many threads of this process have a name that begins so.
///
/// # Panics
///
/// When `/proc` cannot be read.
#[must_use]
pub fn threads_named(prefix: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("the process's threads");
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with(prefix)).count()
}
