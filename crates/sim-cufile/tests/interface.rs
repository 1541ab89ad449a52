//! Failure: what works with the simulator does not with the real library. Method: batches, vectors
//! and counts as documented; what else has been measured is in the test of calls, which runs on real
//! libraries too.
#![allow(unsafe_code, reason = "the calls are unsafe")]

mod support;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use nvidia_dl::cufile::{
    Code, CufileError, Failure, IoEvent, IoParams, IoVec, Opcode, Transfer, decode_event,
};
use support::{cells, done, file, name, sims, whole};
use xtask::again::{is_again, succeeds};

const LEN: usize = 10_000;

#[test]
fn a_batch_tells_of_each_request_by_its_cookie() {
    let sims = sims();
    sims.enter(3);
    let content: Vec<u8> = (0..250).cycle().take(LEN).collect();
    let (file, memory) = (file(&content), sims.memory(LEN));
    let handle = sims.register(file.as_file());
    let part = |number: usize| Transfer {
        base: memory.as_void(),
        buf_offset: 1000 * number,
        file_offset: 1000 * number as u64,
        len: 1000,
    };
    let request = |number| IoParams::new(Opcode::READ, handle, &part(number), 70 + number);
    let mut requests: Vec<_> = (0..10)
        .map(|number| request(number).expect("a request"))
        .collect();
    let batch = sims.library.batch_set_up(10).expect("a batch");
    sims.faults(&format!("{}/@read:fail=5,nth=4", name(&file)));
    // SAFETY: file and memory stay until the test ends.
    unsafe { sims.library.batch_submit(batch, &mut requests) }.expect("submitted");
    let mut told = BTreeMap::new();
    let mut events = [IoEvent::EMPTY; 4];
    while told.len() < 10 {
        let minute = Duration::from_secs(60);
        // SAFETY: the batch is set up.
        let count = unsafe { sims.library.batch_status(batch, 1, &mut events, minute) };
        for event in &events[..count.expect("events")] {
            told.insert(
                event.cookie,
                decode_event(event, 1000).expect("it has ended"),
            );
        }
    }
    let failed: Vec<_> = told.iter().filter(|(_, result)| result.is_err()).collect();
    assert_eq!(failed.len(), 1, "{told:?}");
    assert_eq!(failed[0].1, &Err(Failure::Os(5)));
    let missing = failed[0].0 - 70;
    for number in (0..10).filter(|number| *number != missing) {
        assert_eq!(told.get(&(70 + number)), Some(&Ok(1000)));
        let from = memory
            .checked_add(1000 * number as u64)
            .expect("an address");
        assert_eq!(
            sims.bytes(from, 1000),
            content[1000 * number..1000 * (number + 1)]
        );
    }
    // SAFETY: all have ended.
    unsafe { sims.library.batch_destroy(batch) }.expect("destroyed");
    // More than the batch has room for.
    let small = sims.library.batch_set_up(1).expect("a batch");
    // SAFETY: as above.
    let error = unsafe { sims.library.batch_submit(small, &mut requests) }.expect_err("too many");
    assert_eq!(error.failure(), Some(Failure::Code(Code::BATCH_FULL)));
    assert!(sims.library.batch_set_up(129).is_err());
    sims.deregister(handle);
}

/// As measured on the real library: nothing fails.
#[test]
fn threads_register_read_and_deregister_at_once() {
    let sims = sims();
    let files: Vec<_> = (0..8_u8).map(|byte| file(&[byte; LEN])).collect();
    std::thread::scope(|scope| {
        for (byte, file) in (0_u8..).zip(&files) {
            scope.spawn(move || {
                sims.enter(7);
                let memory = sims.memory(LEN);
                for _ in 0..50 {
                    let opened = File::open(file.path()).expect("it opens");
                    let handle = sims.register(&opened);
                    assert_eq!(sims.read(handle, &whole(memory, LEN)), Ok(LEN));
                    assert_eq!(sims.bytes(memory, LEN), [byte; LEN]);
                    sims.deregister(handle);
                }
            });
        }
    });
}

