//! Which way a file's bytes go, and why: settings and facts in, a [`Route`] or a refusal out.
//!
//! Nothing falls back silently: what was asked, what is in force and the reason stay together.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::{DirectAlignment, Kind, Outline};
use crate::config::{CacheMode, CompatMode, IoEngine};
use crate::error::{Error, ErrorKind};
use crate::receipt::{DataPath, PathClass, Route};

/// The settings that a route answers to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) compat_mode: CompatMode,
    pub(crate) io: IoEngine,
    pub(crate) cache: CacheMode,
}

impl Asked {
    /// Refuses at once what no file can change.
    pub(crate) fn check(self, ring: &RingFacts) -> Result<(), Refusal> {
        match (self.io, ring) {
            (IoEngine::Uring, RingFacts::Off(reason)) => Err(Refusal::NoRing(reason.clone())),
            _ => Ok(()),
        }
    }

    /// Whether direct parts go by the ring.
    const fn uses_ring(self, ring: &RingFacts) -> bool {
        matches!(ring, RingFacts::Running) && !matches!(self.io, IoEngine::Pool)
    }

    /// Whether a direct descriptor is of use.
    pub(crate) const fn wants_direct(self) -> bool {
        !matches!(self.cache, CacheMode::Cached)
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let compat_mode = match self.compat_mode {
            CompatMode::Auto => "auto",
            CompatMode::On => "on",
            CompatMode::Off => "off",
        };
        let io = match self.io {
            IoEngine::Auto => "auto",
            IoEngine::Uring => "uring",
            IoEngine::Pool => "pool",
        };
        let cache = match self.cache {
            CacheMode::Auto => "auto",
            CacheMode::Direct => "direct",
            CacheMode::Cached => "cached",
        };
        write!(f, "compat_mode {compat_mode}, io {io}, cache {cache}")
    }
}

/// Whether the engine has a ring, as found when it was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RingFacts {
    Running,
    /// There is none, and why.
    Off(Cow<'static, str>),
}

/// How the alignment of direct I/O became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AlignmentSource {
    /// The kernel says it.
    Statx,
    /// The kernel does not say; the most that file systems ask for is taken.
    Assumed,
}

/// Whether an open file takes direct I/O, as found when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DirectFacts {
    /// A direct descriptor is open.
    Open {
        alignment: DirectAlignment,
        source: AlignmentSource,
    },
    /// There is none, and why.
    Unavailable(Cow<'static, str>),
}

/// Whether cuFile serves an open file, as found when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CufileFacts {
    /// It knows the file.
    Registered {
        /// The library and its version, for people.
        library: Cow<'static, str>,
        /// The least bytes that go by it, where there is a choice.
        threshold: usize,
        /// What speaks against GPUDirect Storage.
        not_direct: Option<Cow<'static, str>>,
        /// Why the path of a request cannot be told afterwards.
        not_told: Option<Cow<'static, str>>,
    },
    /// It does not, and why.
    Unavailable(Cow<'static, str>),
}

/// What goes by cuFile of a file that it knows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CufileRoute {
    /// Operations of fewer bytes do not.
    threshold: usize,
    /// Host memory does.
    on_host: bool,
    not_direct: Option<Cow<'static, str>>,
    not_told: Option<Cow<'static, str>>,
}

impl CufileRoute {
    /// Whether a request goes by cuFile, all of it or none. `smallest` is its shortest range.
    pub(crate) const fn takes(&self, on_device: bool, smallest: usize) -> bool {
        (on_device || self.on_host) && smallest >= self.threshold
    }

    /// Refuses what is not to be had, or could not be shown.
    fn check(&self, required: PathClass, on_device: bool) -> Result<(), Error> {
        let refuse = |why: &str| Err(refuse(required, DataPath::CufileUnverified, why));
        let wants_direct = match required {
            PathClass::Exactly(DataPath::CufileUnverified) => return Ok(()),
            PathClass::Exactly(DataPath::CufilePosix) => false,
            PathClass::Gds | PathClass::DirectIo => true,
            PathClass::Exactly(DataPath::NvidiaFs | DataPath::P2pDma) => true,
            PathClass::Exactly(_) => return refuse("the operation goes by cuFile"),
        };
        if !on_device {
            return refuse("cuFile does not count what moves to and from host memory");
        }
        match (&self.not_direct, &self.not_told) {
            (Some(reason), _) if wants_direct => refuse(reason),
            (_, Some(reason)) => refuse(reason),
            _ => Ok(()),
        }
    }
}

