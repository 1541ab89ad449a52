//! Await bytes moving between a file and GPU or host memory in tokio.
//!
//! A tokio task must not wait on a disk, and a buffer that a disk or a GPU writes to must not be
//! freed because a future was dropped. This crate takes care of both: an [`Engine`] runs the I/O on
//! threads of its own, and owns every buffer until the hardware is done with it.
//!
//! ```no_run
//! use tokio_cufile::{AsyncCuFile, Engine, HostBuffer};
//!
//! # async fn example() -> Result<(), tokio_cufile::Error> {
//! let engine = Engine::builder().build().await?;
//! let file = AsyncCuFile::open(&engine, "weights.bin").await?;
//! let buf = HostBuffer::new(&engine, 1 << 20)?;
//! let done = file.read_at(buf, 0).await?;
//! assert!(done.bytes <= done.buf.len());
//! # Ok(())
//! # }
//! ```
//!
//! | to | use |
//! |---|---|
//! | read or write | [`AsyncCuFile::read_at`], [`read_exact_at`](AsyncCuFile::read_exact_at), [`write_all_at`](AsyncCuFile::write_all_at) |
//! | read many ranges at once | [`AsyncCuFile::read_ranges`] |
//! | read or write on and on | [`AsyncCuFile::read_stream`], [`writer`](AsyncCuFile::writer) |
//! | serve code that knows tokio's traits | [`AsyncCuFile::reader`], [`async_writer`](AsyncCuFile::async_writer) |
//! | read into GPU memory, or write from it | [`DeviceBuffer`], [`Engine::devices`] |
//! | use memory that other code allocated | [`ForeignMemory`] |
//! | use slices of cudarc's | `LentSlice`, with the feature `cudarc` |
//! | begin once a kernel is done with the memory | [`CudaEvent`], [`Transfer::after`] |
//! | put an operation between kernels in a CUDA stream | [`Transfer::enqueue_on`] |
//! | have several operations in one CUDA stream | [`RegisteredStream`] |
//! | read into one buffer from many tasks | [`HostBuffer::part`], [`DeviceBuffer::part`] |
//! | bound the wait | [`Transfer::deadline`], [`Transfer::cancel_handle`], or drop the future |
//! | put a request before bulk loads | [`Transfer::priority`] |
//! | know or insist on the way the bytes went | [`Receipt`], [`Transfer::require`] |
//! | have the source of a write back before the disk is done | [`Transfer::staged`] |
//! | know what was moved, by checksums | [`Transfer::digest`] |
//! | make writes durable | [`AsyncCuFile::sync_data`], [`sync_all`](AsyncCuFile::sync_all) |
//! | end in order | [`Engine::shutdown`] |
//!
//! Futures are lazy: nothing is issued before the first poll or [`Transfer::start`]. They are woken
//! by the completion itself and work on every executor; no tokio driver is needed.
//!
//! There are two backends. Compat is the kernel's file interface: io_uring, or a pool of blocking calls
//! where that is refused, with `O_DIRECT` where the file allows. Bytes of device memory pass through
//! pinned staging slots, and the device copies them. cuFile (GPUDirect Storage) serves device memory
//! where it is to be expected that bytes go there directly, or where [`CompatMode::Off`] asks for it.
//! Both of NVIDIA's libraries are loaded when they are first needed; without them, what asks for them gets
//! [`Unsupported`](ErrorKind::Unsupported), with the reason.

mod compat;
mod config;
mod cuda;
mod cufile;
mod digest;
mod engine;
mod error;
mod file;
mod memory;
mod op;
mod os;
mod plan;
mod receipt;
mod stats;
mod stream;

pub use config::{
    CacheMode, CompatMode, Config, CuFileCalls, CuFileConfig, CuFileStats, IoEngine, Priority,
};
#[cfg(feature = "cudarc")]
pub use cuda::LentSlice;
pub use cuda::{CudaEvent, DeviceInfo};
pub use cufile::{CuFileInfo, CuFileSetting, CuFileSource, RegisteredStream};
pub use digest::{Digest, DigestKind, Digests};
pub use engine::{Engine, EngineBuilder, ShutdownReport};
pub use error::{Error, ErrorKind, Operation, Result, VendorCode};
pub use file::{AsyncCuFile, OpenOptions};
pub use memory::{
    DeviceBuffer, DevicePart, ForeignMemory, HostBuffer, HostPart, Idle, IoBuf, IoBufMut,
    PointerClass,
};
pub use op::{
    CancelHandle, Done, Enqueue, Enqueued, FileRange, OpError, Ranges, Request, Staged, Transfer,
    Written,
};
pub use receipt::{Backend, DataPath, ParsePathClassError, PathBytes, PathClass, Receipt, Route};
pub use stats::{Permits, Stats};
pub use stream::{AsyncFileWriter, Chunk, FileReader, FileWriter, ReadStream};

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
