//! A stand-in for `libcufile.so.0`, for tests on machines without a GPU.
//!
//! It has the C interface of the real one and is reached the same way, through the dynamic loader;
//! nothing links it. `cargo xtask sim -- PROGRAM` runs a program with it, and tests find it with
//! `xtask::simulator`. It reads and writes real files, and the memory and the streams of the
//! simulated driver (`crates/sim-cuda`), which it finds in the process. Its structures are written
//! down apart from those of the crate that loads the real library, so that the two check one another.
//!
//! It does what was measured on the real library, and where that is not known, what is harder.
//!
//! | thing | here |
//! |---|---|
//! | a version | each is a file of its own, without the functions that came later: 1.11 to 1.20. It chooses the layout of statistics, the defaults, and what is said without a libcuda |
//! | a handle | `0xABABABAB << 32` and the descriptor's number. A request goes to whatever file has the number by then; where that is another one it is counted and named |
//! | parameters of a request in a stream | are read when its turn has come. A count is written later than the bytes. A stream that is full holds its submitter up |
//! | memory that is not registered | will do, but in a stream only from its start |
//! | two calls at once for one stream | end the process; a call stays inside for a moment at times, so that it is seen |
//! | a stream that is not registered | takes one request at a time: a second one beside it corrupts the heap of the process in the real library; here it is counted and named |
//! | threads | from the first request in a stream on the process has one more, of the name of the thread that made it. The real library has a few |
//! | a registered file | whose descriptor goes around the page cache is opened by its path, and that is kept until it is deregistered; one that was deleted is refused with 5031. Which access the real library asks for is not known; here, that of the descriptor. Other descriptors are taken as they are |
//! | opening without a context | is refused in a thread that has none, as has been reported |
//! | opening what is open | counts, but on 1.15; measured were 1.15 and 1.20 |
//! | a write to a file for reading | is -1 with `EPERM` on 1.15, and 5019 from 1.16 on; measured were 1.15 and 1.20, and in between it is not known |
//! | a result | -1 with a code in `errno`, the negative of a code, or the negative of an `errno`; beside a success `errno` is dirty, and so is CUDA's code |
//! | the last close | ends all registrations; later calls open again. The level of statistics stays as it was on 1.15, and is 0 again from 1.16 on; measured were 1.15 and 1.20 |
//! | the log | is made in the current folder, as `SIMULATED-cufile.log`, unless something says otherwise |
//! | the end of the process | aborts where the real one crashes: while calls run or streams have requests, at a call that comes later, a close among them, and on 1.15 with statistics at level 3 left open. Asked to be told of it when it is opened, and again by its first request |
//! | misuse | what would read another file, write before a buffer, or end what is in flight is named on the error output, and counted; `TOKIO_CUFILE_SIM_ABORT=1` makes it fatal |
//!
//! There is no `cufile.json`, and no `/proc/driver/nvidia-fs`. Bandwidths, latencies and histograms
//! are 0. What nvidia-fs does is not simulated, but that it is told to have been taken.
//!
//! # Settings
//!
//! | variable | |
//! |---|---|
//! | `TOKIO_CUFILE_SIMULATE` | must be 1, or every call gives 5033. `sim_cufile_opt_in` is the same from within |
//! | `TOKIO_CUFILE_SIM_SEED` | 0 unless said |
//! | `TOKIO_CUFILE_SIM_CUFILE_FAULTS` | a script as below |
//! | `TOKIO_CUFILE_SIM_CUFILE_PATH` | the path that is there: `posix` unless said, `nvidia-fs`, `p2pdma` |
//! | `TOKIO_CUFILE_SIM_CUFILE_BAR_KB` | KiB of each GPU that can be registered, 16 GiB unless said; more is 5036 |
//! | `TOKIO_CUFILE_SIM_CUFILE_BACKLOG` | requests that a stream holds before it blocks, 64 unless said |
//! | `TOKIO_CUFILE_SIM_CUFILE_STATS` | the level of statistics that a `cufile.json` would ask for |
//! | `TOKIO_CUFILE_SIM_CUFILE_CLOSES` | a descriptor that the first opening closes |
//! | `TOKIO_CUFILE_SIM_ABORT` | 1: misuse that is caught ends the process |
//! | `CUFILE_FORCE_COMPAT_MODE`, `CUFILE_ALLOW_COMPAT_MODE`, `CUFILE_USE_PCIP2PDMA`, `CUFILE_LOGGING_LEVEL`, `CUFILE_LOGFILE_PATH` | as the real library takes them |
//!
//! # Faults
//!
//! ```text
//! script  = rule *( ";" rule )
//! rule    = [ scope "/" ] subject ":" action *( "," word )
//! scope   = ORDINAL            the device of the thread's context, or of the memory in a stream
//!         | TEXT               a part of the path of the file
//! subject = NAME               an entry point, under the name it is exported by
//!         | "*"                every entry point
//!         | "@read" | "@write" a request in a stream or a batch, in its turn
//!         | "@*"               both
//! action  = "fail=" NUMBER     does nothing; a code from 5001 on, or an errno
//!         | "act-fail=" NUMBER a call: does what it should, and fails all the same
//!         | "slow=" MICROS     waits first
//!         | "never"            does not begin before the faults are cleared
//!                              (cuFileRead, cuFileWrite, their vectors, and work:)
//!         | "short=" BYTES     moves no more than that
//!         | "long=" BYTES      tells that many more than it moved
//!         | "return=" NUMBER   does nothing and tells this, whatever it is
//!         | "flip"             one bit of a read is wrong
//!         | "path=" NAME       is told to have gone by that path
//! word    = when: as in the scripts of the simulated driver
//! ```
//!
//! A rule without a word about when fires each time; there are at most 16. An example:
//! `model.bin/cuFileHandleRegister:fail=5030;1/cuFileBufRegister:fail=5036,from=3;@read:path=posix,from=10`.
//!
//! # Functions for tests
//!
//! `exports/control.rs` has them: `sim_cufile_opt_in`, `sim_cufile_fault_set`,
//! `sim_cufile_faults_clear`, `sim_cufile_stats`, `sim_cufile_calls`.

mod batch;
mod call;
mod code;
mod cuda;
mod driver;
mod entry;
mod exports;
mod faults;
mod os;
mod params;
mod settings;
mod state;
mod stats;
mod stream;
mod transfer;
mod version;
