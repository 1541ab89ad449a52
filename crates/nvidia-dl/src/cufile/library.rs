//! The table of one loaded libcufile, and how it comes to be.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::decode::{Failure, decode_status};
use super::error::CufileError;
use super::symbols::Symbols;
use super::types::Status;
use crate::load::{self, LoadError, Search};

/// The calls of a libcufile that was found. It stays loaded until the process ends.
///
/// One for each library in a process, however often and under however many names it is loaded. All
/// threads may use it at once.
pub struct Library {
    pub(super) symbols: Symbols,
    path: PathBuf,
}

/// Every library that was loaded: one, or a few where tests name others.
static LOADED: Mutex<Vec<&'static Library>> = Mutex::new(Vec::new());

impl Library {
    /// Finds the library and its functions. Calls none of them.
    ///
    /// The first name that opens decides; a later one is not tried when that library lacks a
    /// required symbol.
    ///
    /// # Errors
    ///
    /// [`LoadError::NotFound`] where no name leads to a library, and [`LoadError::MissingSymbol`].
    pub fn load(search: &Search) -> Result<&'static Self, LoadError> {
        let library = load::Library::open(search)?;
        let (symbols, path) = Symbols::find(&library)?;
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let known = loaded
            .iter()
            .find(|known| known.symbols.id() == symbols.id());
        if let Some(library) = known {
            return Ok(library);
        }
        let library: &'static Self = Box::leak(Box::new(Self { symbols, path }));
        loaded.push(library);
        Ok(library)
    }

    /// A table without a library.
    #[cfg(test)]
    pub(super) fn of(symbols: Symbols) -> Self {
        Self {
            symbols,
            path: PathBuf::from("a table of a test"),
        }
    }

    /// The file that the library was loaded from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The [optional symbols](super::OPTIONAL_SYMBOLS) that this library lacks.
    #[must_use]
    pub fn missing_symbols(&self) -> Vec<&'static str> {
        self.symbols.missing()
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library")
            .field("path", &self.path)
            .field("missing_symbols", &self.missing_symbols())
            .finish_non_exhaustive()
    }
}

/// A status as the result of the call that returned it.
pub(super) fn check(call: &'static str, status: Status) -> Result<(), CufileError> {
    named(call, decode_status(status))
}

pub(super) fn named<T>(call: &'static str, result: Result<T, Failure>) -> Result<T, CufileError> {
    result.map_err(|failure| CufileError::failed(call, failure))
}

/// An optional function, or the error that names it.
pub(super) fn present<F>(function: Option<F>, symbol: &'static str) -> Result<F, CufileError> {
    function.ok_or_else(|| CufileError::unsupported(symbol))
}
