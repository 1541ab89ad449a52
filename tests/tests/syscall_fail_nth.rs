//! Every system call fails, one after the other.
//!
//! Failure: an error that is lost, has no type or does not say what failed where; descriptors,
//! threads, slots or permits that are not given back; wrong bytes where success was said; a panic; a
//! wait without end.
//! Mechanism: some call's failure was not thought of, or a failure that stays.
//! Method: a fixed piece of work, in which the Nth call of a kind fails, once or from then on, with
//! each error that the kernel gives for it. N grows until the work is done before the Nth call comes.
//! What failed is tried once more, as a program would. Afterwards everything is counted.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use futures::executor::block_on;
use rustix::io::Errno;
use tokio_cufile::{
    AsyncCuFile, DigestKind, Engine, Error, ErrorKind, FileRange, HostBuffer, IoEngine, OpError,
    OpenOptions, Operation, Permits, VendorCode,
};
use tokio_cufile_tests::life::until;
use tokio_cufile_tests::syscalls::subjects::{BUFFER_LEN as LEN, SLOTS_LEN, SUBJECTS, Subject};
use tokio_cufile_tests::syscalls::{self, Counts, Refusal, supervise};
use tokio_cufile_tests::{bench, pattern};

const PAGE: usize = 4096;

/// One run.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    errno: Errno,
    for_good: bool,
    nth: u64,
    io: IoEngine,
}

impl Case {
    /// Whether the kernel refuses a ring that it has taken operations of.
    fn may_lose_ring(self) -> bool {
        self.name == "io_uring_enter" && self.for_good
    }

    /// What the error number means to a program.
    fn kind(self) -> ErrorKind {
        match self.errno {
            Errno::PERM | Errno::ACCESS => ErrorKind::PermissionDenied,
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => ErrorKind::StorageFull,
            Errno::MFILE | Errno::NFILE => ErrorKind::TooManyOpenFiles,
            Errno::NOMEM => ErrorKind::OutOfMemory,
            Errno::INVAL => ErrorKind::InvalidInput,
            _ => ErrorKind::Io,
        }
    }
}

/// What the work met, and what the file is to hold.
struct Met<'a> {
    case: Case,
    path: &'a Path,
    errors: u64,
    quarantined: u64,
    model: Vec<u8>,
    /// A write failed, or its sync did: what is there is not known.
    is_unsure: bool,
}

