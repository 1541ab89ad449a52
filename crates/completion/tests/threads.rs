//! Failure: the model hands memory from one thread to another without an order between what the one
//! did with it and what the other does.
//! Mechanism: a path from the end of a part to the user, the disposer or the dropper that no lock
//! covers.
//! Method: real threads, and memory that hardware, users and drops touch by plain stores and loads.
//! The thread sanitizer sees where two of them have no order: `cargo xtask test --only tsan` runs this
//! file under it. With `COMPLETION_BROKEN=1` the engine releases memory with a cancel, which the
//! sanitizer must find. Without it the file checks values, and what is left.
#![cfg(not(any(completion_loom, completion_shuttle)))]
#![allow(
    unsafe_code,
    reason = "hardware, users and drops touch the same memory without a lock: that is what is tested"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "a variable chooses the engine that is broken"
)]

mod support;

use std::cell::UnsafeCell;
use std::future::Future;
use std::marker::PhantomData;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use support::policies::FreeOnCancel;
use support::{limit, limits};
use tokio_cufile_completion::{
    Class, Core, Cost, Domain, Doubt, Ending, Environment, Handle, IssuedPart, Ledger, Limits,
    Next, Part, PartOutcome, ReleasePolicy, Role, SlotSize, Spec, Tick, WhenQuiet,
};

const PARTS: usize = 3;
const PART_LEN: usize = 16;
const USERS: usize = 3;
const BACKENDS: usize = 2;
const OPERATIONS: u64 = 1000;
const RELEASED: u8 = 0xdd;

/// What hardware fills, a part each.
struct Memory(UnsafeCell<[[u8; PART_LEN]; PARTS]>);

// SAFETY: who may touch which part when is what the model decides; that it decides well is what is
// tested.
unsafe impl Sync for Memory {}

impl Memory {
    fn new() -> Arc<Self> {
        Arc::new(Self(UnsafeCell::new([[0; PART_LEN]; PARTS])))
    }

    fn part(&self, part: usize) -> *mut [u8; PART_LEN] {
        assert!(part < PARTS);
        self.0.get().cast::<[u8; PART_LEN]>().wrapping_add(part)
    }

    fn write(&self, part: usize, byte: u8) {
        let at = self.part(part);
        // SAFETY: inside the memory. Nobody else touches it now, unless the model is broken.
        unsafe { at.write([byte; PART_LEN]) };
    }

    fn read(&self, part: usize) -> [u8; PART_LEN] {
        let at = self.part(part);
        // SAFETY: as for `write`.
        unsafe { at.read() }
    }
}

/// What an operation owns. Released, it is somebody else's, who writes there.
struct Buffer(Arc<Memory>);

impl Drop for Buffer {
    fn drop(&mut self) {
        (0..PARTS).for_each(|part| self.0.write(part, RELEASED));
    }
}

#[derive(Debug)]
struct Machine<P>(PhantomData<P>);

impl<P: ReleasePolicy> Domain for Machine<P> {
    type Task = Touch;
    type Fault = &'static str;
    type Report = ();
    type Policy = P;
}

struct Touch {
    memory: Arc<Memory>,
    part: usize,
}

/// The way to the backends and the disposer. Nothing leads back but the model.
struct Door<P: ReleasePolicy> {
    parts: Mutex<Sender<IssuedPart<Machine<P>>>>,
    disposal: Mutex<Sender<()>>,
    now: Arc<AtomicU64>,
}

impl<P: ReleasePolicy> Environment<Machine<P>> for Door<P> {
    fn submit(&self, part: IssuedPart<Machine<P>>) {
        let sent = self.parts.lock().expect("no panic").send(part);
        assert!(sent.is_ok(), "the backends outlive the model");
    }

    fn now(&self) -> Tick {
        Tick(self.now.fetch_add(1, Ordering::Relaxed))
    }

    fn set_alarm(&self, _: Tick) {}

    fn disposal_waits(&self) {
        // At the end nobody listens any more.
        let _heard = self.disposal.lock().expect("no panic").send(());
    }

