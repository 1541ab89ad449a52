//! A program that forks with an engine in use; the tests about `fork` start it.
//!
//! `forker FILE pool|uring [held|device|cufile]`: prints what went wrong in the child, or nothing; exits 0 when all
//! went well in the parent, too. With `held`, a read is in flight during the fork: it says `started`,
//! waits for a line, forks, and says `forked` when the child has ended. With `device`, the child has
//! memory of device 0 in every state. With `cufile`, a read by the simulated libcufile is in flight, and the
//! child leaves as programs do. The child lives on a copy of the parent's memory, without the engine's
//! threads.
#![allow(unsafe_code, reason = "no kept crate offers fork")]

use std::env;
use std::future::Future;
use std::io::{self, BufRead};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use futures::executor::block_on;
use tokio_cufile::{
    AsyncCuFile, CompatMode, CudaEvent, DeviceBuffer, Engine, ErrorKind, HostBuffer, IoEngine,
    OpenOptions, Transfer,
};
use tokio_cufile_tests::{bench, cufile, life};

type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [path, io, rest @ ..] = arguments.as_slice() else {
        return Err("usage: forker FILE pool|uring [held|device|cufile]".into());
    };
    let engine_io = match io.as_str() {
        "uring" => IoEngine::Uring,
        _ => IoEngine::Pool,
    };
    if rest == ["cufile"] {
        return with_a_call_in_flight(path);
    }
    let engine = Engine::builder()
        .num_threads(2)
        .io(engine_io)
        .build_blocking()?;
    let options = OpenOptions::new().read(true).write(true);
    let file = block_on(options.open(&engine, path))?;
    if rest == ["held"] {
        return with_a_read_in_flight(&engine, file);
    }
    if rest == ["device"] {
        return with_device_memory(&engine, file);
    }
    let mut buffer = HostBuffer::new(&engine, 1 << 20)?;
    let in_flight = file.read_at(vec![0; 1 << 16], 0).start();
    let finished = file.read_at(vec![0; 1 << 16], 0).start();
    while engine.stats().operations_live > 0 {
        std::thread::yield_now();
    }
    let lent = file.read_at(buffer.part(0..4096)?, 0);
    let lazy = file.read_at(vec![0; 10], 0);
    let lazy_sync = file.sync_data();

    // SAFETY: the child calls functions that allocate, which glibc allows after fork, and leaves
    // by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let lazy = (lazy, lazy_sync);
        let result = in_the_child(
            path,
            (engine, file),
            (in_flight, finished),
            lazy,
            (lent, buffer),
        );
        if let Err(failed) = &result {
            println!("{failed}");
        }
        // SAFETY: it takes no memory.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    wait_for(child)?;
    // The parent has lost nothing.
    for read in [in_flight, finished, lazy] {
        let _done = block_on(read)?;
    }
    let _done = block_on(lent)?;
    block_on(lazy_sync)?;
    block_on(file.close())?;
    drop(buffer);
    let report = block_on(engine.shutdown());
    if report.quarantined != 0 || !report.lost_writes.is_empty() {
        return Err(format!("{report:?}").into());
    }
    Ok(())
}

fn wait_for(child: libc::pid_t) -> Result<(), Failed> {
    let mut status = 0;
    // SAFETY: the status is a local that lives through the call.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    if waited != child || status != 0 {
        return Err(format!("the child ended with {status:#x}").into());
    }
    Ok(())
}

/// The child drops all of it while the kernel reads; the parent gets the bytes.
fn with_a_read_in_flight(engine: &Engine, file: AsyncCuFile) -> Result<(), Failed> {
    let mut buffer = HostBuffer::new(engine, 4096)?;
    let read = file.read_exact_at(buffer.part(0..4096)?, 0).start();
    println!("started");
    io::stdin().lock().read_line(&mut String::new())?;
    // SAFETY: as in `main`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop((read, file, buffer));
        // SAFETY: it takes no memory.
        unsafe { libc::_exit(0) };
    }
    wait_for(child)?;
    println!("forked");
    let done = block_on(read)?;
    if done.buf.as_slice().iter().all(|&byte| byte == 0) {
        return Err("the read's bytes are not here".into());
    }
    block_on(file.close())?;
    drop((done, buffer));
    let report = block_on(engine.shutdown());
    if report.quarantined != 0 {
        return Err(format!("{report:?}").into());
    }
    Ok(())
}

static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// What a child exits with whose handlers have all run.
const ALL_RAN: i32 = 42;

/// The child leaves while libcufile is in use in its parent: it waits for none of that.
fn with_a_call_in_flight(path: &str) -> Result<(), Failed> {
    /// Registered before all others, it runs after them.
    extern "C" fn last() {
        if IS_CHILD.load(Ordering::Relaxed) {
            // SAFETY: it takes no memory.
            unsafe { libc::_exit(ALL_RAN) };
        }
    }
    // SAFETY: the function is there to the end.
    let refused = unsafe { libc::atexit(last) };
    assert_eq!(refused, 0, "there is room for a handler");
    let builder = Engine::builder().compat_mode(CompatMode::Off);
    let engine = builder.cufile(bench::simulated_cufile()).build_blocking()?;
    let file = block_on(AsyncCuFile::open(&engine, path))?;
    let read = file.read_at(vec![0; 4096], 0).start();
    life::until(|| cufile::sim().report().faults_fired > 0);
    // SAFETY: as in `main`, but that the child leaves by `exit`, whose handlers are those of this program
    // and of the simulators.
    let child = unsafe { libc::fork() };
    if child == 0 {
        IS_CHILD.store(true, Ordering::Relaxed);
        std::process::exit(0);
    }
    let mut status = 0;
    // SAFETY: the status is a local that lives through the call.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    if waited != child || !libc::WIFEXITED(status) || libc::WEXITSTATUS(status) != ALL_RAN {
        return Err(format!("the child ended with {status:#x}").into());
    }
    drop(read);
    Ok(())
}

