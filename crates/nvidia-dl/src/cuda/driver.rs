//! The table of one loaded driver, and how it comes to be.
//!
//! Unsafe, because the driver's words for a code come as pointers.
#![allow(
    unsafe_code,
    reason = "the driver gives names of codes by pointer, and its calls are foreign"
)]

use std::ffi::{CStr, c_char};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use super::error::{CudaError, Words};
use super::result::CuResult;
use super::symbols::Symbols;
use crate::load::{Library, LoadError, Search};

/// The calls of a driver library that was found. It stays loaded until the process ends.
///
/// One for each library in a process, however often and under however many names it is loaded. All
/// threads may use it at once.
pub struct Driver {
    pub(super) symbols: Symbols,
    library: PathBuf,
}

/// Every driver that was loaded: one, or a few where tests name others.
static LOADED: Mutex<Vec<&'static Driver>> = Mutex::new(Vec::new());

impl Driver {
    /// Finds the library and its functions. Calls none of them: see [`init`](Self::init).
    ///
    /// The first name that opens decides; a later one is not tried when that library lacks a
    /// symbol.
    ///
    /// # Errors
    ///
    /// [`LoadError::NotFound`] where no name leads to a library, which is what machines without a
    /// GPU say, and [`LoadError::MissingSymbol`].
    pub fn load(search: &Search) -> Result<&'static Self, LoadError> {
        let library = Library::open(search)?;
        let (symbols, path) = Symbols::find(&library)?;
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let known = loaded
            .iter()
            .find(|known| known.symbols.id() == symbols.id());
        if let Some(driver) = known {
            return Ok(driver);
        }
        let driver: &'static Self = Box::leak(Box::new(Self {
            symbols,
            library: path,
        }));
        loaded.push(driver);
        Ok(driver)
    }

    /// A driver without a library.
    #[cfg(test)]
    pub(super) fn of(symbols: Symbols) -> Self {
        Self {
            symbols,
            library: PathBuf::from("a table of a test"),
        }
    }

    /// The file that the driver was loaded from.
    #[must_use]
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// The [optional symbols](super::OPTIONAL_SYMBOLS) that this driver lacks.
    #[must_use]
    pub fn missing_symbols(&self) -> Vec<&'static str> {
        self.symbols.missing()
    }

    /// The driver's own name and text for a code, or none if it does not know the code either.
    #[must_use]
    pub fn words(&self, result: CuResult) -> Option<Words> {
        Some(Words {
            name: text(self.symbols.get_error_name, result)?,
            meaning: text(self.symbols.get_error_string, result),
        })
    }

    /// A code as a result. Asks the driver for its words only where our table has none.
    pub(super) fn check(&self, call: &'static str, result: CuResult) -> Result<(), CudaError> {
        if result.is_success() {
            return Ok(());
        }
        let words = match result.name() {
            Some(_) => None,
            None => self.words(result),
        };
        Err(CudaError::Failed {
            call,
            result,
            words,
        })
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("library", &self.library)
            .field("missing_symbols", &self.missing_symbols())
            .finish_non_exhaustive()
    }
}

type TextOf = unsafe extern "C" fn(CuResult, *mut *const c_char) -> CuResult;

fn text(text_of: TextOf, result: CuResult) -> Option<&'static str> {
    let mut text: *const c_char = ptr::null();
    // SAFETY: the driver takes any code, and writes one pointer to a place that lives.
    let found = unsafe { text_of(result, &raw mut text) };
    if !found.is_success() || text.is_null() {
        return None;
    }
    // SAFETY: the driver's own constant string, which ends in 0; the library is never unloaded.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().ok()
}
