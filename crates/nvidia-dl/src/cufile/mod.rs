//! libcufile: GPUDirect Storage, through a table filled at run time.
//!
//! [`Library::load`] finds the library and looks up its functions; it calls none of them.
//! [`version`](Library::version) may be asked at any time. Everything else is for machines where
//! libcuda works and a context is current, and [`driver_open`](Library::driver_open) says what
//! else has to be looked at before the first such call: there are versions that never return.
//!
//! ```
//! use nvidia_dl::Search;
//! use nvidia_dl::cufile::Library;
//!
//! match Library::load(&Search::libcufile()) {
//!     Ok(library) => match library.version() {
//!         Ok(Some(version)) => println!("{}: cuFile {version}", library.path().display()),
//!         Ok(None) => println!("{}: older than 1.8", library.path().display()),
//!         Err(error) => println!("{error}"),
//!     },
//!     Err(absent) => println!("no cuFile: {absent}"),
//! }
//! ```
//!
//! | calls | are in |
//! |---|---|
//! | version, open, close, properties | [`Library::version`], [`driver_open`](Library::driver_open), [`driver_properties`](Library::driver_properties) |
//! | files and buffers | [`handle_register`](Library::handle_register), [`buf_register`](Library::buf_register) |
//! | read and write: at once, in a stream, in a batch | [`read`](Library::read), [`read_async`](Library::read_async), [`batch_submit`](Library::batch_submit) |
//! | parameters | [`size_parameter`](Library::size_parameter), [`set_bool_parameter`](Library::set_bool_parameter) |
//! | statistics, which tell how bytes went | [`stats_l3`](Library::stats_l3) |
//! | what a result means | [`decode_status`], [`decode_sync`], [`decode_done`], [`decode_event`] |
//!
//! # Versions
//!
//! For 1.11 to 1.20. What came after 1.11 or may be absent is [optional](OPTIONAL_SYMBOLS): without
//! it only its own calls fail, as [`Unsupported`](CufileError::Unsupported), which names the version
//! that brought it. The symbols, versions and parameters of all of these (there is no 1.12) were tried
//! on the real libraries without a GPU; 1.15 and 1.20 are the versions that reads and writes are run
//! against; for the others layouts were checked against their headers, and behaviour is simulated.
//!
//! # What is safe
//!
//! A call is safe where no argument can make the library touch memory or files that it should not.
//! Reads and writes are `unsafe`: handles go by the number of a descriptor and memory by address,
//! and nothing stops a caller from ending either too early. What the library itself does not check,
//! and would answer with memory that is written where it should not be, is [refused](Misuse) before
//! the call.

mod calls;
mod code;
mod decode;
mod error;
mod library;
mod parameter;
mod stats;
mod symbols;
#[cfg(test)]
mod tests;
mod transfer;
mod types;
mod version;

pub use code::Code;
pub use decode::{Failure, decode_done, decode_event, decode_status, decode_sync};
pub use error::{CufileError, Misuse};
pub use library::Library;
pub use parameter::{BoolParameter, SizeParameter, StringParameter};
pub use stats::{
    BatchStats, Counter, GpuStats, PathCounts, StatsL1, StatsL2, StatsL3, StatsLevel, Traffic,
    VectorStats,
};
pub use symbols::{OPTIONAL_SYMBOLS, REQUIRED_SYMBOLS};
pub use transfer::{Cells, Transfer};
pub use types::{
    Batch, BatchStatus, BufferFlags, ControlFlags, DriverProperties, FeatureFlags, FileHandle,
    IoEvent, IoParams, IoVec, Opcode, P2pFlags, Status, StatusFlags, StreamRegisterFlags,
};
pub use version::Version;
