//! The cuFile backend: bytes through libcufile, whose worker threads block in its calls.
//!
//! | module | concept |
//! |---|---|
//! | `given` | what the library is given beside our calls |
//! | `effective` | which of its settings are in force, and why |
//! | `gate` | what is looked at before the library is called at all |
//! | `descriptors` | the standard descriptors, which it may close |
//! | `counting` | whether it counts by path, and what that means at exit |
//! | `opening` | from the first call to the open library, and what it says of itself |
//! | `leaving` | the end of a process that still uses the library |
//! | `watched` | calls that may never return |
//! | `session` | the process's one libcufile, opened, and how it is set |
//! | `registration` | a file as cuFile knows it |
//! | `pinned` | device memory as cuFile knows it |
//! | `part` | one part of a read or a write, by cuFile's calls |
//! | `in_stream` | one part in a CUDA stream, a user's or the engine's own |
//! | `places` | how many operations a stream takes, and who is putting one there |
//! | `registered_stream` | users' streams that cuFile was told of |
//! | `streams` | the engine's own streams |
//! | `proof` | which way bytes went, as far as it can be seen |
//! | `workers` | the threads |
//!
//! libcufile is used through a table of its functions that is filled at run time. There is no cancel,
//! and no order with any CUDA stream: a call that has returned is quiet, and that is all.

mod counting;
mod descriptors;
mod effective;
mod gate;
mod given;
mod in_stream;
mod leaving;
mod opening;
mod part;
mod pinned;
mod places;
mod proof;
mod registered_stream;
mod registration;
mod session;
mod streams;
mod watched;
mod workers;

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use completion::IssuedPart;

pub use self::effective::{CuFileInfo, CuFileSetting};
pub use self::given::CuFileSource;
use self::given::Given;
pub(crate) use self::in_stream::InStream;
pub(crate) use self::part::CufilePart;
pub(crate) use self::pinned::BufRegistration;
pub use self::registered_stream::RegisteredStream;
pub(crate) use self::registration::{Registered, Registration};
pub(crate) use self::session::Session;
use self::watched::watched;
use self::workers::Workers;
use crate::config::CuFileConfig;
use crate::engine::Model;
use crate::os::FileHandle;
use crate::stats::Counters;

/// Why there is no cuFile, for people.
pub(crate) type Absent = Cow<'static, str>;

const ENDED: &str = "the engine has ended";

/// One engine's way to the process's libcufile, which is opened when a file first asks for it.
#[derive(Debug)]
pub(crate) struct Cufile {
    config: CuFileConfig,
    threads: usize,
    counters: Arc<Counters>,
    /// Held for as long as the library takes to open.
    opening: Mutex<()>,
    /// Never held for long: who hands over a part, or ends, waits for no library.
    state: Mutex<State>,
    /// Whether libcufile's file or the environment asks for P2PDMA. Read once, as the library does,
    /// and not for each file that is opened.
    asks_for_p2pdma: OnceLock<bool>,
    /// What files and buffers have registered.
    registered: Arc<registration::All>,
}

#[derive(Debug)]
enum State {
    NotAsked,
    /// For good: an open that failed is not cheap, and would fail again.
    Absent(Absent),
    Open(Arc<Session>, Workers),
    Ended,
}

