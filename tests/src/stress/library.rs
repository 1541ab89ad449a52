//! The libcufile of a run.

use tokio_cufile::Engine;

use super::args::Args;
use super::counts::{Counts, Fault, Harm};
use super::field::text;
use crate::cufile_sim::CufileSim;

/// Each form of a result that is not all that was asked for.
const FAULTS: &str = "cuFileRead:short=512,chance=1/50;cuFileWrite:short=512,chance=1/50;\
                      cuFileRead:fail=5030,chance=1/60;cuFileWrite:return=-5,chance=1/60;\
                      cuFileRead:fail=4,chance=1/40;\
                      @*:short=512,chance=1/50;@*:slow=100,chance=1/8;@read:fail=4,chance=1/40;\
                      @read:fail=5030,chance=1/60;@write:return=-5,chance=1/60;\
                      cuFileReadAsync:fail=5030,chance=1/60;cuFileWriteAsync:act-fail=5030,chance=1/60";

/// The simulated one, with the faults that were asked for.
pub(super) struct Library {
    sim: &'static CufileSim,
    fired_before: u64,
}

impl Args {
    /// The simulated library that the run is on, if it is on one.
    pub(super) fn cufile(&self) -> Option<Library> {
        if !self.backend.is_cufile() {
            return None;
        }
        let sim = CufileSim::here()?;
        let fired_before = sim.report().faults_fired;
        if self.faults.contains(&Fault::CufileError) {
            sim.fault(FAULTS);
        }
        Some(Library { sim, fired_before })
    }
}

impl Library {
    /// All engines have ended: whatever it names would have done harm on a real one.
    pub(super) fn end(self, counts: &Counts) {
        let report = self.sim.report();
        let fired = report.faults_fired - self.fired_before;
        counts.fired(Fault::CufileError, fired);
        self.sim.clear();
        counts.harm(Harm::Other, report.harm(), || {
            format!("libcufile: {report:?}")
        });
    }
}

/// Which library an engine uses, and whether bytes can go directly.
pub(super) async fn tell(engine: &Engine) -> Result<String, String> {
    let info = engine.cufile().await.map_err(text)?;
    let version = info.version.as_deref().unwrap_or("before 1.8");
    let direct = match &info.not_direct {
        None => "GPUDirect Storage is expected".to_owned(),
        Some(reason) => format!("no GPUDirect Storage: {reason}"),
    };
    Ok(format!(
        "cuFile {version}, {}; {direct}",
        info.library.display()
    ))
}
