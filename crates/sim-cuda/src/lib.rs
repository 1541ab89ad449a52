//! A stand-in for `libcuda.so.1`, for tests on machines without a GPU.
//!
//! It has the C interface of the real one and is reached the same way, through the dynamic loader;
//! nothing links it. `cargo xtask sim -- PROGRAM` runs a program with it, and tests find it with
//! `xtask::simulator`. Its signatures are written down apart from those of the crate that loads the
//! real library, so that the two check one another.
//!
//! # What it is hard on
//!
//! | thing | here |
//! |---|---|
//! | a device pointer | an address that nobody may touch: the host faults, a system call gets `EFAULT`. Small allocations begin anywhere in a page. What was never written is no zero |
//! | a handle | a number that is no address, and is given out once. A stale one is `INVALID_HANDLE`, and counted |
//! | a stream | a thread. Work begins after a delay that the seed chooses, so the order across streams is its choice too. The default stream waits for those that do not opt out, and they for it |
//! | a copy | reads its source and writes its destination on the stream's thread. Host memory that is not pinned is taken at the call, or waited for, and counted |
//! | freed memory | is kept for a while: late accesses are caught, named on the error output, and counted; `TOKIO_CUFILE_SIM_ABORT=1` makes them fatal. Freeing waits for nothing |
//! | pinned memory | that ends with copies outstanding is named and counted |
//! | memory allocated in the order of a stream | is there when the stream has come to it, and not before |
//! | a thread without a context | gets `INVALID_CONTEXT` from every call that has to do with one; a stream or event of another device is no handle |
//! | a context with an error | gives that error from every call, until its last release ends it; work that has not begun is never done |
//! | the end of the process | every call is `DEINITIALIZED` from then on, and no thread holds it up. In a child after a fork all is `NOT_INITIALIZED` |
//!
//! Devices know nothing of each other: faults, counts and contexts are each device's own. There are
//! primary contexts only. Managed memory is told from other, but stays on the device, where the host
//! may not touch it. The per-thread default stream and virtual memory management are not simulated.
//!
//! # Settings
//!
//! | variable | |
//! |---|---|
//! | `TOKIO_CUFILE_SIMULATE` | must be 1, or `cuInit` gives `NO_DEVICE` (100), as a driver without a GPU does. `sim_cuda_opt_in` is the same from within |
//! | `TOKIO_CUFILE_SIM_DEVICES` | how many, 2 unless said, at most 16; with 0 `cuInit` succeeds and counts none |
//! | `TOKIO_CUFILE_SIM_SEED` | 0 unless said |
//! | `TOKIO_CUFILE_SIM_FAULTS` | a script as below |
//! | `TOKIO_CUFILE_SIM_MEMORY` | bytes of each device, 8 GiB unless said |
//! | `TOKIO_CUFILE_SIM_VERSION` | what `cuDriverGetVersion` says, 13000 unless said |
//! | `TOKIO_CUFILE_SIM_ABORT` | 1: a late access ends the process |
//!
//! A setting that is not understood is said on the error output, and `cuInit` gives `INVALID_VALUE`.
//! The state of the process begins with the first call that needs it; there is none when the
//! library is loaded.
//!
//! # Faults
//!
//! ```text
//! script  = rule *( ";" rule )
//! rule    = [ scope "/" ] subject ":" action *( "," word )
//! scope   = ORDINAL | "p"      a device; calls that concern none. Without it: every one of them
//! subject = NAME               an entry point, under the name it is exported by
//!         | "*"                every entry point
//!         | "@" kind           work in a stream: htod, dtoh, dtod, fill, record, wait, alloc, free,
//!                              call (a function of another simulator)
//!         | "@*"               all of it
//! action  = "fail=" CODE       a call: returns CODE and does nothing.
//!                              work: half of the bytes move, and the context is lost with CODE
//!         | "act-fail=" CODE   a call: does what it should, and returns CODE all the same
//!         | "lose=" CODE       a call: returns CODE, and the context is lost with it
//!         | "slow=" MICROS     waits first
//!         | "never"            does not begin before the faults are cleared or the context is lost;
//!                              an event whose record is such does not complete
//!         | "flip"             work of copying or filling: one bit is wrong afterwards
//! word    = "nth=" N           the N-th time only, from 1
//!         | "from=" N          the N-th time and always after it
//!         | "every=" N         each N-th time
//!         | "chance=" A "/" B  A times in B, by the seed
//!         | "times=" N         no more than N times
//! CODE    = number or name of the driver's, with or without CUDA_ERROR_
//! ```
//!
//! Without a word about when, a rule fires each time. Each scope counts for itself, and has at most
//! 16 rules. An example:
//! `cuMemAlloc_v2:fail=OUT_OF_MEMORY,nth=3;1/@htod:fail=700,from=10;@*:slow=200,chance=1/20`.
//!
//! A missing function is no fault of a call: `xtask::simulator::cuda_without` makes a copy of the
//! library in which the loader does not find it.
//!
//! # Functions for tests
//!
//! `exports/control.rs` has them: `sim_cuda_opt_in`, `sim_cuda_fault_set`, `sim_cuda_faults_clear`,
//! `sim_cuda_stats`, `sim_cuda_calls`, and for a simulator of another library `sim_cuda_access`,
//! `sim_cuda_enqueue`, `sim_cuda_context`, `sim_cuda_device_of`.

mod call;
mod code;
mod context;
mod device;
mod driver;
mod entry;
mod event;
mod exports;
mod faults;
mod host;
mod memory;
mod raw;
mod report;
mod settings;
mod stats;
mod stream;
mod work;
