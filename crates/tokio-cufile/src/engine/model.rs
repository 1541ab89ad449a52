//! The completion model's types, filled in for file I/O.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use completion::{Domain, Report, WhenQuiet};

use crate::compat::TransferPart;
use crate::cufile::CufilePart;
use crate::error::{Error, Result};
use crate::receipt::{DataPath, PathBytes};

/// Notes kept for one operation; an operation of many parts repeats itself.
const NOTES_MAX: usize = 8;

/// The one domain of this crate.
pub(crate) enum Model {}

pub(crate) type Core = completion::Core<Model>;

impl Domain for Model {
    type Task = Task;
    type Fault = Error;
    type Report = PartReport;
    type Policy = WhenQuiet;
}

/// What a worker executes.
pub(crate) enum Task {
    /// Moves one part of a read or a write. Boxed, since a part changes hands many times.
    Transfer(Box<TransferPart>),
    /// The same, by cuFile.
    Cufile(Box<CufilePart>),
    /// Any other blocking call: open, sync, stat.
    Call(Arc<dyn Call>),
}

/// A blocking call that runs once, on a worker. Its result stays with it.
pub(crate) trait Call: Send + Sync {
    fn run(&self) -> Result<()>;
}

/// What parts did, summed.
#[derive(Debug, Default)]
pub(crate) struct PartReport {
    pub(crate) paths: PathBytes,
    pub(crate) notes: Vec<Cow<'static, str>>,
    pub(crate) retries: u64,
    pub(crate) first_start: Option<Instant>,
    pub(crate) io_time: Duration,
    pub(crate) copy_time: Duration,
}

impl PartReport {
    pub(crate) fn started_at(start: Instant) -> Self {
        Self {
            first_start: Some(start),
            ..Self::default()
        }
    }

    pub(crate) fn moved(&mut self, path: DataPath, bytes: usize) {
        self.paths.add(path, bytes as u64);
    }

    pub(crate) fn note(&mut self, note: Cow<'static, str>) {
        if self.notes.len() < NOTES_MAX && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

impl Report for PartReport {
    fn merge(&mut self, part: Self) {
        self.paths.merge(&part.paths);
        for note in part.notes {
            self.note(note);
        }
        self.retries += part.retries;
        self.first_start = match (self.first_start, part.first_start) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        self.io_time += part.io_time;
        self.copy_time += part.copy_time;
    }
}
