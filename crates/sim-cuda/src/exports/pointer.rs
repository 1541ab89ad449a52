//! What a pointer is.
#![allow(
    unsafe_code,
    reason = "C functions: exported by name, and the caller vouches for its pointers"
)]

use std::ffi::c_void;

use super::put;
use crate::call;
use crate::code::{Code, Result};
use crate::driver::Driver;
use crate::entry::Entry;
use crate::memory::Origin;

const ON_HOST: u32 = 1;
const ON_DEVICE: u32 = 2;
/// The ordinal of memory that CUDA knows nothing of.
const NO_DEVICE: i32 = -2;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAddressRange_v2(
    base: *mut usize,
    size: *mut usize,
    pointer: usize,
) -> i32 {
    call::context(Entry::cuMemGetAddressRange_v2, |driver, _| {
        let device = driver.device_of_pointer(pointer);
        let found = device.and_then(|device| device.memory.find(pointer));
        let (allocation, _) = found.ok_or(Code::INVALID_VALUE)?;
        if !base.is_null() {
            // SAFETY: as the caller vouches.
            unsafe { put(base, allocation.face) }?;
        }
        if !size.is_null() {
            // SAFETY: as the caller vouches.
            unsafe { put(size, allocation.len) }?;
        }
        Ok(())
    })
}

/// No allocation here is made by virtual memory management.
#[unsafe(no_mangle)]
extern "C" fn cuMemRetainAllocationHandle(_handle: *mut u64, _address: usize) -> i32 {
    call::context(Entry::cuMemRetainAllocationHandle, |_, _| {
        Err(Code::INVALID_VALUE)
    })
}

/// So there is no handle to give back.
#[unsafe(no_mangle)]
extern "C" fn cuMemRelease(_handle: u64) -> i32 {
    call::context(Entry::cuMemRelease, |_, _| Err(Code::INVALID_VALUE))
}

/// Of a pointer that is none of CUDA's all attributes are zero, and the call succeeds.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttributes(
    count: u32,
    attributes: *const i32,
    data: *const *mut c_void,
    pointer: usize,
) -> i32 {
    call::context(Entry::cuPointerGetAttributes, |driver, _| {
        if attributes.is_null() || data.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let about = About::find(driver, pointer);
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: both arrays have `count` elements, as the caller vouches.
            let attribute = unsafe { attributes.wrapping_add(index).read() };
            // SAFETY: as above.
            let to = unsafe { data.wrapping_add(index).read() };
            let value = about.value(attribute)?;
            if to.is_null() {
                return Err(Code::INVALID_VALUE);
            }
            // SAFETY: not null, so valid for a write of the attribute's type, whose bytes these
            // are, as the caller vouches.
            unsafe { to.cast::<u8>().copy_from(value.as_ptr(), value.len()) };
        }
        Ok(())
    })
}

#[derive(Default)]
struct About {
    memory_type: u32,
    ordinal: Option<i32>,
    context: usize,
    device_pointer: usize,
    host_pointer: usize,
    id: u64,
    start: usize,
    len: usize,
    pool: usize,
    is_managed: bool,
}

impl About {
    fn find(driver: &Driver, pointer: usize) -> Self {
        let device = driver.device_of_pointer(pointer);
        if let Some(device) = device
            && let Some((allocation, _)) = device.memory.find(pointer)
        {
            return Self {
                memory_type: ON_DEVICE,
                ordinal: i32::try_from(device.ordinal).ok(),
                context: if allocation.origin == Origin::Pool {
                    0
                } else {
                    device.context().map_or(0, |context| context.handle)
                },
                device_pointer: pointer,
                host_pointer: 0,
                id: allocation.serial + 1,
                start: allocation.face,
                len: allocation.len,
                // Any handle that is not null.
                pool: usize::from(allocation.origin == Origin::Pool),
                is_managed: allocation.origin == Origin::Managed,
            };
        }
        let Some(range) = driver.host.around(pointer) else {
            return Self::default();
        };
        Self {
            memory_type: ON_HOST,
            ordinal: i32::try_from(range.ordinal).ok(),
            device_pointer: pointer,
            host_pointer: pointer,
            start: range.start,
            len: range.len,
            ..Self::default()
        }
    }

    /// The bytes of an attribute in the type that it has.
    fn value(&self, attribute: i32) -> Result<Vec<u8>> {
        let word = |word: usize| word.to_ne_bytes().to_vec();
        Ok(match attribute {
            1 => word(self.context),
            2 => self.memory_type.to_ne_bytes().to_vec(),
            3 => word(self.device_pointer),
            4 => word(self.host_pointer),
            7 => self.id.to_ne_bytes().to_vec(),
            9 => {
                let ordinal = self.ordinal.unwrap_or(NO_DEVICE);
                ordinal.to_ne_bytes().to_vec()
            }
            11 => word(self.start),
            12 => word(self.len),
            // Mapped.
            13 => vec![u8::from(self.memory_type != 0)],
            8 => vec![u8::from(self.is_managed)],
            // Synchronous operations, direct RDMA.
            6 | 15 => vec![0],
            // The older way of sharing between processes.
            10 => {
                let is_fixed = self.memory_type == ON_DEVICE && self.pool == 0;
                vec![u8::from(is_fixed && !self.is_managed)]
            }
            // Kinds of handles that it can be exported as.
            14 => vec![0; 8],
            17 => word(self.pool),
            _ => return Err(Code::INVALID_VALUE),
        })
    }
}
