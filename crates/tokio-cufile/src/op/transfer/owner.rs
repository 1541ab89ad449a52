//! A transfer whose memory somebody else waits for.

use std::sync::Arc;

use completion::{Handle, PayloadWatch};

use super::{Payload, Transfer};
use crate::engine::Model;

impl<B: Send + 'static> Transfer<B> {
    /// The operation with another owner of the same memory; its parts will tell when they are done
    /// with that. `None` once it was started.
    pub(in crate::op) fn with_owner<U: Send + 'static>(
        mut self,
        change: impl FnOnce(B) -> U,
    ) -> Option<Transfer<U>> {
        let handle = self.handle.take()?;
        let handle = handle.map(|Payload { buf, span }| Payload {
            buf: change(buf),
            span,
        });
        Some(Transfer {
            handle: Some(handle.ok()?),
            pending: self.pending.take(),
            path: Arc::clone(&self.path),
            kind: self.kind,
            offset: self.offset,
            len: self.len,
            exact: self.exact,
            runs: self.runs.take(),
            route: Arc::clone(&self.route),
            options: self.options,
            require: self.require,
            after: std::mem::take(&mut self.after),
            digest: self.digest.take(),
            moved_by_pool: self.moved_by_pool,
            let_go: true,
            submitted: self.submitted,
            mark: Arc::clone(&self.mark),
        })
    }

    /// What tells when the parts are done with the memory. `None` when it was not submitted.
    pub(in crate::op) fn watch(&self) -> Option<PayloadWatch<Model>> {
        let handle = self.handle.as_ref().filter(|_| self.pending.is_none());
        handle.map(Handle::payload_watch)
    }
}
