//! The file whose requests go wrong: served through FUSE, with faults by chance.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fuser::Errno;
use measure::data::Draws;

use super::counts::{Counts, Fault};
use super::lock;
use crate::slow_fs::{Fate, Held, Kind, Seen, SlowFs};

/// The faults that it has.
pub(super) const FAULTS: [Fault; 5] = [
    Fault::Short,
    Fault::Eio,
    Fault::Einval,
    Fault::Enospc,
    Fault::Slow,
];

/// The slowest answer.
pub(super) const DELAY_MAX: Duration = Duration::from_millis(12);

/// Each of them hits one request in so many.
const ODDS: u64 = 40;

/// The mounted file.
pub(super) struct Slow {
    fs: SlowFs,
    holding: Arc<AtomicBool>,
}

impl Slow {
    /// `None`, with a note, where the machine has no FUSE.
    pub(super) fn mount(
        content: Vec<u8>,
        faults: &[Fault],
        seed: u64,
        counts: &Arc<Counts>,
    ) -> Option<Self> {
        let holding = Arc::new(AtomicBool::new(false));
        let (held, counts) = (Arc::clone(&holding), Arc::clone(counts));
        let draws = Mutex::new(Draws::new(seed ^ 0xf0_5e));
        let last_cut = Mutex::new(None);
        let faults = faults.to_vec();
        let policy = move |seen: &Seen| {
            if held.load(Ordering::Acquire) {
                return Fate::Hold;
            }
            let (fault, size) = {
                let mut draws = lock(&draws);
                let drawn = draws.below(ODDS);
                let fault = usize::try_from(drawn).ok().and_then(|at| FAULTS.get(at));
                (fault.copied(), draws.below(1 << 20))
            };
            let fault = fault.filter(|fault| faults.contains(fault));
            let Some((fault, fate)) = decide(seen, fault, size) else {
                return Fate::Give;
            };
            if let Fate::CutShort(len) = fate {
                // A request that ends at the same place again has met the end of the file.
                let cut = seen.offset + len as u64;
                if lock(&last_cut).replace(cut) == Some(cut) {
                    return Fate::Give;
                }
            }
            counts.fired(fault, 1);
            fate
        };
        let fs = SlowFs::mount_with(content, Box::new(policy))?;
        Some(Self { fs, holding })
    }

    pub(super) fn path(&self) -> PathBuf {
        self.fs.path()
    }

    pub(super) fn content(&self) -> Vec<u8> {
        self.fs.content()
    }

    /// From now on nothing is answered.
    pub(super) fn hold(&self) {
        self.holding.store(true, Ordering::Release);
    }

    /// From now on all is answered; gives what was not, to be let go.
    pub(super) fn pass(&self) -> Vec<Held> {
        self.holding.store(false, Ordering::Release);
        self.fs.take_held()
    }
}

fn decide(seen: &Seen, fault: Option<Fault>, size: u64) -> Option<(Fault, Fate)> {
    let fault = fault?;
    let size = usize::try_from(size).unwrap_or(0);
    let fate = match fault {
        // Not to nothing, which would be the end of the file.
        Fault::Short if seen.len > 1 => Fate::CutShort(1 + size % (seen.len - 1)),
        Fault::Eio => Fate::Fail(Errno::EIO),
        Fault::Einval => Fate::Fail(Errno::EINVAL),
        Fault::Enospc if seen.kind == Kind::Write => Fate::Fail(Errno::ENOSPC),
        Fault::Slow => Fate::Later(DELAY_MAX * u32::try_from(size % 100).unwrap_or(0) / 100),
        _ => return None,
    };
    Some((fault, fate))
}