#[test]
fn a_vector_goes_to_several_places() {
    let sims = sims();
    let (file, one, two) = (file(b"abcdefghij"), sims.memory(3), sims.memory(20));
    let handle = sims.register(file.as_file());
    let pieces = [
        IoVec {
            base: one.as_void(),
            len: 3,
        },
        IoVec {
            base: two.as_void(),
            len: 20,
        },
    ];
    // SAFETY: file and memory stay until the test ends.
    let read = unsafe { sims.library.readv(handle, &pieces, 2) };
    assert_eq!(read, Ok(8), "up to the end of the file");
    assert_eq!(sims.bytes(one, 3), b"cde");
    assert_eq!(sims.bytes(two, 5), b"fghij");
    let pieces = &pieces[..1];
    // SAFETY: as above.
    assert_eq!(unsafe { sims.library.writev(handle, pieces, 0) }, Ok(3));
    assert_eq!(std::fs::read(file.path()).expect("the file"), b"cdedefghij");
    sims.deregister(handle);
}

#[test]
fn a_file_for_direct_io_is_read_and_written_however_it_is_aligned() {
    let sims = sims();
    let content: Vec<u8> = (0..250).cycle().take(LEN).collect();
    let (file, memory) = (file(&content), sims.memory(LEN));
    let direct = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(file.path());
    let direct = direct.expect("the file system takes O_DIRECT");
    let handle = sims.register(&direct);
    let odd = Transfer {
        file_offset: 77,
        buf_offset: 13,
        ..whole(memory, 5001)
    };
    assert_eq!(sims.read(handle, &odd), Ok(5001));
    let from = memory.checked_add(13).expect("an address");
    assert_eq!(sims.bytes(from, 5001), content[77..77 + 5001]);
    // SAFETY: file and memory stay until the test ends.
    let written = unsafe {
        sims.library.write(
            handle,
            &Transfer {
                file_offset: 3,
                ..odd
            },
        )
    };
    assert_eq!(written, Ok(5001));
    let found = std::fs::read(file.path()).expect("the file");
    assert_eq!(found[3..3 + 5001], content[77..77 + 5001]);
    assert_eq!(
        (&found[..3], &found[5004..]),
        (&content[..3], &content[5004..])
    );
    sims.deregister(handle);
}

#[test]
fn what_the_real_library_refuses_is_refused() {
    let sims = sims();
    sims.enter(6);
    let (file, memory, stream) = (file(&[4; LEN]), sims.memory(2 * LEN), sims.stream());
    let read_only = File::open(file.path()).expect("it opens");
    let handle = sims.register(&read_only);
    let code = |error: CufileError| error.failure().and_then(Failure::code);
    // SAFETY: file and memory stay until the test ends.
    let write = unsafe { sims.library.write(handle, &whole(memory, LEN)) };
    assert_eq!(write.map_err(code), Err(Some(Code::INVALID_FILE_OPEN_FLAG)));
    // In a stream, memory that is not registered will do from its start only.
    let within = |numbers| {
        sims.put(stream, handle, memory, numbers);
        sims.synchronize(stream);
        done(numbers, 1000).expect("it was written")
    };
    assert_eq!(within(cells(1000, 0, 0)), Ok(1000));
    assert!(within(cells(1000, 0, 1)).is_err());
    sims.register_buffer(memory, LEN).expect("registered");
    assert_eq!(within(cells(1000, 0, 1)), Ok(1000));
    // Past what is registered, though the memory is there.
    let at = |buf_offset| Transfer {
        buf_offset,
        ..whole(memory, 1000)
    };
    assert_eq!(sims.read(handle, &at(LEN - 1000)), Ok(1000));
    let beyond = sims.read(handle, &at(LEN - 999));
    assert_eq!(beyond.map_err(code), Err(Some(Code::INVALID_VALUE)));
    // Part of what is registered.
    let again = sims.register_buffer(memory.checked_add(5).expect("an address"), 10);
    assert_eq!(
        again.map_err(code),
        Err(Some(Code::MEMORY_ALREADY_REGISTERED))
    );
    sims.deregister(handle);
}

