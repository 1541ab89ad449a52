//! The one way figures about file I/O are made, for the command `cuf` and for the benches.
//!
//! A figure is worth printing when another person can get it again. So here:
//!
//! - **Cold is proven.** [`residency::evict`] drops a file from the page cache, counts what is left
//!   there, and fails when that is more than nothing to speak of. A benchmark of the page cache
//!   that calls itself a disk benchmark is a defect. [`residency::warm`] proves the opposite.
//! - **Contestants are interleaved.** [`pairs::interleave`] runs all of them once a round, in an
//!   order drawn anew for every round, and each round gives one ratio between any two. Slow minutes
//!   of a shared machine then hit both sides of a ratio.
//! - **A figure has a spread.** [`statistics::Summary`]: the median with an interval that needs no
//!   assumption about the noise.
//! - **CPU time is counted**, of all threads of the process, in the window from the first submit to
//!   the last settle: [`usage::Window`].
//! - **Bytes are random and checked**: [`data`]. Zeros compress, deduplicate and hide errors.
//! - **The machine is stated**: [`environment::Environment`].
//!
//! It knows nothing of tokio-cufile, so that every engine is measured alike.

pub mod data;
pub mod environment;
mod os;
pub mod pairs;
pub mod poll;
pub mod report;
pub mod residency;
pub mod statistics;
pub mod usage;
