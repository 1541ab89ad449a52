//! A ring on a thread of its own, which tasks reach through a channel, and nothing above: the limit
//! of an engine whose tasks may run on any thread.
//!
//! As the bare ring, but each request comes from a task and its completion wakes that task. The thread
//! sleeps in the ring, and an eventfd that the ring polls wakes it.
#![allow(unsafe_code, reason = "a ring's entries name memory by address")]

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use io_uring::{IoUring, cqueue, opcode, types};
use measure::data;
use measure::report::Sample;
use measure::usage::Window;
use rustix::event::{EventfdFlags, eventfd};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio_cufile::{Engine, HostBuffer};

use super::source::Source;
use super::{nanos, ring, sample, whole};
use crate::Result;
use crate::contest::{Entry, Runner};
use crate::job::Job;

/// Names the poll of the bell; no slot has this number.
const BELL: u64 = u64::MAX;

pub(crate) fn entry() -> Entry {
    Entry::new("ring behind a channel", |job| {
        Ok(Box::new(ChannelRing::new(job)?))
    })
}

/// A block that a task wants, and where it waits for the result.
struct Wish {
    slot: usize,
    offset: u64,
    done: oneshot::Sender<i32>,
}

/// How a task wakes the thread: only when it has said that it is about to sleep.
struct Bell {
    sleeping: AtomicBool,
    descriptor: OwnedFd,
}

impl Bell {
    fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.sleeping.swap(false, Ordering::SeqCst) {
            self.ring_always();
        }
    }

    fn ring_always(&self) {
        // Nobody reads it, and it will not be full.
        let _ = rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes());
    }
}

/// The way to the thread.
#[derive(Clone)]
struct Line {
    wishes: Sender<Wish>,
    bell: Arc<Bell>,
}

impl Line {
    async fn ask(&self, slot: usize, offset: u64) -> Result<usize> {
        let (done, settled) = oneshot::channel();
        self.wishes.send(Wish { slot, offset, done })?;
        self.bell.ring();
        let result = settled.await?;
        usize::try_from(result).map_err(|_| std::io::Error::from_raw_os_error(-result).into())
    }
}

struct ChannelRing {
    job: Job,
    /// Gone first: its tasks have lines of their own.
    runtime: Option<Runtime>,
    /// Gone before the last ring of the bell, by which the thread learns of it.
    line: Option<Line>,
    thread: Option<JoinHandle<()>>,
    _allocator: Engine,
}

impl ChannelRing {
    fn new(job: &Job) -> Result<Self> {
        let allocator = super::allocator()?;
        let mut arena = super::memory(&allocator, job.block * job.depth)?;
        data::fill(job.seed, 0, arena.as_mut_slice()?);
        let (wishes, wanted) = channel();
        let bell = Arc::new(Bell {
            sleeping: AtomicBool::new(false),
            descriptor: eventfd(0, EventfdFlags::CLOEXEC)?,
        });
        let (file, its_job, its_bell) = (job.open()?, job.clone(), Arc::clone(&bell));
        let (started, is_up) = channel();
        let thread =
            std::thread::spawn(
                move || match Server::new(its_job, arena, file, wanted, its_bell) {
                    Ok(server) => {
                        drop(started.send(Ok(())));
                        server.serve();
                    }
                    Err(error) => drop(started.send(Err(error.to_string()))),
                },
            );
        is_up.recv()??;
        Ok(Self {
            job: job.clone(),
            runtime: Some(super::runtime()?),
            line: Some(Line { wishes, bell }),
            thread: Some(thread),
            _allocator: allocator,
        })
    }
}

/// What the thread has.
struct Server {
    /// Before the arena: it is gone before the memory is.
    ring: IoUring,
    arena: HostBuffer,
    file: File,
    job: Job,
    wanted: Receiver<Wish>,
    /// Somebody may still ask for something.
    is_open: bool,
    bell: Arc<Bell>,
    /// By slot.
    waiting: Vec<Option<oneshot::Sender<i32>>>,
    in_flight: usize,
}

impl Server {
    fn new(
        job: Job,
        mut arena: HostBuffer,
        file: File,
        wanted: Receiver<Wish>,
        bell: Arc<Bell>,
    ) -> Result<Self> {
        // SAFETY: the server keeps the arena, and is not dropped with anything in flight.
        let ring = unsafe { ring::build(&job, arena.as_mut_slice()?.as_mut_ptr(), 1) }?;
        let mut server = Self {
            ring,
            arena,
            file,
            waiting: (0..job.depth).map(|_| None).collect(),
            job,
            wanted,
            is_open: true,
            bell,
            in_flight: 0,
        };
        server.watch_bell()?;
        Ok(server)
    }

