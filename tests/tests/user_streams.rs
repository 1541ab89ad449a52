//! Operations in a user's CUDA streams, on whatever libcufile is there.
//!
//! Failure: an operation that runs before what was put into the stream before it, or after what was put
//! there behind it; one that moves another one's bytes, or more than its own; memory that is given back
//! while libcufile uses it; a stream that stays registered.
//! Mechanism: the library reads its numbers when the stream comes to the operation, long after the call,
//! on threads of its own; nothing takes an operation back. What NVIDIA's does beyond that is known only
//! from having met it.
//! Method: fills and copies in the same streams by the driver's own calls, and comparisons of whole
//! buffers and files. The same on a real and on the simulated library, which reads late, writes later, and
//! counts what would do harm. This file alone can be carried to another machine as its test binary:
//! `user_streams-… --nocapture --test-threads 1`, with files where `TOKIO_CUFILE_TEST_FOLDER` says and the
//! library that `TOKIO_CUFILE_LIBCUFILE` names. A failure of the storm prints its seed:
//! `PROPTEST_RNG_SEED=… user_streams-… storm` repeats it.
//!
//! How a stream that is not registered refuses a second operation is in `cufile_registered_streams.rs`: no
//! real stream stands still for as long as a test wants.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "user_streams/rig.rs"]
mod rig;
#[path = "user_streams/storm.rs"]
mod storm;

use std::fs;
use std::task::Poll;
use std::thread;

use futures::future::join_all;
use nvidia_dl::cuda::Stream;
use tokio_cufile::{AsyncCuFile, CuFileCalls, DevicePart, Enqueued, ErrorKind, RegisteredStream};
use tokio_cufile_tests::bench::block_on;
use tokio_cufile_tests::life::poll_once;
use tokio_cufile_tests::random::Draws;
use tokio_cufile_tests::{gpu, pattern};

use rig::{CANARY, PAGE, Rig, put};

const LEN: usize = 16 * PAGE;
const CONTENT: usize = 500_009;
const ROUNDS: u64 = 32;
/// Of one stream, at once.
const MANY: usize = 64;

#[test]
fn an_operation_keeps_its_place_in_a_stream_that_is_not_registered() {
    let Some(rig) = Rig::open(CuFileCalls::Sync) else {
        return;
    };
    let stream = rig.stream();
    keeps_its_place(&rig, stream);
    rig.destroy(stream);
    rig.end();
}

#[test]
fn an_operation_keeps_its_place_in_a_registered_stream() {
    let Some(rig) = Rig::open(CuFileCalls::Sync) else {
        return;
    };
    let stream = rig.stream();
    let registered = rig.register(stream);
    keeps_its_place(&rig, stream);
    block_on(registered.deregister()).unwrap();
    rig.destroy(stream);
    rig.end();
}

