//! From settings to a running engine.

use std::borrow::Cow;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use completion::{Limit, Limits};
use tokio::sync::{oneshot, watch};

use super::clock::Clock;
use super::host::{Host, LostWrites, Machinery};
use super::model::Core;
use super::threads::{self, Bells};
use super::{Closing, Engine, Shared};
use crate::compat::{Devices, Executors, Pool, Ring, RingConfig};
use crate::config::{CacheMode, CompatMode, Config, CuFileConfig, IoEngine};
use crate::cufile::Cufile;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::memory::{EngineId, Prefault, ProcessMark, SlotArena, SlotLayout};
use crate::plan::route::{Asked, RingFacts};
use crate::stats::Counters;

/// Of the budget, the part that only urgent operations may take: one in so many.
const URGENT_SHARE: usize = 8;

/// What is kept for urgent operations, of so much.
const fn urgent_share(all: usize) -> usize {
    match all {
        0 | 1 => 0,
        2..URGENT_SHARE => 1,
        _ => all / URGENT_SHARE,
    }
}

/// Threads of a pool: what was asked for is for all operations, and those kept for urgent ones come on
/// top, since a thread that waits costs next to nothing and one that is missing costs its share of the
/// speed.
const fn threads(config: &Config) -> usize {
    config.num_threads + urgent_share(config.num_threads)
}

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

    /// See [`Config::cufile`].
    pub fn cufile(mut self, cufile: CuFileConfig) -> Self {
        self.config.cufile = cufile;
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

    /// See [`Config::queue_depth`].
    pub const fn queue_depth(mut self, parts: usize) -> Self {
        self.config.queue_depth = parts;
        self
    }

    /// See [`Config::spin_limit`].
    pub const fn spin_limit(mut self, limit: Duration) -> Self {
        self.config.spin_limit = limit;
        self
    }

    /// See [`Config::registered_buffers`].
    pub const fn registered_buffers(mut self, registered: bool) -> Self {
        self.config.registered_buffers = registered;
        self
    }

    /// See [`Config::copy_threads`].
    pub const fn copy_threads(mut self, copy_threads: bool) -> Self {
        self.config.copy_threads = copy_threads;
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
    /// `InvalidInput` for settings that cannot be, `Unsupported` where io_uring is asked for and not
    /// permitted, `OutOfMemory` when threads or memory are refused.
    pub fn build_blocking(self) -> Result<Engine> {
        let config = self.config;
        let invalid = |error: Error| error.with_operation(Operation::Build);
        config.check().map_err(invalid)?;
        let asked = Asked {
            compat_mode: config.compat_mode,
            io: config.io,
            cache: config.cache,
        };
        let (slots, layout) = map_slots(&config)?;
        let counters = Arc::new(Counters::default());
        let ring = start_ring(&config, &slots, &counters);
        let ring_facts = match &ring {
            Ok(_) => RingFacts::Running,
            Err(reason) => RingFacts::Off(reason.clone()),
        };
        asked
            .check(&ring_facts)
            .map_err(|refusal| invalid(refusal.into()))?;

        let clock = Clock::new();
        let bells = Arc::new(Bells::default());
        let lost_writes = Arc::new(LostWrites::default());
        let limits = limits(&config, layout, ring.is_ok());
        let cufile = Cufile::new(&config.cufile, threads(&config), &counters);
        let cufile = Arc::new(cufile);
        let executors = Arc::new(Executors {
            pool: Pool::start(threads(&config), &slots, &counters)?,
            ring: ring.ok(),
            cufile: Arc::clone(&cufile),
        });
        let devices = Arc::new(Devices::new(&executors, &slots, &counters));
        let machinery = Arc::new(Machinery {
            executors: Arc::clone(&executors),
            devices: Arc::clone(&devices),
        });
        let host = Host {
            machinery: Arc::downgrade(&machinery),
            clock,
            bells: Arc::clone(&bells),
            lost_writes: Arc::clone(&lost_writes),
        };
        let core = Core::new(limits, Box::new(host));
        let (ended, has_ended) = watch::channel(false);
        threads::start(&core, &bells, clock, ended, &machinery)?;
        tracing::info!(?config, ?layout, ring = ?ring_facts, "engine built");
        let mark = Arc::new(ProcessMark::new());
        let shared = Shared {
            id: EngineId::unique(),
            config,
            core,
            lost_writes,
            ring: ring_facts,
            executors,
            devices,
            slots: layout,
            clock,
            closing: Closing {
                bells,
                mark: Arc::clone(&mark),
            },
            counters,
            ended: has_ended,
            mark,
        };
        Ok(Engine {
            shared: Arc::new(shared),
        })
    }
}

fn map_slots(config: &Config) -> Result<(Arc<SlotArena>, SlotLayout)> {
    // Touched when used, unless registered: an engine whose buffers are aligned never needs them.
    let prefault = if config.registered_buffers {
        Prefault::Now
    } else {
        Prefault::OnTouch
    };
    let parts_max = parts_max(config, true);
    let layout = SlotLayout::new(config.budget, config.bounce_buffer_size, parts_max);
    Ok((Arc::new(SlotArena::new(layout, prefault)?), layout))
}

/// The ring, or why there is none.
fn start_ring(
    config: &Config,
    slots: &Arc<SlotArena>,
    counters: &Arc<Counters>,
) -> Result<Ring, Cow<'static, str>> {
    if config.io == IoEngine::Pool {
        return Err("the pool was asked for".into());
    }
    let depth = u32::try_from(parts_max(config, true)).map_err(|_| "too deep")?;
    let ring_config = RingConfig {
        depth,
        spin: config.spin_limit,
        registered_buffers: config.registered_buffers,
        copy_threads: config.copy_threads,
    };
    let ring = Ring::start(ring_config, slots, counters).map_err(|reason| {
        tracing::warn!(%reason, "no io_uring");
        Cow::from(reason)
    })?;
    for note in &ring.notes {
        tracing::info!(%note, "io_uring");
    }
    Ok(ring)
}

/// Parts in flight in all executors together.
const fn parts_max(config: &Config, ring: bool) -> usize {
    threads(config) + ring_depth(config, ring)
}

const fn ring_depth(config: &Config, ring: bool) -> usize {
    if ring { config.queue_depth } else { 0 }
}

fn limits(config: &Config, layout: SlotLayout, ring: bool) -> Limits {
    let part_max = config.task_size.max(config.bounce_buffer_size);
    let limit = |capacity: usize, reserve: usize| Limit {
        capacity: capacity as u64,
        reserve: reserve as u64,
    };
    // Whatever is reserved, the largest part of another class must fit beside it.
    let urgent_bytes = urgent_share(config.budget).min(config.budget - part_max);
    let urgent_threads = urgent_share(config.num_threads);
    let urgent_parts = urgent_threads + urgent_share(ring_depth(config, ring));
    Limits {
        bytes: limit(config.budget, urgent_bytes),
        parts: limit(parts_max(config, ring), urgent_parts),
        slots: limit(layout.large, urgent_share(layout.large)),
        small_slots: limit(layout.small, urgent_share(layout.small)),
        workers: limit(threads(config), urgent_threads),
        queued_max: config.queued_operations_max,
        quiet_limit: config.quiet_limit,
    }
}
