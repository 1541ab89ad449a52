//! One scenario for each way to be wrong. Each panics when it sees the wrong, and is run twice: with
//! the shipped policy, which must pass, and with the broken one, which must be caught.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use tokio_cufile_completion::{Ending, Loss, ReleasePolicy, StopReason};

use super::wakers::Inline;
use super::{Want, World, hardware, ledger, limit, limits};

/// I3: a cancel gives no memory back that hardware still writes.
pub(crate) fn memory_outlives_a_cancel<P: ReleasePolicy>() {
    let world = World::<P>::new(limits());
    let mut job = world.submit(Want::read(&[8]));
    let started = world.start();
    job.cancel();
    drop(job.poll());
    started.finish();
    assert_eq!(job.outcome().ending, Ending::Done);
    job.memory.assert_released();
}

/// I3: a deadline gives no memory back that hardware still writes.
pub(crate) fn memory_outlives_a_deadline<P: ReleasePolicy>() {
    let world = World::<P>::new(limits());
    let mut job = world.submit(Want::read(&[8]).deadline(10));
    let started = world.start();
    world.advance_to(10);
    drop(job.poll());
    started.finish();
    assert_eq!(job.outcome().ending, Ending::Done);
    job.memory.assert_released();
}

/// I3, I11: a dropped future takes no memory along that hardware still writes.
pub(crate) fn memory_outlives_its_future<P: ReleasePolicy>() {
    let world = World::<P>::new(limits());
    let mut job = world.submit(Want::read(&[8]));
    let started = world.start();
    job.drop_future();
    world.dispose();
    started.finish();
    assert_eq!(world.dispose().operations, 1);
    job.memory.assert_released();
    world.assert_all_free(0);
}

/// I6: a completion for an entry's earlier life does not touch its present one.
pub(crate) fn a_stale_completion_touches_nobody<P: ReleasePolicy>() {
    let world = World::<P>::new(tokio_cufile_completion::Limits {
        parts: limit(1, 0),
        ..limits()
    });
    let mut first = world.submit(Want::read(&[8]));
    let (key, _) = world.start().into_key();
    world.core.finish(key, hardware::outcome(8, None));
    assert_eq!(first.outcome().ending, Ending::Done);

    let mut second = world.submit(Want::read(&[8]));
    let started = world.start();
    world.core.finish(key, hardware::outcome(8, None));
    assert!(second.poll().is_none(), "a stale completion ended another");
    started.finish();
    assert_eq!(second.outcome().ending, Ending::Done);
    assert_eq!(world.check().stray_completions, 1);
}

/// I8: the next sync of the file hears of a write that failed after its future was dropped.
pub(crate) fn a_lost_write_reaches_the_next_sync<P: ReleasePolicy>() {
    let world = World::<P>::new(limits());
    let ledger = ledger();
    let mut write = world.submit(Want::write(&ledger, 4096, &[8]));
    let started = world.start();
    write.drop_future();
    let mut sync = world.submit(Want::sync(&ledger));
    started.fail(3, "EIO");
    assert_eq!(
        world.waiting(),
        0,
        "the sync began before the loss was kept"
    );
    world.dispose();
    world.run();
    assert_eq!(sync.outcome().ending, Ending::Done);
    let doubt = ledger.doubt().expect("a lost write left no trace");
    assert_eq!(doubt.first, Loss::Failed("EIO"));
    assert_eq!(doubt.offset, 4099);
}

/// I3, I17: a slot belongs to its part until the last stage was seen complete.
pub(crate) fn a_slot_is_held_to_the_last_stage<P: ReleasePolicy>() {
    let world = World::<P>::new(tokio_cufile_completion::Limits {
        slots: limit(1, 0),
        small_slots: limit(0, 0),
        ..limits()
    });
    let mut first = world.submit(Want::read(&[8]).through_slot(2));
    let started = world.start();
    let _ = started.advance();
    let mut second = world.submit(Want::read(&[8]).through_slot(2));
    assert_eq!(world.waiting(), 0, "a slot was granted twice");
    started.finish();
    assert_eq!(first.outcome().ending, Ending::Done);
    world.run();
    assert_eq!(second.outcome().ending, Ending::Done);
    world.assert_all_free(0);
}

/// I13: whoever is woken finds the outcome, even when it looks from inside the wake.
pub(crate) fn an_outcome_is_there_when_its_waker_is_called<P: ReleasePolicy>() {
    let world = World::<P>::new(limits());
    let mut job = world.submit(Want::read(&[8]));
    let handle = Arc::new(Mutex::new(job.handle.take()));
    let found = Arc::new(Mutex::new(Vec::new()));
    let waker = Inline::waker({
        let (handle, found) = (Arc::clone(&handle), Arc::clone(&found));
        move || {
            let mut handle = handle.lock().expect("one thread");
            let handle = handle.as_mut().expect("the handle is there");
            let polled = handle.poll_settled(&mut Context::from_waker(Waker::noop()));
            found.lock().expect("one thread").push(polled.is_ready());
        }
    });
    {
        let mut handle = handle.lock().expect("one thread");
        let handle = handle.as_mut().expect("the handle is there");
        let polled = handle.poll_settled(&mut Context::from_waker(&waker));
        assert!(matches!(polled, Poll::Pending));
    }
    world.start().finish();
    let found = found.lock().expect("one thread").clone();
    assert_eq!(found, [true], "woken before the outcome was there");
}

/// I10: permits come back, so that any number of operations passes through a small budget.
pub(crate) fn permits_come_back<P: ReleasePolicy>() {
    let world = World::<P>::new(limits());
    for _ in 0..10 {
        let mut job = world.submit(Want::read(&[500]).through_slot(1));
        assert_eq!(world.waiting(), 1, "permits did not come back");
        world.run();
        assert_eq!(job.outcome().ending, Ending::Done);
    }
    world.assert_all_free(0);
}

/// I24: a cancel before the start is exact, and gives memory back at once.
pub(crate) fn a_cancel_before_the_start_is_exact<P: ReleasePolicy>() {
    let world = World::<P>::new(limits());
    let mut job = world.submit(Want::read(&[8]));
    let part = world.take_part().expect("granted");
    job.cancel();
    let outcome = job.outcome();
    assert_eq!(outcome.ending, Ending::Stopped(StopReason::Cancelled));
    assert_eq!((outcome.parts, outcome.bytes), (0, 0));
    drop(outcome);
    job.memory.assert_released();
    assert!(part.start().is_none(), "a cancelled part was started");
    world.assert_all_free(0);
}

/// I25: a payload is not free before every part has let go of it or ended.
pub(crate) fn a_payload_is_held_until_every_part_lets_go<P: ReleasePolicy>() {
    let world = World::<P>::new(limits());
    let mut job = world.submit(Want::read(&[8, 8]));
    let watch = job.handle().payload_watch();
    let is_free = || {
        watch
            .poll_free(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    };
    let (first, second) = (world.start(), world.start());
    first.ticket.let_go();
    assert!(!is_free(), "given back while a part may touch it");
    second.finish();
    assert!(is_free());
    job.assert_pending();
    first.finish();
    assert_eq!(job.outcome().ending, Ending::Done);
}
