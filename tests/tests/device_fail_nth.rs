//! Every call of the driver fails, one after the other.
//!
//! Failure: an error that is lost, has no type or does not say which call it was; memory, slots,
//! permits, streams or pins that are neither given back nor accounted for; wrong bytes where success
//! was said; a wait without end.
//! Mechanism: some call's failure was not thought of.
//! Method: a fixed piece of work, in which the Nth call of an entry point fails: with nothing done,
//! with its work done all the same, or with the loss of the context; once, and from then on. N grows
//! until the work is done before the Nth call comes. Afterwards everything is counted.
#![allow(unsafe_code, reason = "names the default stream")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_cufile::{
    AsyncCuFile, CudaEvent, DeviceBuffer, DigestKind, Done, Engine, Error, ErrorKind, FileRange,
    OpError, OpenOptions, Permits, VendorCode,
};
use tokio_cufile_tests::bench::{self, block_on};
use tokio_cufile_tests::life::{engine_threads, until};
use tokio_cufile_tests::rig::{CANARY, Way};
use tokio_cufile_tests::sim::Lease;
use tokio_cufile_tests::{Sim, pattern};

const BLOCK: usize = 4096;
const LEN: usize = 4 * BLOCK;

/// The entry points that the work calls.
const CALLED: [&str; 22] = [
    "cuInit",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuCtxSetCurrent",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventDestroy_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
];

/// Of these, those that nobody waits for.
const DESTROYING: [&str; 4] = [
    "cuMemHostUnregister",
    "cuStreamDestroy_v2",
    "cuEventDestroy_v2",
    "cuMemFree_v2",
];

/// How the Nth call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Nothing is done, and later calls are well.
    Once,
    /// Nothing is done, then and later.
    ForGood,
    /// Everything is done, and later calls are well.
    AfterAll,
    /// Nothing is done, and the context is lost.
    Lost,
}

impl Fault {
    const ALL: [Self; 4] = [Self::Once, Self::ForGood, Self::AfterAll, Self::Lost];

    fn script(self, call: &str, nth: u64) -> String {
        match self {
            Self::Once => format!("{call}:fail=INVALID_VALUE,nth={nth}"),
            Self::ForGood => format!("{call}:fail=INVALID_VALUE,from={nth}"),
            Self::AfterAll => format!("{call}:act-fail=INVALID_VALUE,nth={nth}"),
            Self::Lost => format!("{call}:lose=ILLEGAL_ADDRESS,nth={nth}"),
        }
    }

    const fn code(self) -> i32 {
        match self {
            Self::Lost => 700,
            _ => 1,
        }
    }
}

/// One run: which call, how, and which one of them.
#[derive(Clone, Copy, Debug)]
struct Case {
    call: &'static str,
    fault: Fault,
    nth: u64,
    way: Way,
}

/// What the work met.
struct Met {
    case: Case,
    errors: usize,
    quarantined: u64,
    /// What quarantine has left was too little.
    is_starved: bool,
    /// Something was dropped, and nobody is told what it met.
    has_dropped: bool,
}

impl Met {
    /// A step's result; its error must say what was done, and which call failed with which code.
    fn step<T>(&mut self, step: &str, result: Result<T, Error>) -> Option<T> {
        let error = match result {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        let case = self.case;
        let shown = format!("{case:?}, {step}: {error} {error:?}");
        self.errors += 1;
        assert!(error.operation().is_some(), "{shown}");
        match error.kind() {
            // Nobody knows how it ended; the reason is the device's.
            ErrorKind::Quarantined => self.quarantined += 1,
            // Of what is in quarantine when its future is dropped, only the engine knows.
            ErrorKind::NoCapacity => self.is_starved = true,
            ErrorKind::DeviceFailed | ErrorKind::Unsupported => {
                let code = VendorCode::Cuda(case.fault.code());
                assert_eq!(error.vendor_code(), Some(code), "{shown}");
                let name = case.call.trim_end_matches("_v2");
                // A lost context fails whatever comes next: only the first error tells why, and
                // nobody is told that something was not destroyed.
                let is_first = self.errors == 1 && !self.has_dropped;
                let is_told = is_first && !DESTROYING.contains(&case.call);
                let must_tell = case.fault != Fault::Lost || is_told;
                assert!(!must_tell || error.to_string().contains(name), "{shown}");
            }
            _ => panic!("{shown}"),
        }
        None
    }

    fn transfer<B>(&mut self, step: &str, result: Result<Done<B>, OpError<B>>) -> Option<Done<B>> {
        let taken_apart = result.map_err(|failed| {
            let is_quarantined = failed.error().kind() == ErrorKind::Quarantined;
            let (error, buffer) = failed.into_parts();
            assert_eq!(buffer.is_none(), is_quarantined, "{step}: {error}");
            error
        });
        self.step(step, taken_apart)
    }
}

/// Where the work is done.
struct Bed<'a> {
    device: &'a Lease,
    engine: Engine,
    file: AsyncCuFile,
    path: &'a Path,
    content: &'a [u8],
}

