//! Random operations with faults, whose futures are awaited, cancelled, late or dropped at any
//! point; every byte is accounted for, and the memory is watched after it was given back.
//!
//! `docs/reliability.md` says what it proves and how to run it: `cargo xtask stress`.

mod acts;
mod arena;
pub mod args;
mod content;
mod controls;
mod counts;
mod cuda;
mod devices;
mod end;
mod fate;
mod field;
mod fly;
mod footprint;
mod foreign;
mod hardware;
mod library;
mod model;
mod outcome;
mod pulse;
mod reads;
mod rounds;
mod run;
mod slow;
mod staged;
mod streams;
mod threads;
mod writers;
mod writes;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use self::counts::{Counts, Fault, Harm, Point};
pub use self::run::run;

/// What executes the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The completion model, with simulated hardware in this process.
    Model,
    /// The engine, on its ring where there is one.
    Compat,
    /// The engine, on its pool.
    Pool,
    /// The engine, by cuFile for all that this takes.
    Cufile,
    /// The same, by cuFile's stream calls where it can.
    CufileStreams,
}

impl Backend {
    const fn is_cufile(self) -> bool {
        matches!(self, Self::Cufile | Self::CufileStreams)
    }
}

/// Whose memory is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The host's.
    Host,
    /// The host's, and that of simulated devices.
    Sim,
    /// The host's, and that of the first device of the driver that the loader finds, whichever it is.
    Cuda,
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
