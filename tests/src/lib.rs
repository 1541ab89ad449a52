//! What the integration tests share.

pub mod life;
pub mod skip;
pub mod slow_fs;

pub use skip::need;
pub use slow_fs::SlowFs;
