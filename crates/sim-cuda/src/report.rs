//! The counts of a device as `sim_cuda_stats` gives them.

use sim_common::RULES_MAX;

use crate::device::Device;
use crate::driver::Driver;
use crate::faults::Faults;
use crate::stats::{Counters, read};

macro_rules! report {
    ($($(#[$doc:meta])* $field:ident,)*) => {
        /// Whole numbers of 64 bits, in this order. More may be added at the end.
        #[derive(Debug, Default)]
        pub(crate) struct Report {
            $($(#[$doc])* pub(crate) $field: u64,)*
            /// How often each fault that is set has fired, in the order of the script.
            pub(crate) rules_fired: [u64; RULES_MAX],
        }

        impl Report {
            /// As they lie in the caller's memory.
            pub(crate) fn words(&self) -> Vec<u64> {
                let mut words = vec![$(self.$field),*];
                words.extend(self.rules_fired);
                words
            }
        }
    };
}

report! {
    /// Bytes of the whole; what the caller has room for when it asks.
    size,
    /// Calls of all entry points.
    calls,
    /// Faults that are set.
    rules,
    /// How often any has fired, those that were cleared too.
    faults_fired,
    live_allocations,
    live_bytes,
    live_streams,
    live_events,
    /// How often the primary context is retained.
    context_references,
    /// Pinned ranges of host memory that this device's context made.
    host_ranges,
    /// Copies to or from host memory that was not pinned.
    pageable_copies,
    /// Accesses to memory that was freed, and to what was not allocated yet.
    late_writes,
    late_reads,
    early_accesses,
    /// Pinned ranges that were ended with copies outstanding.
    unregistered_in_use,
    /// Calls that named a stream or event that is no more.
    stale_handles,
    /// Work that was not done because the context was lost.
    work_abandoned,
    bytes_to_device,
    bytes_to_host,
    bytes_on_device,
    /// Calls of threads whose names do not begin with `cufile-`.
    elsewhere,
}

impl Report {
    pub(crate) fn of(
        driver: &Driver,
        device: Option<&Device>,
        counters: &Counters,
        faults: &Faults,
    ) -> Self {
        let each = faults.fired_each();
        let mut report = Self {
            calls: counters.all_calls(),
            rules: each.len() as u64,
            faults_fired: faults.fired(),
            pageable_copies: read(&counters.pageable_copies),
            late_reads: read(&counters.late_reads),
            early_accesses: read(&counters.early_accesses),
            unregistered_in_use: read(&counters.unregistered_in_use),
            stale_handles: read(&counters.stale_handles),
            work_abandoned: read(&counters.work_abandoned),
            bytes_to_device: read(&counters.bytes_to_device),
            bytes_to_host: read(&counters.bytes_to_host),
            bytes_on_device: read(&counters.bytes_on_device),
            elsewhere: read(&counters.elsewhere),
            ..Self::default()
        };
        report.rules_fired[..each.len()].copy_from_slice(&each);
        if let Some(device) = device {
            report.add_device(driver, device);
        }
        // Only now: looking at freed memory may have found more.
        report.late_writes = read(&counters.late_writes);
        report.size = (report.words().len() * size_of::<u64>()) as u64;
        report
    }

    fn add_device(&mut self, driver: &Driver, device: &Device) {
        device.memory.watch(&device.counters);
        let (allocations, bytes) = device.memory.live();
        let context = device.context();
        let (streams, events) = context.map_or((0, 0), |context| context.live());
        self.live_allocations = allocations as u64;
        self.live_bytes = bytes as u64;
        self.live_streams = streams as u64;
        self.live_events = events as u64;
        self.context_references = device.retained() as u64;
        self.host_ranges = driver.host.count(device.ordinal) as u64;
    }
}
