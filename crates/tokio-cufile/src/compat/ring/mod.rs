//! The executor on io_uring: one thread, one ring, many parts in flight.
//!
//! The thread is a plain one that no runtime owns. It owns every part that the kernel knows of
//! until the part's own completion has been seen (I3), and the ring outlives them all: closing a
//! ring does not wait for what is in flight.

mod copies;
mod driver;
mod inbox;
mod probe;
mod table;
mod throttle;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use completion::IssuedPart;
use crossbeam_channel::bounded;

use self::driver::Driver;
use self::inbox::Inbox;
use super::devices::Staged;
use super::job::Job;
use crate::engine::Model;
use crate::memory::SlotArena;
use crate::os::StdioPlaces;
use crate::stats::Counters;

/// How long the ring may take to come up and to serve its first read.
const START_LIMIT: Duration = Duration::from_secs(5);

/// What a ring is built with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingConfig {
    /// Parts in flight at most.
    pub(crate) depth: u32,
    /// How long the thread looks for the next event before it sleeps, after a small part.
    pub(crate) spin: Duration,
    /// Whether the slots are registered with the ring.
    pub(crate) registered_buffers: bool,
    /// Whether each device has a thread for its copies, or this one issues them.
    pub(crate) copy_threads: bool,
}

/// The way to the ring thread.
#[derive(Debug)]
pub(crate) struct Ring {
    inbox: Arc<Inbox>,
    /// What did not work out, in one line each; for reports.
    pub(crate) notes: Vec<String>,
}

impl Ring {
    /// Starts the thread, builds its ring on it and reads through it once.
    ///
    /// # Errors
    ///
    /// Why there is no ring, for people: it is refused, or does not answer in time. Nothing else
    /// of the engine depends on it.
    pub(crate) fn start(
        config: RingConfig,
        slots: &Arc<SlotArena>,
        counters: &Arc<Counters>,
    ) -> Result<Self, String> {
        // Ring and bell must not become the process's standard output.
        let _places =
            StdioPlaces::take().map_err(|error| format!("no descriptor left: {error}"))?;
        let inbox = Inbox::new(config.depth as usize)
            .map_err(|error| format!("no eventfd to wake it by: {error}"))?;
        let inbox = Arc::new(inbox);
        let (answer, started) = bounded(1);
        let (its_inbox, slots, counters) =
            (Arc::clone(&inbox), Arc::clone(slots), Arc::clone(counters));
        let run = move || match Driver::start(config, its_inbox, slots, counters) {
            Ok((driver, notes)) => {
                // Nobody waits any more: it was given up for being late.
                if answer.send(Ok(notes)).is_ok() {
                    driver.run();
                }
            }
            Err(reason) => drop(answer.send(Err(reason))),
        };
        let spawned = thread::Builder::new()
            .name("cufile-ring".to_owned())
            .spawn(run);
        spawned.map_err(|error| format!("no thread for it: {error}"))?;
        match started.recv_timeout(START_LIMIT) {
            Ok(Ok(notes)) => Ok(Self { inbox, notes }),
            Ok(Err(reason)) => Err(reason),
            Err(_) => {
                // Should it have come up just now: nobody else would end it.
                inbox.close();
                Err(format!("it did not come up in {START_LIMIT:?}"))
            }
        }
    }

    /// Hands a part to the ring thread. Never blocks.
    pub(crate) fn submit(&self, part: IssuedPart<Model>) {
        self.inbox.push(Job::Start(part));
    }

    /// Goes on with a part that a device has copied for. Never blocks.
    pub(super) fn resume(&self, staged: Box<Staged>) {
        self.inbox.push(Job::Resume(staged));
    }

    /// Whether it takes parts: not any more when the kernel refused it, or it has ended.
    pub(super) fn serves(&self) -> bool {
        !self.inbox.is_retired()
    }

    /// Lets the thread end when nothing is in flight.
    pub(crate) fn stop(&self) {
        self.inbox.close();
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.stop();
    }
}
