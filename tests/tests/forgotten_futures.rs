//! Failure: a future that is leaked (`mem::forget`, a cycle of reference counts) keeps the engine's
//! threads, its ring and the file for as long as the process lives; or a future that outlives the
//! engine has its buffer dropped where it must not be, or never.
//! Mechanism: what has begun keeps a share of the engine that it does not need any more.
//! Method: futures are forgotten at each stage, every handle is dropped, and what the engine had is
//! counted until there is none: its threads, the ring's bell, descriptors of the file.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "forgetting is what is tested")]

use std::fs;
use std::future::Future;
use std::mem::forget;
use std::path::Path;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Waker};

use futures::executor::block_on;
use tokio_cufile::{AsyncCuFile, Engine, EngineBuilder, HostBuffer, IoEngine, OpenOptions};
use tokio_cufile_tests::SlowFs;
use tokio_cufile_tests::life::{engine_threads, poll_once, until, until_idle};
use tokio_cufile_tests::slow_fs::{Kind, pattern};

const LEN: usize = 64 << 10;
/// The tests count what the process has.
static ALONE: Mutex<()> = Mutex::new(());

/// How many descriptors of this process lead to something of that name.
fn descriptors(name: &str) -> usize {
    let all = fs::read_dir("/proc/self/fd").unwrap();
    let links = all.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    links.filter(|link| link == Path::new(name)).count()
}

fn bells() -> usize {
    descriptors("anon_inode:[eventfd]")
}

fn until_the_engine_is_gone(fs: &SlowFs) {
    fs.wait_until_closed();
    until(|| engine_threads() == 0);
    until(|| bells() == 0);
}

/// For the ring and for the pool, with a file system that the test holds.
fn each(builder: &EngineBuilder, test: impl Fn(&SlowFs, Engine, AsyncCuFile)) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for io in [IoEngine::Uring, IoEngine::Pool] {
        eprintln!("{io:?}");
        let Some(fs) = SlowFs::mount(LEN) else {
            return;
        };
        let engine = builder.clone().io(io).build_blocking().unwrap();
        let open = OpenOptions::new().read(true).write(true);
        let file = block_on(open.open(&engine, fs.path())).unwrap();
        test(&fs, engine, file);
        until_the_engine_is_gone(&fs);
    }
}

fn engine() -> EngineBuilder {
    Engine::builder().num_threads(2)
}

#[test]
fn forgotten_in_flight_an_operation_keeps_nothing_once_it_has_ended() {
    each(&engine(), |fs, engine, file| {
        let mut buffer = HostBuffer::new(&engine, LEN).unwrap();
        fs.hold(Kind::Read);
        let read = file.read_at(buffer.part(0..LEN).unwrap(), 0).start();
        let held = fs.next_held();
        // What can cancel it keeps nothing either.
        let _cancel = read.cancel_handle();
        forget(read);
        drop((engine, file));
        assert_ne!(engine_threads(), 0, "a read is in flight");
        fs.pass(Kind::Read);
        drop(held);
        until_the_engine_is_gone(fs);
        assert_eq!(buffer.parts_out(), 1, "its result is leaked");
    });
}

#[test]
fn forgotten_in_the_queue_an_operation_is_done_and_keeps_nothing() {
    each(&engine().io(IoEngine::Pool), |fs, engine, file| {
        fs.hold(Kind::Read);
        let reads = [(); 16].map(|()| file.read_at(vec![0; LEN], 0).start());
        let write = file.write_at(vec![1; 100], 0).start();
        forget((reads, write));
        drop((engine, file));
        drop(fs.next_held());
        fs.pass(Kind::Read);
        drop(fs.take_held());
        until_the_engine_is_gone(fs);
        assert_eq!(fs.content()[..100], [1; 100]);
    });
}

#[test]
fn forgotten_with_its_outcome_an_operation_keeps_nothing() {
    each(&engine(), |_fs, engine, file| {
        let read = file.read_at(vec![0; LEN], 0).start();
        let ranges = vec![tokio_cufile::FileRange {
            file_offset: 7,
            len: 100,
            buf_offset: 0,
        }];
        let ranges = file.read_ranges(vec![0; 100], ranges).start();
        let write = file.write_at(vec![1; 100], 0).start();
        let (staged, written) = file.write_at(vec![1; 100], 100).staged();
        let (sync, len) = (file.sync_data().start(), file.len().start());
        until_idle(&engine);
        forget((read, ranges, write, staged, written, sync, len));
    });
}

