//! Values whose drop may block or call foreign code: dropped by the engine's disposer, whoever lets
//! go of them last.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::thread;

use completion::Handle;

use super::threads::Bells;
use super::{Core, Model, Shared};

/// A value that the engine's disposer drops. After the engine's end a thread of its own does.
pub(crate) struct Disposed<T: Send + Sync + 'static> {
    /// Before `share`, which is then the last.
    value: Option<Arc<T>>,
    share: Option<Handle<Model, Arc<T>>>,
    core: Arc<Core>,
    bells: Arc<Bells>,
    process: u32,
}

impl<T: Send + Sync + 'static> Disposed<T> {
    pub(crate) fn new(engine: &Shared, value: T) -> Self {
        let value = Arc::new(value);
        Self {
            share: Some(Handle::new(&engine.core, Arc::clone(&value))),
            value: Some(value),
            core: Arc::clone(&engine.core),
            bells: Arc::clone(&engine.bells),
            process: engine.process,
        }
    }
}

impl<T: Send + Sync + 'static> Deref for Disposed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("there until it is dropped")
    }
}

impl<T: Send + Sync + 'static> Drop for Disposed<T> {
    fn drop(&mut self) {
        let (value, share) = (self.value.take(), self.share.take());
        if std::process::id() != self.process {
            #[expect(
                clippy::disallowed_methods,
                reason = "its locks are the parent's (I22)"
            )]
            return std::mem::forget((value, share));
        }
        // The queue lives as long as any such value, and with it what nobody disposes of.
        let core = Arc::clone(&self.core);
        if self.bells.has_disposer_ended() {
            return dispose_late(move || {
                drop((value, share));
                core.dispose();
            });
        }
        drop(value);
        drop(share);
        if self.bells.has_disposer_ended() {
            // It may have looked for the last time before.
            dispose_late(move || {
                core.dispose();
            });
        }
    }
}

fn dispose_late(dispose: impl FnOnce() + Send + 'static) {
    let late = thread::Builder::new().name("cufile-disposer".to_owned());
    if let Err(error) = late.spawn(dispose) {
        // The closure went with the attempt, and with it the value, on this thread; or the value waits.
        tracing::debug!(%error, "no thread for a late drop");
    }
}

impl<T: Send + Sync + fmt::Debug + 'static> fmt::Debug for Disposed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}
