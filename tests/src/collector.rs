//! What is said by `tracing`, kept with its fields and the span that it is said in.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

thread_local! {
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Keeps what the library says, from every thread.
#[derive(Clone, Debug, Default)]
pub struct Collector {
    next: Arc<AtomicU64>,
    spans: Arc<Mutex<BTreeMap<u64, String>>>,
    events: Arc<Mutex<Vec<Seen>>>,
}

/// An event.
#[derive(Clone, Debug)]
pub struct Seen {
    /// How much it matters.
    pub level: Level,
    /// Its fields, the message among them.
    pub text: String,
    /// Name and fields of the span that it came in.
    pub span: Option<String>,
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
        self.spans
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(id, text);
        Id::from_u64(id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let inside = ENTERED.with_borrow(|entered| entered.last().copied());
        let span = inside.and_then(|id| {
            self.spans
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get(&id)
                .cloned()
        });
        self.events
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Seen {
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
    /// Becomes the process's subscriber.
    ///
    /// # Panics
    ///
    /// When there is one.
    #[must_use]
    pub fn install() -> Self {
        let collector = Self::default();
        let set = tracing::subscriber::set_global_default(collector.clone());
        set.expect("this process has no subscriber");
        collector
    }

    /// The first event of that level with all of those parts.
    ///
    /// # Panics
    ///
    /// When there is none.
    #[track_caller]
    pub fn find(&self, level: Level, parts: &[&str]) -> Seen {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let fits =
            |seen: &&Seen| seen.level == level && parts.iter().all(|part| seen.text.contains(part));
        let found = events.iter().find(fits).cloned();
        found.unwrap_or_else(|| panic!("no {level} event with {parts:?} in {events:#?}"))
    }
}
