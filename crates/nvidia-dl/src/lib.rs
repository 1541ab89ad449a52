//! NVIDIA's driver library, found at run time.

pub mod cuda;
mod load;

pub use load::{Attempt, LoadError, Search};