    fn lost_write(&self, _: &Arc<Path>, _: Doubt<&'static str>) {}

    fn drained(&self) {}
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// Numbers without a pattern, the same for the same seed.
struct Choices(u64);

impl Choices {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

fn backend<P: ReleasePolicy>(parts: &Mutex<Receiver<IssuedPart<Machine<P>>>>) {
    loop {
        let next = parts.lock().expect("no panic").recv();
        let Ok(part) = next else {
            return;
        };
        let Some((ticket, Touch { memory, part })) = part.start() else {
            continue;
        };
        memory.write(part, 1);
        if ticket.advance() == Next::Proceed {
            thread::yield_now();
            memory.write(part, 2);
        }
        ticket.finish(PartOutcome {
            bytes: PART_LEN as u64,
            fault: None,
            report: (),
        });
    }
}

fn spec<P: ReleasePolicy>(memory: &Arc<Memory>, role: Role<&'static str>) -> Spec<Machine<P>> {
    let memory = Arc::clone(memory);
    let parts = (0..PARTS).map(move |part| Part {
        offset: (part * PART_LEN) as u64,
        len: PART_LEN as u64,
        cost: Cost {
            bytes: PART_LEN as u64,
            slot: Some(SlotSize::Large),
            worker: false,
        },
        stages: 2,
        task: Touch {
            memory: Arc::clone(&memory),
            part,
        },
    });
    Spec {
        class: Class::Normal,
        deadline: None,
        total: (PARTS * PART_LEN) as u64,
        parts: Box::new(parts),
        ledger: role,
        gated: false,
    }
}

fn user<P: ReleasePolicy>(
    core: &Arc<Core<Machine<P>>>,
    ledger: &Arc<Ledger<&'static str>>,
    (mut choices, operations): (Choices, u64),
) {
    for _ in 0..operations {
        let memory = Memory::new();
        let mut handle = Handle::new(core, Buffer(Arc::clone(&memory)));
        let role = match choices.below(2) {
            0 => Role::None,
            _ => Role::Write(Arc::clone(ledger), 0),
        };
        handle.submit(spec(&memory, role));
        match choices.below(4) {
            0 => {
                drop(handle);
                continue;
            }
            1 => handle.canceller().cancel(),
            _ => {}
        }
        let settled = block_on(std::future::poll_fn(|cx| handle.poll_settled(cx)));
        let done = usize::try_from(settled.bytes).expect("a few") / PART_LEN;
        assert!(settled.ending != Ending::Done || done == PARTS, "{done}");
        let buffer = settled.payload.expect("nothing is quarantined");
        // Parts that were moved are the user's to see (I23).
        for part in 0..done {
            assert_eq!(buffer.0.read(part), [2; PART_LEN]);
        }
        (0..PARTS).for_each(|part| buffer.0.write(part, 3));
    }
}

fn run<P: ReleasePolicy>(operations: u64) {
    let (parts, issued) = channel();
    let (disposal, asked) = channel();
    let door = Door {
        parts: Mutex::new(parts),
        disposal: Mutex::new(disposal),
        now: Arc::default(),
    };
    let limits = Limits {
        slots: limit(3, 0),
        ..limits()
    };
    let core: Arc<Core<Machine<P>>> = Core::new(limits, Box::new(door));
    let issued = Arc::new(Mutex::new(issued));
    let backends = [(); BACKENDS].map(|()| {
        let issued = Arc::clone(&issued);
        thread::spawn(move || backend(&issued))
    });
    let ended = Arc::new(AtomicBool::new(false));
    let disposer = {
        let (core, ended) = (Arc::clone(&core), Arc::clone(&ended));
        thread::spawn(move || {
            while !(ended.load(Ordering::Acquire) && core.is_finished()) {
                let _disposed = core.dispose();
                let _asked = asked.recv_timeout(std::time::Duration::from_millis(1));
            }
        })
    };
    let ledger = Arc::new(Ledger::new(Path::new("file").into()));
    thread::scope(|scope| {
        for index in 0..USERS {
            let (core, ledger) = (&core, &ledger);
            scope.spawn(move || user(core, ledger, (Choices(index as u64), operations)));
        }
    });
    core.close_admission();
    block_on(std::future::poll_fn(|cx| core.poll_drained(cx)));
    ended.store(true, Ordering::Release);
    disposer.join().expect("the disposer does not panic");
    let census = core.census();
    assert!(census.is_conserved(), "{census:?}");
    assert_eq!((census.parts.free, census.parts.capacity), (4, 4));
    drop(core);
    for backend in backends {
        backend.join().expect("a backend does not panic");
    }
}

#[test]
fn what_one_thread_did_to_memory_another_sees() {
    match std::env::var_os("COMPLETION_BROKEN") {
        None => run::<WhenQuiet>(OPERATIONS),
        Some(_) => run::<FreeOnCancel>(OPERATIONS),
    }
}