/// The child asks for device memory and drops what the parent has; the parent gets its bytes.
fn with_device_memory(engine: &Engine, file: AsyncCuFile) -> Result<(), Failed> {
    const LEN: usize = 64 << 10;
    let mut buffer = block_on(DeviceBuffer::new(engine, 0, 4 * LEN))?;
    let whole = block_on(DeviceBuffer::new(engine, 0, LEN))?;
    // SAFETY: the default stream is always there.
    let recorded = unsafe { CudaEvent::record(engine, 0, std::ptr::null_mut()) };
    let event = Arc::new(block_on(recorded)?);
    let mut part = |index: usize| buffer.part(index * LEN..(index + 1) * LEN);
    let started = file.read_exact_at(part(0)?, 0).start();
    let lazy = file.read_exact_at(part(1)?, 0);
    let waiting = file.read_exact_at(part(2)?, 0).after(Arc::clone(&event));
    let (waiting, idle) = (waiting.start(), part(3)?);
    // SAFETY: as in `main`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let made = once(DeviceBuffer::new(engine, 0, LEN));
        let asked = [
            expect_forked("a buffer", made),
            expect_forked("devices", once(engine.devices())),
            expect_forked("a copy", once(whole.copy_to_host(engine, 0..LEN))),
            expect_forked("a read", once(lazy).map(|read| Ok(read.map(drop)?))),
            expect_forked(
                "a started read",
                once(started).map(|read| Ok(read.map(drop)?)),
            ),
        ];
        drop((waiting, idle, buffer, event, file));
        let failed = asked.into_iter().find_map(Result::err);
        if let Some(failed) = &failed {
            println!("{failed}");
        }
        // SAFETY: it takes no memory.
        unsafe { libc::_exit(i32::from(failed.is_some())) };
    }
    wait_for(child)?;
    for read in [started, lazy, waiting] {
        let _done = block_on(read)?;
    }
    drop(idle);
    let (_whole, content) = block_on(buffer.copy_to_host(engine, 0..3 * LEN))?;
    if content.iter().any(|&byte| byte != 7) {
        return Err("the reads' bytes are not here".into());
    }
    block_on(file.close())?;
    let report = block_on(engine.shutdown());
    if report.quarantined != 0 {
        return Err(format!("{report:?}").into());
    }
    Ok(())
}

fn once<F: Future + Unpin>(mut future: F) -> Option<F::Output> {
    match Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn expect_forked<T>(
    what: &str,
    output: Option<Result<T, tokio_cufile::Error>>,
) -> Result<(), Failed> {
    match output {
        Some(Err(error)) if error.kind() == ErrorKind::Forked => Ok(()),
        Some(Err(error)) => Err(format!("{what}: {error}").into()),
        Some(Ok(_)) => Err(format!("{what} succeeded").into()),
        None => Err(format!("{what} waits").into()),
    }
}

type Read<B> = Transfer<B>;

fn in_the_child(
    path: &str,
    (engine, file): (Engine, AsyncCuFile),
    (started, dropped): (Read<Vec<u8>>, Read<Vec<u8>>),
    (lazy, lazy_sync): (Read<Vec<u8>>, tokio_cufile::Request<()>),
    (lent, buffer): (Read<tokio_cufile::HostPart>, HostBuffer),
) -> Result<(), Failed> {
    let unit =
        |result: Result<_, tokio_cufile::OpError<Vec<u8>>>| result.map(drop).map_err(Into::into);
    expect_forked("a read", once(file.read_at(vec![0; 10], 0)).map(unit))?;
    expect_forked(
        "a started read",
        once(file.read_at(vec![0; 10], 0).start()).map(unit),
    )?;
    expect_forked("a write", once(file.write_at(vec![0; 10], 0)).map(unit))?;
    let (staged, written) = file.write_at(vec![0; 10], 0).staged();
    expect_forked("a source", once(staged).map(|source| source.map(drop)))?;
    let outcome = once(written);
    expect_forked(
        "a staged write",
        outcome.map(|result| Ok(result.map(drop)?)),
    )?;
    expect_forked("a sync", once(file.sync_all()))?;
    expect_forked("a length", once(file.len()))?;
    expect_forked("an open", once(AsyncCuFile::open(&engine, path)))?;
    expect_forked("a read made before", once(lazy).map(unit))?;
    expect_forked("a sync made before", once(lazy_sync))?;
    let cancel = started.cancel_handle();
    cancel.cancel();
    expect_forked("a read started before", once(started).map(unit))?;
    once(Box::pin(engine.shutdown())).ok_or("a shutdown waits")?;
    drop((dropped, lent, buffer, cancel));
    expect_forked("a close", once(file.close()))?;
    drop(engine);

    // An engine of its own works.
    let engine = Engine::builder().num_threads(1).build_blocking()?;
    let file = block_on(AsyncCuFile::open(&engine, path))?;
    let _done = block_on(file.read_exact_at(vec![0; 10], 0))?;
    Ok(())
}