impl Cufile {
    pub(crate) fn new(config: &CuFileConfig, threads: usize, counters: &Arc<Counters>) -> Self {
        Self {
            config: config.clone(),
            threads,
            counters: Arc::clone(counters),
            opening: Mutex::new(()),
            state: Mutex::new(State::NotAsked),
            asks_for_p2pdma: OnceLock::new(),
            registered: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The library, opened if need be. Blocks; call it on an engine thread.
    ///
    /// # Errors
    ///
    /// Why cuFile cannot be used here.
    pub(crate) fn session(&self) -> Result<Arc<Session>, Absent> {
        if let Some(known) = self.known() {
            return known;
        }
        let opening = self.opening.lock();
        let _opening = opening.unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = self.known() {
            return known; // Whoever was before has opened it.
        }
        let opened = Session::open(&self.config).and_then(|session| {
            match self.start_workers(&session) {
                Ok(workers) => Ok((session, workers)),
                Err(reason) => {
                    // Nobody will, in the end of this engine.
                    self.close(|| Session::close(session));
                    Err(reason)
                }
            }
        });
        // Before the state is locked: it is a subscriber's code.
        match &opened {
            Ok((session, _)) => {
                let info = session.info();
                for note in &info.notes {
                    tracing::warn!(%note, "of cuFile");
                }
                tracing::info!(cufile = ?info, "cuFile is open");
            }
            Err(reason) => tracing::info!(%reason, "no cuFile"),
        }
        let mut state = self.lock();
        if matches!(*state, State::Ended) {
            drop(state);
            // Too late: the end of this engine was before.
            if let Ok((session, workers)) = opened {
                drop(workers);
                self.close(|| Session::close(session));
            }
            return Err(ENDED.into());
        }
        let (now, answer) = match opened {
            Ok((session, workers)) => (State::Open(Arc::clone(&session), workers), Ok(session)),
            Err(reason) => (State::Absent(reason.clone()), Err(reason)),
        };
        *state = now;
        answer
    }

    fn start_workers(&self, session: &Arc<Session>) -> Result<Workers, Absent> {
        Workers::start(self.threads, self.config.calls, session, &self.counters)
    }

    /// The library as it is open. Opens it if need be, and blocks.
    ///
    /// # Errors
    ///
    /// Why cuFile cannot be used here.
    pub(crate) fn info(&self) -> Result<CuFileInfo, Absent> {
        self.session().map(|session| session.info())
    }

    /// What was found before; `None` where nobody has asked.
    fn known(&self) -> Option<Result<Arc<Session>, Absent>> {
        match &*self.lock() {
            State::NotAsked => None,
            State::Open(session, _) => Some(Ok(Arc::clone(session))),
            State::Absent(reason) => Some(Err(reason.clone())),
            State::Ended => Some(Err(ENDED.into())),
        }
    }

    /// Registers an open file, where GPUDirect Storage is to be expected. Blocks.
    ///
    /// # Errors
    ///
    /// Why it is not, or why cuFile does not take the file. Where it is not to be expected, the
    /// library is not even loaded.
    pub(crate) fn register_if_direct(
        &self,
        file: &FileHandle,
    ) -> Result<Registered<Registration>, Absent> {
        let session = match self.known() {
            Some(known) => known?,
            None => {
                let ask = || Given::read().wants_p2pdma();
                let asks = || *self.asks_for_p2pdma.get_or_init(ask);
                gate::expects_direct(&self.config.proc_dir, asks)?;
                self.session()?
            }
        };
        session.expects_direct()?;
        self.register_with(&session, file)
    }

    /// Registers an open file. Blocks.
    ///
    /// # Errors
    ///
    /// Why there is no cuFile, or why it does not take the file.
    pub(crate) fn register(&self, file: &FileHandle) -> Result<Registered<Registration>, Absent> {
        self.register_with(&self.session()?, file)
    }

    fn register_with(
        &self,
        session: &Arc<Session>,
        file: &FileHandle,
    ) -> Result<Registered<Registration>, Absent> {
        let registered = Registered::default();
        registered.set(Registration::new(session, file)?);
        self.registered.add(&registered);
        Ok(registered)
    }

    /// The least bytes that go by cuFile in a file system of that name.
    pub(crate) fn threshold(&self, file_system: Option<&str>) -> usize {
        self.config.threshold(file_system)
    }

    /// Hands a part to an idle worker. Never blocks.
    pub(crate) fn submit(&self, part: IssuedPart<Model>) {
        // Not held up by an open: parts are of files, and files of an open library.
        let refused = match &*self.lock() {
            State::Open(_, workers) => workers.submit(part).err(),
            _ => Some(part),
        };
        // Dropping the part hands it back to the scheduler, and its operation stops.
        drop(refused);
    }

    /// Lets every worker end after what it is doing. Does not wait for a library that is opening.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        match &mut *state {
            State::Open(_, workers) => workers.stop(),
            _ => *state = State::Ended,
        }
    }

    /// Lets go of the library, after a shutdown: the last engine's closes it. What is registered ends
    /// before, unless `is_quiet` says that something may be in flight for ever. Blocks, as long as the
    /// library may take to open.
    pub(crate) fn end(&self, is_quiet: bool) {
        let before = std::mem::replace(&mut *self.lock(), State::Ended);
        let State::Open(session, workers) = before else {
            return;
        };
        let registered = is_quiet.then(|| Arc::clone(&self.registered));
        self.close(move || {
            if let Some(registered) = registered {
                // Their streams end with them.
                workers.end();
                registered.end();
            }
            Session::close(session);
        });
    }

    /// Has a thread close the library that may be lost there. Blocks for as long as it may take to open.
    fn close(&self, close: impl FnOnce() + Send + 'static) {
        let limit = self.config.open_limit;
        if let Err((reason, _)) = watched(("cufile-close", "close"), limit, close, drop) {
            tracing::error!(%reason, "the engine goes on without it");
        }
    }
}
