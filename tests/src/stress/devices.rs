//! The devices of one epoch: simulated ones, each with its own way to go wrong, or one of CUDA's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use measure::data::Draws;
use tokio_cufile::{DeviceBuffer, Engine};

use super::arena::{self, Arena, Sizes};
use super::counts::{Counts, Fault, Harm};
use super::cuda::Cuda;
use super::field::text;
use super::hardware::Hardware;
use crate::Sim;

/// Operations on a device that is about to fail: each may be leaked.
const DOOMED_MAX: u64 = 4;

/// The slowest copy.
pub(super) const DELAY_MAX: Duration = Duration::from_millis(3);

/// What is the matter with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It refuses some copies.
    Refuses,
    /// Its copies are slow, and it works on one operation at a time, so that it can be seen where
    /// that is.
    Slow,
    /// Its context will be lost.
    WillBeLost,
    /// An event will not complete.
    WillHang,
    /// Nothing that anybody made.
    Sound,
}

impl Role {
    fn script(self, faults: &[Fault]) -> String {
        let has = |fault| faults.contains(&fault);
        let script = match self {
            Self::Refuses => {
                let refused = ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"]
                    .map(|call| format!("{call}:fail=INVALID_VALUE,chance=1/60;"));
                let flip = if has(Fault::Flip) {
                    "@htod:flip,chance=1/40"
                } else {
                    ""
                };
                match has(Fault::CopyError) {
                    true => format!("{}{flip}", refused.concat()),
                    false => flip.to_owned(),
                }
            }
            Self::Slow => format!("@htod:slow={0};@dtoh:slow={0}", DELAY_MAX.as_micros()),
            Self::WillBeLost => "@htod:fail=ILLEGAL_ADDRESS,from=12".to_owned(),
            Self::WillHang => "@record:never,from=12".to_owned(),
            Self::Sound => String::new(),
        };
        script.trim_end_matches(';').to_owned()
    }

    const fn fault(self) -> Option<Fault> {
        match self {
            Self::Refuses => Some(Fault::CopyError),
            Self::Slow => Some(Fault::Slow),
            Self::WillBeLost => Some(Fault::ContextLost),
            Self::WillHang => Some(Fault::EventNever),
            Self::Sound => None,
        }
    }
}

/// One device.
pub(super) struct Device {
    pub(super) role: Role,
    pub(super) arena: Arc<Arena<DeviceBuffer, Hardware>>,
    /// Faults that had fired before.
    fired_before: u64,
    dead: AtomicBool,
    busy: AtomicU64,
}

impl Device {
    /// Whether it will end for good.
    pub(super) const fn is_doomed(&self) -> bool {
        matches!(self.role, Role::WillBeLost | Role::WillHang)
    }

    /// Nothing more is asked of it.
    pub(super) fn note_dead(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Whether one more may work on it now.
    fn enter(self: &Arc<Self>) -> Option<Turn> {
        let most = match self.role {
            Role::Refuses | Role::Sound => u64::MAX,
            Role::Slow => 1,
            Role::WillBeLost | Role::WillHang => DOOMED_MAX,
        };
        if self.dead.load(Ordering::Acquire) {
            return None;
        }
        let entered = self
            .busy
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |busy| {
                (busy < most).then_some(busy + 1)
            });
        entered.ok().map(|_| Turn(Arc::clone(self)))
    }

    /// Copies to the device so far, finished or not.
    pub(super) fn copies(&self) -> u64 {
        self.arena.access().copies()
    }
}

