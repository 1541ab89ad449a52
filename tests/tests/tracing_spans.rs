//! Failure: an operator sees nothing of an operation, or cannot tell which it belongs to.
//! Mechanism: spans or fields that are renamed, left out, or emitted outside their span.
//! Method: a subscriber for the whole process keeps every span and event with its fields.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use futures::executor::block_on;
use tokio_cufile::Engine;
use tokio_cufile_tests::SlowFs;
use tokio_cufile_tests::life::{open, until_idle};
use tokio_cufile_tests::slow_fs::Kind;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

thread_local! {
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

#[derive(Clone, Default)]
struct Collector {
    next: Arc<AtomicU64>,
    spans: Arc<Mutex<BTreeMap<u64, String>>>,
    events: Arc<Mutex<Vec<Seen>>>,
}

#[derive(Clone, Debug)]
struct Seen {
    level: Level,
    text: String,
    span: Option<String>,
}

/// Fields as `name=value`, each after a space.
#[derive(Default)]
struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tokio_cufile")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let mut fields = Fields::default();
        span.record(&mut fields);
        let text = format!("{}{}", span.metadata().name(), fields.0);
        self.spans.lock().unwrap().insert(id, text);
        Id::from_u64(id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let inside = ENTERED.with_borrow(|entered| entered.last().copied());
        let span = inside.and_then(|id| self.spans.lock().unwrap().get(&id).cloned());
        self.events.lock().unwrap().push(Seen {
            level: *event.metadata().level(),
            text: fields.0,
            span,
        });
    }

    fn enter(&self, span: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(span.into_u64()));
    }

    fn exit(&self, _: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.truncate(entered.len().saturating_sub(1)));
    }
}

impl Collector {
    fn find(&self, level: Level, parts: &[&str]) -> Seen {
        let events = self.events.lock().unwrap();
        let fits =
            |seen: &&Seen| seen.level == level && parts.iter().all(|part| seen.text.contains(part));
        let found = events.iter().find(fits).cloned();
        found.unwrap_or_else(|| panic!("no {level} event with {parts:?} in {events:#?}"))
    }
}

#[test]
fn operations_have_spans_and_decisions_have_events() {
    let Some(fs) = SlowFs::mount(10_000) else {
        return;
    };
    let collector = Collector::default();
    tracing::subscriber::set_global_default(collector.clone()).unwrap();
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