/// Each round, nobody waits for the stream between the first call and the end.
fn keeps_its_place(rig: &Rig, stream: Stream) {
    let content = pattern::bytes(3, CONTENT);
    let source = rig.file("source", &content);
    let mut model = vec![0; 4 * LEN];
    let target = rig.file("target", &model);
    let mut draws = Draws::new(17);
    let mut held_up = 0;
    let byte = |round: u64, which: u64| u8::try_from(1 + (3 * round + which) % 250).unwrap();
    for round in 0..ROUNDS {
        let [before, behind, later] = [0, 1, 2].map(|which| byte(round, which));
        let (len, head) = (1 + draws.near_pages(LEN - 1), draws.below(LEN));
        let from = draws.near_pages(CONTENT - len);
        let head = head.min(len);
        let mut buffer = block_on(gpu::buffer(&rig.engine, rig.ordinal, &[CANARY; LEN]));
        let address = buffer.address();

        rig.hold(stream);
        rig.fill(address, before, LEN, stream);
        let mark = rig.mark(stream);
        let read = source.read_exact_at(buffer.part(0..len).unwrap(), from as u64);
        let read = block_on(put(read, stream)).unwrap();
        assert_eq!((read.address(), read.len()), (address, len));
        rig.fill(address, behind, head, stream);
        held_up += u64::from(rig.is_behind(mark));
        rig.release();
        assert_eq!(block_on(read).unwrap().bytes, len);
        rig.wait(stream);
        let found = rig.peek(address, LEN);
        pattern::assert_same(&found[..head], &vec![behind; head]);
        pattern::assert_same(&found[head..len], &content[from + head..from + len]);
        pattern::assert_same(&found[len..], &vec![before; LEN - len]);

        // What a kernel makes is written, and not what the next one makes of it.
        let pages = 1 + draws.below(LEN / PAGE);
        let (len, at) = (pages * PAGE, draws.below(3 * LEN / PAGE) * PAGE);
        rig.hold(stream);
        for page in 0..pages {
            let start = address + (page * PAGE) as u64;
            rig.fill(start, page_byte(before, page), PAGE, stream);
        }
        let mark = rig.mark(stream);
        let write = target.write_all_at(buffer.part(0..len).unwrap(), at as u64);
        let write = block_on(put(write, stream)).unwrap();
        rig.fill(address, later, LEN, stream);
        held_up += u64::from(rig.is_behind(mark));
        rig.release();
        assert_eq!(block_on(write).unwrap().bytes, len);
        for (page, place) in model[at..at + len].chunks_mut(PAGE).enumerate() {
            place.fill(page_byte(before, page));
        }
        pattern::assert_same(&fs::read(target.path()).unwrap(), &model);
        rig.wait(stream);
        pattern::assert_same(&rig.peek(address, LEN), &[later; LEN]);
    }
    // Of those, the order was the stream's work: what they were to come behind had not been done when
    // they had been put there.
    println!("{held_up} of {} were behind something", 2 * ROUNDS);
    assert!(held_up > 0);
}

fn page_byte(first: u8, page: usize) -> u8 {
    first.wrapping_add(u8::try_from(page).unwrap())
}

/// Where an operation's bytes are to lie, in the buffer and in its file.
struct Place {
    memory: usize,
    file: usize,
    len: usize,
    writes: bool,
}

/// Places that do not touch: a buffer's length, and all of them.
fn places(draws: &mut Draws) -> (usize, Vec<Place>) {
    let (mut memory, mut cell) = (0, 0);
    let places = (0..MANY).map(|index| {
        let writes = index % 4 == 3;
        let len = 1 + draws.near_pages(LEN - 1);
        let len = if writes {
            len.next_multiple_of(PAGE)
        } else {
            len
        };
        // Pages, with whatever was before; or any byte.
        memory += 1 + draws.below(2 * PAGE);
        if draws.below(2) == 0 {
            memory = memory.next_multiple_of(PAGE);
        }
        let place = Place {
            memory,
            file: if writes {
                cell
            } else {
                draws.near_pages(CONTENT - len)
            },
            len,
            writes,
        };
        memory += len;
        cell += if writes { LEN } else { 0 };
        place
    });
    let places = places.collect();
    (memory + PAGE, places)
}

#[test]
fn many_in_flight_in_one_registered_stream_each_move_their_own_bytes() {
    let Some(rig) = Rig::open(CuFileCalls::Sync) else {
        return;
    };
    let stream = rig.stream();
    let registered = rig.register(stream);
    let content = pattern::bytes(4, CONTENT);
    let source = rig.file("source", &content);
    let mut written = vec![0; MANY / 4 * LEN];
    let target = rig.file("target", &written);
    for round in 0..8 {
        let (len, places) = places(&mut Draws::new(round));
        let mut memory = vec![CANARY; len];
        for (place, seed) in places.iter().zip(100 * round..) {
            if place.writes {
                let bytes = pattern::bytes(seed, place.len);
                memory[place.memory..][..place.len].copy_from_slice(&bytes);
                written[place.file..][..place.len].copy_from_slice(&bytes);
            }
        }
        let mut buffer = block_on(gpu::buffer(&rig.engine, rig.ordinal, &memory));
        rig.hold_up(stream);
        let operations = places.iter().map(|place| {
            let range = place.memory..place.memory + place.len;
            let part = buffer.part(range).unwrap();
            let at = place.file as u64;
            let transfer = match place.writes {
                true => target.write_all_at(part, at),
                false => source.read_exact_at(part, at),
            };
            put(transfer, stream)
        });
        let in_stream = block_on(join_all(operations));
        let ended = block_on(join_all(in_stream.into_iter().map(Result::unwrap)));
        for (place, ended) in places.iter().zip(ended) {
            let done = ended.unwrap();
            assert_eq!(done.bytes, place.len);
            if !place.writes {
                let bytes = &content[place.file..][..place.len];
                memory[place.memory..][..place.len].copy_from_slice(bytes);
            }
        }
        let found = block_on(gpu::content(&rig.engine, buffer));
        pattern::assert_same(&found, &memory);
        pattern::assert_same(&fs::read(target.path()).unwrap(), &written);
    }
    block_on(registered.deregister()).unwrap();
    rig.destroy(stream);
    drop((source, target));
    rig.end();
}

