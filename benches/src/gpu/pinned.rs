//! Copies between pinned memory and a device, with no file: the limit of what a GPU takes or gives.
//!
//! Unsafe, because the driver's copies name memory by address.
#![allow(
    unsafe_code,
    reason = "the driver's copies name memory by address, and go on after they return"
)]

use measure::report::Sample;
use measure::usage::Window;
use nvidia_dl::Search;
use nvidia_dl::cuda::{
    CudaError, DevicePtr, Driver, Event, EventFlags, HostRegisterFlags, Stream, StreamFlags,
};
use tokio_cufile::{Engine, HostBuffer};

use crate::Result;
use crate::contest::{Entry, Runner};
use crate::engines::{self, sample};
use crate::job::Job;

/// Pinned blocks that take turns. More than one, so that no cache of the processor holds them all.
const SLOTS: usize = 16;

pub(super) fn entry(device: u32, block: usize) -> Entry {
    Entry::new(
        format!("pinned copy alone, {} MiB", block >> 20),
        move |job| Ok(Box::new(Pinned::new(job, device, block)?)),
    )
}

/// Which driver this is, for the head of a table.
pub(super) fn driver() -> String {
    Driver::load(&Search::libcuda()).map_or_else(
        |_| "none".to_owned(),
        |driver| {
            let version = driver.driver_version();
            version.map_or_else(|_| "unknown".to_owned(), |version| version.to_string())
        },
    )
}

struct Pinned {
    job: Job,
    /// Bytes of one copy.
    block: usize,
    driver: &'static Driver,
    stream: Stream,
    event: Event,
    memory: DevicePtr,
    slots: HostBuffer,
    _allocator: Engine,
}

impl Pinned {
    fn new(job: &Job, device: u32, block: usize) -> Result<Self> {
        let driver = Driver::load(&Search::libcuda())?;
        driver.init()?;
        let device = driver.device(i32::try_from(device)?)?;
        let context = driver.primary_ctx_retain(device)?;
        // SAFETY: retained, and not released before the process ends.
        unsafe { driver.ctx_set_current(Some(context)) }?;
        let allocator = engines::allocator()?;
        let mut slots = engines::memory(&allocator, block * SLOTS)?;
        let start = slots.as_mut_slice()?.as_mut_ptr();
        // SAFETY: the slots stay mapped until `drop` has unregistered them.
        unsafe { driver.host_register(start, block * SLOTS, HostRegisterFlags::PORTABLE) }?;
        Ok(Self {
            job: job.clone(),
            block,
            driver,
            stream: driver.stream_create(StreamFlags::NON_BLOCKING)?,
            event: driver.event_create(EventFlags(
                EventFlags::BLOCKING_SYNC.0 | EventFlags::DISABLE_TIMING.0,
            ))?,
            memory: driver.mem_alloc(job.length_in_memory())?,
            slots,
            _allocator: allocator,
        })
    }

    fn copy_all(&mut self) -> Result<()> {
        let (length, write) = (self.job.length_in_memory(), self.job.is_write());
        let host = self.slots.as_mut_slice()?.as_mut_ptr();
        for (index, start) in (0..length).step_by(self.block).enumerate() {
            let bytes = self.block.min(length - start);
            let slot = host.wrapping_add(index % SLOTS * self.block);
            let there = DevicePtr(self.memory.0 + start as u64);
            let copied = if write {
                // SAFETY: both ranges are inside allocations that outlive the wait below, on a
                // stream that does one copy after the other; nobody looks at the bytes.
                unsafe {
                    self.driver
                        .memcpy_dtoh_async(slot, there, bytes, self.stream)
                }
            } else {
                // SAFETY: as above.
                unsafe {
                    self.driver
                        .memcpy_htod_async(there, slot, bytes, self.stream)
                }
            };
            copied?;
        }
        // SAFETY: both are alive.
        unsafe { self.driver.event_record(self.event, self.stream) }?;
        // SAFETY: the event is alive.
        Ok(unsafe { self.driver.event_synchronize(self.event) }?)
    }
}

impl Runner for Pinned {
    fn run(&mut self, _round: u64) -> Result<Sample> {
        let window = Window::open();
        self.copy_all()?;
        let usage = window.close();
        let operations = self.job.blocks();
        Ok(sample(&self.job, operations, usage, Vec::new()))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            // Copies may go on in memory that would be unmapped next.
            eprintln!("benches: pinned memory cannot be released: {error}");
            std::process::abort();
        }
    }
}

impl Pinned {
    fn release(&mut self) -> Result<()> {
        let start = self.slots.as_mut_slice()?.as_mut_ptr();
        let driver = self.driver;
        let each: [&dyn Fn() -> Result<(), CudaError>; 5] = [
            // SAFETY: alive, and the first of these calls.
            &|| unsafe { driver.stream_synchronize(self.stream) },
            // SAFETY: registered in `new`, and the stream is past all copies.
            &|| unsafe { driver.host_unregister(start) },
            // SAFETY: allocated in `new`, and the stream is past all copies.
            &|| unsafe { driver.mem_free(self.memory) },
            // SAFETY: not used after this.
            &|| unsafe { driver.event_destroy(self.event) },
            // SAFETY: not used after this.
            &|| unsafe { driver.stream_destroy(self.stream) },
        ];
        for call in each {
            call()?;
        }
        Ok(())
    }
}
