//! Failure: a program is wrong about whose file, whose memory or whose cells they are, and no test
//! shows it. Method: hold requests up with a fault, do the wrong thing meanwhile, and see it caught.
#![allow(unsafe_code, reason = "does what a broken program would do")]

mod support;

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;

use nvidia_dl::cufile::{Cells, Code, Failure};
use support::{cells, done, file, name, sims, whole};
use xtask::again::{is_again, succeeds};

const LEN: usize = 10_000;

#[test]
fn parameters_are_read_and_the_count_is_written_when_the_turn_has_come() {
    let sims = sims();
    sims.enter(1);
    let content: Vec<u8> = (0..250).cycle().take(2 * LEN).collect();
    let (file, memory, stream) = (file(&content), sims.memory(LEN), sims.stream());
    let handle = sims.register(file.as_file());
    sims.faults(&format!("{}/@read:never", name(&file)));
    let late = cells(LEN, 0, 0);
    sims.put(stream, handle, memory, late);
    assert_eq!(done(late, LEN), None);
    // Whoever thinks that the parameters were taken is wrong: these are the ones that count.
    let changed = Cells::new(100, 7, 0).expect("cells");
    // SAFETY: the simulated library does not look at them before its turn.
    unsafe { late.write(changed) };
    sims.clear();
    sims.synchronize(stream);
    assert_eq!(done(late, LEN), Some(Ok(100)));
    assert_eq!(sims.bytes(memory, 100), content[7..107]);
    sims.deregister(handle);
}

#[test]
fn what_ends_in_flight_is_caught() {
    const NAME: &str = "what_ends_in_flight_is_caught";
    if !is_again() {
        let text = succeeds(NAME, &[]);
        for said in [
            "was deregistered with requests in flight",
            "a buffer at",
            "a stream was deregistered with 1 requests in flight",
        ] {
            assert!(text.contains(said), "{text}");
        }
        return;
    }
    let sims = sims();
    let (file, memory, stream) = (file(&[1; LEN]), sims.memory(LEN), sims.stream());
    let handle = sims.register(file.as_file());
    let registered = sims.register_buffer(memory, LEN);
    registered.expect("registered");
    sims.faults("@read:never");
    let held = cells(LEN, 0, 0);
    sims.put(stream, handle, memory, held);
    sims.deregister(handle);
    // SAFETY: the simulated memory stays.
    unsafe { sims.library.buf_deregister(memory.as_void()) }.expect("it was registered");
    // SAFETY: the stream is alive.
    unsafe { sims.library.stream_deregister(stream) }.expect("it was used");
    let stats = sims.stats();
    assert_eq!(stats.files_ended_in_flight, 1);
    assert_eq!(stats.buffers_ended_in_flight, 1);
    assert_eq!(stats.streams_ended_in_flight, 1);
    assert_eq!(stats.in_flight_max, 1);
    sims.clear();
    sims.synchronize(stream);
    let error = done(held, LEN)
        .expect("it was written")
        .expect_err("the file is gone");
    assert_eq!(error, Failure::Code(Code::HANDLE_NOT_REGISTERED));
}

/// As measured: the handle goes by the descriptor's number.
#[test]
fn a_handle_that_outlives_its_descriptor_reads_another_file_and_is_caught() {
    const NAME: &str = "a_handle_that_outlives_its_descriptor_reads_another_file_and_is_caught";
    if !is_again() {
        let text = succeeds(NAME, &[]);
        assert!(text.contains("whose number is another file's"), "{text}");
        return;
    }
    let sims = sims();
    let (first, second) = (file(b"first"), file(b"other"));
    let opened = File::open(first.path()).expect("it opens");
    let number = opened.as_raw_fd();
    let handle = sims.register(&opened);
    drop(opened);
    let reused = File::open(second.path()).expect("it opens");
    assert_eq!(reused.as_raw_fd(), number, "the system takes the lowest");
    let memory = sims.memory(5);
    assert_eq!(sims.read(handle, &whole(memory, 5)), Ok(5));
    assert_eq!(sims.bytes(memory, 5), b"other");
    let again = sims
        .library
        .handle_register(std::os::fd::AsFd::as_fd(&reused));
    let failure = again.expect_err("the number is registered").failure();
    assert_eq!(
        failure,
        Some(Failure::Code(Code::HANDLE_ALREADY_REGISTERED))
    );
    assert_eq!(sims.stats().stale_files, 1);
    sims.deregister(handle);
    assert_eq!(sims.stats().files_closed_early, 1);
}

#[test]
fn an_offset_before_a_buffer_is_caught_and_writes_nothing() {
    const NAME: &str = "an_offset_before_a_buffer_is_caught_and_writes_nothing";
    if !is_again() {
        assert!(succeeds(NAME, &[]).contains("an offset of -1 in a buffer"));
        return;
    }
    let sims = sims();
    let file = file(b"x");
    let handle = sims.register(file.as_file());
    let mut bytes = [0_u8; 2];
    let base = bytes[1..].as_mut_ptr();
    assert_eq!(sims.read_raw(handle, base, -1), -1);
    assert_eq!(sims.read_raw(handle, base, 0), 1);
    assert_eq!((bytes, sims.stats().negative_offsets), ([0, b'x'], 1));
}

