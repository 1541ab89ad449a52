//! CUDA devices: contexts, streams, events, device memory, and copies that overlap with I/O.
//!
//! | module | concept |
//! |---|---|
//! | `device` | one GPU and its primary context; whether it can still be trusted |
//! | `handles` | streams and events that destroy themselves |
//! | `allocation` | device memory that frees itself |
//! | `pinned` | the staging slots, pinned for every device |
//! | `lane` | copies in flight on one device: issued, then polled for |
//! | `copier` | a thread that drives a lane and looks after events |
//! | `event` | what a user's operation waits for before it is admitted |
//! | `cudarc` | cudarc's slices, streams and events, with the feature of that name |
//!
//! Nothing here is called on a task's thread: calls into the driver may block for as long as any
//! other work on the device takes.
//!
//! An event's completion is the only proof that a copy has ended. A host callback would come 16 us
//! later at the median (measured), and not at all after an error of the context.

mod allocation;
mod copier;
#[cfg(feature = "cudarc")]
mod cudarc;
mod device;
mod event;
mod handles;
mod lane;
mod pinned;

pub(crate) use allocation::{Allocation, fill, read_back};
pub(crate) use copier::{Copier, Finish};
#[cfg(feature = "cudarc")]
pub use cudarc::LentSlice;
pub use device::DeviceInfo;
pub(crate) use device::{Device, open_driver};
pub use event::CudaEvent;
pub(crate) use event::{Watched, is_per_thread, stream_of};
pub(crate) use handles::{Event, Stream};
pub(crate) use lane::{CopyJob, CopyLane, Direction, nap_after};
pub(crate) use pinned::Pinned;
