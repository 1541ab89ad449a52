//! The driver as a whole: faults of calls that name no device, and a device made new.

use std::ffi::CString;

use super::{Lease, Sim, int};

/// Names the calls that concern no device.
const PROCESS: i32 = -1;

impl Sim {
    /// Adds faults, in the words of the simulator; a rule without a scope counts for each device
    /// and for the calls that concern none. No other test of the process may use the simulator.
    ///
    /// # Panics
    ///
    /// When it does not understand them.
    pub fn fault(&self, script: &str) {
        let text = CString::new(script).expect("a text");
        let set = self.api.sim_cuda_fault_set(PROCESS, text.as_ptr());
        assert_eq!(set, 0, "`{script}`");
    }

    /// Ends all faults everywhere; what hangs goes on.
    pub fn clear(&self) {
        self.api.sim_cuda_faults_clear(PROCESS);
    }
}

impl Lease {
    /// Calls, and faults that fired, on this device and of calls that concern none.
    ///
    /// # Panics
    ///
    /// When the simulator does not tell.
    #[must_use]
    pub fn calls_and_fired(&self) -> (u64, u64) {
        let (device, process) = (
            self.sim.stats_of(int(self.ordinal)),
            self.sim.stats_of(PROCESS),
        );
        (
            device.calls + process.calls,
            device.faults_fired + process.faults_fired,
        )
    }

    /// How often an entry point was called, on this device or for none.
    ///
    /// # Panics
    ///
    /// When there is none of that name.
    #[must_use]
    pub fn calls_of(&self, name: &str) -> u64 {
        let text = CString::new(name).expect("a name");
        let calls = self.sim.api.sim_cuda_calls(PROCESS, text.as_ptr());
        let calls = u64::try_from(calls).unwrap_or_else(|_| panic!("there is no {name}"));
        calls + self.calls(name)
    }

    /// Ends the device's context, and all that is left in it: the next one is a new one. Nothing
    /// may be using it any more.
    ///
    /// # Panics
    ///
    /// When the simulator does not let go of it.
    pub fn renew(&self) {
        let releases = self.stats().context_references;
        for _ in 0..releases {
            let released = self.sim.api.cuDevicePrimaryCtxRelease_v2(int(self.ordinal));
            assert_eq!(released, 0, "the context is let go");
        }
        assert_eq!(self.stats().live(), 0, "{:?}", self.stats());
    }
}
