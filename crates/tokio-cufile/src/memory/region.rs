//! Where an operation's bytes lie: in host memory, or in the memory of a CUDA device.

use super::range::MemoryRange;
use crate::plan::Place;

/// Bytes in the memory of one device, by the address that the device knows them by. Holding one
/// grants no right to touch them. `pub` since the sealed trait of the buffers names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRange {
    device: u32,
    address: u64,
    len: usize,
}

impl DeviceRange {
    /// `len` bytes from `address` on, in the memory of the device with that CUDA ordinal.
    pub(crate) const fn new(device: u32, address: u64, len: usize) -> Self {
        Self {
            device,
            address,
            len,
        }
    }

    /// The CUDA ordinal of the device.
    pub(crate) const fn device(self) -> u32 {
        self.device
    }

    /// Where the first byte lies in the device's address space.
    pub(crate) const fn address(self) -> u64 {
        self.address
    }

    /// The length in bytes.
    pub(crate) const fn len(self) -> usize {
        self.len
    }

    /// `len` bytes from `offset` on, or `None` where they are not all inside.
    pub(crate) fn sub(self, offset: usize, len: usize) -> Option<Self> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then_some(Self {
            // An allocation ends below 2^64, and so does what lies inside it.
            address: self.address.wrapping_add(offset as u64),
            len,
            ..self
        })
    }
}

/// One or the other. `pub` for the same reason as [`DeviceRange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// The host's processors and the kernel's file interface reach it.
    Host(MemoryRange),
    /// Only the device's copies reach it.
    Device(DeviceRange),
}

impl Region {
    /// The length in bytes.
    pub(crate) const fn len(self) -> usize {
        match self {
            Self::Host(memory) => memory.len(),
            Self::Device(memory) => memory.len(),
        }
    }

    /// `len` bytes from `offset` on, or `None` where they are not all inside.
    pub(crate) fn sub(self, offset: usize, len: usize) -> Option<Self> {
        match self {
            Self::Host(memory) => memory.sub(offset, len).map(Self::Host),
            Self::Device(memory) => memory.sub(offset, len).map(Self::Device),
        }
    }

    /// The range, of a device's memory.
    pub(crate) const fn on_device(self) -> Option<DeviceRange> {
        match self {
            Self::Host(_) => None,
            Self::Device(memory) => Some(memory),
        }
    }

    /// What the planner needs to know of it.
    pub(crate) fn place(self) -> Place {
        match self {
            Self::Host(memory) => Place::Host(memory.address()),
            Self::Device(_) => Place::Device,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_range_is_divided_inside_its_bounds_only() {
        let whole = DeviceRange::new(1, 0x7000, 100);
        assert_eq!(whole.sub(40, 60), Some(DeviceRange::new(1, 0x7028, 60)));
        assert_eq!(whole.sub(100, 0).map(DeviceRange::len), Some(0));
        assert_eq!(whole.sub(41, 60), None);
        assert_eq!(whole.sub(1, usize::MAX), None);
    }
}
