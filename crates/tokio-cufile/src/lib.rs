//! Await bytes moving between a file and GPU or host memory in tokio.

mod compat;
mod config;
mod engine;
mod error;
mod file;
mod memory;
mod op;
mod os;
mod plan;
mod receipt;
mod stats;

pub use config::{CacheMode, CompatMode, Config, IoEngine, Priority};
pub use engine::{Engine, EngineBuilder, ShutdownReport};
pub use error::{Error, ErrorKind, Operation, Result, VendorCode};
pub use file::{AsyncCuFile, OpenOptions};
pub use memory::{HostBuffer, HostPart, Idle, IoBuf, IoBufMut};
pub use op::{CancelHandle, Done, OpError, Request, Transfer};
pub use receipt::{Backend, DataPath, ParsePathClassError, PathBytes, PathClass, Receipt, Route};
pub use stats::{Permits, Stats};
