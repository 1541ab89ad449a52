//! Memory of every kind that a driver gives, as the library takes it.
//!
//! Failure: memory of one kind taken for another, or for none; bytes in the wrong place; memory
//! that is gone taken as memory; an answer that hangs on which context the asking thread has.
//! Mechanism: what a driver says of an address is documented in part, and the simulated driver says
//! what was read there.
//! Method: the same questions to whatever driver is there, real or simulated, each from a thread in a
//! context and from one in none. Each answer is printed, and all that were wrong are listed at the
//! end. This file alone can be carried to another machine as its test binary:
//! `device_pointers-… --nocapture --test-threads 1`, with files where `TOKIO_CUFILE_TEST_FOLDER` says.
//!
//! A kind that the driver does not have is printed as such.
//!
//! Unsafe, because memory of other code's is known by its address alone.
#![allow(unsafe_code, reason = "vouches for memory that the driver gave")]

#[path = "device_pointers/driver.rs"]
mod driver;

use std::fs;
use std::path::PathBuf;

use nvidia_dl::Search;
use nvidia_dl::cuda::{AllocationKind, DevicePtr, Driver};
use tokio_cufile::{
    AsyncCuFile, CacheMode, Engine, ErrorKind, ForeignMemory, OpenOptions, Receipt,
};
use tokio_cufile_tests::bench::{self, Subject, block_on};
use tokio_cufile_tests::pattern;

use driver::{Asker, BLOCK, CANARY, Cuda, Kind, Memory, done};

const LEN: usize = 5 * BLOCK + 77;
/// What is around a range: a whole block, and one that direct I/O cannot take in place.
const MARGINS: [usize; 2] = [BLOCK, 300];
const ALL: usize = LEN + 2 * BLOCK;
const DEVICE: u32 = 0;

/// The library's answer to an asker, for memory that is freed when no operation has it any more.
fn lend(
    cuda: &Cuda,
    asker: Asker,
    engine: &Engine,
    (address, len): (u64, usize),
) -> tokio_cufile::Result<ForeignMemory<()>> {
    cuda.on(asker, || {
        // SAFETY: every operation on it is waited for before the memory is freed; what is not there
        // is given to none.
        let asked = unsafe { ForeignMemory::new(engine, DEVICE, address, len, ()) };
        block_on(asked)
    })
}

/// An engine with a file.
struct Rig {
    engine: Engine,
    file: AsyncCuFile,
    content: Vec<u8>,
    folder: tempfile::TempDir,
}

impl Rig {
    /// None where this machine lets nobody have such an engine.
    fn open(subject: &Subject) -> Option<Self> {
        let is_direct = bench::takes_direct(&bench::disk());
        let cache = if is_direct {
            CacheMode::Direct
        } else {
            CacheMode::Auto
        };
        let builder = subject.builder().cache(cache);
        let engine = match builder.num_threads(2).task_size(BLOCK).build_blocking() {
            Ok(engine) => engine,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                println!("{}: none here: {error}", subject.name);
                return None;
            }
        };
        let folder = tempfile::tempdir_in(bench::disk()).expect("a folder");
        let content = pattern::bytes(11, LEN);
        fs::write(folder.path().join("file"), &content).expect("a file");
        let open = OpenOptions::new().read(true).write(true);
        let file = block_on(open.open(&engine, folder.path().join("file"))).expect("it opens");
        Some(Self {
            engine,
            file,
            content,
            folder,
        })
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("file")
    }

    /// Reads into a part of the memory and writes it back. What was read and written how.
    fn both_ways(
        &self,
        cuda: &Cuda,
        memory: &Memory,
        lent: ForeignMemory<()>,
        (asker, margin): (Asker, usize),
    ) -> String {
        let read = cuda.on(asker, || block_on(self.file.read_exact_at(lent, 0)));
        let read = read.expect("it is read");
        let found = cuda.content(memory, margin + LEN + MARGINS[1]);
        pattern::assert_same(&found[margin..margin + LEN], &self.content);
        let mut around = found[..margin].iter().chain(&found[margin + LEN..]);
        assert!(around.all(|byte| *byte == CANARY), "bytes beside the range");
        let how = format!("read by {}", paths(&read.receipt));
        let wrote = cuda.on(asker, || block_on(self.file.write_all_at(read.buf, 100)));
        let wrote = wrote.expect("it is written");
        let in_file = fs::read(self.path()).expect("the file is there");
        pattern::assert_same(&in_file[..100], &self.content[..100]);
        pattern::assert_same(&in_file[100..], &self.content);
        fs::write(self.path(), &self.content).expect("the file takes it");
        format!("{how}, written by {}", paths(&wrote.receipt))
    }
}

fn paths(receipt: &Receipt) -> String {
    let used = receipt.paths.iter().filter(|(_, bytes)| *bytes > 0);
    let used = used.map(|(path, bytes)| format!("{} {bytes}", path.name()));
    used.collect::<Vec<_>>().join(" + ")
}

