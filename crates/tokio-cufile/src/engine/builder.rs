//! From settings to a running engine.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use completion::{Limit, Limits};
use tokio::sync::{oneshot, watch};

use super::clock::Clock;
use super::host::{Host, LostWrites};
use super::model::Core;
use super::threads::{self, Bells};
use super::{Engine, Shared};
use crate::compat::Pool;
use crate::config::{CacheMode, CompatMode, Config, IoEngine};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::memory::{EngineId, Prefault, SlotArena};
use crate::plan::route::Asked;
use crate::stats::Counters;

/// Of the budget, the part that only urgent operations may take: one in so many.
const URGENT_SHARE: usize = 8;

/// Settings of an engine to be built. Each setter is a field of [`Config`], described there.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct EngineBuilder {
    config: Config,
}

impl EngineBuilder {
    pub(super) const fn new(config: Config) -> Self {
        Self { config }
    }

    /// Takes all settings at once.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// See [`Config::compat_mode`].
    pub const fn compat_mode(mut self, compat_mode: CompatMode) -> Self {
        self.config.compat_mode = compat_mode;
        self
    }

    /// See [`Config::io`].
    pub const fn io(mut self, io: IoEngine) -> Self {
        self.config.io = io;
        self
    }

    /// See [`Config::cache`].
    pub const fn cache(mut self, cache: CacheMode) -> Self {
        self.config.cache = cache;
        self
    }

    /// See [`Config::task_size`].
    pub const fn task_size(mut self, bytes: usize) -> Self {
        self.config.task_size = bytes;
        self
    }

    /// See [`Config::num_threads`].
    pub const fn num_threads(mut self, threads: usize) -> Self {
        self.config.num_threads = threads;
        self
    }

    /// See [`Config::bounce_buffer_size`].
    pub const fn bounce_buffer_size(mut self, bytes: usize) -> Self {
        self.config.bounce_buffer_size = bytes;
        self
    }

    /// See [`Config::budget`].
    pub const fn budget(mut self, bytes: usize) -> Self {
        self.config.budget = bytes;
        self
    }

    /// See [`Config::queued_operations_max`].
    pub const fn queued_operations_max(mut self, operations: usize) -> Self {
        self.config.queued_operations_max = operations;
        self
    }

    /// See [`Config::quiet_limit`].
    pub const fn quiet_limit(mut self, limit: Duration) -> Self {
        self.config.quiet_limit = limit;
        self
    }

    /// Builds the engine on a thread of its own, so that the caller's is not held up.
    ///
    /// # Errors
    ///
    /// As [`build_blocking`](Self::build_blocking).
    ///
    /// # Cancellation
    ///
    /// Dropped, the engine is built and ended in the background.
    pub async fn build(self) -> Result<Engine> {
        let (answer, built) = oneshot::channel();
        let build = move || {
            // Nobody waits any more: the engine ends here.
            drop(answer.send(self.build_blocking()));
        };
        let spawned = thread::Builder::new()
            .name("cufile-build".to_owned())
            .spawn(build);
        spawned.map_err(|error| {
            Error::new(
                ErrorKind::OutOfMemory,
                format!("thread cufile-build: {error}"),
            )
            .with_operation(Operation::Build)
            .with_source(error)
        })?;
        built.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Io, "the building thread panicked")
                .with_operation(Operation::Build))
        })
    }

    /// Builds the engine on the calling thread: starts its threads and maps its slots.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for settings that cannot be, `Unsupported` for a backend that this build does
    /// not have, `OutOfMemory` when threads or memory are refused.
    pub fn build_blocking(self) -> Result<Engine> {
        let config = self.config;
        let invalid = |error: Error| error.with_operation(Operation::Build);
        config.check().map_err(invalid)?;
        let asked = Asked {
            compat_mode: config.compat_mode,
            io: config.io,
            cache: config.cache,
        };
        asked.check().map_err(|refusal| invalid(refusal.into()))?;

        let slot_count = slot_count(&config);
        // Touched when used: an engine whose buffers are aligned never needs them.
        let slots = SlotArena::new(slot_count, config.bounce_buffer_size, Prefault::OnTouch)?;
        let counters = Arc::new(Counters::default());
        let clock = Clock::new();
        let bells = Arc::new(Bells::default());
        let lost_writes = Arc::new(LostWrites::default());
        let host = Host {
            pool: Pool::start(config.num_threads, &Arc::new(slots), &counters)?,
            clock,
            bells: Arc::clone(&bells),
            lost_writes: Arc::clone(&lost_writes),
        };
        let core = Core::new(limits(&config, slot_count), Box::new(host));
        let (ended, has_ended) = watch::channel(false);
        threads::start(&core, &bells, clock, ended)?;
        tracing::info!(?config, slot_count, "engine built");
        let shared = Shared {
            id: EngineId::unique(),
            config,
            core,
            lost_writes,
            clock,
            bells,
            counters,
            ended: has_ended,
            process: std::process::id(),
        };
        Ok(Engine {
            shared: Arc::new(shared),
        })
    }
}

/// A slot for each thread, where the budget holds as many.
fn slot_count(config: &Config) -> usize {
    let affordable = config.budget / config.bounce_buffer_size;
    config.num_threads.min(affordable).max(1)
}

fn limits(config: &Config, slot_count: usize) -> Limits {
    let part_max = config.task_size.max(config.bounce_buffer_size);
    let share = |all: usize| match all {
        0 | 1 => 0,
        _ => (all / URGENT_SHARE).max(1),
    };
    let limit = |capacity: usize| Limit {
        capacity: capacity as u64,
        reserve: share(capacity) as u64,
    };
    // Whatever is reserved, the largest part of another class must fit beside it.
    let bytes_reserve = share(config.budget).min(config.budget - part_max);
    Limits {
        bytes: Limit {
            capacity: config.budget as u64,
            reserve: bytes_reserve as u64,
        },
        parts: limit(config.num_threads),
        slots: limit(slot_count),
        workers: limit(config.num_threads),
        queued_max: config.queued_operations_max,
        quiet_limit: config.quiet_limit,
    }
}
