//! What the integration tests share.

pub mod bench;
pub mod child;
pub mod collector;
pub mod cufile;
pub mod cufile_sim;
pub mod fuzz;
pub mod gpu;
pub mod held;
pub mod life;
pub mod memory;
pub mod mount;
pub mod nvidia;
pub mod pattern;
pub mod paused_disk;
pub mod random;
pub mod rig;
pub mod seccomp;
pub mod sim;
pub mod skip;
pub mod slow_fs;
pub mod stress;
pub mod syscalls;

pub use bench::{Bench, each, each_compat, each_in};
pub use cufile::{Bed, World};
pub use cufile_sim::CufileSim;
pub use held::Held;
pub use rig::Rig;
pub use sim::Sim;
pub use skip::need;
pub use slow_fs::SlowFs;
