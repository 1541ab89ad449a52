//! What the integration tests share.

pub mod skip;

pub use skip::need;