/// A file's route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileRoute {
    /// Shared, since every operation of the file takes it into its receipt.
    pub(crate) route: Arc<Route>,
    /// Set where cuFile serves the file; the rest says how the compat backend serves what is not
    /// for it.
    pub(crate) cufile: Option<Arc<CufileRoute>>,
    /// What receipts call the way through the page cache when `cached`.
    pub(crate) cached_path: DataPath,
    /// For [`plan::Request::direct`](super::Request::direct); `None` when `cached`.
    pub(crate) direct: Option<DirectAlignment>,
    /// All bytes go through the page cache, by choice or because the file takes nothing else.
    pub(crate) cached: bool,
    /// Direct parts go by the ring; a worker of the pool takes them otherwise.
    pub(crate) by_ring: bool,
    /// Requests may block whoever submits them, so the ring leaves them to the kernel's workers.
    pub(crate) may_block: bool,
    /// Bytes that a direct read finds in the page cache are taken from there.
    pub(crate) may_use_cache: bool,
}

impl FileRoute {
    /// The path of direct bytes that `by_ring` says go by the ring or do not.
    const fn direct_path(by_ring: bool) -> DataPath {
        if by_ring {
            DataPath::UringDirect
        } else {
            DataPath::PoolDirect
        }
    }
}

/// Why settings cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    NoCufile(Cow<'static, str>),
    NoRing(Cow<'static, str>),
    DirectUnavailable(Cow<'static, str>),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCufile(reason) => {
                write!(f, "compat_mode is off, and cuFile does not serve: {reason}")
            }
            Self::NoRing(reason) => write!(f, "io is uring, and there is no io_uring: {reason}"),
            Self::DirectUnavailable(reason) => {
                write!(
                    f,
                    "cache is direct, and the file takes no direct I/O: {reason}"
                )
            }
        }
    }
}

impl std::error::Error for Refusal {}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::new(ErrorKind::Unsupported, refusal.to_string()).with_source(refusal)
    }
}

/// Chooses the route of a file that was just opened.
pub(crate) fn choose(
    asked: Asked,
    ring: &RingFacts,
    facts: &DirectFacts,
    cufile: &CufileFacts,
) -> Result<FileRoute, Refusal> {
    asked.check(ring)?;
    let cufile = match (asked.compat_mode, cufile) {
        (CompatMode::Off, CufileFacts::Unavailable(reason)) => {
            return Err(Refusal::NoCufile(reason.clone()));
        }
        (CompatMode::On, _) => &CufileFacts::Unavailable(Cow::Borrowed("")),
        (_, facts) => facts,
    };
    // A file system that does not tell its alignment (FUSE, network file systems) may serve a direct
    // request before it lets go of the thread that submits it, and would hold up the whole ring.
    let may_block = matches!(
        facts,
        DirectFacts::Open {
            source: AlignmentSource::Assumed,
            ..
        }
    );
    let by_ring = asked.uses_ring(ring) && (!may_block || asked.io == IoEngine::Uring);
    let (path, direct, why) = match (asked.cache, facts) {
        (CacheMode::Cached, _) => (
            DataPath::PoolCached,
            None,
            Cow::from("cached I/O was asked for"),
        ),
        (_, DirectFacts::Open { alignment, source }) => (
            FileRoute::direct_path(by_ring),
            Some(*alignment),
            direct_reason(*alignment, *source).into(),
        ),
        (CacheMode::Direct, DirectFacts::Unavailable(reason)) => {
            return Err(Refusal::DirectUnavailable(reason.clone()));
        }
        (CacheMode::Auto, DirectFacts::Unavailable(reason)) => (
            DataPath::PoolCached,
            None,
            format!("no direct I/O: {reason}").into(),
        ),
    };
    let backend = backend_reason(asked, (ring, cufile), direct.is_some(), may_block);
    let why = backend.map_or_else(|| why.clone(), |backend| format!("{backend}; {why}").into());
    let cufile = cufile_route(asked, cufile);
    let resolved = match &cufile {
        Some((_, resolved)) => resolved.clone().into(),
        None => path.name().into(),
    };
    let route = Route {
        asked: asked.to_string().into(),
        resolved,
        reason: why,
    };
    Ok(FileRoute {
        route: Arc::new(route),
        cufile: cufile.map(|(route, _)| Arc::new(route)),
        cached_path: DataPath::PoolCached,
        direct,
        cached: direct.is_none(),
        by_ring: by_ring && direct.is_some(),
        may_block,
        may_use_cache: asked.cache == CacheMode::Auto,
    })
}

/// What goes by cuFile, and that in words.
fn cufile_route(asked: Asked, facts: &CufileFacts) -> Option<(CufileRoute, String)> {
    let CufileFacts::Registered {
        threshold,
        not_direct,
        not_told,
        ..
    } = facts
    else {
        return None;
    };
    let is_only = asked.compat_mode == CompatMode::Off;
    let route = CufileRoute {
        threshold: if is_only { 0 } else { *threshold },
        on_host: is_only,
        not_direct: not_direct.clone(),
        not_told: not_told.clone(),
    };
    let resolved = match is_only {
        true => "cufile".to_owned(),
        false => format!("cufile for device memory from {threshold} bytes on"),
    };
    Some((route, resolved))
}

