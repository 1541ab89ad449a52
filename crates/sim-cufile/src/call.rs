//! What every call does before its own part: is the simulation asked for, and is it to go wrong.

use crate::code::{Result, Status};
use crate::cuda;
use crate::entry::Entry;
use crate::faults::Spoiled;
use crate::faults::script::{Place, Subject};
use crate::state::{self, Inside, State};

/// A call that tells how it ended by a status.
pub(crate) fn status(entry: Entry, run: impl FnOnce(&'static State) -> Result) -> Status {
    about(entry, None, run)
}

/// The same, of a call that is about a file.
pub(crate) fn about(
    entry: Entry,
    file: Option<&str>,
    run: impl FnOnce(&'static State) -> Result,
) -> Status {
    let _inside = Inside::new(entry);
    Status::of(state::get().and_then(|state| {
        let spoiled = begin(state, entry, file)?;
        let result = run(state);
        match spoiled.result {
            Some(fail) => result.and(Err(fail)),
            None => result,
        }
    }))
}

/// Counts a call, and lets the faults at it.
pub(crate) fn begin(state: &State, entry: Entry, file: Option<&str>) -> Result<Spoiled> {
    state.called(entry);
    let device = cuda::get().and_then(|cuda| cuda.context().ok());
    state
        .faults
        .at(Subject::Call(entry), Place { device, file })
}
