//! What the integration tests share.

pub mod bench;
pub mod child;
pub mod memory;
pub mod mount;
pub mod pattern;
pub mod skip;

pub use bench::{Bench, each, each_in};
pub use skip::need;
