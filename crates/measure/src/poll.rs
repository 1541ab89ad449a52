//! How much CPU time each poll of a future takes.
//!
//! A poll runs on a worker of the user's runtime, and while it runs every other task of that worker
//! waits. The wall clock would also count what other threads took from it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use crate::statistics::Latencies;
use crate::usage::thread_cpu;

/// Collects the CPU times of polls, from any number of futures: first polls, which submit, apart
/// from later ones.
#[derive(Clone, Debug, Default)]
pub struct PollTimes {
    first: Arc<Mutex<Vec<u64>>>,
    later: Arc<Mutex<Vec<u64>>>,
}

impl PollTimes {
    /// Reserves room for so many futures, polled twice each.
    #[must_use]
    pub fn with_capacity(futures: usize) -> Self {
        let list = || Arc::new(Mutex::new(Vec::with_capacity(futures)));
        Self {
            first: list(),
            later: list(),
        }
    }

    /// Times every poll of `future`.
    pub fn time<F: Future>(&self, future: F) -> Timed<F> {
        Timed {
            future: Some(Box::pin(future)),
            times: self.clone(),
            polled: false,
        }
    }

    /// The first poll of every future.
    #[must_use]
    pub fn first(&self) -> Latencies {
        Latencies::new(locked(&self.first).clone())
    }

    /// All other polls.
    #[must_use]
    pub fn later(&self) -> Latencies {
        Latencies::new(locked(&self.later).clone())
    }
}

fn locked(list: &Mutex<Vec<u64>>) -> MutexGuard<'_, Vec<u64>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A future whose polls are timed; the drop of the future, at its end, counts to its last poll.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Timed<F> {
    future: Option<Pin<Box<F>>>,
    times: PollTimes,
    polled: bool,
}

impl<F: Future> Future for Timed<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let timed = self.get_mut();
        let future = timed.future.as_mut();
        let future = future.expect("a future is not polled after its end");
        let before = thread_cpu();
        let poll = future.as_mut().poll(cx);
        if poll.is_ready() {
            timed.future = None;
        }
        let taken = thread_cpu().saturating_sub(before);
        let list = if timed.polled {
            &timed.times.later
        } else {
            &timed.times.first
        };
        timed.polled = true;
        locked(list).push(u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX));
        poll
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_poll_is_counted_with_its_own_cpu_time() {
        let times = PollTimes::default();
        let mut polls = 0;
        let mut future = times.time(std::future::poll_fn(|_| {
            polls += 1;
            let until = thread_cpu() + Duration::from_millis(2) * polls;
            while thread_cpu() < until {}
            if polls == 2 {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        }));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut future).poll(&mut cx).is_pending());
        assert!(Pin::new(&mut future).poll(&mut cx).is_ready());
        let (first, later) = (times.first(), times.later());
        assert_eq!((first.count(), later.count()), (1, 1));
        assert!(first.quantile(0.0).unwrap() >= Duration::from_millis(2));
        assert!(later.quantile(0.0).unwrap() >= Duration::from_millis(4));
    }
}