/// An operation on a device. It is over, for the number of them, when it is known to be.
pub(super) struct Turn(pub(super) Arc<Device>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The devices of a whole run.
#[derive(Default)]
pub(super) struct Leases {
    /// Has those that end.
    sim: Option<&'static Sim>,
    /// Those that go on.
    kept: Vec<(Role, Hardware)>,
    /// The first of them as any program has it.
    cuda: Option<Arc<Cuda>>,
    doomed: usize,
}

impl Leases {
    /// What the machine has of that kind.
    pub(super) fn new(kind: super::Device) -> Result<Self, String> {
        match kind {
            super::Device::Host => Ok(Self::default()),
            super::Device::Sim => {
                let sim = Sim::need();
                let sim = sim.ok_or("simulated devices: run it by `cargo xtask stress`")?;
                let lease = |role| (role, Hardware::Simulated(Arc::new(sim.lease())));
                let kept = [Role::Refuses, Role::Slow].map(lease).to_vec();
                let cuda = Cuda::open(kept[0].1.ordinal())?;
                Ok(Self {
                    sim: Some(sim),
                    kept,
                    cuda: Some(Arc::new(cuda)),
                    doomed: 0,
                })
            }
            super::Device::Cuda => {
                let cuda = Arc::new(Cuda::open(0)?);
                println!("device {}: {}", cuda.ordinal, cuda.name());
                Ok(Self {
                    kept: vec![(Role::Sound, Hardware::Cuda(Arc::clone(&cuda)))],
                    cuda: Some(cuda),
                    ..Self::default()
                })
            }
        }
    }

    /// By which host memory is made known to the driver.
    pub(super) fn cuda(&self) -> Option<Arc<Cuda>> {
        self.cuda.clone()
    }

    /// Those that go on.
    pub(super) fn kept(&self) -> Vec<(Role, Hardware)> {
        self.kept.clone()
    }

    /// For one epoch. Each time one for each fault that ends a device, as long as there are.
    pub(super) fn for_epoch(&mut self, faults: &[Fault]) -> Vec<(Role, Hardware)> {
        let mut leases = self.kept();
        let Some(sim) = self.sim else {
            return leases;
        };
        for role in [Role::WillBeLost, Role::WillHang] {
            let left = sim.devices() as usize - self.kept.len() - self.doomed;
            if left > 0 && role.fault().is_some_and(|fault| faults.contains(&fault)) {
                let lease = sim.lease();
                // It is used up: nobody else is to have it.
                lease.spoil();
                self.doomed += 1;
                leases.push((role, Hardware::Simulated(Arc::new(lease))));
            }
        }
        leases
    }
}

/// All devices of an epoch.
#[derive(Default)]
pub(super) struct Devices {
    pub(super) all: Vec<Arc<Device>>,
}

impl Devices {
    /// One for each role, with memory of this engine's.
    pub(super) async fn new(
        engine: &Engine,
        leases: Vec<(Role, Hardware)>,
        faults: &[Fault],
        (sizes, rest): (Sizes, Duration),
    ) -> Result<Self, String> {
        let mut all = Vec::new();
        for (role, hardware) in leases {
            let ground = DeviceBuffer::new(engine, hardware.ordinal(), arena::length(sizes));
            let ground = ground.await.map_err(text)?;
            let fired_before = hardware.stats().faults_fired;
            let script = role.script(faults);
            if !script.is_empty() {
                hardware.fault(&script);
            }
            all.push(Arc::new(Device {
                role,
                arena: Arc::new(Arena::new(ground, hardware, sizes, rest)),
                fired_before,
                dead: AtomicBool::new(false),
                busy: AtomicU64::new(0),
            }));
        }
        Ok(Self { all })
    }

    /// A device that takes one more operation; most often the first.
    pub(super) fn enter(&self, draws: &mut Draws) -> Option<Turn> {
        if self.all.is_empty() {
            return None;
        }
        let first = match draws.below(2) {
            0 => 0,
            _ => usize::try_from(draws.below(self.all.len() as u64)).unwrap_or(0),
        };
        self.all[first].enter().or_else(|| self.all[0].enter())
    }

    /// From now on events of copies do not complete, where that can be had.
    pub(super) fn hang(&self) {
        for device in &self.all {
            device.arena.access().fault("@record:never,from=2");
        }
    }

    /// The engine has ended: what hangs may go on, and must find its memory.
    pub(super) fn end(&self, counts: &Counts, faults: &[Fault]) {
        for device in &self.all {
            let hardware = device.arena.access();
            let fired = hardware.stats().faults_fired - device.fired_before;
            let fault = match device.role {
                Role::Refuses if !faults.contains(&Fault::CopyError) => Some(Fault::Flip),
                role => role.fault(),
            };
            if let Some(fault) = fault {
                counts.fired(fault, fired);
            }
            hardware.clear();
            let stats = hardware.stats();
            let ordinal = hardware.ordinal();
            let message = || format!("device {ordinal} ({:?}): {stats:?}", device.role);
            counts.harm(Harm::LateWrite, stats.harm(), message);
        }
    }
}
