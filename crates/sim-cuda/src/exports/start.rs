//! Initialisation and devices.
#![allow(
    unsafe_code,
    reason = "C functions: exported by name, and the caller vouches for its pointers"
)]

use std::ffi::c_char;

use super::{put, put_text};
use crate::call;
use crate::code::Code;
use crate::driver;
use crate::entry::Entry;
use crate::settings;

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: u32) -> i32 {
    if flags != 0 {
        return Code::INVALID_VALUE.0;
    }
    call::number(driver::init())
}

/// Works before `cuInit`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut i32) -> i32 {
    call::always(Entry::cuDriverGetVersion, || {
        let found = settings::driver_version().map_err(|_| Code::INVALID_VALUE)?;
        // SAFETY: as the caller vouches.
        unsafe { put(version, found) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut i32) -> i32 {
    call::process(Entry::cuDeviceGetCount, |driver| {
        let found = i32::try_from(driver.devices.len()).map_err(|_| Code::UNKNOWN)?;
        // SAFETY: as the caller vouches.
        unsafe { put(count, found) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut i32, ordinal: i32) -> i32 {
    call::device(Entry::cuDeviceGet, ordinal, |_, _| {
        // SAFETY: as the caller vouches.
        unsafe { put(device, ordinal) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: i32, device: i32) -> i32 {
    call::device(Entry::cuDeviceGetName, device, |_, device| {
        // SAFETY: as the caller vouches.
        unsafe { put_text(name, len, &device.name()) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: i32) -> i32 {
    call::device(Entry::cuDeviceTotalMem_v2, device, |_, device| {
        // SAFETY: as the caller vouches.
        unsafe { put(bytes, device.memory.info().1) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32) -> i32 {
    call::device(Entry::cuDeviceGetAttribute, device, |_, _| {
        let found = match attribute {
            // Unified addressing; memory pools.
            41 | 115 => 1,
            // Compute capability 9.0.
            75 => 9,
            // A PCI domain that no real device is in.
            50 => 0xFFFF,
            33 => device,
            1.. => 0,
            _ => return Err(Code::INVALID_VALUE),
        };
        // SAFETY: as the caller vouches.
        unsafe { put(value, found) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetPCIBusId(id: *mut c_char, len: i32, device: i32) -> i32 {
    call::device(Entry::cuDeviceGetPCIBusId, device, |_, _| {
        // SAFETY: as the caller vouches.
        unsafe { put_text(id, len, &format!("FFFF:{device:02X}:00.0")) }
    })
}
