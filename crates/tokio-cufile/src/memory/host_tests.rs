//! Failure guarded against: two owners of one byte, a reader beside a writer, memory unmapped under
//! a part, a waiter that is never woken. Method: every rule by itself, then random sequences of
//! lending, splitting and dropping against a naive model that marks each byte.

use std::future::Future;
use std::panic::panic_any;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use proptest::prelude::*;

use super::*;
use crate::error::ErrorKind;

#[derive(Default)]
struct CountingWaker(AtomicUsize);

impl CountingWaker {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

struct PanickingWaker;

impl Wake for PanickingWaker {
    fn wake(self: Arc<Self>) {
        panic_any("this waker always panics");
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        thread::park();
    }
}

fn poll(idle: &mut Pin<&mut Idle<'_>>, waker: &Arc<CountingWaker>) -> Poll<()> {
    let waker = Waker::from(Arc::clone(waker));
    idle.as_mut().poll(&mut Context::from_waker(&waker))
}

fn buffer(len: usize) -> HostBuffer {
    HostBuffer::allocate(EngineId::unique(), len).unwrap()
}

fn kind<T: fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

#[test]
#[cfg_attr(miri, ignore = "miri has no madvise")]
fn a_new_buffer_is_zeroed_and_writable() {
    let mut buffer = buffer(10_000);
    assert_eq!(buffer.as_slice().unwrap(), vec![0; 10_000]);
    buffer.as_mut_slice().unwrap()[9_999] = 1;
    buffer.prefault().unwrap();
    assert_eq!(buffer.as_slice().unwrap()[9_999], 1);
}

#[test]
fn buffers_and_parts_move_between_threads_and_into_operations() {
    fn movable<T: Send + Sync + 'static>() {}
    movable::<HostBuffer>();
    movable::<HostPart>();
}

#[test]
fn an_empty_buffer_works() {
    let mut buffer = buffer(0);
    assert!(buffer.is_empty());
    assert_eq!(buffer.as_mut_slice().unwrap(), &mut []);
    buffer.prefault().unwrap();
    let part = buffer.part(0..0).unwrap();
    assert_eq!(part.as_slice(), &[]);
    assert_eq!(buffer.parts_out(), 0);
}

#[test]
fn overlap_with_a_living_part_is_refused() {
    let mut buffer = buffer(100);
    let part = buffer.part(40..60).unwrap();
    for range in [0..100, 0..41, 40..60, 45..46, 59..60, 59..100] {
        assert_eq!(kind(buffer.part(range)), ErrorKind::Busy);
    }
    let neighbours = (buffer.part(0..40).unwrap(), buffer.part(60..100).unwrap());
    assert_eq!(buffer.parts_out(), 3);
    drop((part, neighbours));
    assert_eq!(buffer.part(0..100).unwrap().len(), 100);
}

#[test]
fn ranges_outside_the_buffer_are_invalid() {
    let mut buffer = buffer(100);
    let backwards = Range { start: 5, end: 4 };
    for range in [0..101, 101..101, 50..usize::MAX, backwards] {
        assert_eq!(kind(buffer.part(range)), ErrorKind::InvalidInput);
    }
    assert_eq!(buffer.parts_out(), 0);
}

#[test]
fn an_empty_part_lends_nothing() {
    let mut buffer = buffer(100);
    let whole = buffer.part(0..100).unwrap();
    let empty = buffer.part(50..50).unwrap();
    let at_the_end = buffer.part(100..100).unwrap();
    drop(whole);
    assert_eq!(buffer.parts_out(), 0);
    assert!(buffer.as_slice().is_ok());
    assert!(empty.is_empty() && at_the_end.is_empty());
    drop(empty);
    assert_eq!(buffer.part(50..51).unwrap().len(), 1);
}

#[test]
#[cfg_attr(miri, ignore = "miri has no madvise")]
fn the_buffer_is_closed_while_a_part_is_out() {
    let mut buffer = buffer(100);
    let part = buffer.part(0..1).unwrap();
    assert_eq!(kind(buffer.as_slice()), ErrorKind::Busy);
    assert_eq!(kind(buffer.as_mut_slice()), ErrorKind::Busy);
    assert_eq!(kind(buffer.prefault()), ErrorKind::Busy);
    assert_eq!(
        kind(buffer.prepare_whole(buffer.shared.lender.engine)),
        ErrorKind::Busy
    );
    drop(part);
    assert!(buffer.as_slice().is_ok());
}

#[test]
fn parts_are_written_independently_from_several_threads() {
    let mut buffer = buffer(4 * 1000);
    let threads: Vec<_> = (0..4_u8)
        .map(|index| {
            let start = usize::from(index) * 1000;
            let mut part = buffer.part(start..start + 1000).unwrap();
            thread::spawn(move || part.as_mut_slice().fill(index + 1))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let bytes = buffer.as_slice().unwrap();
    for (index, chunk) in (1_u8..).zip(bytes.chunks(1000)) {
        assert!(chunk.iter().all(|&byte| byte == index));
    }
}

#[test]
#[cfg_attr(miri, ignore = "miri has no madvise")]
fn a_part_outlives_its_buffer() {
    let mut buffer = buffer(3 << 20);
    buffer.as_mut_slice().unwrap()[2 << 20] = 9;
    let part = buffer.part(2 << 20..3 << 20).unwrap();
    drop(buffer);
    assert_eq!(part.as_slice()[0], 9);
}

#[test]
fn the_halves_of_a_split_go_back_one_by_one() {
    let mut buffer = buffer(100);
    let mut front = buffer.part(10..90).unwrap();
    let mut back = front.split_off(30).unwrap();
    assert_eq!((front.range(), back.range()), (10..40, 40..90));
    front.as_mut_slice().fill(1);
    back.as_mut_slice().fill(2);
    drop(front);
    assert_eq!(buffer.part(10..40).unwrap().as_slice(), [1; 30]);
    assert_eq!(kind(buffer.part(39..41)), ErrorKind::Busy);
    drop(back);
    assert_eq!(buffer.part(40..90).unwrap().as_slice(), [2; 50]);
}

#[test]
fn splitting_off_nothing_or_everything_keeps_one_part_out() {
    let mut buffer = buffer(100);
    for at in [0, 50] {
        let mut part = buffer.part(20..70).unwrap();
        let rest = part.split_off(at).unwrap();
        assert_eq!((part.len(), rest.len()), (at, 50 - at));
        assert_eq!(buffer.parts_out(), 1);
        assert_eq!(kind(buffer.part(20..21)), ErrorKind::Busy);
        drop((part, rest));
        assert_eq!(buffer.parts_out(), 0);
    }
    let mut part = buffer.part(20..70).unwrap();
    assert_eq!(kind(part.split_off(51)), ErrorKind::InvalidInput);
    assert_eq!(part.range(), 20..70);
}

#[test]
fn another_engine_is_refused() {
    let mut buffer = buffer(100);
    let mine = buffer.shared.lender.engine;
    let other = EngineId::unique();
    assert_eq!(kind(buffer.prepare_whole(other)), ErrorKind::WrongEngine);
    assert_eq!(buffer.prepare_whole(mine).unwrap().len(), 100);
    let mut part = buffer.part(10..30).unwrap();
    assert_eq!(kind(part.prepare_part(other)), ErrorKind::WrongEngine);
    let (whole, range) = (
        buffer.shared.mapping.range(),
        part.prepare_part(mine).unwrap(),
    );
    assert_eq!((range.address() - whole.address(), range.len()), (10, 20));
}

#[test]
fn idle_is_ready_at_once_without_parts() {
    let buffer = buffer(100);
    block_on(buffer.idle());
}

#[test]
fn every_waiter_is_woken_by_the_last_part_and_not_before() {
    let mut buffer = buffer(100);
    let (first, last) = (buffer.part(0..10).unwrap(), buffer.part(10..20).unwrap());
    let wakers = [
        Arc::new(CountingWaker::default()),
        Arc::new(CountingWaker::default()),
    ];
    let (mut one, mut two) = (pin!(buffer.idle()), pin!(buffer.idle()));
    assert!(poll(&mut one, &wakers[0]).is_pending());
    assert!(poll(&mut two, &wakers[1]).is_pending());
    drop(first);
    assert_eq!(wakers.each_ref().map(|waker| waker.count()), [0, 0]);
    drop(last);
    assert_eq!(wakers.each_ref().map(|waker| waker.count()), [1, 1]);
    assert!(poll(&mut one, &wakers[0]).is_ready());
    assert!(poll(&mut two, &wakers[1]).is_ready());
}

#[test]
fn only_the_waker_of_the_latest_poll_is_woken() {
    let mut buffer = buffer(100);
    let part = buffer.part(0..10).unwrap();
    let wakers = [
        Arc::new(CountingWaker::default()),
        Arc::new(CountingWaker::default()),
    ];
    let mut idle = pin!(buffer.idle());
    assert!(poll(&mut idle, &wakers[0]).is_pending());
    assert!(poll(&mut idle, &wakers[1]).is_pending());
    drop(part);
    assert_eq!(wakers.each_ref().map(|waker| waker.count()), [0, 1]);
}

#[test]
fn a_dropped_waiter_is_forgotten() {
    let mut buffer = buffer(100);
    let part = buffer.part(0..10).unwrap();
    let waker = Arc::new(CountingWaker::default());
    for _ in 0..100 {
        let mut idle = pin!(buffer.idle());
        assert!(poll(&mut idle, &waker).is_pending());
    }
    assert_eq!(buffer.shared.lender.lock().waiters.len(), 0);
    assert_eq!(Arc::strong_count(&waker), 1);
    drop(part);
    assert_eq!(waker.count(), 0);
}

#[test]
fn a_panicking_waker_keeps_nobody_asleep() {
    let mut buffer = buffer(100);
    let part = buffer.part(0..10).unwrap();
    let panicking = Waker::from(Arc::new(PanickingWaker));
    let counting = Arc::new(CountingWaker::default());
    let (mut one, mut two) = (pin!(buffer.idle()), pin!(buffer.idle()));
    assert!(
        one.as_mut()
            .poll(&mut Context::from_waker(&panicking))
            .is_pending()
    );
    assert!(poll(&mut two, &counting).is_pending());
    drop(part);
    assert_eq!(counting.count(), 1);
    assert!(buffer.as_slice().is_ok());
}

#[test]
fn idle_waits_for_a_part_dropped_on_another_thread() {
    let mut buffer = buffer(100);
    let mut part = buffer.part(0..100).unwrap();
    let (release, released) = mpsc::channel();
    let thread = thread::spawn(move || {
        released.recv().unwrap();
        part.as_mut_slice().fill(3);
    });
    {
        let waker = Arc::new(CountingWaker::default());
        let mut idle = pin!(buffer.idle());
        assert!(poll(&mut idle, &waker).is_pending());
        release.send(()).unwrap();
        block_on(idle);
    }
    assert_eq!(buffer.as_slice().unwrap(), [3; 100]);
    thread.join().unwrap();
}

const MODEL_LEN: usize = 24;

#[derive(Clone, Debug)]
enum Step {
    Lend { start: usize, end: usize },
    Split { part: usize, at: usize },
    Drop { part: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let position = 0..MODEL_LEN + 2;
    prop_oneof![
        3 => (position.clone(), position.clone()).prop_map(|(start, end)| Step::Lend { start, end }),
        1 => (any::<usize>(), position).prop_map(|(part, at)| Step::Split { part, at }),
        2 => any::<usize>().prop_map(|part| Step::Drop { part }),
    ]
}

/// The naive model: the byte's owner, written byte by byte.
#[derive(Default)]
struct Model {
    owner: [Option<u8>; MODEL_LEN],
    owner_next: u8,
}

impl Model {
    fn lend(&mut self, start: usize, end: usize) -> Result<u8, ErrorKind> {
        let bytes = self
            .owner
            .get_mut(start..end)
            .ok_or(ErrorKind::InvalidInput)?;
        if bytes.iter().any(Option::is_some) {
            return Err(ErrorKind::Busy);
        }
        self.owner_next += 1;
        bytes.fill(Some(self.owner_next));
        Ok(self.owner_next)
    }

    fn owners(&self) -> usize {
        let mut owners: Vec<u8> = self.owner.iter().flatten().copied().collect();
        owners.sort_unstable();
        owners.dedup();
        owners.len()
    }
}

/// One step on the buffer and on the model; each part's bytes hold its owner's number.
fn apply(
    step: Step,
    buffer: &mut HostBuffer,
    parts: &mut Vec<(u8, HostPart)>,
    model: &mut Model,
) -> Result<(), TestCaseError> {
    match step {
        Step::Lend { start, end } => {
            let lent = buffer.part(start..end).map_err(|error| error.kind());
            match (lent, model.lend(start, end)) {
                (Ok(mut part), Ok(owner)) => {
                    part.as_mut_slice().fill(owner);
                    parts.push((owner, part));
                }
                (lent, expected) => prop_assert_eq!(lent.err(), expected.err()),
            }
        }
        Step::Split { part, at } if !parts.is_empty() => {
            let index = part % parts.len();
            let part = &mut parts[index].1;
            let range = part.range();
            match part.split_off(at) {
                Ok(mut rest) => {
                    model.owner[rest.range()].fill(None);
                    let owner = model.lend(rest.range().start, rest.range().end).unwrap();
                    prop_assert_eq!(range.start + at, rest.range().start);
                    rest.as_mut_slice().fill(owner);
                    parts.push((owner, rest));
                }
                Err(_) => prop_assert!(at > range.len()),
            }
        }
        Step::Drop { part } if !parts.is_empty() => {
            let (_, part) = parts.swap_remove(part % parts.len());
            model.owner[part.range()].fill(None);
        }
        Step::Split { .. } | Step::Drop { .. } => {}
    }
    Ok(())
}

proptest! {
    #[test]
    fn lending_agrees_with_a_model_of_bytes(steps in proptest::collection::vec(step(), 1..80)) {
        let mut buffer = buffer(MODEL_LEN);
        let mut parts = Vec::new();
        let mut model = Model::default();
        for step in steps {
            apply(step, &mut buffer, &mut parts, &mut model)?;
            for (owner, part) in &parts {
                prop_assert!(part.as_slice().iter().all(|byte| byte == owner));
            }
            prop_assert_eq!(buffer.parts_out(), model.owners());
            prop_assert_eq!(buffer.as_slice().is_ok(), model.owners() == 0);
        }
    }
}