impl Bed<'_> {
    fn buffer(&self, met: &mut Met, fill: u8) -> Option<DeviceBuffer> {
        let made = DeviceBuffer::new(&self.engine, self.device.ordinal, LEN);
        let buffer = met.step("allocate", block_on(made))?;
        let filled = buffer.copy_from_host(&self.engine, 0, vec![fill; LEN]);
        met.step("fill", block_on(filled))
    }

    fn assert_holds(&self, buffer: &DeviceBuffer, expected: &[u8]) {
        pattern::assert_same(
            &self.device.peek(buffer.address(), expected.len()),
            expected,
        );
    }

    fn reads(&self, met: &mut Met) {
        let Some(buffer) = self.buffer(met, CANARY) else {
            return;
        };
        let Some(done) = met.transfer("read", block_on(self.file.read_exact_at(buffer, 0))) else {
            return;
        };
        self.assert_holds(&done.buf, self.content);
        let range = |file_offset, buf_offset| FileRange {
            file_offset,
            len: 1000,
            buf_offset,
        };
        let ranges = vec![range(5000, 0), range(9000, 2000)];
        let read = self.file.read_ranges(done.buf, ranges);
        let Some(done) = met.transfer("ranges", block_on(read)) else {
            return;
        };
        self.assert_holds(&done.buf, &self.content[5000..6000]);
        let read = self.file.read_exact_at(done.buf, 0);
        let read = read.digest(DigestKind::Crc32c, LEN);
        let Some(done) = met.transfer("digest", block_on(read)) else {
            return;
        };
        let digest = done.digests().map(|digests| digests.values.clone());
        assert_eq!(digest, Some(vec![DigestKind::Crc32c.of(self.content)]));
        self.assert_holds(&done.buf, self.content);
        let back = done.buf.copy_to_host(&self.engine, 0..LEN);
        if let Some((_, bytes)) = met.step("copy to host", block_on(back)) {
            pattern::assert_same(&bytes, self.content);
        }
    }

    /// What is cancelled or dropped may end in any way, and must end.
    fn stops(&self, met: &mut Met) {
        if let Some(buffer) = self.buffer(met, CANARY) {
            drop(self.file.read_exact_at(buffer, 0).start());
            met.has_dropped = true;
        }
        let Some(buffer) = self.buffer(met, CANARY) else {
            return;
        };
        let read = self.file.read_exact_at(buffer, 0).start();
        read.cancel_handle().cancel();
        let outcome = block_on(read);
        match &outcome {
            Err(failed) if failed.error().kind() == ErrorKind::Cancelled => {}
            _ => drop(met.transfer("cancelled", outcome)),
        }
    }

    fn after_an_event(&self, met: &mut Met) {
        // SAFETY: the default stream is never destroyed.
        let recorded =
            unsafe { CudaEvent::record(&self.engine, self.device.ordinal, std::ptr::null_mut()) };
        let Some(event) = met.step("event", block_on(recorded)) else {
            return;
        };
        let read = self.file.read_at(vec![0; BLOCK], 0).after(Arc::new(event));
        if let Some(done) = met.transfer("after", block_on(read)) {
            pattern::assert_same(&done.buf, &self.content[..BLOCK]);
        }
    }

    fn writes(&self, met: &mut Met) {
        let Some(buffer) = self.buffer(met, 7) else {
            return;
        };
        let wrote = met.transfer("write", block_on(self.file.write_all_at(buffer, 0)));
        let found = fs::read(self.path).expect("the file");
        for (found, before) in found.chunks(BLOCK).zip(self.content.chunks(BLOCK)) {
            let is_new = found == [7; BLOCK];
            assert!(
                is_new || (wrote.is_none() && found == before),
                "{:?}",
                met.case
            );
        }
    }
}

fn permits(engine: &Engine) -> [Permits; 5] {
    let stats = engine.stats();
    [
        stats.bytes,
        stats.parts,
        stats.workers,
        stats.slots,
        stats.small_slots,
    ]
}

/// Does the work once, with that fault, and counts. Whether the fault fired.
fn fails(sim: &Sim, device: &Lease, path: &Path, case: Case) -> bool {
    let content = pattern::bytes(1, LEN);
    fs::write(path, &content).expect("the content can be written");
    let builder = Engine::builder().num_threads(3).task_size(BLOCK);
    let builder = builder.bounce_buffer_size(BLOCK).budget(1 << 20);
    let engine = case.way.of(builder).build_blocking().expect("an engine");
    let open = OpenOptions::new().read(true).write(true);
    let file = block_on(open.open(&engine, path)).expect("the file opens");
    let (_, before) = device.calls_and_fired();
    sim.fault(&case.fault.script(case.call, case.nth));
    let mut met = Met {
        case,
        errors: 0,
        quarantined: 0,
        is_starved: false,
        has_dropped: false,
    };
    let bed = Bed {
        device,
        engine,
        file,
        path,
        content: &content,
    };
    met.step("devices", block_on(bed.engine.devices()));
    bed.reads(&mut met);
    bed.stops(&mut met);
    bed.after_an_event(&mut met);
    bed.writes(&mut met);
    let report = block_on(bed.engine.shutdown());
    // Of what was dropped, the engine alone knows.
    assert!(report.quarantined >= met.quarantined, "{case:?}");
    assert!(report.quarantined > 0 || !met.is_starved, "{case:?}");
    until(|| permits(&bed.engine).iter().all(|each| each.in_flight == 0));
    for Permits {
        capacity,
        free,
        quarantined,
        ..
    } in permits(&bed.engine)
    {
        assert_eq!(free + quarantined, capacity, "{case:?}");
        assert!(quarantined == 0 || report.quarantined > 0, "{case:?}");
    }
    drop(bed);
    until(|| engine_threads() == 0);
    let fired = device.calls_and_fired().1 - before;
    sim.clear();
    assert_nothing_left(device, case, (report.quarantined, fired));
    assert!(
        fired > 0 || met.errors == 0,
        "{case:?}: an error from nowhere"
    );
    device.renew();
    fired > 0
}