    fn watch_bell(&mut self) -> Result<()> {
        let descriptor = types::Fd(self.bell.descriptor.as_raw_fd());
        let poll = opcode::PollAdd::new(descriptor, libc::POLLIN as u32)
            .multi(true)
            .build();
        // SAFETY: a poll names no memory, and the descriptor lives as long as the server.
        unsafe { self.ring.submission().push(&poll.user_data(BELL)) }?;
        Ok(())
    }

    /// Until nobody can ask for anything any more. An error of the ring is the end of the bench.
    fn serve(mut self) {
        let mut settled = Vec::new();
        loop {
            self.take_in();
            self.reap(&mut settled);
            if !self.is_open && self.in_flight == 0 {
                return;
            }
            if settled.is_empty() {
                self.sleep();
            }
            // After all that is at hand: the first wake may set a thread against the rest.
            for (task, result) in settled.drain(..) {
                // A task that is gone does not want it.
                let _: std::result::Result<(), i32> = task.send(result);
            }
        }
    }

    /// Whether anything came.
    fn take_in(&mut self) -> bool {
        let mut any = false;
        loop {
            match self.wanted.try_recv() {
                Ok(wish) => self.begin(wish),
                Err(error) => {
                    self.is_open = error == TryRecvError::Empty;
                    return any;
                }
            }
            any = true;
        }
    }

    fn begin(&mut self, wish: Wish) {
        let arena = self.arena.as_mut_slice().map(<[u8]>::as_mut_ptr);
        let arena = arena.expect("nobody has a part of it");
        let entry = ring::transfer(&self.job, &self.file, arena, wish.slot, wish.offset);
        let entry = entry.expect("as many slots as were registered");
        // SAFETY: a lane has one request at a time, so the slot is this entry's alone until its
        // completion; the arena and the file live longer than the ring.
        unsafe { self.ring.submission().push(&entry) }.expect("each slot has a place");
        self.waiting[wish.slot] = Some(wish.done);
        self.in_flight += 1;
    }

    /// Submits what was pushed and waits, unless something has come.
    fn sleep(&mut self) {
        self.bell.sleeping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let any = self.take_in();
        let want = usize::from(!any && (self.is_open || self.in_flight > 0));
        self.ring.submit_and_wait(want).expect("the ring serves");
        self.bell.sleeping.store(false, Ordering::SeqCst);
    }

    fn reap(&mut self, settled: &mut Vec<(oneshot::Sender<i32>, i32)>) {
        let completions: Vec<cqueue::Entry> = self.ring.completion().collect();
        for completion in completions {
            if completion.user_data() == BELL {
                if !cqueue::more(completion.flags()) {
                    self.watch_bell().expect("a place for the bell");
                }
                continue;
            }
            let slot = usize::try_from(completion.user_data()).expect("the number of a slot");
            let task = self.waiting[slot].take().expect("one that waits for it");
            self.in_flight -= 1;
            settled.push((task, completion.result()));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // After a panic: a ring that is closed does not wait for what it has in flight.
        if self.in_flight > 0 {
            std::process::abort();
        }
    }
}

async fn lane(
    line: Line,
    source: Source,
    slot: usize,
    mut random: impl FnMut() -> u64,
) -> Result<Vec<u64>> {
    let mut latencies = Vec::new();
    while let Some(offset) = source.next(&mut random) {
        let since = Instant::now();
        let bytes = line.ask(slot, offset).await?;
        latencies.push(nanos(since));
        whole(source.job(), bytes)?;
    }
    Ok(latencies)
}

impl Runner for ChannelRing {
    fn run(&mut self, round: u64) -> Result<Sample> {
        let line = self.line.clone().ok_or("the thread has ended")?;
        let job = self.job.clone();
        let runtime = self.runtime.as_ref().ok_or("the runtime has ended")?;
        let (usage, latencies) = runtime.block_on(async move {
            let window = Window::open();
            let source = Source::start(&job);
            let start = |slot| {
                let random = job.random_offsets(slot, round);
                tokio::spawn(lane(line.clone(), source.clone(), slot, random))
            };
            let mut latencies = Vec::new();
            for task in (0..job.depth).map(start).collect::<Vec<_>>() {
                latencies.extend(task.await??);
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((window.close(), latencies))
        })?;
        Ok(sample(&self.job, latencies.len() as u64, usage, latencies))
    }
}

impl Drop for ChannelRing {
    fn drop(&mut self) {
        drop(self.runtime.take());
        if let Some(Line { wishes, bell }) = self.line.take() {
            drop(wishes);
            bell.ring_always();
        }
        // What it panicked with has been printed.
        drop(self.thread.take().map(JoinHandle::join));
    }
}
