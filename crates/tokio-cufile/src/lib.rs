//! Await bytes moving between a file and GPU or host memory in tokio.

pub mod config;
mod error;
#[allow(
    dead_code,
    unused_imports,
    reason = "called once the engine is wired to it"
)]
mod os;
#[allow(dead_code, reason = "called once the engine is wired to it")]
mod plan;
mod receipt;

pub use config::{CacheMode, CompatMode, Config, IoEngine};
pub use error::{Error, ErrorKind, Operation, Result, VendorCode};
pub use receipt::{Backend, DataPath, ParsePathClassError, PathBytes, PathClass, Receipt, Route};