/// What the driver still holds is what it did not let go of, or is in quarantine.
fn assert_nothing_left(device: &Lease, case: Case, (quarantined, fired): (u64, u64)) {
    device.assert_no_harm();
    if case.fault == Fault::Lost {
        // It ends with its context, and no call reaches it before.
        return;
    }
    let of = |calls: &[&str]| if calls.contains(&case.call) { fired } else { 0 };
    // A thread without the context cannot destroy what is in it.
    let unbound = of(&["cuCtxSetCurrent"]);
    let made = |call: &str| {
        if case.fault == Fault::AfterAll {
            of(&[call])
        } else {
            0
        }
    };
    let stats = device.stats();
    let left = [
        (
            stats.live_allocations,
            // What was not seen to have been filled is not freed.
            of(&["cuMemFree_v2", "cuStreamSynchronize"]) + made("cuMemAlloc_v2") + quarantined,
        ),
        (
            stats.live_streams,
            of(&["cuStreamDestroy_v2"]) + made("cuStreamCreate"),
        ),
        (
            stats.live_events,
            of(&["cuEventDestroy_v2"]) + made("cuEventCreate"),
        ),
        (
            stats.host_ranges,
            of(&["cuMemHostUnregister"]) + made("cuMemHostRegister_v2") + quarantined,
        ),
    ];
    for (left, allowed) in left {
        assert!(left <= allowed + unbound, "{case:?}: {stats:?}");
    }
}

/// The list is what the work calls: every entry point of it, and no other.
fn assert_called(sim: &Sim, device: &Lease, path: &Path, way: Way) {
    let calls = || {
        (
            device.calls_and_fired().0,
            CALLED.map(|call| device.calls_of(call)),
        )
    };
    let (all_before, before) = calls();
    let case = Case {
        call: CALLED[0],
        fault: Fault::Once,
        nth: u64::MAX,
        way,
    };
    assert!(!fails(sim, device, path, case));
    // What the test itself calls, to make the device new.
    let mine = 1;
    let (all, each) = calls();
    let mut sum = mine;
    for ((call, before), after) in CALLED.iter().zip(before).zip(each) {
        assert!(after > before, "{call} was not called, {way:?}");
        sum += after - before;
    }
    assert_eq!(sum, all - all_before, "something else was called, {way:?}");
}

/// All faults of all calls, for one way.
fn every_call_fails(way: Way) {
    let Some(sim) = Sim::need() else {
        return;
    };
    let folder = tempfile::tempdir_in(bench::disk()).expect("a folder");
    let path: PathBuf = folder.path().join("file");
    let device = sim.lease();
    assert_called(sim, &device, &path, way);
    let (mut runs, mut fired) = (0, 0);
    for call in CALLED {
        for fault in Fault::ALL {
            let mut nth = 1;
            while fails(
                sim,
                &device,
                &path,
                Case {
                    call,
                    fault,
                    nth,
                    way,
                },
            ) {
                fired += 1;
                // How often something is asked for again is a matter of time.
                nth += 1 + nth / 16;
            }
            runs += 1;
            eprintln!("{way:?} {call} {fault:?}: clean from {nth}");
        }
    }
    eprintln!("{way:?}: {fired} faults, {runs} clean runs");
}

#[test]
fn whichever_call_fails_on_the_way_of_the_pool() {
    every_call_fails(Way::Pool);
}

#[test]
fn whichever_call_fails_on_the_way_of_the_ring() {
    every_call_fails(Way::Ring);
}

#[test]
fn whichever_call_fails_on_the_way_of_ring_and_copy_thread() {
    every_call_fails(Way::RingAndThread);
}

/// The control: what is left behind fails the test.
#[test]
fn memory_that_is_not_given_back_is_noticed() {
    let Some(sim) = Sim::need() else {
        return;
    };
    let device = sim.lease();
    let _leaked = device.user().alloc(LEN);
    let case = Case {
        call: CALLED[0],
        fault: Fault::Once,
        nth: 1,
        way: Way::Pool,
    };
    let check = || assert_nothing_left(&device, case, (0, 1));
    let noticed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
    assert!(noticed.is_err());
    device.renew();
}
