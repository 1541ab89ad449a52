//! The engine's own threads: one for time, one for disposal, and one now and then for what is dropped
//! after their end. None belongs to any runtime.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use completion::Tick;
use tokio::sync::watch;

use super::clock::Clock;
use super::host::Machinery;
use super::model::Core;
use crate::error::{Error, ErrorKind, Operation, Result};

/// Wakes one of the threads. A ring is never lost: it stays until the thread looks.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: Mutex<bool>,
    ringing: Condvar,
}

impl Bell {
    pub(crate) fn ring(&self) {
        *self.lock() = true;
        self.ringing.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until rung, or until `timeout` has passed.
    fn wait(&self, timeout: Option<Duration>) {
        let mut rung = self.lock();
        while !*rung {
            rung = match timeout {
                None => self
                    .ringing
                    .wait(rung)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(timeout) => {
                    let waited = self.ringing.wait_timeout(rung, timeout);
                    let (rung, result) = waited.unwrap_or_else(PoisonError::into_inner);
                    if result.timed_out() {
                        return;
                    }
                    rung
                }
            };
        }
        *rung = false;
    }
}

/// What the threads and those who call them share.
#[derive(Debug, Default)]
pub(crate) struct Bells {
    pub(crate) alarm: Bell,
    pub(crate) disposal: Bell,
    stop_asked: AtomicBool,
    /// Somebody has asked for a shutdown, and the library of cuFile is to be closed.
    shut_down: AtomicBool,
    closed: AtomicBool,
    disposer_ended: AtomicBool,
    late: Late,
}

/// What is disposed of after the disposer's end: what futures leave that outlive their engine.
#[derive(Debug, Default)]
struct Late {
    core: OnceLock<Weak<Core>>,
    /// Calls that the thread has not answered yet. While there are any, there is a thread.
    calls: AtomicUsize,
}

impl Late {
    /// Looks again and again, until nobody has called meanwhile.
    fn serve(&self, core: &Arc<Core>) {
        loop {
            let calls = self.calls.load(Ordering::Acquire);
            dispose(core);
            if self.calls.fetch_sub(calls, Ordering::AcqRel) == calls {
                return;
            }
        }
    }
}

impl Bells {
    /// The end that is near is a shutdown's. To be said before nothing more is admitted: an engine at
    /// rest ends then.
    pub(crate) fn note_shutdown(&self) {
        self.shut_down.store(true, Ordering::Release);
    }

    /// Has the alarm thread stop every live operation: with a million queued that takes longer
    /// than a poll may.
    pub(crate) fn ask_stop(&self) {
        self.stop_asked.store(true, Ordering::Release);
        self.alarm.ring();
    }

    pub(crate) fn ring_all(&self) {
        self.alarm.ring();
        self.disposal.ring();
    }

    /// The last handle is gone: nobody will add anything that is not yet live.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.ring_all();
    }

    /// Has what waits for disposal disposed of: by the disposer, or by a thread of its own after the
    /// disposer's end. Nothing is missed: what waits was put there, under the core's lock, before this
    /// call, and the disposer looks, under that lock, after it has said that it ends.
    pub(super) fn ring_disposer(self: &Arc<Self>) {
        self.disposal.ring();
        if self.disposer_ended.load(Ordering::Acquire) {
            self.dispose_late();
        }
    }

    /// One thread at a time, as long as what it drops may take: other people's code.
    fn dispose_late(self: &Arc<Self>) {
        let Some(core) = self.late.core.get().and_then(Weak::upgrade) else {
            return;
        };
        if self.late.calls.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let bells = Arc::clone(self);
        let late = thread::Builder::new().name("cufile-disposer".to_owned());
        if let Err(error) = late.spawn(move || bells.late.serve(&core)) {
            // It waits for the next one, or for the last that has a share of the core.
            tracing::debug!(%error, "no thread for a late drop");
            self.late.calls.store(0, Ordering::Release);
        }
    }

    /// The alarm may end, and what waits for disposal from now on has a thread of its own.
    fn note_disposer_ended(&self) {
        self.disposer_ended.store(true, Ordering::Release);
        self.alarm.ring();
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// Starts both threads. They end when the last handle is gone and everything has settled; `ended`
/// is set when everything has settled after a shutdown.
pub(super) fn start(
    core: &Arc<Core>,
    bells: &Arc<Bells>,
    clock: Clock,
    ended: watch::Sender<bool>,
    machinery: &Arc<Machinery>,
) -> Result<()> {
    let weak = Arc::downgrade(core);
    let is_first = bells.late.core.set(weak).is_ok();
    debug_assert!(is_first, "an engine's threads are started once");
    let (on_alarm, on_disposal) = (Arc::clone(core), Arc::clone(core));
    let (alarm_bells, disposal_bells) = (Arc::clone(bells), Arc::clone(bells));
    let machinery = Arc::clone(machinery);
    spawn("cufile-alarm", move || {
        run_alarm(&on_alarm, &alarm_bells, clock)
    })?;
    let disposer = spawn("cufile-disposer", move || {
        run_disposer(&on_disposal, &disposal_bells, &ended, &machinery)
    });
    if disposer.is_err() {
        core.close_admission();
        bells.note_disposer_ended();
    }
    disposer
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map(drop).map_err(|error| {
        Error::new(ErrorKind::OutOfMemory, format!("thread {name}: {error}"))
            .with_operation(Operation::Build)
            .with_source(error)
    })
}

fn run_alarm(core: &Arc<Core>, bells: &Bells, clock: Clock) {
    while !bells.disposer_ended.load(Ordering::Acquire) {
        if bells.stop_asked.swap(false, Ordering::AcqRel) {
            core.stop_all();
        }
        let next = core.fire();
        let timeout = next.map(|Tick(at)| {
            let Tick(now) = clock.now();
            Duration::from_nanos(at.saturating_sub(now))
        });
        bells.alarm.wait(timeout);
    }
}

fn run_disposer(
    core: &Arc<Core>,
    bells: &Bells,
    ended: &watch::Sender<bool>,
    machinery: &Machinery,
) {
    loop {
        // Before the rest: what the last handle left behind is in the queue by the time it is closed.
        let closed = bells.is_closed();
        dispose(core);
        if core.is_finished() {
            if bells.shut_down.load(Ordering::Acquire) {
                // A shutdown, whoever still waits for it; where there is none, the library stays open.
                let is_quiet = core.census().quarantined_operations == 0;
                machinery.executors.cufile.end(is_quiet);
            }
            ended.send_replace(true);
            if closed {
                break;
            }
        }
        bells.disposal.wait(None);
    }
    // `Host::drained` stops them as well, but may come when they are gone.
    machinery.stop();
    bells.note_disposer_ended();
    // Of those that have not seen that it ends: see `ring_disposer`.
    dispose(core);
}

fn dispose(core: &Arc<Core>) {
    let disposed = core.dispose();
    if disposed.panics > 0 {
        tracing::error!(panics = disposed.panics, "dropping a buffer panicked");
    }
}
