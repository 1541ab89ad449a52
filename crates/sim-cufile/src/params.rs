//! Parameters, with the values that each version has of its own.
//!
//! As measured: what is set is kept as it is, and told so; only when the library opens, a number out
//! of its range gives way to the default. Until then most of what was not set is told as 0 or off.

use crate::code::{DRIVER_ALREADY_OPEN, Fail, INVALID_VALUE, Result};

pub(crate) const POLL_MODE: usize = 0;
pub(crate) const ALLOW_COMPAT: usize = 1;
pub(crate) const FORCE_COMPAT: usize = 2;
const PARALLEL_IO: usize = 4;
const NVTX: usize = 5;
const SYSTEM_MEMORY: usize = 6;

pub(crate) const USE_P2PDMA: usize = 7;
const STATS_LEVEL: usize = 0;
pub(crate) const MAX_DIRECT_IO_KB: usize = 5;
pub(crate) const MAX_CACHE_KB: usize = 6;
pub(crate) const BUFFER_CACHE_KB: usize = 7;
pub(crate) const MAX_PINNED_KB: usize = 8;
pub(crate) const BATCH_SIZE: usize = 9;
pub(crate) const POLL_KB: usize = 10;
pub(crate) const BATCH_TIMEOUT_MS: usize = 11;
/// Those before are told before the library is open as well.
const PROPERTIES: usize = 5;

pub(crate) const LOG_LEVEL: usize = 0;
pub(crate) const LOG_PATH: usize = 1;
pub(crate) const LOG_DIR: usize = 2;

/// KiB that memory may have at most.
const KB_MAX: usize = usize::MAX / 1024;

/// Values in the order of the header, and what was set of them.
#[derive(Debug)]
pub(crate) struct Params {
    version: i32,
    sizes: Vec<Value<usize>>,
    bools: Vec<Value<bool>>,
    strings: Vec<Option<String>>,
    /// Sizes in KiB and counts, of host memory and of GPU memory.
    pub(crate) slabs: [Slabs; 2],
    pub(crate) p2p: u32,
    /// The library was opened, and what is in force is told.
    pub(crate) is_settled: bool,
}

#[derive(Clone, Copy, Debug)]
struct Value<T> {
    default: T,
    set: Option<T>,
}

impl<T> Value<T> {
    fn of(default: T) -> Self {
        Self { default, set: None }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slabs {
    pub(crate) sizes: Vec<usize>,
    pub(crate) counts: Vec<usize>,
}

impl Params {
    pub(crate) fn of(version: i32) -> Self {
        let from_16 = version >= 1160;
        let (direct_kb, parallelism) = if version >= 1200 {
            (16384, 4)
        } else {
            (1024, 0)
        };
        let threads = if from_16 { 8 } else { 0 };
        let slabs = Slabs {
            sizes: vec![4, 1024, 16384],
            counts: vec![128, 64, 64],
        };
        let mut bools = vec![false; if version >= 1190 { 14 } else { 12 }];
        bools[ALLOW_COMPAT] = true;
        bools[PARALLEL_IO] = from_16;
        bools[SYSTEM_MEMORY] = true;
        let sizes = [
            0,
            128,
            threads,
            1024,
            parallelism,
            direct_kb,
            131_072,
            1024,
            KB_MAX,
            128,
            4,
            5,
        ];
        let mut strings = vec![Some(String::new()), None, Some(String::new())];
        if version >= 1190 {
            strings.push(Some("DC_V1".into()));
        }
        Self {
            version,
            sizes: sizes.map(Value::of).to_vec(),
            bools: bools.into_iter().map(Value::of).collect(),
            strings,
            slabs: [slabs.clone(), slabs],
            p2p: 0,
            is_settled: false,
        }
    }

    /// The least and the greatest value of a number.
    pub(crate) fn range(&self, index: usize) -> Result<(usize, usize)> {
        Ok(match index {
            1 | BATCH_SIZE => (1, 256),
            2 if self.version < 1160 => (0, 32),
            2 => (0, 128),
            3 => (4, 0xFFFF_FFFF),
            4 => (0, 8),
            MAX_DIRECT_IO_KB | BUFFER_CACHE_KB => (64, 16384),
            MAX_CACHE_KB => (0, KB_MAX),
            MAX_PINNED_KB => (64, KB_MAX),
            POLL_KB => (4, KB_MAX),
            BATCH_TIMEOUT_MS => (1, 1000),
            // The level of statistics has none.
            _ => return Err(Fail::Code(INVALID_VALUE)),
        })
    }

    /// What is in force.
    pub(crate) fn size(&self, index: usize) -> usize {
        let value = self.sizes[index];
        let is_taken = |set: &usize| match self.range(index) {
            Ok((min, max)) => (min..=max).contains(set),
            Err(_) => true,
        };
        value.set.filter(is_taken).unwrap_or(value.default)
    }

    pub(crate) fn bool(&self, index: usize) -> bool {
        let value = self.bools[index];
        value.set.unwrap_or(value.default)
    }

    pub(crate) fn string(&self, index: usize) -> &str {
        self.strings[index].as_deref().unwrap_or_default()
    }

    pub(crate) fn tell_size(&self, index: u32) -> Result<usize> {
        let index = known(&self.sizes, index)?;
        let value = self.sizes[index];
        if self.is_settled {
            return Ok(self.size(index));
        }
        let unset = if index < PROPERTIES { value.default } else { 0 };
        Ok(value.set.unwrap_or(unset))
    }

    pub(crate) fn tell_bool(&self, index: u32) -> Result<bool> {
        let index = known(&self.bools, index)?;
        if index == NVTX && self.version >= 1160 {
            return Err(Fail::Code(INVALID_VALUE));
        }
        let value = self.bools[index];
        if self.is_settled {
            return Ok(self.bool(index));
        }
        let unset = index == PARALLEL_IO && value.default;
        Ok(value.set.unwrap_or(unset))
    }

    pub(crate) fn tell_string(&self, index: u32) -> Result<String> {
        let index = known(&self.strings, index)?;
        self.strings[index].clone().ok_or(Fail::Code(INVALID_VALUE))
    }

    pub(crate) fn set_size(&mut self, index: u32, value: usize) -> Result {
        let index = known(&self.sizes, index)?;
        self.sizes[index].set = Some(value);
        Ok(())
    }

    pub(crate) fn set_bool(&mut self, index: u32, value: bool) -> Result {
        let index = known(&self.bools, index)?;
        self.bools[index].set = Some(value);
        Ok(())
    }

    pub(crate) fn set_string(&mut self, index: u32, value: String) -> Result {
        let index = known(&self.strings, index)?;
        self.strings[index] = Some(value);
        Ok(())
    }

    /// What the environment says, which gives way to what is set.
    pub(crate) fn default_bool(&mut self, index: usize, value: Option<bool>) {
        if let Some(value) = value {
            self.bools[index].default = value;
        }
    }

    /// What a file says of the level of statistics: told as that whatever is set since (measured).
    pub(crate) fn file_stats(&mut self, level: usize) {
        self.sizes[STATS_LEVEL].default = level;
    }

    pub(crate) fn default_string(&mut self, index: usize, value: Option<&String>) {
        if let Some(value) = value {
            self.strings[index] = Some(value.clone());
        }
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

fn known<T>(values: &[T], index: u32) -> Result<usize> {
    let index = usize::try_from(index).ok();
    let index = index.filter(|index| *index < values.len());
    index.ok_or(Fail::Code(INVALID_VALUE))
}
