//! From a transfer that was asked for to an operation of the completion model.

use std::sync::Arc;
use std::time::Instant;

use completion::{Handle, Role, Spec};

use super::digested;
use super::parts::Parts;
use super::transfer::{Payload, Pending, Transfer};
use crate::config::Priority;
use crate::cuda::CudaEvent;
use crate::engine::Model;
use crate::error::{Error, Result};
use crate::plan::route::{FileRoute, check_required, slots_go_by_ring};
use crate::plan::{Kind, Outline};

impl<B: Send + 'static> Transfer<B> {
    /// Submits once. A refusal stays in `pending`.
    pub(super) fn submit(&mut self) {
        let Some(Ok(pending)) = &mut self.pending else {
            return;
        };
        pending.route.by_ring &= pending.engine.executors.has_ring();
        if self.digest.is_some() {
            self.moved_by_pool |= std::mem::take(&mut pending.route.by_ring);
        }
        if let Err(error) = self.judge() {
            self.pending = Some(Err(error));
            return;
        }
        let (Some(handle), Some(Ok(pending))) = (self.handle.take(), self.pending.take()) else {
            return;
        };
        self.issue(&handle, pending);
        self.handle = Some(handle);
    }

    /// What speaks against it now that its options are known.
    fn judge(&self) -> Result<()> {
        // Again: the process may have forked since the future was made.
        self.mark.check()?;
        let (Some(class), Some(Ok(pending))) = (self.require, &self.pending) else {
            return Ok(());
        };
        let judged = check_required(class, self.kind, &pending.route, &pending.outline);
        judged.map_err(|error| match self.moved_by_pool {
            true => Error::new(
                error.kind(),
                format!("{}; {}", error.reason(), digested::NOTE),
            ),
            false => error,
        })
    }

    fn issue(&mut self, handle: &Handle<Model, Payload<B>>, pending: Pending) {
        // The span is with the operation by now: its fields are said again.
        tracing::trace!(
            operation = %self.kind.operation(),
            path = %self.path.display(),
            offset = self.offset,
            len = self.len,
            parts = pending.parts.cut.parts_total(),
            "submitted"
        );
        self.submitted = Some(Instant::now());
        let ledger = match self.kind {
            Kind::Read => Role::None,
            Kind::Write => Role::Write(Arc::clone(&pending.parts.file.ledger), self.offset),
        };
        let total = self.runs.as_ref().map(|runs| runs.total());
        let after = std::mem::take(&mut self.after);
        handle.submit(Spec {
            class: self.options.class(Priority::Normal),
            deadline: self.options.deadline(&pending.engine),
            total: total.unwrap_or(self.len as u64),
            parts: self.parts(pending.parts, &pending.outline, &pending.route),
            ledger,
            gated: !after.is_empty(),
        });
        if !after.is_empty() {
            CudaEvent::open_after(after, handle.gate());
        }
    }

    /// The parts, with what was decided since they were planned.
    fn parts(&self, mut parts: Box<Parts>, outline: &Outline, route: &FileRoute) -> Box<Parts> {
        parts.staged_by_ring = route.by_ring && slots_go_by_ring(outline);
        parts.in_place_by_ring = route.by_ring;
        parts.may_use_cache = route.may_use_cache && self.require.is_none();
        parts.require = self.require;
        parts.digest.clone_from(&self.digest);
        parts.let_go = self.let_go;
        parts
    }
}
