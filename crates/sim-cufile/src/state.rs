//! The state of the process: nothing before the first call that needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::code::{Fail, INTERNAL_ERROR, NVFS_SETUP_ERROR, Result};
use crate::entry::Entry;
use crate::faults::{Faults, script};
use crate::os::{self, Identity};
use crate::params::{self, Params};
use crate::settings::{self, Route, Settings};
use crate::stats::Stats;
use crate::version;

static STATE: OnceLock<Result<State>> = OnceLock::new();

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) faults: Faults,
    pub(crate) counts: Counts,
    pub(crate) inner: Mutex<Inner>,
}

/// What is open and registered.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) uses: i64,
    pub(crate) files: BTreeMap<i32, Registered>,
    /// Length, and the device whose memory it is, by address.
    pub(crate) buffers: BTreeMap<usize, Buffer>,
    /// Operations in each stream that has had one or was registered.
    pub(crate) streams: BTreeMap<usize, StreamUse>,
    /// The streams that a thread is putting a request into.
    pub(crate) entered: BTreeSet<usize>,
    pub(crate) params: Params,
    pub(crate) level: i32,
    pub(crate) is_counting: bool,
    pub(crate) stats: Stats,
}

/// A file, by the number of its descriptor.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) identity: Identity,
    pub(crate) path: String,
    /// The library's own descriptor of the file, which is closed with the registration.
    pub(crate) _own: Option<OwnedFd>,
    pub(crate) in_flight: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) len: usize,
    pub(crate) device: Option<i32>,
    pub(crate) in_flight: usize,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamUse {
    pub(crate) is_registered: bool,
    pub(crate) in_flight: usize,
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Misuse and load, for tests.
        #[derive(Debug, Default)]
        pub(crate) struct Counts {
            pub(crate) calls: Vec<AtomicU64>,
            $($(#[$doc])* pub(crate) $name: AtomicU64,)*
        }

        impl Counts {
            /// In the order in which they are told.
            pub(crate) fn words(&self) -> Vec<u64> {
                vec![$(self.$name.load(Ordering::Relaxed)),*]
            }
        }
    };
}

counts! {
    /// Requests on a number that is another file's by now.
    stale_files,
    /// Files that were deregistered with requests in flight.
    files_ended_in_flight,
    /// Files whose descriptor was closed before they were deregistered.
    files_closed_early,
    /// Buffers that were deregistered with requests in flight.
    buffers_ended_in_flight,
    /// Streams that were deregistered with requests in flight.
    streams_ended_in_flight,
    /// Closes that ended registrations.
    closed_with_files,
    /// Offsets in a buffer that were negative: the real library would have written before it.
    negative_offsets,
    /// Requests in a stream whose turn never came.
    abandoned,
    /// The most requests that were in flight at once.
    in_flight_max,
    /// How often a full stream held its caller up.
    blocked_submissions,
    /// Calls of threads whose names do not begin with `cufile-`: no harm in themselves.
    elsewhere,
    /// Requests in a stream that is not registered, beside others: the real library would have written
    /// where it may not.
    unregistered_together,
}

/// The state, where the simulation was asked for.
pub(crate) fn get() -> Result<&'static State> {
    if !settings::opted_in() {
        say(format_args!(
            "this is a simulator; TOKIO_CUFILE_SIMULATE=1 is not set: no cuFile"
        ));
        return Err(Fail::Code(NVFS_SETUP_ERROR));
    }
    let made = STATE.get_or_init(State::new);
    made.as_ref().map_err(|fail| *fail)
}

impl State {
    fn new() -> Result<Self> {
        let said = |message: String| {
            say(format_args!("{message}"));
            Fail::Code(INTERNAL_ERROR)
        };
        let settings = settings::read().map_err(said)?;
        let faults = Faults::new(settings.seed ^ 0x00CF_11E0);
        let rules = script::parse(&settings.faults).map_err(said)?;
        faults.add(rules).map_err(said)?;
        let mut params = Params::of(version::number());
        params.default_bool(params::FORCE_COMPAT, settings.force_compat);
        // Later versions do not look at this one.
        let allow = settings.allow_compat.filter(|_| version::number() < 1170);
        params.default_bool(params::ALLOW_COMPAT, allow);
        params.default_string(params::LOG_LEVEL, settings.log_level.as_ref());
        params.default_string(params::LOG_PATH, settings.log_path.as_ref());
        // It has to be asked for, and so it was where it is there.
        let p2pdma = Some(settings.route == Route::P2pdma).filter(|&asked| asked);
        params.default_bool(params::USE_P2PDMA, p2pdma.or(settings.use_p2pdma));
        let mut counts = Counts::default();
        counts
            .calls
            .resize_with(Entry::ALL.len(), AtomicU64::default);
        Ok(Self {
            settings,
            faults,
            counts,
            inner: Mutex::new(Inner {
                uses: 0,
                files: BTreeMap::new(),
                buffers: BTreeMap::new(),
                streams: BTreeMap::new(),
                entered: BTreeSet::new(),
                params,
                level: 0,
                is_counting: false,
                stats: Stats::default(),
            }),
        })
    }

    pub(crate) fn called(&self, entry: Entry) {
        self.counts.calls[entry.index()].fetch_add(1, Ordering::Relaxed);
        if !os::thread_name().starts_with(b"cufile-") {
            self.counts.elsewhere.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Set when `exit` has begun: closing from then on is what crashes the real library.
static EXITING: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_exiting() -> bool {
    EXITING.load(Ordering::SeqCst)
}

pub(crate) fn begin_exit() {
    EXITING.store(true, Ordering::SeqCst);
}

/// Calls that have not returned.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn calls_inside() -> usize {
    INSIDE.load(Ordering::SeqCst)
}

/// A thread is in a call while this is kept.
#[derive(Debug)]
pub(crate) struct Inside(());

impl Inside {
    /// A call begins. Ends the process where that is on its way out: the real library's things are
    /// destroyed by then.
    pub(crate) fn new(entry: Entry) -> Self {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        if is_exiting() {
            crash(format_args!(
                "{} was called while the process exits",
                entry.name()
            ));
        }
        Self(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A line on the error output, if there is one.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    // Unlike `eprintln`, which panics when nobody reads it any more.
    let _ = writeln!(std::io::stderr(), "sim_cufile: SIMULATED: {line}");
}

/// Ends the process, as the real library does at that.
pub(crate) fn crash(at: fmt::Arguments<'_>) -> ! {
    say(format_args!("{at}: the real library crashes"));
    std::process::abort();
}

/// Counts and names what would do harm with the real library, and ends the process where that was
/// asked for.
pub(crate) fn caught(counter: &AtomicU64, what: fmt::Arguments<'_>) {
    counter.fetch_add(1, Ordering::Relaxed);
    say(format_args!("caught: {what}"));
    if get().is_ok_and(|state| state.settings.abort) {
        std::process::abort();
    }
}
