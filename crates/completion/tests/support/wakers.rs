//! Wakers that a test can watch, and waiting for one.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

#[cfg(completion_loom)]
use loom::thread::{self, Thread};
#[cfg(completion_shuttle)]
use shuttle::thread::{self, Thread};
#[cfg(not(any(completion_loom, completion_shuttle)))]
use std::thread::{self, Thread};

use tokio_cufile_completion::{Domain, Handle, PayloadState, PayloadWatch, Settlement};

/// Counts its wakes.
#[derive(Default)]
pub(crate) struct Counter(AtomicUsize);

impl Counter {
    pub(crate) fn new() -> (Arc<Self>, Waker) {
        let counter = Arc::new(Self::default());
        let waker = Waker::from(Arc::clone(&counter));
        (counter, waker)
    }

    pub(crate) fn wakes(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Runs something on every wake, in the waker's own call.
pub(crate) struct Inline<F>(F);

impl<F: Fn() + Send + Sync + 'static> Inline<F> {
    pub(crate) fn waker(on_wake: F) -> Waker {
        Waker::from(Arc::new(Self(on_wake)))
    }
}

impl<F: Fn() + Send + Sync + 'static> Wake for Inline<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits on the current thread. A lost wake-up is a deadlock, which the model checkers report.
pub(crate) fn wait<D: Domain, T: Send + 'static>(mut handle: Handle<D, T>) -> Settlement<D, T> {
    block_on(poll_fn(move |cx| handle.poll_settled(cx)))
}

/// Waits until the payload is free, or lost.
pub(crate) fn wait_free<D: Domain>(watch: &PayloadWatch<D>) -> PayloadState {
    block_on(poll_fn(|cx| watch.poll_free(cx)))
}

pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        thread::park();
    }
}
