//! The simulated libcufile as a test steers it: faults and counts, which are the whole process's.
//!
//! Its functions are found at run time by name, in the library that the engine loads as well.
#![allow(
    unsafe_code,
    reason = "calls functions of a library that is loaded at run time"
)]

use std::ffi::{CString, c_char};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::sim;
use crate::skip::skip;

/// The simulated libcufile.
pub struct CufileSim {
    set: unsafe extern "C" fn(*const c_char) -> i32,
    clear: unsafe extern "C" fn() -> i32,
    stats: unsafe extern "C" fn(*mut u64) -> i32,
    calls: unsafe extern "C" fn(*const c_char) -> i64,
}

impl std::fmt::Debug for CufileSim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CufileSim").finish_non_exhaustive()
    }
}

macro_rules! report {
    ($($field:ident,)*) => {
        /// What the simulated library counts; its `exports/control.rs` says what each count means.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the names say it")]
        pub struct CufileReport {
            $(pub $field: u64,)*
            pub rules_fired: [u64; RULES],
        }

        impl CufileReport {
            const COUNT: usize = [$(stringify!($field)),*].len();

            fn from_words(words: [u64; Self::COUNT + RULES]) -> Self {
                let mut words = words.into_iter();
                let mut next = || words.next().unwrap_or(0);
                Self {
                    $($field: next(),)*
                    rules_fired: std::array::from_fn(|_| next()),
                }
            }
        }
    };
}

/// Faults that can be set at a time.
const RULES: usize = 16;

report! {
    size, calls, rules, faults_fired, opens, files, buffers, streams, freed_buffers, nvidia_fs,
    p2pdma, posix, stale_files, files_ended_in_flight, files_closed_early, buffers_ended_in_flight,
    streams_ended_in_flight, closed_with_files, negative_offsets, abandoned, in_flight_max,
    blocked_submissions, elsewhere, unregistered_together,
}

impl CufileReport {
    /// What the real library would have done harm by, or not survived: nothing may ever be counted
    /// here.
    #[must_use]
    pub const fn harm(&self) -> u64 {
        self.freed_buffers
            + self.stale_files
            + self.files_ended_in_flight
            + self.files_closed_early
            + self.buffers_ended_in_flight
            + self.streams_ended_in_flight
            + self.closed_with_files
            + self.negative_offsets
            + self.unregistered_together
    }

    /// What is registered.
    #[must_use]
    pub const fn live(&self) -> u64 {
        self.files + self.buffers + self.streams
    }
}

impl CufileSim {
    /// The simulated library; `None`, with a skip noted, where it was not asked for.
    ///
    /// # Panics
    ///
    /// When it was asked for and is not there.
    #[must_use = "a test without it returns"]
    #[track_caller]
    pub fn need() -> Option<&'static Self> {
        let found = Self::here();
        if found.is_none() {
            skip("needs-simulator", "it was not asked for: `cargo xtask sim`");
        }
        found
    }

    /// The simulated library, where it was asked for.
    ///
    /// # Panics
    ///
    /// When it was asked for and is not there.
    #[must_use]
    pub fn here() -> Option<&'static Self> {
        static FOUND: OnceLock<CufileSim> = OnceLock::new();
        let load = || Self::load().expect("the simulator is asked for, and first on the path");
        sim::is_asked_for().then(|| FOUND.get_or_init(load))
    }

    fn load() -> Result<Self, libloading::Error> {
        // SAFETY: nothing runs when it is loaded.
        let library = unsafe { Library::open(Some("libcufile.so.0"), RTLD_NOW | RTLD_LOCAL) }?;
        Ok(Self {
            // SAFETY: only the simulated library has a function of this name, of this type.
            set: *unsafe { library.get("sim_cufile_fault_set\0") }?,
            // SAFETY: as above.
            clear: *unsafe { library.get("sim_cufile_faults_clear\0") }?,
            // SAFETY: as above.
            stats: *unsafe { library.get("sim_cufile_stats\0") }?,
            // SAFETY: as above. The library is never unloaded.
            calls: *unsafe { library.get("sim_cufile_calls\0") }?,
        })
    }

    /// Adds faults, in the words of the simulator. A rule with a part of a file's path before it is
    /// for that file only: tests may share a process.
    ///
    /// # Panics
    ///
    /// When it does not understand them.
    pub fn fault(&self, script: &str) {
        let text = CString::new(script).expect("a text");
        // SAFETY: the text ends in 0.
        let set = unsafe { (self.set)(text.as_ptr()) };
        assert_eq!(set, 0, "`{script}`");
    }

    /// Ends all faults of the process; what hangs goes on.
    ///
    /// # Panics
    ///
    /// When the simulator does not.
    pub fn clear(&self) {
        // SAFETY: takes nothing.
        let cleared = unsafe { (self.clear)() };
        assert_eq!(cleared, 0, "the simulator ends its faults");
    }

    /// The counts.
    ///
    /// # Panics
    ///
    /// When the simulator does not tell.
    #[must_use]
    pub fn report(&self) -> CufileReport {
        let mut words = [0; CufileReport::COUNT + RULES];
        words[0] = size_of_val(&words) as u64;
        // SAFETY: there is room for as many bytes as the first number says.
        let code = unsafe { (self.stats)(words.as_mut_ptr()) };
        assert_eq!(code, 0, "the simulator tells its counts");
        assert_eq!(
            words[0],
            size_of_val(&words) as u64,
            "all of them are known here"
        );
        CufileReport::from_words(words)
    }

    /// Fails where anything was done that would do harm with the real library, or was called by a
    /// thread that is none of an engine's.
    ///
    /// # Panics
    ///
    /// Where it was.
    #[track_caller]
    pub fn assert_no_harm(&self) {
        let report = self.report();
        assert_eq!((report.harm(), report.elsewhere), (0, 0), "{report:?}");
    }

    /// How often an entry point was called.
    ///
    /// # Panics
    ///
    /// When there is none of that name.
    #[must_use]
    pub fn calls(&self, name: &str) -> u64 {
        let text = CString::new(name).expect("a name");
        // SAFETY: the text ends in 0.
        let calls = unsafe { (self.calls)(text.as_ptr()) };
        u64::try_from(calls).unwrap_or_else(|_| panic!("no entry point is called {name}"))
    }
}
