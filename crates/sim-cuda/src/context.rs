//! Contexts: which one a thread has, what lives in it, and whether it is lost.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::code::{Code, Result};
use crate::device::Device;
use crate::driver::Driver;
use crate::event::Event;
use crate::stats::add;
use crate::stream::Stream;
use sim_common::monitor::{self, lock};

thread_local! {
    /// The handle that the thread was given; its context may have ended since.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The error that all calls on a context return once it has one, and the work that has begun.
#[derive(Debug, Default)]
pub(crate) struct Health {
    error: AtomicI32,
    at_work: AtomicUsize,
}

/// Work that was begun while the context was well; dropped when it is done.
#[derive(Debug)]
pub(crate) struct AtWork<'a>(&'a Health);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.at_work.fetch_sub(1, Ordering::SeqCst);
        monitor::ring();
    }
}

impl Health {
    /// Begins work, which whoever ends the context then waits for.
    pub(crate) fn begin(&self) -> Result<AtWork<'_>> {
        // Counted before the look, and the end looks at the count after it set the error.
        self.at_work.fetch_add(1, Ordering::SeqCst);
        let work = AtWork(self);
        self.check().map(|()| work)
    }

    /// Waits for the work that was begun. With an error set, no more begins: memory that is freed
    /// after this is not touched again, as a driver sees to when a context ends.
    fn settle(&self) {
        monitor::wait(|| self.at_work.load(Ordering::SeqCst) == 0);
    }

    pub(crate) fn check(&self) -> Result {
        match self.error.load(Ordering::SeqCst) {
            0 => Ok(()),
            error => Err(Code(error)),
        }
    }

    /// The first error stays, and wakes whoever waits for work that will not be done.
    pub(crate) fn lose(&self, error: Code) {
        let (from, to) = (Code::SUCCESS.0, error.0);
        let order = Ordering::SeqCst;
        // An earlier error is kept.
        let _ = self.error.compare_exchange(from, to, order, order);
        monitor::ring();
    }
}

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) handle: usize,
    pub(crate) device: &'static Device,
    pub(crate) health: Arc<Health>,
    streams: Mutex<BTreeMap<usize, Arc<Stream>>>,
    events: Mutex<BTreeMap<usize, Arc<Event>>>,
    default: OnceLock<Result<Arc<Stream>>>,
}

/// Handles of the legacy default stream, and of that of each thread, which is not simulated.
const STREAM_LEGACY: [usize; 2] = [0, 1];
const STREAM_PER_THREAD: usize = 2;

impl Context {
    pub(crate) fn new(device: &'static Device) -> Self {
        Self {
            handle: device.new_handle(),
            device,
            health: Arc::default(),
            streams: Mutex::default(),
            events: Mutex::default(),
            default: OnceLock::new(),
        }
    }

    /// The calling thread's context.
    pub(crate) fn current(driver: &Driver) -> Result<Arc<Self>> {
        match CURRENT.get() {
            0 => Err(Code::INVALID_CONTEXT),
            handle => Self::find(driver, handle).ok_or(Code::CONTEXT_IS_DESTROYED),
        }
    }

    pub(crate) fn find(driver: &Driver, handle: usize) -> Option<Arc<Self>> {
        let context = driver.device_of_handle(handle)?.context()?;
        (context.handle == handle).then_some(context)
    }

    pub(crate) fn set_current(handle: usize) {
        CURRENT.set(handle);
    }

    pub(crate) fn current_handle() -> usize {
        CURRENT.get()
    }

    pub(crate) fn new_stream(&self, blocking: bool) -> Result<usize> {
        let stream = Stream::start(self, self.device.new_handle(), blocking)?;
        let handle = stream.handle;
        lock(&self.streams).insert(handle, stream);
        Ok(handle)
    }

    /// A stream of this context. One that was destroyed, or is another context's, is no handle: a
    /// real driver would follow a stale pointer.
    pub(crate) fn stream(&self, handle: usize) -> Result<Arc<Stream>> {
        if STREAM_LEGACY.contains(&handle) {
            return self.default_stream();
        }
        if handle == STREAM_PER_THREAD {
            return Err(Code::NOT_SUPPORTED);
        }
        let found = lock(&self.streams).get(&handle).cloned();
        found.ok_or_else(|| self.stale())
    }

    pub(crate) fn default_stream(&self) -> Result<Arc<Stream>> {
        let start = || Stream::start(self, 0, true);
        self.default.get_or_init(start).clone()
    }

    /// What is in it is still done.
    pub(crate) fn destroy_stream(&self, handle: usize) -> Result {
        let found = lock(&self.streams).remove(&handle);
        found.ok_or_else(|| self.stale())?.close();
        Ok(())
    }

    /// Where each stream has been issued to that new work in `stream` comes after: the default
    /// stream and those that do not opt out of it wait for each other.
    pub(crate) fn implied_order(&self, stream: &Stream) -> Vec<(Arc<Stream>, u64)> {
        let issued = |stream: &Arc<Stream>| (Arc::clone(stream), stream.issued());
        if !stream.blocking {
            return Vec::new();
        }
        if stream.handle != 0 {
            let default = self.default.get().and_then(|made| made.as_ref().ok());
            return default.iter().map(|stream| issued(stream)).collect();
        }
        let streams = lock(&self.streams);
        let blocking = streams.values().filter(|stream| stream.blocking);
        blocking.map(issued).collect()
    }

    /// Waits for everything that was issued.
    pub(crate) fn synchronize(&self) -> Result {
        let mut streams: Vec<_> = lock(&self.streams).values().cloned().collect();
        if let Some(Ok(default)) = self.default.get() {
            streams.push(Arc::clone(default));
        }
        for stream in streams {
            stream.synchronize()?;
        }
        Ok(())
    }

    pub(crate) fn new_event(&self) -> usize {
        let event = Arc::new(Event::new(self.device.new_handle()));
        let handle = event.handle;
        lock(&self.events).insert(handle, event);
        handle
    }

    pub(crate) fn event(&self, handle: usize) -> Result<Arc<Event>> {
        let found = lock(&self.events).get(&handle).cloned();
        found.ok_or_else(|| self.stale())
    }

    pub(crate) fn destroy_event(&self, handle: usize) -> Result {
        let found = lock(&self.events).remove(&handle);
        found.map(drop).ok_or_else(|| self.stale())
    }

    /// Numbers of streams and events.
    pub(crate) fn live(&self) -> (usize, usize) {
        (lock(&self.streams).len(), lock(&self.events).len())
    }

    /// Work that has not begun is never done; what has is waited for.
    pub(crate) fn end(&self) {
        self.health.lose(Code::CONTEXT_IS_DESTROYED);
        let streams = std::mem::take(&mut *lock(&self.streams));
        for stream in streams.values() {
            stream.close();
        }
        if let Some(Ok(default)) = self.default.get() {
            default.close();
        }
        self.health.settle();
        lock(&self.events).clear();
    }

    fn stale(&self) -> Code {
        add(&self.device.counters.stale_handles, 1);
        Code::INVALID_HANDLE
    }
}