impl Met<'_> {
    /// An error must say what was done with which file, and what the kernel said.
    fn judge(&mut self, operation: Operation, error: &Error) {
        let case = self.case;
        let shown = format!("{case:?}, {operation}: {error} {error:?}");
        self.errors += 1;
        if error.kind() == ErrorKind::Busy {
            // What was lent out is in quarantine, and never comes back.
            return assert!(self.quarantined > 0, "{shown}");
        }
        assert_eq!(error.operation(), Some(operation), "{shown}");
        let has_file = !matches!(operation, Operation::Build | Operation::Buffer);
        assert!(!has_file || error.path() == Some(self.path), "{shown}");
        let has_range = matches!(operation, Operation::Read | Operation::Write);
        let offset = error.offset().unwrap_or(u64::MAX);
        assert!(!has_range || offset < LEN as u64, "{shown}");
        match error.kind() {
            ErrorKind::Quarantined => {
                assert!(case.may_lose_ring(), "{shown}");
                self.quarantined += 1;
                return;
            }
            // Slots and permits are gone with what is in quarantine. Of what was dropped, only the
            // engine knows.
            ErrorKind::NoCapacity => return assert!(case.may_lose_ring(), "{shown}"),
            ErrorKind::Unsupported => {
                let is_ring = operation == Operation::Build && case.io == IoEngine::Uring;
                assert!(is_ring, "{shown}");
            }
            // It was on its way to a ring that was lost.
            ErrorKind::Io if error.vendor_code().is_none() => {
                return assert!(case.may_lose_ring(), "{shown}");
            }
            // A thread or memory that was not to be had.
            ErrorKind::OutOfMemory => {}
            kind => assert_eq!(kind, case.kind(), "{shown}"),
        }
        let code = VendorCode::Errno(case.errno.raw_os_error());
        let told = io::Error::from(case.errno).to_string();
        let tells = error.vendor_code() == Some(code) || error.to_string().contains(&told);
        assert!(tells, "{shown}");
    }

    /// Does something, and once more where it failed.
    fn twice<T>(
        &mut self,
        operation: Operation,
        mut act: impl FnMut() -> Result<T, Error>,
    ) -> Option<T> {
        match act() {
            Ok(value) => return Some(value),
            Err(error) => self.judge(operation, &error),
        }
        match act() {
            Ok(value) => Some(value),
            Err(error) => {
                self.judge(operation, &error);
                // A loss is told again and again; and a closed file stays closed.
                let is_sticky = matches!(operation, Operation::Sync | Operation::Close);
                assert!(self.case.for_good || is_sticky, "{:?}: {error}", self.case);
                None
            }
        }
    }

    fn write(&mut self, file: &AsyncCuFile, bytes: &[u8], offset: usize) {
        let act = || {
            let write = file.write_all_at(bytes.to_vec(), offset as u64);
            block_on(write).map_err(reason).map(drop)
        };
        if self.twice(Operation::Write, act).is_none() {
            self.is_unsure = true;
        }
        self.model[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn read(&mut self, file: &AsyncCuFile, offset: usize, len: usize) {
        let act = || {
            let read = file.read_exact_at(vec![0; len], offset as u64);
            let read = read.digest(DigestKind::Crc32c, len);
            block_on(read).map_err(reason)
        };
        if let Some(done) = self.twice(Operation::Read, act) {
            self.assert_holds(&done.buf, offset);
            let digests = done.digests().map(|digests| digests.values.clone());
            assert_eq!(digests, Some(vec![DigestKind::Crc32c.of(&done.buf)]));
        }
    }

    fn assert_holds(&self, bytes: &[u8], offset: usize) {
        if !self.is_unsure {
            pattern::assert_same(bytes, &self.model[offset..offset + bytes.len()]);
        }
    }
}

fn reason<B>(failed: OpError<B>) -> Error {
    let is_quarantined = failed.error().kind() == ErrorKind::Quarantined;
    let (error, buffer) = failed.into_parts();
    assert_eq!(buffer.is_none(), is_quarantined, "{error}");
    error
}

/// In the buffer, in place.
fn aligned(met: &mut Met<'_>, file: &AsyncCuFile, buffer: &mut HostBuffer) {
    let content = pattern::bytes(3, LEN);
    if let Ok(bytes) = buffer.as_mut_slice() {
        bytes.copy_from_slice(&content);
    }
    let act = || {
        let part = buffer.part(0..LEN)?;
        block_on(file.write_all_at(part, 0))
            .map_err(reason)
            .map(drop)
    };
    if met.twice(Operation::Write, act).is_none() {
        met.is_unsure = true;
    }
    met.model.copy_from_slice(&content);
    met.twice(Operation::Sync, || block_on(file.sync_data()));
    met.twice(Operation::DropCache, || block_on(file.drop_cache()));
    if let Ok(bytes) = buffer.as_mut_slice() {
        bytes.fill(0);
    }
    let act = || {
        let part = buffer.part(0..LEN)?;
        block_on(file.read_exact_at(part, 0)).map_err(reason)
    };
    if let Some(done) = met.twice(Operation::Read, act) {
        met.assert_holds(done.buf.as_slice(), 0);
    }
}

fn unaligned(met: &mut Met<'_>, file: &AsyncCuFile, engine: &Engine) {
    met.write(file, &pattern::bytes(4, 5000), 100);
    met.read(file, 77, 6000);
    let ranges = |file: &AsyncCuFile| {
        let range = |file_offset, buf_offset| FileRange {
            file_offset,
            len: 900,
            buf_offset,
        };
        let ranges = vec![range(200, 0), range(20_000, 1000)];
        file.read_ranges(vec![0; 1900], ranges)
    };
    let read = met.twice(Operation::Read, || block_on(ranges(file)).map_err(reason));
    if let Some(done) = read {
        met.assert_holds(&done.buf[..900], 200);
        met.assert_holds(&done.buf[1000..], 20_000);
    }
    // What is dropped or cancelled may end in any way, and must end.
    drop(file.read_at(vec![0; LEN], 0).start());
    let cancelled = file.read_exact_at(vec![0; LEN], 0).start();
    cancelled.cancel_handle().cancel();
    match block_on(cancelled).map_err(reason) {
        Ok(done) => met.assert_holds(&done.buf, 0),
        Err(error) if error.kind() == ErrorKind::Cancelled => {}
        Err(error) => met.judge(Operation::Read, &error),
    }
    until(|| engine.stats().operations_live == 0);
}

/// The whole work. What the engine counts at the end, if there was one.
fn work(met: &mut Met<'_>) {
    let builder = Engine::builder().io(met.case.io).num_threads(2);
    let builder = builder.task_size(3 * PAGE).bounce_buffer_size(PAGE);
    let builder = builder.budget(SLOTS_LEN).registered_buffers(true);
    let build = || builder.clone().build_blocking();
    let Some(engine) = met.twice(Operation::Build, build) else {
        return;
    };
    let options = OpenOptions::new().read(true).write(true).create(true);
    let path = met.path;
    let open = || block_on(options.clone().open(&engine, path));
    if let Some(file) = met.twice(Operation::Open, open) {
        met.twice(Operation::SetLen, || block_on(file.set_len(LEN as u64)));
        let buffer = met.twice(Operation::Buffer, || HostBuffer::new(&engine, LEN));
        if let Some(mut buffer) = buffer {
            aligned(met, &file, &mut buffer);
        }
        unaligned(met, &file, &engine);
        met.twice(Operation::Len, || block_on(file.len()));
        met.twice(Operation::Sync, || block_on(file.sync_all()));
        let mut file = Some(file);
        met.twice(Operation::Close, || match file.take() {
            Some(file) => block_on(file.close()),
            None => Ok(()),
        });
    }
    end(met, &engine);
}

fn end(met: &Met<'_>, engine: &Engine) {
    let case = met.case;
    let report = block_on(engine.shutdown());
    assert!(report.quarantined >= met.quarantined, "{case:?}");
    let permits = || {
        let stats = engine.stats();
        [
            stats.bytes,
            stats.parts,
            stats.workers,
            stats.slots,
            stats.small_slots,
        ]
    };
    until(|| permits().iter().all(|each| each.in_flight == 0));
    for Permits {
        capacity,
        free,
        quarantined,
        ..
    } in permits()
    {
        assert_eq!(free + quarantined, capacity, "{case:?}");
        assert!(quarantined == 0 || report.quarantined > 0, "{case:?}");
    }
}

fn descriptors() -> u64 {
    fs::read_dir("/proc/self/fd")
        .expect("the descriptors")
        .count() as u64
}

/// Descriptors and panics are the process's.
static ALONE: Mutex<()> = Mutex::new(());

static PANICS: AtomicU64 = AtomicU64::new(0);

/// Does the work once, and counts what is left.
fn fails(subject: &Subject, path: &Path, case: Case) -> Counts {
    let _ = fs::remove_file(path);
    let before = descriptors();
    let refusal = Refusal {
        calls: subject.calls,
        matches: subject.matches,
        errno: case.errno,
        nth: case.nth,
        for_good: case.for_good,
    };
    let mut met = Met {
        case,
        path,
        errors: 0,
        quarantined: 0,
        model: vec![0; LEN],
        is_unsure: false,
    };
    let supervised = supervise(refusal, &format!("{case:?}"), || work(&mut met));
    // All its threads are gone.
    let ((), counts) = supervised.expect("it was possible before");
    assert_eq!(PANICS.load(Ordering::Relaxed), 0, "{case:?}");
    assert!(counts.refused > 0 || met.errors == 0, "{case:?}");
    let left = descriptors() - before;
    // A call that was not made has closed nothing; and what a lost ring was told stays open.
    let closes = if case.name == "close" {
        counts.refused
    } else {
        0
    };
    let lost_ring = if case.may_lose_ring() { 4 } else { 0 };
    assert!(left <= closes + lost_ring, "{case:?}: {left} descriptors");
    if !met.is_unsure && met.errors == 0 {
        let found = fs::read(path).expect("the file");
        pattern::assert_same(&found, &met.model);
    }
    counts
}

fn every_call_fails(io: IoEngine) {
    if !syscalls::need() {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    std::panic::set_hook(Box::new(|panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        eprintln!("{panic}");
    }));
    let folder = tempfile::tempdir_in(bench::disk()).expect("a folder");
    let path = folder.path().join("file");
    let mut refused = 0;
    for subject in &SUBJECTS {
        let is_called = match io {
            IoEngine::Uring => subject.with_ring,
            _ => subject.with_pool,
        };
        if !is_called {
            continue;
        }
        let once = subject.errnos.iter().map(|&errno| (errno, false));
        let lasting = subject.lasting.iter().map(|&errno| (errno, true));
        for (errno, for_good) in once.chain(lasting) {
            let mut nth = 1;
            loop {
                let case = Case {
                    name: subject.name,
                    errno,
                    for_good,
                    nth,
                    io,
                };
                let counts = fails(subject, &path, case);
                if counts.refused == 0 {
                    assert!(counts.seen > 0, "{case:?}: it was never called");
                    break;
                }
                refused += 1;
                nth += 1;
            }
            eprintln!(
                "{io:?} {} {errno} {for_good}: clean from {nth}",
                subject.name
            );
        }
    }
    eprintln!("{io:?}: {refused} faults");
}

#[test]
fn whichever_call_fails_with_the_pool() {
    every_call_fails(IoEngine::Pool);
}

#[test]
fn whichever_call_fails_with_the_ring() {
    every_call_fails(IoEngine::Uring);
}
