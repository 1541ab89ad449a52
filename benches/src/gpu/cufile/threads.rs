//! Threads that block in `cuFileRead` or `cuFileWrite`, block by block.
#![allow(unsafe_code, reason = "cuFile's calls name memory by address")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use measure::report::Sample;
use measure::usage::Window;

use super::target::{Target, Way};
use crate::Result;
use crate::contest::Runner;

/// So many of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Threads(pub(super) usize);

impl Way for Threads {
    fn ready(&self, target: Target) -> Result<Box<dyn Runner>> {
        // SAFETY: nothing else runs.
        unsafe { target.call(0) }?;
        Ok(Box::new(Field {
            target,
            threads: self.0,
        }))
    }
}

struct Field {
    target: Target,
    threads: usize,
}

impl Field {
    fn work(&self, next: &AtomicUsize, start: &Barrier) -> Result<()> {
        let bound = self.target.session.bind();
        start.wait();
        bound?;
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= self.target.blocks() {
                return Ok(());
            }
            // SAFETY: the counter gives each block once.
            unsafe { self.target.call(index) }?;
        }
    }
}

impl Runner for Field {
    fn run(&mut self, _round: u64) -> Result<Sample> {
        let (next, start) = (AtomicUsize::new(0), Barrier::new(self.threads + 1));
        let field = &*self;
        let usage = thread::scope(|scope| {
            let threads: Vec<_> = (0..field.threads)
                .map(|_| scope.spawn(|| field.work(&next, &start)))
                .collect();
            let window = Window::open();
            start.wait();
            for thread in threads {
                thread.join().map_err(|_| "a thread panicked")??;
            }
            field.target.sync()?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(window.close())
        })?;
        Ok(self.target.sample(usage))
    }

    fn check(&mut self) -> Result<()> {
        self.target.check()
    }
}
