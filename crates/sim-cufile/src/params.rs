//! Parameters, with the values that each version has of its own.

use crate::code::{DRIVER_ALREADY_OPEN, Fail, INVALID_VALUE, Result};

pub(crate) const ALLOW_COMPAT: usize = 1;
pub(crate) const FORCE_COMPAT: usize = 2;
pub(crate) const USE_P2PDMA: usize = 7;
pub(crate) const MAX_DIRECT_IO_KB: usize = 5;
pub(crate) const MAX_PINNED_KB: usize = 8;
pub(crate) const BATCH_SIZE: usize = 9;
pub(crate) const LOG_LEVEL: usize = 0;
pub(crate) const LOG_PATH: usize = 1;
pub(crate) const LOG_DIR: usize = 2;

/// Texts, lists and numbers by their place in the header.
#[derive(Debug)]
pub(crate) struct Params {
    pub(crate) sizes: Vec<usize>,
    pub(crate) bools: Vec<bool>,
    pub(crate) strings: Vec<String>,
    /// Sizes in KiB and counts, of host memory and of GPU memory.
    pub(crate) slabs: [Slabs; 2],
    pub(crate) p2p: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slabs {
    pub(crate) sizes: Vec<usize>,
    pub(crate) counts: Vec<usize>,
}

impl Params {
    pub(crate) fn of(version: i32) -> Self {
        let from_16 = version >= 1160;
        let direct_kb = if version >= 1200 { 16384 } else { 1024 };
        let threads = if from_16 { 8 } else { 0 };
        let slabs = Slabs {
            sizes: vec![4, 1024, 16384],
            counts: vec![128, 64, 64],
        };
        let mut bools = vec![false; if version >= 1190 { 14 } else { 12 }];
        bools[ALLOW_COMPAT] = true;
        // Parallel I/O, and host memory.
        bools[4] = from_16;
        bools[6] = true;
        Self {
            sizes: vec![
                0,
                128,
                threads,
                1024,
                0,
                direct_kb,
                131_072,
                1024,
                usize::MAX / 1024,
                128,
                4,
                5,
            ],
            bools,
            strings: vec![String::new(); if version >= 1190 { 4 } else { 3 }],
            slabs: [slabs.clone(), slabs],
            p2p: 0,
        }
    }

    /// The least and the greatest value of a number.
    pub(crate) fn range(index: u32) -> Result<(usize, usize)> {
        Ok(match index {
            0 => (0, 3),
            1 | 9 => (1, 256),
            2 => (0, 128),
            3 => (4, usize::MAX / 1024),
            4 => (0, 8),
            5 | 7 => (64, 16384),
            6 | 8 => (64, usize::MAX / 1024),
            10 => (4, 1024),
            11 => (1, 1000),
            _ => return Err(Fail::Code(INVALID_VALUE)),
        })
    }

    pub(crate) fn set_size(&mut self, index: u32, value: usize) -> Result {
        let (min, max) = Self::range(index)?;
        if !(min..=max).contains(&value) {
            return Err(Fail::Code(INVALID_VALUE));
        }
        set(&mut self.sizes, index, value)
    }
}

/// What cannot be set any more.
pub(crate) fn before_open(uses: i64) -> Result {
    if uses == 0 {
        Ok(())
    } else {
        Err(Fail::Code(DRIVER_ALREADY_OPEN))
    }
}

pub(crate) fn get<T: Clone>(values: &[T], index: u32) -> Result<T> {
    let index = usize::try_from(index).ok();
    let found = index.and_then(|index| values.get(index)).cloned();
    found.ok_or(Fail::Code(INVALID_VALUE))
}

pub(crate) fn set<T>(values: &mut [T], index: u32, value: T) -> Result {
    let index = usize::try_from(index).ok();
    let place = index.and_then(|index| values.get_mut(index));
    *place.ok_or(Fail::Code(INVALID_VALUE))? = value;
    Ok(())
}