#[test]
fn registered_memory_that_is_freed_is_seen() {
    const NAME: &str = "registered_memory_that_is_freed_is_seen";
    if !is_again() {
        succeeds(NAME, &[]);
        return;
    }
    let sims = sims();
    let memory = sims.memory(LEN);
    let registered = sims.register_buffer(memory, LEN);
    registered.expect("registered");
    assert_eq!((sims.stats().buffers, sims.stats().freed_buffers), (1, 0));
    // SAFETY: as above.
    unsafe { sims.driver.mem_free(memory) }.expect("freed");
    assert_eq!((sims.stats().buffers, sims.stats().freed_buffers), (1, 1));
    // A read to it is refused, and the driver names it.
    let file = file(&[1; LEN]);
    let handle = sims.register(file.as_file());
    let error = sims
        .read(handle, &whole(memory, LEN))
        .expect_err("it is freed");
    assert_eq!(
        error.failure().and_then(Failure::code),
        Some(Code::CUDA_DRIVER_ERROR)
    );
}

#[test]
fn a_full_stream_holds_its_submitter_up() {
    const NAME: &str = "a_full_stream_holds_its_submitter_up";
    if !is_again() {
        succeeds(NAME, &[("TOKIO_CUFILE_SIM_CUFILE_BACKLOG", "2")]);
        return;
    }
    let sims = sims();
    let (file, memory, stream) = (file(&[7; LEN]), sims.memory(LEN), sims.stream());
    let handle = sims.register(file.as_file());
    sims.faults("@read:never");
    let all = [0; 3].map(|_| cells(LEN, 0, 0) as usize);
    let submit = move || {
        sims.enter(0);
        for one in all {
            sims.put(stream, handle, memory, one as *mut Cells);
        }
    };
    let submitter = std::thread::spawn(submit);
    // Nothing but the stream lets it go on, and the stream is held up.
    while sims.stats().blocked_submissions == 0 {
        std::thread::yield_now();
    }
    assert!(!submitter.is_finished());
    sims.clear();
    submitter.join().expect("it goes on");
    sims.synchronize(stream);
    for one in all {
        assert_eq!(done(one as *mut Cells, LEN), Some(Ok(LEN)));
    }
}

#[test]
fn requests_of_a_lost_context_are_never_done() {
    let sims = sims();
    sims.enter(2);
    let (file, memory, stream) = (file(&[7; LEN]), sims.memory(LEN), sims.stream());
    let handle = sims.register(file.as_file());
    let before = sims.stats().abandoned;
    sims.device_faults(2, "@call:fail=719");
    let lost = cells(LEN, 0, 0);
    sims.put(stream, handle, memory, lost);
    // SAFETY: the stream is alive.
    let error = unsafe { sims.driver.stream_synchronize(stream) }.expect_err("it is lost");
    assert_eq!(error.result().map(|code| code.0), Some(719));
    while sims.stats().abandoned == before {
        std::thread::yield_now();
    }
    assert_eq!(done(lost, LEN), None);
    // At once, the library says so.
    let error = sims
        .read(handle, &whole(memory, LEN))
        .expect_err("the context is lost");
    assert_eq!(
        error.failure(),
        Some(Failure::Code(Code::CUDA_DRIVER_ERROR))
    );
    sims.deregister(handle);
}

#[test]
fn the_last_close_ends_every_registration() {
    const NAME: &str = "the_last_close_ends_every_registration";
    if !is_again() {
        assert!(succeeds(NAME, &[]).contains("closed with 1 files registered"));
        return;
    }
    let sims = sims();
    let file = file(&[7; LEN]);
    let handle = sims.register(file.as_file());
    // SAFETY: that the file is registered is what is tested.
    unsafe { sims.library.driver_close() }.expect("it was open");
    let memory = sims.memory(LEN);
    let error = sims
        .read(handle, &whole(memory, LEN))
        .expect_err("the handle is gone");
    assert_eq!(
        error.failure(),
        Some(Failure::Code(Code::HANDLE_NOT_REGISTERED))
    );
    assert_eq!(sims.stats().closed_with_files, 1);
    // Registering opens again.
    let handle = sims.register(file.as_file());
    assert_eq!((sims.library.use_count(), sims.stats().files), (1, 1));
    assert_eq!(sims.read(handle, &whole(memory, LEN)), Ok(LEN));
    let mut bytes = Vec::new();
    file.as_file()
        .read_to_end(&mut bytes)
        .expect("the position is the user's");
    assert_eq!(bytes.len(), LEN);
}
