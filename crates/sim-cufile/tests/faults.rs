//! Failure: a fault that is asked for does not come, or comes elsewhere, so that a test of it tests
//! nothing. Method: each kind, on files of its own; what came of it; and how often it fired.

mod support;

use nvidia_dl::cufile::{Code, CufileError, Failure};
use support::{Sims, cells, done, file, name, sims, whole};
use xtask::again::{is_again, succeeds};

const LEN: usize = 10_000;
const EIO: i32 = 5;

/// What a fault makes of a whole read, at once and in a stream.
const FAULTS: [(&str, Result<usize, Failure>); 8] = [
    ("fail=5030", Err(Failure::Code(Code(5030)))),
    ("fail=5", Err(Failure::Os(EIO))),
    ("short=4096", Ok(4096)),
    (
        "long=1",
        Err(Failure::TooLong {
            asked: LEN,
            told: LEN + 1,
        }),
    ),
    ("return=-6001", Err(Failure::Code(Code(6001)))),
    ("return=-5", Err(Failure::Os(EIO))),
    ("return=-1", Err(Failure::Unexplained)),
    ("slow=10", Ok(LEN)),
];

#[test]
fn every_fault_of_a_transfer_comes_and_is_counted() {
    const NAME: &str = "every_fault_of_a_transfer_comes_and_is_counted";
    if !is_again() {
        succeeds(NAME, &[]);
        return;
    }
    let sims = sims();
    let (file, memory, stream) = (file(&[9; LEN]), sims.memory(LEN), sims.stream());
    let handle = sims.register(file.as_file());
    for (action, expected) in FAULTS {
        sims.faults(&format!("cuFileRead:{action},nth=1;@read:{action},nth=1"));
        let what = whole(memory, LEN);
        let told = |result: Result<usize, CufileError>| result.map_err(|error| error.failure());
        let expected_at_once = expected.map_err(Some);
        assert_eq!(told(sims.read(handle, &what)), expected_at_once, "{action}");
        assert_eq!(sims.read(handle, &what), Ok(LEN), "after {action}");
        let numbers = cells(LEN, 0, 0);
        sims.put(stream, handle, memory, numbers);
        sims.synchronize(stream);
        assert_eq!(done(numbers, LEN), Some(expected), "{action} in a stream");
        assert_eq!(sims.stats().rules_fired[..3], [1, 1, 0], "{action}");
        sims.clear();
    }
}

#[test]
fn a_bit_is_wrong_where_it_is_asked_for() {
    let sims = sims();
    let (file, memory) = (file(&[9; LEN]), sims.memory(LEN));
    let handle = sims.register(file.as_file());
    sims.faults(&format!("{}/cuFileRead:flip,nth=1", name(&file)));
    assert_eq!(sims.read(handle, &whole(memory, LEN)), Ok(LEN));
    let wrong = sims
        .bytes(memory, LEN)
        .iter()
        .filter(|byte| **byte != 9)
        .count();
    assert_eq!(wrong, 1);
    sims.deregister(handle);
}

#[test]
fn registration_is_refused_for_one_file_and_not_for_another() {
    let sims = sims();
    let (one, other) = (file(b"one"), file(b"other"));
    for code in [Code::HANDLE_NOT_REGISTERED, Code::INTERNAL_ERROR] {
        let script = format!("{}/cuFileHandleRegister:fail={},nth=1", name(&one), code.0);
        sims.faults(&script);
        let taken = sims.register(other.as_file());
        sims.deregister(taken);
        let refused = sims
            .library
            .handle_register(std::os::fd::AsFd::as_fd(one.as_file()));
        let failure = refused.expect_err("it is refused").failure();
        assert_eq!(failure, Some(Failure::Code(code)));
    }
}

#[test]
fn the_path_changes_in_the_middle_and_is_counted_apart() {
    const NAME: &str = "the_path_changes_in_the_middle_and_is_counted_apart";
    if !is_again() {
        succeeds(NAME, &[("TOKIO_CUFILE_SIM_CUFILE_PATH", "nvidia-fs")]);
        return;
    }
    let sims = sims();
    let (file, memory) = (file(&[9; LEN]), sims.memory(LEN));
    let handle = sims.register(file.as_file());
    let properties = sims.library.driver_properties().expect("properties");
    assert_eq!(properties.nvfs_major_version, 2);
    sims.faults("cuFileRead:path=posix,nth=3;cuFileRead:path=p2pdma,from=4");
    let counts: Vec<_> = (0..4)
        .map(|_| {
            let before = sims.reads_by_path();
            assert_eq!(sims.read(handle, &whole(memory, LEN)), Ok(LEN));
            let now = sims.reads_by_path().since(before);
            (now.nvidia_fs, now.posix, now.p2pdma)
        })
        .collect();
    assert_eq!(counts, [(1, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]);
    let stats = sims.stats();
    assert_eq!((stats.nvidia_fs, stats.posix, stats.p2pdma), (2, 1, 1));
}

#[test]
fn limits_of_what_can_be_registered_are_reached() {
    const NAME: &str = "limits_of_what_can_be_registered_are_reached";
    if !is_again() {
        succeeds(NAME, &[("TOKIO_CUFILE_SIM_CUFILE_BAR_KB", "1024")]);
        return;
    }
    let sims = Sims::load("1.15");
    sims.opt_in();
    sims.quiet();
    sims.enter(0);
    sims.library.set_max_pinned_mem_size(2048).expect("a limit");
    sims.library.driver_open().expect("it opens");
    assert_eq!(sims.library.bar_size_kb(0), Ok(1024));
    let register = |kb: usize| register(&sims, kb * 1024);
    register(1000).expect("there is room");
    assert_eq!(register(25), Err(Code::GPU_MEMORY_PINNING_FAILED));
    // Another GPU has a window of its own, but what may be pinned is for all.
    sims.enter(1);
    register(1000).expect("there is room");
    assert_eq!(register(49), Err(Code::INVALID_MAPPING_SIZE));
    register(24).expect("there is room");
    sims.enter(2);
    register(24).expect("there is room, to the last byte");
    let one = sims.register_buffer(sims.memory(1), 1);
    assert!(one.is_err(), "not for one byte more");
}

fn register(sims: &Sims, bytes: usize) -> Result<(), Code> {
    let registered = sims.register_buffer(sims.memory(bytes), bytes);
    registered.map_err(|error| error.failure().and_then(Failure::code).expect("a code"))
}

#[test]
fn opening_fails_and_hangs_as_it_is_told() {
    const NAME: &str = "opening_fails_and_hangs_as_it_is_told";
    if !is_again() {
        let script = "cuFileDriverOpen:fail=5001,nth=1;cuFileDriverOpen:never,nth=2";
        succeeds(NAME, &[("TOKIO_CUFILE_SIM_CUFILE_FAULTS", script)]);
        return;
    }
    let sims: &'static Sims = Box::leak(Box::new(Sims::load("1.20")));
    sims.opt_in();
    sims.quiet();
    let error = sims.library.driver_open().expect_err("the first fails");
    assert_eq!(
        error.failure(),
        Some(Failure::Code(Code::DRIVER_NOT_INITIALIZED))
    );
    let opener = std::thread::spawn(|| {
        sims.enter(0);
        sims.library.driver_open()
    });
    while sims.stats().rules_fired[1] == 0 {
        std::thread::yield_now();
    }
    // A test of a time limit would find it here.
    assert!(!opener.is_finished());
    assert_eq!(sims.library.use_count(), 0);
    sims.clear();
    assert_eq!(opener.join().expect("it goes on"), Ok(()));
    assert_eq!(sims.library.use_count(), 1);
}
