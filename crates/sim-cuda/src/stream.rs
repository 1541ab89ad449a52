//! Streams: each is a thread that does its work in order, late.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::code::{Code, Result};
use crate::context::{Context, Health};
use crate::device::Device;
use crate::stats::add;
use crate::work::Work;
use sim_common::Rng;
use sim_common::monitor::{self, lock};

/// The places that work comes after: a stream, and how far it has to have come.
pub(crate) type After = Vec<(Arc<Stream>, u64)>;

#[derive(Debug)]
pub(crate) struct Stream {
    /// 0 for the default stream.
    pub(crate) handle: usize,
    /// Whether it and the default stream wait for each other.
    pub(crate) blocking: bool,
    device: &'static Device,
    health: Arc<Health>,
    queue: Mutex<Queue>,
    more: Condvar,
    done: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    work: VecDeque<(Work, After)>,
    issued: u64,
    closed: bool,
}

impl Stream {
    pub(crate) fn start(context: &Context, handle: usize, blocking: bool) -> Result<Arc<Self>> {
        let stream = Arc::new(Self {
            handle,
            blocking,
            device: context.device,
            health: Arc::clone(&context.health),
            queue: Mutex::default(),
            more: Condvar::new(),
            done: AtomicU64::new(0),
        });
        let serial = handle & 0xFFFF_FFFF;
        let name = format!("sim-gpu{}-{serial}", context.device.ordinal);
        let runs = Arc::clone(&stream);
        std::thread::Builder::new()
            .name(name)
            .spawn(move || runs.run())
            .map_err(|_| Code::OPERATING_SYSTEM)?;
        Ok(stream)
    }

    /// Puts work at the end, and says how far the stream has come when it is done.
    pub(crate) fn issue(&self, work: Work, after: After) -> u64 {
        let mut queue = lock(&self.queue);
        queue.work.push_back((work, after));
        queue.issued += 1;
        self.more.notify_one();
        queue.issued
    }

    pub(crate) fn issued(&self) -> u64 {
        lock(&self.queue).issued
    }

    pub(crate) fn has_done(&self, ticket: u64) -> bool {
        self.done.load(Ordering::Acquire) >= ticket
    }

    pub(crate) fn query(&self) -> Result {
        if self.has_done(self.issued()) {
            Ok(())
        } else {
            Err(Code::NOT_READY)
        }
    }

    pub(crate) fn wait(&self, ticket: u64) -> Result {
        monitor::wait(|| self.has_done(ticket) || self.health.check().is_err());
        self.health.check()
    }

    pub(crate) fn synchronize(&self) -> Result {
        self.wait(self.issued())
    }

    /// The thread ends after the work that is there.
    pub(crate) fn close(&self) {
        lock(&self.queue).closed = true;
        self.more.notify_one();
    }

    fn run(&self) {
        let mut rng = Rng::new(self.device.seed, self.handle as u64);
        while let Some((work, after)) = self.next() {
            for (stream, ticket) in after {
                monitor::wait(|| stream.has_done(ticket) || self.health.check().is_err());
            }
            Delay::draw(&mut rng).pass();
            self.perform(&work, &mut rng);
            drop(work);
            self.done.fetch_add(1, Ordering::Release);
            monitor::ring();
        }
    }

    fn perform(&self, work: &Work, rng: &mut Rng) {
        let Ok(_at_work) = self.health.begin() else {
            add(&self.device.counters.work_abandoned, 1);
            return;
        };
        if let Err(error) = work.run(self.device, &self.health, rng) {
            self.health.lose(error);
        }
    }

    fn next(&self) -> Option<(Work, After)> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(work) = queue.work.pop_front() {
                return Some(work);
            }
            if queue.closed {
                return None;
            }
            queue = self
                .more
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// How work lets others come first: the seed's choice, so that the order across streams is too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delay {
    None,
    Yields(u64),
    Micros(u64),
}

impl Delay {
    fn draw(rng: &mut Rng) -> Self {
        match rng.below(16) {
            0..8 => Self::None,
            8..13 => Self::Yields(1 + rng.below(4)),
            13..15 => Self::Micros(rng.below(50)),
            _ => Self::Micros(rng.below(400)),
        }
    }

    fn pass(self) {
        match self {
            Self::None => {}
            Self::Yields(times) => (0..times).for_each(|_| std::thread::yield_now()),
            Self::Micros(micros) => monitor::pause(Duration::from_micros(micros)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(seed: u64, stream: u64) -> Vec<Delay> {
        let mut rng = Rng::new(seed, stream);
        (0..100).map(|_| Delay::draw(&mut rng)).collect()
    }

    #[test]
    fn delays_are_the_choice_of_seed_and_stream() {
        let first = delays(1, 1);
        assert_eq!(delays(1, 1), first);
        assert_ne!(delays(2, 1), first);
        assert_ne!(delays(1, 2), first);
        let at_once = first.iter().filter(|delay| **delay == Delay::None);
        assert!((20..80).contains(&at_once.count()), "{first:?}");
    }
}
