//! Failure: an operator sees nothing of an operation, or cannot tell which it belongs to.
//! Mechanism: spans or fields that are renamed, left out, or emitted outside their span.
//! Method: a subscriber for the whole process keeps every span and event with its fields.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use futures::executor::block_on;
use tokio_cufile::Engine;
use tokio_cufile_tests::SlowFs;
use tokio_cufile_tests::collector::Collector;
use tokio_cufile_tests::life::{open, until_idle};
use tokio_cufile_tests::slow_fs::Kind;
use tracing::Level;

#[test]
fn operations_have_spans_and_decisions_have_events() {
    let Some(fs) = SlowFs::mount(10_000) else {
        return;
    };
    let collector = Collector::install();
    let (engine, file) = open(&fs, Engine::builder().num_threads(2));
    collector.find(Level::INFO, &["engine built", "num_threads: 2"]);
    let path = fs.path();
    let path = path.to_str().unwrap();
    collector.find(Level::DEBUG, &["file opened", path, "route="]);

    let done = block_on(file.read_at(vec![0; 5000], 3)).unwrap();
    assert_eq!(done.bytes, 5000);
    let settled = collector.find(
        Level::DEBUG,
        &["settled", "bytes=5000", "error=None", "paths="],
    );
    let span = settled.span.expect("inside the operation's span");
    for part in ["cufile", "operation=read", path, "offset=3", "len=5000"] {
        assert!(span.contains(part), "{span}");
    }
    // Outside the span, which the operation owns by then; so with the same fields.
    let fields = [
        "submitted",
        "operation=read",
        path,
        "offset=3",
        "len=5000",
        "parts=",
    ];
    collector.find(Level::TRACE, &fields);

    fs.fail_next(Kind::Write, fuser::Errno::EIO);
    assert!(block_on(file.write_at(vec![0; 4096], 0)).is_err());
    let failed = collector.find(Level::DEBUG, &["settled", "(Io, Errno(5))"]);
    assert!(
        failed
            .span
            .is_some_and(|span| span.contains("operation=write"))
    );

    fs.fail_next(Kind::Write, fuser::Errno::EIO);
    let write = file.write_at(vec![0; 4096], 4096).start();
    until_idle(&engine);
    drop((write, file));
    let report = block_on(engine.shutdown());
    assert_eq!(report.lost_writes.len(), 1);
    collector.find(Level::ERROR, &["an orphaned write was lost", path]);
    collector.find(Level::INFO, &["engine shut down", "lost_writes=1"]);
}
