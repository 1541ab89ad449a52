//! Which way a file's bytes go, and why: settings and facts in, a [`Route`] or a refusal out.
//!
//! Nothing falls back silently: what was asked, what is in force and the reason stay together.

use std::borrow::Cow;
use std::fmt;

use super::{DirectAlignment, Kind, Plan};
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
    pub(crate) const fn check(self) -> Result<(), Refusal> {
        match (self.compat_mode, self.io) {
            (CompatMode::Off, _) => Err(Refusal::CufileNotBuilt),
            (_, IoEngine::Uring) => Err(Refusal::UringNotBuilt),
            _ => Ok(()),
        }
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
    pub(crate) route: Route,
    /// The path of bytes that nothing else diverts.
    pub(crate) main: DataPath,
    /// For [`plan::Request::direct`](super::Request::direct); `None` when `cached`.
    pub(crate) direct: Option<DirectAlignment>,
    /// All bytes go through the page cache, by choice or because the file takes nothing else.
    pub(crate) cached: bool,
}

/// Why settings cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    CufileNotBuilt,
    UringNotBuilt,
    DirectUnavailable(Cow<'static, str>),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CufileNotBuilt => {
                f.write_str("compat_mode is off, and the cuFile backend is not part of this build")
            }
            Self::UringNotBuilt => f.write_str("io_uring is not part of this build"),
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
pub(crate) fn choose(asked: Asked, facts: &DirectFacts) -> Result<FileRoute, Refusal> {
    asked.check()?;
    let (path, direct, why) = match (asked.cache, facts) {
        (CacheMode::Cached, _) => (
            DataPath::PoolCached,
            None,
            Cow::from("cached I/O was asked for"),
        ),
        (_, DirectFacts::Open { alignment, source }) => (
            DataPath::PoolDirect,
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
    let route = Route {
        asked: asked.to_string().into(),
        resolved: path.name().into(),
        reason: backend_reason(asked)
            .map_or_else(|| why.clone(), |backend| format!("{backend}; {why}").into()),
    };
    Ok(FileRoute {
        route,
        main: path,
        direct,
        cached: direct.is_none(),
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
const fn backend_reason(asked: Asked) -> Option<&'static str> {
    match (asked.compat_mode, asked.io) {
        (CompatMode::Auto, IoEngine::Auto) => {
            Some("cuFile and io_uring are not part of this build")
        }
        (CompatMode::Auto, _) => Some("cuFile is not part of this build"),
        (_, IoEngine::Auto) => Some("io_uring is not part of this build"),
        _ => None,
    }
}

/// Refuses a request that cannot keep to `required`, before anything is issued.
///
/// `plan` must be fresh. A request without bytes is judged as the file would be.
pub(crate) fn check_required(
    required: PathClass,
    kind: Kind,
    file: &FileRoute,
    plan: &Plan,
) -> Result<(), Error> {
    let main = file.main;
    let (direct, buffered) = (plan.direct_bytes(), plan.buffered_bytes());
    let edges_only = !file.cached && buffered > 0;
    let takes_main = file.cached || direct > 0 || buffered == 0;
    if takes_main && !required.admits(main) {
        return Err(refuse(required, main, &file.route.reason));
    }
    let edges_admitted = required.admits(DataPath::Buffered)
        || (required == PathClass::DirectIo && kind == Kind::Write);
    if edges_only && !edges_admitted {
        let why = match kind {
            Kind::Write => "pages that a write fills only in part are buffered",
            Kind::Read => "the range ends too near the largest file offset for direct I/O",
        };
        return Err(refuse(required, DataPath::Buffered, why));
    }
    Ok(())
}

fn refuse(required: PathClass, path: DataPath, why: &str) -> Error {
    let text = format!("{required} is required, and bytes would go by {path}: {why}");
    Error::new(ErrorKind::PathRefused, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Request;

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

    fn chosen(asked: Asked, facts: &DirectFacts) -> FileRoute {
        choose(asked, facts).expect("the settings can be followed")
    }

    fn required(class: PathClass, kind: Kind, facts: &DirectFacts, range: (u64, u64)) -> bool {
        let file = chosen(Asked::default(), facts);
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
        match check_required(class, kind, &file, &plan.expect("the range is valid")) {
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
        assert!(file.route.reason.contains("from statx"));
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
        assert_eq!(choose(off, &open()), Err(Refusal::CufileNotBuilt));
        assert_eq!(choose(uring, &open()), Err(Refusal::UringNotBuilt));
        let refusal = choose(cache(CacheMode::Direct), &unavailable()).expect_err("not direct");
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