#[test]
fn memory_of_every_kind_takes_what_is_read_and_gives_what_is_written() {
    let Some(cuda) = Cuda::here() else { return };
    for subject in bench::subjects() {
        let Some(rig) = Rig::open(&subject) else {
            continue;
        };
        for kind in Kind::ALL {
            let Some(memory) = cuda.make(kind, ALL) else {
                continue;
            };
            println!("{}, {kind:?}", subject.name);
            println!("  driver: {}", cuda.ask(memory.address).expect("an answer"));
            let askers = Asker::ALL.into_iter();
            for case in askers.flat_map(|asker| MARGINS.map(|margin| (asker, margin))) {
                cuda.fill(&memory);
                let address = memory.address + case.1 as u64;
                let lent = match lend(&cuda, case.0, &rig.engine, (address, LEN)) {
                    Ok(lent) => lent,
                    Err(error) => {
                        cuda.check(false, format!("{kind:?} {case:?}: {error}"));
                        continue;
                    }
                };
                let class = lent.class();
                cuda.check(
                    class == kind.class(),
                    format!("{kind:?} is taken as {class}"),
                );
                let how = rig.both_ways(&cuda, &memory, lent, case);
                println!("  {:?}, {} in: {class}, {how}", case.0, case.1);
            }
            cuda.free(memory);
        }
        assert_eq!(block_on(rig.engine.shutdown()).quarantined, 0);
    }
    cuda.end();
}

#[test]
fn a_range_is_taken_where_its_allocation_holds_it_and_nowhere_else() {
    let Some(cuda) = Cuda::here() else { return };
    let engine = Engine::builder().build_blocking().expect("an engine");
    for kind in Kind::ALL {
        let Some(memory) = cuda.make(kind, ALL) else {
            continue;
        };
        let (address, len) = (memory.address, memory.len);
        let told = cuda.ask(address).expect("an answer");
        println!("{kind:?}, {len:#x} bytes at {address:#x}\n  driver: {told}");
        cuda.check(
            told.holds(address, len),
            format!("{kind:?}: the driver says less than it gave: {told}"),
        );
        let inside = [
            ("all", address, len),
            ("the first byte", address, 1),
            ("the last byte", address + len as u64 - 1, 1),
            ("from an odd byte on", address + 777, len - 777),
            ("nothing", address, 0),
        ];
        let end = told.start + told.bytes;
        let outside = [
            ("a byte more", end - 1, 2),
            ("a byte less", told.start.wrapping_sub(1), 2),
            ("as much again", told.start + 1, len.max(2 * BLOCK) * 2),
            ("around the address space", address, usize::MAX),
        ];
        let outside: &[_] = if told.start == 0 { &[] } else { &outside };
        let cases = inside.iter().map(|case| (true, case));
        for (wanted, (what, at, bytes)) in cases.chain(outside.iter().map(|case| (false, case))) {
            for asker in Asker::ALL {
                let lent = lend(&cuda, asker, &engine, (*at, *bytes));
                let is_as_wanted = match &lent {
                    Ok(lent) => wanted && (*bytes == 0 || lent.class() == kind.class()),
                    Err(error) => !wanted && error.kind() == ErrorKind::InvalidInput,
                };
                let answer = answer(lent);
                println!("  {what}, {asker:?}: {answer}");
                cuda.check(is_as_wanted, format!("{kind:?}, {what}: {answer}"));
            }
        }
        cuda.free(memory);
    }
    drop(engine);
    cuda.end();
}

fn answer(lent: tokio_cufile::Result<ForeignMemory<()>>) -> String {
    match lent {
        Ok(lent) => format!("taken as {}", lent.class()),
        Err(error) => format!("{:?}: {error}", error.kind()),
    }
}

/// Frameworks grow their memory so. Whether a driver says the range of one piece or of all is
/// documented nowhere; the library takes what the driver says.
#[test]
fn a_range_over_two_mappings_is_taken_as_far_as_the_driver_says() {
    let Some(cuda) = Cuda::here() else { return };
    let kind = Kind::Mapped(2);
    let Some(memory) = cuda.make(kind, ALL) else {
        cuda.end();
        return;
    };
    let rig = Rig::open(&bench::subjects()[0]).expect("a pool is everywhere");
    let middle = memory.len / 2;
    let margin = middle - LEN / 2;
    let address = memory.address + margin as u64;
    let told = cuda.ask(address).expect("an answer");
    println!(
        "{kind:?}, {LEN:#x} bytes at {address:#x}, {middle:#x} in each\n  driver: {told}\n  \
         driver of the second: {:?}",
        cuda.ask(memory.address + middle as u64)
    );
    for asker in Asker::ALL {
        match lend(&cuda, asker, &rig.engine, (address, LEN)) {
            Ok(lent) => {
                let class = lent.class();
                let how = rig.both_ways(&cuda, &memory, lent, (asker, margin));
                println!("  {asker:?}: {class}, {how}");
                cuda.check(class == kind.class(), format!("taken as {class}"));
                cuda.check(told.holds(address, LEN), "taken, and the driver says less");
            }
            Err(error) => {
                println!("  {asker:?}: {:?}: {error}", error.kind());
                let is_refusal = error.kind() == ErrorKind::InvalidInput;
                let is_right = is_refusal && !told.holds(address, LEN);
                cuda.check(is_right, format!("the driver holds it, and: {error}"));
            }
        }
        cuda.fill(&memory);
    }
    cuda.free(memory);
    assert_eq!(block_on(rig.engine.shutdown()).quarantined, 0);
    cuda.end();
}

