//! The compat backend: bytes through the kernel's file interface, around the page cache where the
//! file allows.

mod pool;
mod transfer;

pub(crate) use pool::Pool;
pub(crate) use transfer::TransferPart;
