//! tokio-uring 0.5: requests and tasks on one thread.
#![allow(
    unsafe_code,
    reason = "its buffer traits are unsafe, and know no aligned memory"
)]

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use measure::report::Sample;
use measure::usage::Window;
use tokio_cufile::{Engine, HostBuffer, HostPart};
use tokio_uring::buf::{IoBuf, IoBufMut};

use super::{nanos, sample, whole};
use crate::Result;
use crate::contest::{Entry, Runner};
use crate::job::{Access, Job};

pub(crate) fn entry() -> Entry {
    Entry::new("tokio-uring 0.5", |job| {
        let allocator = super::allocator()?;
        let slots = super::memory(&allocator, job.block * job.depth)?;
        Ok(Box::new(TokioUring {
            job: job.clone(),
            slots,
            _allocator: allocator,
        }))
    })
}

struct TokioUring {
    job: Job,
    slots: HostBuffer,
    _allocator: Engine,
}

/// Aligned memory in its terms.
struct Slot(HostPart);

// SAFETY: a part's bytes stay where they are while the part lives, wherever it is moved, and are
// initialised.
unsafe impl IoBuf for Slot {
    fn stable_ptr(&self) -> *const u8 {
        self.0.as_slice().as_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.0.len()
    }

    fn bytes_total(&self) -> usize {
        self.0.len()
    }
}

// SAFETY: as above; a part is exclusive.
unsafe impl IoBufMut for Slot {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_slice().as_mut_ptr()
    }

    unsafe fn set_init(&mut self, _init: usize) {}
}

impl TokioUring {
    fn slots(&mut self) -> Result<Vec<Slot>> {
        let block = self.job.block;
        (0..self.job.depth)
            .map(|slot| Ok(Slot(self.slots.part(slot * block..(slot + 1) * block)?)))
            .collect()
    }
}

type Offsets = Box<dyn FnMut() -> Option<u64>>;

/// Each lane's offsets: those of a sequential job are dealt out as lanes come for them.
fn lanes(job: &Job, round: u64, end: Option<Instant>) -> Vec<Offsets> {
    let in_order = Rc::new(RefCell::new(job.offsets()));
    (0..job.depth)
        .map(|lane| match end {
            Some(end) => {
                let mut random = job.random_offsets(lane, round);
                Box::new(move || (Instant::now() < end).then(&mut random)) as Offsets
            }
            None => {
                let in_order = Rc::clone(&in_order);
                Box::new(move || in_order.borrow_mut().next())
            }
        })
        .collect()
}

async fn lane(
    file: Rc<tokio_uring::fs::File>,
    job: Job,
    mut slot: Slot,
    mut offsets: Offsets,
) -> Result<Vec<u64>> {
    let mut latencies = Vec::new();
    while let Some(offset) = offsets() {
        let since = Instant::now();
        let (result, back) = if job.is_write() {
            file.write_at(slot, offset).submit().await
        } else {
            file.read_at(slot, offset).await
        };
        latencies.push(nanos(since));
        whole(&job, result?)?;
        slot = back;
    }
    Ok(latencies)
}

impl Runner for TokioUring {
    fn run(&mut self, round: u64) -> Result<Sample> {
        let slots = self.slots()?;
        let job = self.job.clone();
        let entries = u32::try_from(job.depth.next_power_of_two().max(8))?;
        let mut builder = tokio_uring::builder();
        let (usage, latencies) = builder.entries(entries).start(async move {
            let file = Rc::new(tokio_uring::fs::File::from_std(job.open()?));
            let window = Window::open();
            let end = match job.access {
                Access::Random { duration } => Some(Instant::now() + duration),
                Access::Read | Access::Write { .. } => None,
            };
            let tasks: Vec<_> = lanes(&job, round, end)
                .into_iter()
                .zip(slots)
                .map(|(offsets, slot)| {
                    tokio_uring::spawn(lane(Rc::clone(&file), job.clone(), slot, offsets))
                })
                .collect();
            let mut latencies = Vec::new();
            for task in tasks {
                latencies.extend(task.await??);
            }
            if job.is_write() {
                file.sync_data().await?;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((window.close(), latencies))
        })?;
        Ok(sample(&self.job, latencies.len() as u64, usage, latencies))
    }
}
