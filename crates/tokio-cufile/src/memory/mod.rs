//! Host memory that the kernel and the hardware write to: buffers, parts, slots.
//!
//! | type | who holds it | what it promises |
//! |---|---|---|
//! | [`HostBuffer`] | the user | zeroed memory; its bytes are readable while no part is out |
//! | [`HostPart`] | the user, or an operation in flight | sole access to one range of a buffer |
//! | [`DeviceBuffer`], [`DevicePart`] | as for host memory | the same, in the memory of a CUDA device |
//! | [`ForeignMemory`] | the same | memory of other code's, with its owner |
//! | `Span` | a stream or a writer | a whole buffer of which one range is read or written |
//! | `SlotArena` | an engine | staging slots in one mapping, hidden from children and core dumps |
//! | `MemoryRange` | an operation's control block | an address and a length; says nothing about who may touch it |
//!
//! No reference to bytes exists while they may be in flight: an operation owns its buffer or part,
//! and slices are made only through the owner.

mod buf;
mod device;
mod foreign;
mod host;
mod lent;
mod mapping;
mod process_mark;
mod range;
mod region;
mod slots;
mod span;

#[cfg(feature = "cudarc")]
pub(crate) use buf::sealed;
pub use buf::{IoBuf, IoBufMut};
pub use device::{DeviceBuffer, DevicePart};
pub use foreign::{ForeignMemory, PointerClass};
pub use host::{HostBuffer, HostPart};
pub use lent::Idle;
pub(crate) use mapping::Prefault;
pub(crate) use process_mark::{ProcessMark, leak_in_child};
pub(crate) use range::{EngineId, MemoryRange};
pub(crate) use region::{DeviceRange, Region};
pub(crate) use slots::{SlotArena, SlotLayout};
pub(crate) use span::Span;