/// As measured: it is opened by the path that its descriptor has by now.
#[test]
fn a_file_that_goes_around_the_page_cache_has_a_descriptor_more_and_is_refused_when_deleted() {
    let sims = sims();
    let first = file(&[4; LEN]);
    let moved = first.path().with_extension("moved");
    let opened = direct(first.path());
    std::fs::rename(first.path(), &moved).expect("it is renamed");
    // Another file has its name by now.
    std::fs::write(first.path(), b"a stranger").expect("a file");
    let before = descriptors_of(&moved);
    let handle = sims.register(&opened);
    assert_eq!(descriptors_of(&moved), before + 1);
    let memory = sims.memory(LEN);
    assert_eq!(sims.read(handle, &whole(memory, LEN)), Ok(LEN));
    assert_eq!(sims.bytes(memory, LEN), [4; LEN]);
    sims.deregister(handle);
    assert_eq!(descriptors_of(&moved), before);

    std::fs::remove_file(&moved).expect("it is removed");
    let refused = sims.library.handle_register(opened.as_fd());
    let refused = refused.expect_err("its path names nothing");
    assert_eq!(
        refused.failure().and_then(Failure::code),
        Some(Code::GETNEWFD_FAILED)
    );
}

#[test]
fn a_file_that_goes_through_the_page_cache_is_taken_as_it_is_also_deleted() {
    let sims = sims();
    let file = file(&[5; LEN]);
    let before = descriptors_of(file.path());
    let handle = sims.register(file.as_file());
    assert_eq!(descriptors_of(file.path()), before);
    sims.deregister(handle);
    std::fs::remove_file(file.path()).expect("it is removed");
    let handle = sims.register(file.as_file());
    let memory = sims.memory(LEN);
    assert_eq!(sims.read(handle, &whole(memory, LEN)), Ok(LEN));
    assert_eq!(sims.bytes(memory, LEN), [5; LEN]);
    sims.deregister(handle);
}

/// A descriptor for direct I/O, which the disk of the tests has.
fn direct(path: &Path) -> File {
    let mut options = File::options();
    let opened = options.read(true).custom_flags(libc::O_DIRECT).open(path);
    opened.expect("it opens")
}

/// How many descriptors of this process are of the file.
fn descriptors_of(path: &Path) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").expect("the descriptors");
    let names = all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    names.filter(|name| name == path).count()
}

#[test]
fn calls_bytes_and_pieces_are_counted_in_the_layout_of_the_version() {
    const NAME: &str = "calls_bytes_and_pieces_are_counted_in_the_layout_of_the_version";
    if !is_again() {
        succeeds(NAME, &[]);
        return;
    }
    let sims = sims();
    let bytes = (16 << 20) + 5;
    let file = file(&vec![3; bytes]);
    let handle = sims.register(file.as_file());
    sims.enter(5);
    let (memory, stream) = (sims.memory(bytes), sims.stream());
    assert_eq!(sims.read(handle, &whole(memory, bytes)), Ok(bytes));
    let numbers = cells(4096, 0, 0);
    sims.put(stream, handle, memory, numbers);
    sims.synchronize(stream);
    assert_eq!(done(numbers, 4096), Some(Ok(4096)));
    let mut host = vec![0_u8; 10];
    let to_host = Transfer {
        base: host.as_mut_ptr().cast(),
        ..whole(memory, 10)
    };
    assert_eq!(sims.read(handle, &to_host), Ok(10));
    sims.deregister(handle);
    assert!(sims.read(handle, &to_host).is_err());
    let stats = sims.library.stats_l3().expect("statistics");
    let basic = stats.detailed.basic;
    assert_eq!((basic.reads.ops.ok, basic.reads.ops.err), (3, 1));
    assert_eq!(basic.reads.bytes, bytes as u64 + 4096 + 10);
    assert_eq!(
        (basic.handle_registers.ok, basic.handle_deregisters.ok),
        (1, 1)
    );
    assert!(basic.vectored.is_some(), "this is 1.20");
    // What goes to the host has no GPU.
    let [gpu] = stats.gpus[..] else {
        panic!("{:?}", stats.gpus);
    };
    assert_eq!(gpu.uuid, *b"SIMULATED GPU 05");
    assert_eq!((gpu.reads_by_path.posix, gpu.reads), (3, 3));
    assert_eq!(gpu.read_bytes, bytes as u64 + 4096);
    sims.library.stats_reset().expect("from 0");
    assert_eq!(sims.reads_by_path().total(), 0);
}