/// What becomes of a registered stream with operations in it.
#[derive(Clone, Copy, Debug)]
enum End {
    Dropped,
    Deregistered,
    /// Deregistered by somebody who does not wait for it.
    Abandoned,
}

#[test]
fn a_stream_that_is_let_go_ends_what_is_in_it_and_can_be_registered_again() {
    let Some(rig) = Rig::open(CuFileCalls::Sync) else {
        return;
    };
    let stream = rig.stream();
    let content = pattern::bytes(5, CONTENT);
    let source = rig.file("source", &content);
    let mut registered = rig.register(stream);
    let mut held_up = 0;
    for _ in 0..4 {
        for end in [End::Dropped, End::Deregistered, End::Abandoned] {
            eprintln!("{end:?}");
            let mut buffer = block_on(gpu::buffer(&rig.engine, rig.ordinal, &[CANARY; 8 * LEN]));
            rig.hold(stream);
            let mark = rig.mark(stream);
            let in_stream = (0..8).map(|index| {
                let part = buffer.part(index * LEN..(index + 1) * LEN).unwrap();
                in_stream_at(&source, part, index, stream)
            });
            let in_stream: Vec<_> = in_stream.collect();
            held_up += u32::from(rig.is_behind(mark));
            let again = let_go(&rig, registered, end);
            for one in in_stream {
                assert_eq!(block_on(one).unwrap().bytes, LEN);
            }
            let found = block_on(gpu::content(&rig.engine, buffer));
            for (index, bytes) in found.chunks(LEN).enumerate() {
                pattern::assert_same(bytes, &content[333 * index..][..LEN]);
            }
            registered = again.unwrap_or_else(|| register_when_free(&rig, stream));
        }
    }
    assert!(held_up > 0, "no stream had anything in it");
    block_on(registered.deregister()).unwrap();
    rig.destroy(stream);
    drop(source);
    rig.end();
}

fn in_stream_at(
    source: &AsyncCuFile,
    part: DevicePart,
    index: usize,
    stream: Stream,
) -> Enqueued<DevicePart> {
    let read = source.read_exact_at(part, (333 * index) as u64);
    block_on(put(read, stream)).unwrap()
}

/// Registered again where it is known to be free: whoever waits for that need not wait for the operations.
fn let_go(rig: &Rig, registered: RegisteredStream, end: End) -> Option<RegisteredStream> {
    let stream = Stream::from_raw(registered.stream());
    if let End::Dropped = end {
        drop(registered);
        rig.release();
        return None;
    }
    let mut deregistered = Box::pin(registered.deregister());
    let done = poll_once(&mut deregistered);
    rig.release();
    match (done, end) {
        (Poll::Ready(done), _) => done.unwrap(),
        (Poll::Pending, End::Abandoned) => return None,
        (Poll::Pending, _) => block_on(deregistered).unwrap(),
    }
    Some(rig.register(stream))
}

/// Nobody is told when it is.
fn register_when_free(rig: &Rig, stream: Stream) -> RegisteredStream {
    loop {
        match block_on(rig.try_register(stream)) {
            Ok(registered) => return registered,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error}"),
        }
        thread::yield_now();
    }
}
