//! A stand-in for `libcuda.so.1`, for tests on machines without a GPU.
#![doc = ""]

mod call;
mod code;
mod context;
mod device;
mod driver;
mod entry;
mod event;
mod exports;
mod faults;
mod host;
mod memory;
mod monitor;
mod raw;
mod report;
mod rng;
mod settings;
mod stats;
mod stream;
mod work;
