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
        match (self.compat_mode, self.io, ring) {
            (CompatMode::Off, _, _) => Err(Refusal::CufileNotBuilt),
            (_, IoEngine::Uring, RingFacts::Off(reason)) => Err(Refusal::NoRing(reason.clone())),
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

/// A file's route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileRoute {
    /// Shared, since every operation of the file takes it into its receipt.
    pub(crate) route: Arc<Route>,
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
    CufileNotBuilt,
    NoRing(Cow<'static, str>),
    DirectUnavailable(Cow<'static, str>),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CufileNotBuilt => {
                f.write_str("compat_mode is off, and the cuFile backend is not part of this build")
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
) -> Result<FileRoute, Refusal> {
    asked.check(ring)?;
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
    let backend = backend_reason(asked, ring, direct.is_some(), may_block);
    let route = Route {
        asked: asked.to_string().into(),
        resolved: path.name().into(),
        reason: backend.map_or_else(|| why.clone(), |backend| format!("{backend}; {why}").into()),
    };
    Ok(FileRoute {
        route: Arc::new(route),
        cached_path: DataPath::PoolCached,
        direct,
        cached: direct.is_none(),
        by_ring: by_ring && direct.is_some(),
        may_block,
        may_use_cache: asked.cache == CacheMode::Auto,
    })
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

/// Why not a better backend, where the settings left that open.
fn backend_reason(asked: Asked, ring: &RingFacts, direct: bool, may_block: bool) -> Option<String> {
    let cufile = (asked.compat_mode == CompatMode::Auto)
        .then(|| "cuFile is not part of this build".to_owned());
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
    let no_bytes = outline.in_place + outline.via_slot + outline.buffered == 0;
    if (outline.in_place > 0 || no_bytes) && !required.admits(main) {
        return Err(refuse(required, main, &file.route.reason));
    }
    let staged = FileRoute::direct_path(file.by_ring && slots_go_by_ring(outline));
    if outline.via_slot > 0 && !required.admits(staged) {
        let why = "memory and file offset do not agree in alignment: it is staged";
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
/// They are copied by the thread that completes them: more than this at a time would hold up the
/// ring's other completions (an estimate: 64 KiB copy in about 10 microseconds).
pub(crate) const fn slots_go_by_ring(outline: &Outline) -> bool {
    outline.slot_io_len_max <= 64 << 10
}

fn refuse(required: PathClass, path: DataPath, why: &str) -> Error {
    let text = format!("{required} is required, and bytes would go by {path}: {why}");
    Error::new(ErrorKind::PathRefused, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Plan, Request};

    const ALIGNMENT: DirectAlignment = DirectAlignment {
        memory: 512,
        offset: 512,
    };

    fn open() -> DirectFacts {
        DirectFacts::Open {
            alignment: ALIGNMENT,
            source: AlignmentSource::Statx,
        }
    }

    fn unavailable() -> DirectFacts {
        DirectFacts::Unavailable("the file system refuses O_DIRECT".into())
    }

    fn cache(cache: CacheMode) -> Asked {
        Asked {
            cache,
            ..Asked::default()
        }
    }

    fn no_ring() -> RingFacts {
        RingFacts::Off("forbidden".into())
    }

    fn chosen(asked: Asked, facts: &DirectFacts) -> FileRoute {
        choose(asked, &no_ring(), facts).expect("the settings can be followed")
    }

    fn ringed(asked: Asked) -> FileRoute {
        choose(asked, &RingFacts::Running, &open()).expect("the settings can be followed")
    }

    fn required(class: PathClass, kind: Kind, facts: &DirectFacts, range: (u64, u64)) -> bool {
        admitted(class, kind, &chosen(Asked::default(), facts), range)
    }

    fn admitted(class: PathClass, kind: Kind, file: &FileRoute, range: (u64, u64)) -> bool {
        let plan = Plan::new(Request {
            kind,
            file_offset: range.0,
            len: range.1,
            memory_address: 0,
            direct: file.direct,
            cached: file.cached,
            task_size: 1 << 20,
            slot_size: 1 << 20,
        });
        let outline = plan.expect("the range is valid").outline();
        match check_required(class, kind, file, &outline) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::PathRefused);
                false
            }
        }
    }

    #[test]
    fn auto_takes_direct_io_where_the_file_does_and_says_why() {
        let file = chosen(Asked::default(), &open());
        assert_eq!((file.direct, file.cached), (Some(ALIGNMENT), false));
        assert_eq!(file.route.asked, "compat_mode auto, io auto, cache auto");
        assert_eq!(file.route.resolved, "pool-direct");
        assert!(file.route.reason.contains("not part of this build"));
        assert!(file.route.reason.contains("no io_uring: forbidden"));
        assert!(file.route.reason.contains("from statx"));
    }

    #[test]
    fn a_ring_takes_direct_parts_unless_the_pool_was_asked_for() {
        for io in [IoEngine::Auto, IoEngine::Uring] {
            let file = ringed(Asked {
                io,
                ..Asked::default()
            });
            assert!(file.by_ring && file.may_use_cache);
            assert_eq!(file.route.resolved, "uring-direct");
        }
        let pool = ringed(Asked {
            io: IoEngine::Pool,
            ..Asked::default()
        });
        assert_eq!(
            (pool.by_ring, &*pool.route.resolved),
            (false, "pool-direct")
        );
        assert!(!ringed(cache(CacheMode::Direct)).may_use_cache);
        assert!(!ringed(cache(CacheMode::Cached)).by_ring);
    }

    #[test]
    fn a_file_system_that_may_block_a_ring_is_left_to_the_pool_unless_the_ring_was_asked_for() {
        let assumed = DirectFacts::Open {
            alignment: ALIGNMENT,
            source: AlignmentSource::Assumed,
        };
        let chosen = |io| {
            let asked = Asked {
                io,
                ..Asked::default()
            };
            choose(asked, &RingFacts::Running, &assumed).expect("the settings can be followed")
        };
        let auto = chosen(IoEngine::Auto);
        assert_eq!(
            (auto.by_ring, &*auto.route.resolved),
            (false, "pool-direct")
        );
        assert!(auto.route.reason.contains("may block a ring"));
        let uring = chosen(IoEngine::Uring);
        assert!(uring.by_ring && uring.may_block);
    }

    #[test]
    fn with_a_ring_large_staged_reads_are_known_to_go_by_the_pool() {
        let file = ringed(Asked::default());
        let ring = PathClass::Exactly(DataPath::UringDirect);
        assert!(admitted(ring, Kind::Read, &file, (0, 1 << 20)));
        assert!(admitted(ring, Kind::Read, &file, (3, 10_000)));
        assert!(!admitted(ring, Kind::Read, &file, (3, 1 << 20)));
        let pool = PathClass::Exactly(DataPath::PoolDirect);
        assert!(!admitted(pool, Kind::Read, &file, (0, 1 << 20)));
        assert!(admitted(pool, Kind::Read, &file, (3, 1 << 20)));
        assert!(admitted(
            PathClass::DirectIo,
            Kind::Read,
            &file,
            (3, 1 << 20)
        ));
    }

    #[test]
    fn auto_goes_through_the_cache_where_direct_io_is_refused_and_says_why() {
        let file = chosen(Asked::default(), &unavailable());
        assert_eq!((file.direct, file.cached), (None, true));
        assert_eq!(file.route.resolved, "pool-cached");
        assert!(file.route.reason.contains("refuses O_DIRECT"));
    }

    #[test]
    fn cached_goes_through_the_cache_although_the_file_takes_direct_io() {
        let file = chosen(cache(CacheMode::Cached), &open());
        assert_eq!((file.direct, file.cached), (None, true));
    }

    #[test]
    fn the_reason_blames_no_backend_that_was_not_asked_for() {
        let asked = Asked {
            compat_mode: CompatMode::On,
            io: IoEngine::Pool,
            ..Asked::default()
        };
        assert!(!chosen(asked, &open()).route.reason.contains("build"));
    }

    #[test]
    fn settings_that_cannot_be_followed_are_refused_as_unsupported() {
        let off = Asked {
            compat_mode: CompatMode::Off,
            ..Asked::default()
        };
        let uring = Asked {
            io: IoEngine::Uring,
            ..Asked::default()
        };
        let refusal = |asked, facts| choose(asked, &no_ring(), &facts).expect_err("refused");
        assert_eq!(refusal(off, open()), Refusal::CufileNotBuilt);
        assert_eq!(refusal(uring, open()), Refusal::NoRing("forbidden".into()));
        let refusal = refusal(cache(CacheMode::Direct), unavailable());
        let error = Error::from(refusal);
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.reason().contains("refuses O_DIRECT"));
    }

    #[test]
    fn gds_is_refused_also_for_no_bytes() {
        for kind in [Kind::Read, Kind::Write] {
            assert!(!required(PathClass::Gds, kind, &open(), (0, 4096)));
            assert!(!required(PathClass::Gds, kind, &open(), (0, 0)));
            assert!(!required(PathClass::Gds, kind, &open(), (1, 5)));
        }
    }

    #[test]
    fn direct_io_admits_the_edges_of_a_write_and_refuses_a_cached_file() {
        assert!(required(
            PathClass::DirectIo,
            Kind::Read,
            &open(),
            (3, 10_000)
        ));
        assert!(required(
            PathClass::DirectIo,
            Kind::Write,
            &open(),
            (3, 10_000)
        ));
        assert!(required(PathClass::DirectIo, Kind::Write, &open(), (3, 10)));
        assert!(!required(
            PathClass::DirectIo,
            Kind::Read,
            &unavailable(),
            (0, 4096)
        ));
        assert!(!required(
            PathClass::DirectIo,
            Kind::Write,
            &unavailable(),
            (0, 4096)
        ));
    }

    #[test]
    fn one_path_is_refused_where_any_byte_would_take_another() {
        let direct = PathClass::Exactly(DataPath::PoolDirect);
        assert!(required(direct, Kind::Read, &open(), (3, 10_000)));
        assert!(required(direct, Kind::Write, &open(), (4096, 8192)));
        assert!(!required(direct, Kind::Write, &open(), (3, 10_000)));
        assert!(!required(direct, Kind::Read, &unavailable(), (0, 4096)));
        let cached = PathClass::Exactly(DataPath::PoolCached);
        assert!(required(cached, Kind::Write, &unavailable(), (3, 10_000)));
        assert!(!required(cached, Kind::Read, &open(), (0, 4096)));
        let buffered = PathClass::Exactly(DataPath::Buffered);
        assert!(required(buffered, Kind::Write, &open(), (3, 10)));
        assert!(!required(buffered, Kind::Write, &open(), (3, 10_000)));
        assert!(!required(
            PathClass::Exactly(DataPath::UringDirect),
            Kind::Read,
            &open(),
            (0, 1)
        ));
    }

    #[test]
    fn a_direct_read_that_cannot_be_aligned_is_not_direct_io() {
        let last = (i64::MAX.cast_unsigned() - 10, 10);
        assert!(!required(PathClass::DirectIo, Kind::Read, &open(), last));
    }
}
