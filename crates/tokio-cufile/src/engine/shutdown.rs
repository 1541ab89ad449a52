//! The orderly end of an engine.

use std::future::{Future, poll_fn};
use std::sync::Arc;

use super::{Engine, Shared};
use crate::error::Error;

/// What [`Engine::shutdown`] found.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct ShutdownReport {
    /// Operations that ended after their parts were quiet, since the shutdown began.
    pub drained: u64,
    /// Operations that were withdrawn before anything of them was issued.
    pub withdrawn: u64,
    /// Operations, in the engine's whole life, whose memory was leaked because it could not be
    /// proved that the hardware was done with it.
    pub quarantined: u64,
    /// Writes whose futures were dropped, that were lost, and that no `sync_data`, `sync_all` or
    /// `close` has reported: at most 1024 of them.
    pub lost_writes: Vec<Error>,
}

impl Engine {
    /// Ends the engine: refuses new operations, withdraws what has not been issued, waits for the
    /// rest, and lets its threads end.
    ///
    /// Takes as long as the slowest I/O in flight, at most
    /// [`quiet_limit`](crate::Config::quiet_limit) after the last sign of life, plus the drops of
    /// buffers that other code owns. Stopped operations resolve to
    /// [`ShuttingDown`](crate::ErrorKind::ShuttingDown).
    ///
    /// Begins with the first poll. Dropping the future does not take it back. Several calls give
    /// the same report.
    #[must_use = "a shutdown begins with the first poll"]
    pub fn shutdown(&self) -> impl Future<Output = ShutdownReport> + Send + 'static {
        shutdown(Arc::clone(&self.shared))
    }
}

async fn shutdown(shared: Arc<Shared>) -> ShutdownReport {
    if shared.is_forked() {
        return ShutdownReport {
            drained: 0,
            withdrawn: 0,
            quarantined: 0,
            lost_writes: Vec::new(),
        };
    }
    shared.closing.bells.note_shutdown();
    shared.core.close_admission();
    shared.closing.bells.ask_stop();
    let (core, lost_writes) = (Arc::clone(&shared.core), Arc::clone(&shared.lost_writes));
    let mut ended = shared.ended.clone();
    // It has begun: forgotten, it shall not keep the engine.
    drop(shared);
    // The disposer's end, so that what the last orphans lost is in the report. An error says that
    // its end of the channel is gone, and with it the disposer.
    drop(ended.wait_for(|&ended| ended).await);
    // Ready by now: the core would keep the waker of a future that is dropped.
    let drained = poll_fn(|cx| core.poll_drained(cx)).await;
    let report = ShutdownReport {
        drained: drained.drained,
        withdrawn: drained.withdrawn,
        quarantined: drained.quarantined,
        lost_writes: lost_writes.all(),
    };
    tracing::info!(
        drained = report.drained,
        withdrawn = report.withdrawn,
        quarantined = report.quarantined,
        lost_writes = report.lost_writes.len(),
        "engine shut down"
    );
    report
}
