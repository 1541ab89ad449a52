//! Settings and facts in, routes and refusals out.

use super::*;
use crate::plan::Place;
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

fn no_cufile() -> CufileFacts {
    CufileFacts::Unavailable("no library".into())
}

fn chosen(asked: Asked, facts: &DirectFacts) -> FileRoute {
    choose(asked, &no_ring(), facts, &no_cufile()).expect("the settings can be followed")
}

fn ringed(asked: Asked) -> FileRoute {
    choose(asked, &RingFacts::Running, &open(), &no_cufile()).expect("the settings can be followed")
}

#[test]
fn who_asks_for_gds_is_told_why_this_file_has_none_and_not_that_it_is_staged() {
    let file = ringed(Asked::default());
    for place in [Place::Device, Place::Host(1)] {
        let outline = outline(Kind::Read, &file, (0, 1 << 20), place);
        assert!(outline.via_slot > 0, "{outline:?}");
        let refused = |class| check_required(class, Kind::Read, &file, &outline).unwrap_err();
        let reason = refused(PathClass::Gds).to_string();
        assert!(reason.contains("no library"), "{reason}");
    }
}

fn outline(kind: Kind, file: &FileRoute, range: (u64, u64), place: Place) -> Outline {
    let plan = Plan::new(Request {
        kind,
        file_offset: range.0,
        len: range.1,
        place,
        direct: file.direct,
        cached: file.cached,
        task_size: 1 << 20,
        slot_size: 1 << 20,
        page_size: 4096,
    });
    plan.expect("the range is valid").outline()
}

fn required(class: PathClass, kind: Kind, facts: &DirectFacts, range: (u64, u64)) -> bool {
    admitted(class, kind, &chosen(Asked::default(), facts), range)
}

fn admitted(class: PathClass, kind: Kind, file: &FileRoute, range: (u64, u64)) -> bool {
    let outline = outline(kind, file, range, Place::Host(0));
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
    assert!(file.route.reason.contains("not by cuFile: no library"));
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
        choose(asked, &RingFacts::Running, &assumed, &no_cufile())
            .expect("the settings can be followed")
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
    assert!(!chosen(asked, &open()).route.reason.contains("cuFile"));
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
    let refusal =
        |asked, facts| choose(asked, &no_ring(), &facts, &no_cufile()).expect_err("refused");
    assert_eq!(refusal(off, open()), Refusal::NoCufile("no library".into()));
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

fn registered(not_direct: Option<&'static str>, not_told: Option<&'static str>) -> CufileFacts {
    CufileFacts::Registered {
        library: "libcufile 1.20".into(),
        threshold: 16 << 10,
        not_direct: not_direct.map(Into::into),
        not_told: not_told.map(Into::into),
    }
}

fn by_cufile(compat_mode: CompatMode, facts: &CufileFacts) -> FileRoute {
    let asked = Asked {
        compat_mode,
        ..Asked::default()
    };
    choose(asked, &no_ring(), &open(), facts).expect("the settings can be followed")
}

#[test]
fn auto_leaves_host_memory_and_what_is_small_to_compat() {
    let file = by_cufile(CompatMode::Auto, &registered(None, None));
    let cufile = file.cufile.as_ref().unwrap();
    assert!(cufile.takes(true, 16 << 10));
    assert!(!cufile.takes(true, (16 << 10) - 1) && !cufile.takes(false, 1 << 20));
    let resolved = "cufile for device memory from 16384 bytes on";
    assert_eq!(file.route.resolved, resolved);
    assert!(file.route.reason.starts_with("libcufile 1.20; "));
}

#[test]
fn off_leaves_nothing_to_compat_and_on_everything() {
    let facts = registered(Some("no nvidia-fs"), None);
    let file = by_cufile(CompatMode::Off, &facts);
    let cufile = file.cufile.as_ref().unwrap();
    assert!(cufile.takes(true, 0) && cufile.takes(false, 0));
    assert_eq!(file.route.resolved, "cufile");
    assert!(file.route.reason.contains("not direct: no nvidia-fs"));
    assert_eq!(by_cufile(CompatMode::On, &facts).cufile, None);
}

#[test]
fn what_cufile_could_not_do_or_not_show_is_refused_before_it_begins() {
    let refused = |facts: &CufileFacts, class| {
        let file = by_cufile(CompatMode::Off, facts);
        let outline = Outline {
            by_cufile: 1 << 20,
            on_device: true,
            ..Outline::default()
        };
        let judged = check_required(class, Kind::Read, &file, &outline);
        judged.err().map(|error| error.reason().to_owned())
    };
    let posix = PathClass::Exactly(DataPath::CufilePosix);
    let direct = registered(None, None);
    assert_eq!(refused(&direct, PathClass::Gds), None);
    assert_eq!(refused(&direct, PathClass::DirectIo), None);
    let compat = registered(Some("forced"), None);
    assert!(refused(&compat, PathClass::Gds).unwrap().contains("forced"));
    assert_eq!(refused(&compat, posix), None);
    let silent = registered(None, Some("it does not count"));
    for class in [PathClass::Gds, PathClass::DirectIo, posix] {
        let reason = refused(&silent, class).unwrap();
        assert!(reason.contains("does not count"), "{reason}");
    }
    let ring = PathClass::Exactly(DataPath::UringDirect);
    assert!(refused(&direct, ring).is_some());
    let unverified = PathClass::Exactly(DataPath::CufileUnverified);
    assert_eq!(refused(&silent, unverified), None);
}
