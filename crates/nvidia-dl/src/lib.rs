//! NVIDIA's driver library and libcufile, found at run time.
//!
//! A program that can use a GPU should also start on a machine that has none. So nothing is linked
//! here: [`cuda::Driver::load`] asks the dynamic loader for `libcuda.so.1`, fills a table with its
//! functions, and hands out the calls. Where there is no driver, that is a value:
//!
//! ```
//! use nvidia_dl::Search;
//! use nvidia_dl::cuda::{CudaError, Driver};
//!
//! match Driver::load(&Search::libcuda()) {
//!     Ok(driver) => list(driver).unwrap_or_else(|error| println!("no GPU: {error}")),
//!     Err(absent) => println!("no GPU: {absent}"),
//! }
//!
//! fn list(driver: &Driver) -> Result<(), CudaError> {
//!     driver.init()?;
//!     println!("{} speaks CUDA {}", driver.library().display(), driver.driver_version()?);
//!     for ordinal in 0..driver.device_count()? {
//!         let device = driver.device(ordinal)?;
//!         let gib = driver.device_total_mem(device)? >> 30;
//!         println!("{ordinal}: {}, {gib} GiB", driver.device_name(device)?);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! [`cufile::Library::load`] does the same for GPUDirect Storage.
//!
//! # What it is
//!
//! The calls that move bytes: devices, contexts, streams, events, memory, copies, pinning, and what
//! an address is; and all of libcufile's. No kernels, no graphs. One thin wrapper a call, and no
//! policy: nothing is retried, cached, owned or destroyed for you.
//!
//! - **Absence is a value.** No library, a stub, a driver too old for a call, no device: each is an
//!   error that says which. [`LoadError`] tells every name that was tried and what the loader said.
//! - **Codes are integers.** [`cuda::CuResult`] and [`cufile::Code`] have the names that are known
//!   today; a code of a later library stays what it is, and is printed with the driver's own words.
//! - **A result is decoded once.** libcufile tells of errors in five ways, not all of them
//!   documented: [`cufile::Failure`] is what they come down to.
//! - **An error names its call**: `cuMemAlloc_v2 failed: CUDA_ERROR_OUT_OF_MEMORY (2): …`.
//! - **Old and new libraries.** [Required](cuda::REQUIRED_SYMBOLS) symbols are in every driver since
//!   CUDA 11.0, and in every [libcufile](cufile::REQUIRED_SYMBOLS) since 1.11; the
//!   [optional](cuda::OPTIONAL_SYMBOLS) ones may be missing, and then only their own calls fail.
//! - **Loaded once, never unloaded.** The driver starts threads, and its addresses are handed out.
//!   A [`&'static Driver`](cuda::Driver) works in every thread.
//! - **Nothing runs at load** but the library's own constructors: `cuInit` is a call like others.
//!
//! # Why not cudarc
//!
//! [cudarc](https://docs.rs/cudarc) is the crate for programs that compute on GPUs. A library below
//! such programs cannot build on it: its features for CUDA versions exclude one another, so a
//! library that picks one breaks every program that picks another; it panics where the library or a
//! symbol is missing; and it turns codes into an enum, for which an unknown code is undefined
//! behaviour. Its cuFile part frees memory that the library still writes to when an operation is
//! dropped. Both can be used in one process: handles are the driver's own, and
//! [`from_raw`](cuda::Stream::from_raw) and [`as_raw`](cuda::Stream::as_raw) carry them across.
//!
//! # Platforms
//!
//! Unix with 64-bit addresses; in practice Linux on x86-64 and Arm, which is where NVIDIA's driver
//! is. It loads in programs that are linked dynamically.

#[cfg(not(all(unix, target_pointer_width = "64")))]
compile_error!("nvidia-dl is for Unix with 64-bit addresses: there is no such driver elsewhere");

pub mod cuda;
pub mod cufile;
mod load;
mod newtype;
mod table;

pub use load::{Attempt, LoadError, Search};
