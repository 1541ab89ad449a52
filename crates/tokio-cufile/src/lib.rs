//! Await bytes moving between a file and GPU or host memory in tokio.

pub mod config;
mod error;
#[allow(
    dead_code,
    unused_imports,
    reason = "the engine that uses it is wired up in the next step"
)]
mod memory;
mod receipt;

pub use config::{CacheMode, CompatMode, Config, IoEngine};
pub use error::{Error, ErrorKind, Operation, Result, VendorCode};
pub use memory::{HostBuffer, HostPart, Idle, IoBuf, IoBufMut};
pub use receipt::{Backend, DataPath, ParsePathClassError, PathBytes, PathClass, Receipt, Route};
