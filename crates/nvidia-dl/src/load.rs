//! Finding a shared library and its symbols.
//!
//! Unsafe, because opening a library runs its constructors, and because a symbol has whatever type
//! one asks for.
#![allow(
    unsafe_code,
    reason = "opening a library runs its code, and a symbol's type is a promise"
)]

use std::ffi::{CStr, OsStr, OsString, c_void};
use std::fmt;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

/// Where to look for a library: names and paths, tried in order.
///
/// A name without a slash goes through the dynamic loader's own search (`LD_LIBRARY_PATH`, the
/// program's run path, the loader's cache, the standard folders). One with a slash is a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    names: Vec<OsString>,
}

impl Search {
    /// The driver library under the names that it is installed under: `libcuda.so.1`, which the
    /// driver brings, then `libcuda.so`.
    #[must_use]
    pub fn libcuda() -> Self {
        Self::of(["libcuda.so.1", "libcuda.so"])
    }

    /// libcufile under the names that it is installed under: `libcufile.so.0`, which every package
    /// brings, `libcufile.so`, which only development packages do, `libcufile.so.1`, which one
    /// distribution had, and then the folder of the CUDA toolkit.
    #[must_use]
    pub fn libcufile() -> Self {
        Self::of([
            "libcufile.so.0",
            "libcufile.so",
            "libcufile.so.1",
            "/usr/local/cuda/lib64/libcufile.so.0",
            "/usr/local/cuda/lib64/libcufile.so",
        ])
    }

    /// The same, but other names are tried first: a setting.
    ///
    /// # Safety
    ///
    /// As for [`named`](Self::named).
    #[must_use]
    pub unsafe fn before<I>(mut self, names: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<OsString>,
    {
        self.names.splice(0..0, names.into_iter().map(Into::into));
        self
    }

    /// The same, but other names are tried last: folders of packages, such as those of Python's
    /// wheels, which end in `nvidia/cufile/lib` or `nvidia/cu13/lib`.
    ///
    /// # Safety
    ///
    /// As for [`named`](Self::named).
    #[must_use]
    pub unsafe fn after<I>(mut self, names: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<OsString>,
    {
        self.names.extend(names.into_iter().map(Into::into));
        self
    }

    /// Other names or paths, for a library that is not where the loader looks.
    ///
    /// # Safety
    ///
    /// What is found under these names is run: its constructors may be run here, and where it has
    /// the symbols that are looked for, they must have the meaning and the types of the library
    /// that it stands for.
    #[must_use]
    pub unsafe fn named<I>(names: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<OsString>,
    {
        Self::of(names)
    }

    /// What is tried, in order.
    pub fn names(&self) -> impl Iterator<Item = &OsStr> {
        self.names.iter().map(OsString::as_os_str)
    }

    fn of<I>(names: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<OsString>,
    {
        Self {
            names: names.into_iter().map(Into::into).collect(),
        }
    }
}

impl Default for Search {
    /// [`Search::libcuda`].
    fn default() -> Self {
        Self::libcuda()
    }
}

/// Why there is no table of calls. An ordinary value: most machines have no GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No name of the [`Search`] led to a library that could be opened.
    #[error("{}", Tried(tried))]
    #[non_exhaustive]
    NotFound {
        /// Every name that was tried, in order.
        tried: Vec<Attempt>,
    },
    /// A library was opened, but it is not the one, or is too old.
    #[error("{} has no symbol {symbol}, which is required", library.display())]
    #[non_exhaustive]
    MissingSymbol {
        /// The file that was opened.
        library: PathBuf,
        /// The first required symbol that it lacks.
        symbol: &'static str,
    },
}

/// One name that was tried, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The name or path.
    pub name: OsString,
    /// What the dynamic loader said.
    pub reason: String,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name.display(), self.reason)
    }
}

struct Tried<'a>(&'a [Attempt]);

impl fmt::Display for Tried<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, rest)) = self.0.split_first() else {
            return f.write_str("no library was looked for: the list of names is empty");
        };
        write!(f, "no library could be opened ({first}")?;
        for attempt in rest {
            write!(f, "; {attempt}")?;
        }
        f.write_str(")")
    }
}

/// A library that stays: its constructors started threads and its pointers are handed out, so it is
/// never unloaded.
pub(crate) struct Library {
    handle: ManuallyDrop<Handle>,
    /// The name that it was opened under.
    name: OsString,
}

impl Library {
    /// The first library of `search` that opens.
    pub(crate) fn open(search: &Search) -> Result<Self, LoadError> {
        let mut tried = Vec::new();
        for name in search.names() {
            match Self::open_one(name) {
                Ok(library) => return Ok(library),
                Err(reason) => tried.push(Attempt {
                    name: name.to_owned(),
                    reason,
                }),
            }
        }
        Err(LoadError::NotFound { tried })
    }

    fn open_one(name: &OsStr) -> Result<Self, String> {
        // All of its own symbols at once, so that a broken installation shows here and not in the
        // middle of a call; and none of them visible to others.
        let flags = RTLD_NOW | RTLD_LOCAL;
        // SAFETY: the search's own names are NVIDIA's, and for others its maker has promised that
        // running their constructors is sound.
        let opened = unsafe { Handle::open(Some(name), flags) };
        match opened {
            Ok(handle) => Ok(Self {
                handle: ManuallyDrop::new(handle),
                name: name.to_owned(),
            }),
            Err(error) => Err(reason(name, &error)),
        }
    }

    /// The address of a function, or none.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: any symbol may be taken as an address that nobody follows.
        let found = unsafe { self.handle.get::<*mut c_void>(name.to_bytes_with_nul()) };
        let address = found.ok()?.into_raw();
        (!address.is_null()).then_some(address)
    }

    /// The file that `symbol` is in, or the name that the library was opened under.
    pub(crate) fn path(&self, symbol: Option<*mut c_void>) -> PathBuf {
        symbol
            .and_then(file_of)
            .unwrap_or_else(|| PathBuf::from(&self.name))
    }
}

/// The loader's own words where it has some, without the name that they begin with; libloading's
/// text is only "dlopen failed".
fn reason(name: &OsStr, error: &libloading::Error) -> String {
    let Some(words) = std::error::Error::source(error) else {
        return error.to_string();
    };
    let words = words.to_string();
    let prefix = format!("{}: ", name.display());
    words.strip_prefix(&prefix).unwrap_or(&words).to_owned()
}

fn file_of(address: *mut c_void) -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `dladdr` takes any address, and writes one whole structure.
    let found = unsafe { libc::dladdr(address, info.as_mut_ptr()) };
    if found == 0 {
        return None;
    }
    // SAFETY: all fields are pointers, for which zeros are a value, and `dladdr` has set them.
    let info = unsafe { info.assume_init() };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's name of a library, which ends in 0 and stays while the library is there.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(Path::new(OsStr::from_bytes(name.to_bytes())).to_owned())
}