fn direct_reason(alignment: DirectAlignment, source: AlignmentSource) -> String {
    let DirectAlignment { memory, offset } = alignment;
    let source = match source {
        AlignmentSource::Statx => "from statx",
        AlignmentSource::Assumed => "assumed, statx does not say",
    };
    format!(
        "the file takes direct I/O, alignment {offset} in the file and {memory} in memory ({source})"
    )
}

/// Which backend, or why not a better one, where the settings left that open.
fn backend_reason(
    asked: Asked,
    (ring, cufile): (&RingFacts, &CufileFacts),
    direct: bool,
    may_block: bool,
) -> Option<String> {
    let cufile = match cufile {
        CufileFacts::Registered {
            library,
            not_direct,
            ..
        } => Some(match not_direct {
            Some(reason) => format!("{library}, not direct: {reason}"),
            None => library.clone().into_owned(),
        }),
        CufileFacts::Unavailable(reason) if asked.compat_mode == CompatMode::Auto => {
            Some(format!("not by cuFile: {reason}"))
        }
        CufileFacts::Unavailable(_) => None,
    };
    let ring = match (asked.io, ring) {
        (IoEngine::Auto, RingFacts::Off(reason)) if direct => {
            Some(format!("no io_uring: {reason}"))
        }
        (IoEngine::Auto, RingFacts::Running) if direct && may_block => {
            Some("requests to this file system may block a ring".to_owned())
        }
        _ => None,
    };
    match (cufile, ring) {
        (Some(cufile), Some(ring)) => Some(format!("{cufile}; {ring}")),
        (one, other) => one.or(other),
    }
}

/// Refuses a request that cannot keep to `required`, before anything is issued.
///
/// A request without bytes is judged as the file would be.
pub(crate) fn check_required(
    required: PathClass,
    kind: Kind,
    file: &FileRoute,
    outline: &Outline,
) -> Result<(), Error> {
    let main = if file.cached {
        file.cached_path
    } else {
        FileRoute::direct_path(file.by_ring)
    };
    let compat = outline.in_place + outline.via_slot + outline.buffered;
    let is_empty = compat + outline.by_cufile == 0;
    let takes_empty = |cufile: &CufileRoute| cufile.takes(outline.on_device, 0);
    let is_for_cufile = file.cufile.as_deref().is_some_and(takes_empty);
    if let Some(cufile) = &file.cufile
        && (outline.by_cufile > 0 || (is_empty && is_for_cufile))
    {
        cufile.check(required, outline.on_device)?;
    }
    let no_bytes = is_empty && !is_for_cufile;
    if (outline.in_place > 0 || no_bytes) && !required.admits(main) {
        return Err(refuse(required, main, &file.route.reason));
    }
    let staged = FileRoute::direct_path(file.by_ring && slots_go_by_ring(outline));
    if outline.via_slot > 0 && !required.admits(staged) {
        let why = match (&file.cufile, outline.on_device) {
            // Not for being staged: this file has no such path.
            (None, _) if !required.admits(main) => &*file.route.reason,
            (Some(_), true) => {
                "it is too short for cuFile (gds_threshold), or not for it: it is staged"
            }
            (None, true) => "device memory is staged",
            _ => "it is staged: it is short, or memory and file offset do not agree in alignment",
        };
        return Err(refuse(required, staged, why));
    }
    if outline.buffered == 0 {
        return Ok(());
    }
    let (path, why): (_, &str) = match kind {
        _ if file.cached => (file.cached_path, &file.route.reason),
        Kind::Write => (
            DataPath::Buffered,
            "pages that a write fills only in part are buffered",
        ),
        Kind::Read => (
            DataPath::Buffered,
            "the range ends too near the largest file offset for direct I/O",
        ),
    };
    let is_edge = kind == Kind::Write && !file.cached;
    if required.admits(path) || (is_edge && required == PathClass::DirectIo) {
        return Ok(());
    }
    Err(refuse(required, path, why))
}

/// Whether an operation's staged parts go by the ring. All of them or none, so that one operation
/// says one thing.
///
/// Host memory is copied by the thread that completes them: more than this at a time would hold up
/// the ring's other completions (an estimate: 64 KiB copy in about 10 microseconds). A device
/// copies by itself.
pub(crate) const fn slots_go_by_ring(outline: &Outline) -> bool {
    outline.on_device || outline.slot_io_len_max <= 64 << 10
}

fn refuse(required: PathClass, path: DataPath, why: &str) -> Error {
    let text = format!("{required} is required, and bytes would go by {path}: {why}");
    Error::new(ErrorKind::PathRefused, text)
}

#[cfg(test)]
#[path = "route_tests.rs"]
mod tests;