#[test]
fn forgotten_after_its_outcome_was_taken_a_future_keeps_nothing() {
    each(&engine(), |_fs, engine, file| {
        let mut read = file.read_at(vec![0; LEN], 0);
        assert!(block_on(&mut read).unwrap().buf == pattern(0, LEN));
        let mut refused = file.read_at(HostBuffer::new(&engine, 1).unwrap(), u64::MAX);
        assert!(block_on(&mut refused).is_err());
        let (mut staged, mut written) = file.write_at(vec![1; 100], 100).staged();
        assert_eq!(block_on(&mut staged).unwrap(), vec![1; 100]);
        block_on(&mut written).unwrap();
        let mut sync = file.sync_all();
        block_on(&mut sync).unwrap();
        let mut devices = engine.devices();
        let _none_or_some = block_on(&mut devices);
        forget((read, refused, staged, written, sync, devices));
        let mut close = file.close();
        block_on(&mut close).unwrap();
        forget(close);
    });
}

#[test]
fn forgotten_a_call_that_never_ran_keeps_nothing() {
    each(&engine(), |fs, engine, file| {
        // It resolves to `Cancelled` without having been made.
        let open = OpenOptions::new().read(true).open(&engine, fs.path());
        open.cancel_handle().cancel();
        forget(open.start());
        let from_std = AsyncCuFile::from_std(&engine, fs::File::open(fs.path()).unwrap());
        from_std.cancel_handle().cancel();
        forget(from_std.start());
        let read = file.read_at(vec![0; LEN], 0);
        read.cancel_handle().cancel();
        forget(read.start());
        // Behind a write that the file system holds, a sync is cancelled.
        fs.hold(Kind::Write);
        let write = file.write_at(vec![1; 100], 0).start();
        let held = fs.next_held();
        let sync = file.sync_data().start();
        sync.cancel_handle().cancel();
        let close = file.close().start();
        close.cancel_handle().cancel();
        forget((write, sync, close));
        fs.pass(Kind::Write);
        drop((held, engine));
    });
}

#[test]
fn forgotten_after_the_shutdown_an_operation_keeps_nothing() {
    each(&engine(), |_fs, engine, file| {
        let settled = file.read_at(vec![0; LEN], 0).start();
        until_idle(&engine);
        let mut shutdown = Box::pin(engine.shutdown());
        let _report = block_on(&mut shutdown);
        let refused = file.read_at(vec![0; LEN], 0).start();
        let open = AsyncCuFile::open(&engine, file.path()).start();
        forget((settled, refused, open, shutdown));
    });
}

#[test]
fn forgotten_on_its_way_a_shutdown_keeps_nothing() {
    each(&engine(), |fs, engine, file| {
        fs.hold(Kind::Read);
        let read = file.read_at(vec![0; LEN], 0).start();
        let held = fs.next_held();
        let mut shutdown = Box::pin(engine.shutdown());
        let polled = pin!(&mut shutdown).poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        forget((read, shutdown));
        fs.pass(Kind::Read);
        drop((held, engine, file));
    });
}

#[test]
fn an_outcome_can_be_taken_after_the_engine_has_ended() {
    each(&engine(), |fs, engine, file| {
        let read = file.read_at(vec![0; LEN], 0).start();
        let (staged, written) = file.write_at(vec![1; 100], 0).staged();
        let len = file.len().start();
        drop((engine, file));
        until_the_engine_is_gone(fs);
        assert_eq!(block_on(read).unwrap().bytes, LEN);
        assert_eq!(block_on(staged).unwrap(), vec![1; 100]);
        assert_eq!(block_on(written).unwrap().bytes, 100);
        assert_eq!(block_on(len).unwrap(), LEN as u64);
    });
}

#[test]
fn futures_that_are_dropped_after_the_engine_has_ended_give_their_buffers_back() {
    each(&engine(), |fs, engine, file| {
        let mut buffer = HostBuffer::new(&engine, LEN).unwrap();
        let part_of =
            |buffer: &mut HostBuffer, at: usize| buffer.part(at * 100..(at + 1) * 100).unwrap();
        let parts: Vec<_> = (0..16).map(|at| part_of(&mut buffer, at)).collect();
        let reads = parts.into_iter().map(|part| file.read_at(part, 0).start());
        let reads: Vec<_> = reads.collect();
        // The source of this one is left to its second future.
        let source = buffer.part(LEN - 100..LEN).unwrap();
        let (staged, mut written) = file.write_at(source, 0).staged();
        drop((engine, file));
        until_the_engine_is_gone(fs);
        assert_eq!(buffer.parts_out(), 17);
        drop((reads, staged));
        assert!(poll_once(&mut written).is_ready());
        block_on(buffer.idle());
    });
}
