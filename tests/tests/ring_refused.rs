//! Failure: where io_uring, or something that it wants, is refused, the engine fails, hangs or
//! moves wrong bytes; or it takes another way and does not say so.
//! Mechanism: a refusal is met later than where it is looked for, or its reason is dropped.
//! Method: the kernel refuses the calls of this thread and its children by a seccomp filter, the
//! process's limits refuse memory; then the same reads and writes as ever, and what is said.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::{Debug, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use futures::executor::block_on;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};
use tokio_cufile::{
    AsyncCuFile, Engine, EngineBuilder, ErrorKind, HostBuffer, IoEngine, OpenOptions,
};
use tokio_cufile_tests::bench::{self, assert_all_home};
use tokio_cufile_tests::child::{self, Child};
use tokio_cufile_tests::seccomp::{
    IO_URING, IO_URING_ENTER, IO_URING_REGISTER, IO_URING_SETUP, refusing,
};
use tokio_cufile_tests::{need, pattern};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const LEN: usize = 3 << 20;

/// What the calling thread's events say.
#[derive(Clone, Debug, Default)]
struct Notes(Arc<Mutex<String>>);

impl Visit for Notes {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        writeln!(self.0.lock().unwrap(), "{}={value:?}", field.name()).unwrap();
    }
}

impl Subscriber for Notes {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The engine, and what it said while it was built.
fn build(builder: EngineBuilder) -> (Engine, String) {
    let notes = Notes::default();
    let engine = tracing::subscriber::with_default(notes.clone(), || builder.build_blocking());
    let said = notes.0.lock().unwrap().clone();
    (engine.unwrap(), said)
}

/// Writes and reads a file of `directory`, aligned and not, and ends the engine.
fn use_and_end(engine: &Engine, directory: &Path) -> AsyncCuFile {
    let path = directory.join("used");
    let content = pattern::bytes(5, LEN);
    let options = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true);
    block_on(async {
        let file = options.open(engine, &path).await.unwrap();
        file.write_all_at(content.clone(), 0).await.unwrap();
        file.sync_all().await.unwrap();
        file.drop_cache().await.unwrap();
        let mut buffer = HostBuffer::new(engine, LEN).unwrap();
        let part = buffer.part(0..LEN).unwrap();
        let done = file.read_exact_at(part, 0).await.unwrap();
        pattern::assert_same(done.buf.as_slice(), &content);
        drop(done);
        let done = file.read_exact_at(vec![0; 50_001], 777).await.unwrap();
        pattern::assert_same(&done.buf, &content[777..50_778]);
        assert_all_home(engine).await;
        file
    })
}

#[test]
fn a_refused_ring_leaves_the_pool_and_the_reason() {
    let directory = tempfile::tempdir_in(bench::disk()).unwrap();
    for (calls, errno, why) in [
        (IO_URING, Errno::PERM, "forbidden by"),
        (IO_URING, Errno::NOSYS, "not in this kernel"),
        (IO_URING_SETUP, Errno::NOMEM, "no memory"),
        (IO_URING_SETUP, Errno::MFILE, "no descriptor left"),
        (IO_URING_SETUP, Errno::INVAL, "refused"),
        (IO_URING_ENTER, Errno::INVAL, "a first read was not taken"),
        (IO_URING_ENTER, Errno::PERM, "a first read was not taken"),
    ] {
        refusing(calls, errno, || {
            let (engine, said) = build(Engine::builder());
            assert!(said.contains(why), "{errno}: {said}");
            let file = use_and_end(&engine, directory.path());
            let route = file.route();
            assert!(route.asked.contains("io auto"), "{route}");
            if bench::takes_direct(directory.path()) {
                assert_eq!(route.resolved, "pool-direct", "{route}");
                assert!(route.reason.contains(why), "{errno}: {route}");
            }
            let asked_for = Engine::builder().io(IoEngine::Uring).build_blocking();
            let error = asked_for.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains(why), "{errno}: {error}");
        });
    }
}

/// An engine on the ring that wanted its slots registered and was refused that.
fn works_unregistered(directory: &Path) {
    let builder = Engine::builder()
        .io(IoEngine::Uring)
        .registered_buffers(true);
    let (engine, said) = build(builder);
    assert!(said.contains("slots are not registered"), "{said}");
    let _file = use_and_end(&engine, directory);
    let stats = engine.stats();
    assert_eq!(
        (stats.stray_completions, stats.operations_quarantined),
        (0, 0)
    );
}

#[test]
fn refused_registration_leaves_a_ring_without_it() {
    let directory = tempfile::tempdir_in(bench::disk()).unwrap();
    for errno in [Errno::NOMEM, Errno::PERM, Errno::INVAL] {
        refusing(IO_URING_REGISTER, errno, || {
            works_unregistered(directory.path());
        });
    }
}

#[test]
fn an_ordinary_user_with_little_memory_to_lock_has_a_ring_all_the_same() {
    let Some(directory) = child::directory() else {
        if need::root() && need::tool("setpriv") {
            Child::as_nobody(tempfile::tempdir().unwrap().path()).run();
        }
        return;
    };
    let little = Some(64 << 10);
    let limit = Rlimit {
        current: little,
        maximum: little,
    };
    setrlimit(Resource::Memlock, limit).unwrap();
    works_unregistered(&directory);
}
