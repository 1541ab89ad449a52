//! Values whose drop may block or call foreign code: dropped by the engine's disposer, whoever lets
//! go of them last.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use completion::Handle;

use super::{Model, Shared};
use crate::memory::{ProcessMark, leak_in_child};

/// A value that the engine's disposer drops. After the engine's end a thread of its own does.
pub(crate) struct Disposed<T: Send + Sync + 'static> {
    /// Before `share`, which is then the last.
    value: Option<Arc<T>>,
    share: Option<Handle<Model, Arc<T>>>,
    mark: Arc<ProcessMark>,
}

impl<T: Send + Sync + 'static> Disposed<T> {
    pub(crate) fn new(engine: &Shared, value: T) -> Self {
        let value = Arc::new(value);
        Self {
            share: Some(Handle::new(&engine.core, Arc::clone(&value))),
            value: Some(value),
            mark: Arc::clone(&engine.mark),
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
        if self.mark.is_forked() {
            leak_in_child((self.value.take(), self.share.take()));
        }
    }
}

impl<T: Send + Sync + fmt::Debug + 'static> fmt::Debug for Disposed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}