#[test]
fn what_is_no_memory_of_the_driver_is_refused() {
    let Some(cuda) = Cuda::here() else { return };
    let engine = Engine::builder().build_blocking().expect("an engine");
    static GLOBAL: [u8; 64] = [1; 64];
    let (heap, stack) = (vec![1_u8; BLOCK], [1_u8; 64]);
    let mut cases: Vec<(String, u64)> = [
        ("the heap", heap.as_ptr().addr() as u64),
        ("the stack", stack.as_ptr().addr() as u64),
        ("a global", GLOBAL.as_ptr().addr() as u64),
        ("null", 0),
        ("the first page", 64),
        ("an address that no program has", 0x5a5a_0000_0000_0000),
        ("the upper half", 1 << 63),
        ("the last bytes", u64::MAX - 63),
    ]
    .map(|(what, address)| (what.to_owned(), address))
    .to_vec();
    let mut reserved = 0;
    let code = cuda
        .api
        .cuMemAddressReserve(&raw mut reserved, RESERVED, 0, 0, 0);
    match code {
        0 => cases.push(("reserved and not mapped".to_owned(), reserved)),
        code => println!("reserving addresses: this driver has none ({code})"),
    }
    for kind in Kind::ALL {
        if let Some(memory) = cuda.make(kind, ALL) {
            cases.push((format!("freed, {kind:?}"), memory.address));
            cuda.free(memory);
        }
    }
    for (what, address) in &cases {
        let told = cuda.ask(*address);
        match &told {
            Ok(told) => println!("{what}, {address:#x}\n  driver: {told}"),
            Err(code) => println!("{what}, {address:#x}\n  driver: error {code}"),
        }
        for asker in Asker::ALL {
            let lent = lend(&cuda, asker, &engine, (*address, 64));
            let is_refused = lent
                .as_ref()
                .is_err_and(|error| error.kind() == ErrorKind::InvalidInput);
            let answer = answer(lent);
            println!("  {asker:?}: {answer}");
            // Memory may have been given to a pool instead of back, and then is known still.
            let is_known = told.is_ok_and(|told| told.memory_type != 0 && told.is_mapped);
            let may_be = is_known && what.starts_with("freed");
            cuda.check(is_refused || may_be, format!("{what}: {answer}"));
        }
    }
    if code == 0 {
        done(cuda.api.cuMemAddressFree(reserved, RESERVED));
    }
    drop((engine, heap));
    cuda.end();
}

/// Of any granularity that a driver has.
const RESERVED: usize = 64 << 20;

/// By the driver's documentation a thread in no context gets `INVALID_CONTEXT`; whether it may get an
/// answer is not said. A wrong answer is one in any case.
#[test]
fn the_wrapper_answers_or_fails_by_a_code_on_every_thread() {
    let Some(cuda) = Cuda::here() else { return };
    let driver = Driver::load(&Search::libcuda()).expect("the engine has loaded it");
    let ask = |asker, address| cuda.on(asker, || driver.pointer_attributes(DevicePtr(address)));
    for kind in Kind::ALL {
        let Some(memory) = cuda.make(kind, ALL) else {
            continue;
        };
        let told = cuda.ask(memory.address).expect("an answer");
        for address in [memory.address, memory.address + 777] {
            let found = ask(Asker::InContext, address).expect("an answer in a context");
            println!("{kind:?} in a context: {found:?}");
            cuda.check(
                found.kind == kind.allocation(),
                format!("{kind:?} {found:?}"),
            );
            let raw = (told.memory_type, told.ordinal, told.is_managed, told.bytes);
            let read = (
                u64::from(found.memory_type.0),
                found.device_ordinal,
                found.is_managed,
                found.range_bytes,
            );
            cuda.check(raw == read, format!("{kind:?}: {raw:?}, read as {read:?}"));
            let elsewhere = ask(Asker::InNone, address);
            println!("{kind:?} in none: {elsewhere:?}");
            match elsewhere {
                Ok(other) => cuda.check(
                    other.kind == found.kind,
                    format!("{kind:?} in none is {:?}", other.kind),
                ),
                Err(error) => cuda.check(
                    error.result().is_some(),
                    format!("{kind:?} in none: {error}"),
                ),
            }
        }
        cuda.free(memory);
    }
    for address in [0, 64, 0x5a5a_0000_0000_0000, u64::MAX] {
        for asker in Asker::ALL {
            let found = ask(asker, address);
            println!("{address:#x}, {asker:?}: {found:?}");
            let is_right = match &found {
                Ok(found) => found.kind == AllocationKind::Unknown,
                Err(error) => error.result().is_some(),
            };
            cuda.check(is_right, format!("{address:#x}: {found:?}"));
        }
    }
    cuda.end();
}
