//! The cuFile backend: bytes through libcufile, whose worker threads block in its calls.
//!
//! | module | concept |
//! |---|---|
//! | `given` | what the library is given beside our calls |
//! | `effective` | which of its settings are in force, and why |
//! | `gate` | what is looked at before the library is called at all |
//! | `session` | the process's one libcufile, opened, and how it is set |
//! | `registration` | a file as cuFile knows it |
//! | `pinned` | device memory as cuFile knows it |
//! | `part` | one part of a read or a write, by cuFile's calls |
//! | `enqueue` | one part in a user's CUDA stream |
//! | `proof` | which way bytes went, as far as it can be seen |
//! | `workers` | the threads |
//!
//! libcufile is used through a table of its functions that is filled at run time. There is no cancel,
//! and no order with any CUDA stream: a call that has returned is quiet, and that is all.

mod effective;
mod enqueue;
mod gate;
mod given;
mod part;
mod pinned;
mod proof;
mod registration;
mod session;
mod workers;

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use completion::IssuedPart;

pub use self::effective::{CuFileInfo, CuFileSetting};
pub(crate) use self::enqueue::Enqueue;
pub use self::given::CuFileSource;
use self::given::Given;
pub(crate) use self::part::CufilePart;
pub(crate) use self::pinned::BufRegistration;
pub(crate) use self::registration::Registration;
pub(crate) use self::session::Session;
use self::workers::Workers;
use crate::config::CuFileConfig;
use crate::engine::Model;
use crate::os::FileHandle;
use crate::stats::Counters;

/// Why there is no cuFile, for people.
pub(crate) type Absent = Cow<'static, str>;

/// One engine's way to the process's libcufile, which is opened when a file first asks for it.
#[derive(Debug)]
pub(crate) struct Cufile {
    config: CuFileConfig,
    threads: usize,
    counters: Arc<Counters>,
    state: Mutex<State>,
}

/// Locked for as long as the library takes to open.
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
            state: Mutex::new(State::NotAsked),
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
        let mut state = self.lock();
        match &*state {
            State::Open(session, _) => return Ok(Arc::clone(session)),
            State::Absent(reason) => return Err(reason.clone()),
            State::Ended => return Err("the engine has ended".into()),
            State::NotAsked => {}
        }
        let opened = Session::open(&self.config).and_then(|session| {
            let workers = Workers::start(self.threads, &session, &self.counters)?;
            Ok((session, workers))
        });
        match opened {
            Ok((session, workers)) => {
                *state = State::Open(Arc::clone(&session), workers);
                Ok(session)
            }
            Err(reason) => {
                tracing::info!(%reason, "no cuFile");
                *state = State::Absent(reason.clone());
                Err(reason)
            }
        }
    }

    /// The library as it is open. Opens it if need be, and blocks.
    ///
    /// # Errors
    ///
    /// Why cuFile cannot be used here.
    pub(crate) fn info(&self) -> Result<CuFileInfo, Absent> {
        self.session().map(|session| session.info())
    }

    /// Registers an open file, where GPUDirect Storage is to be expected. Blocks.
    ///
    /// # Errors
    ///
    /// Why it is not, or why cuFile does not take the file. Where it is not to be expected, the
    /// library is not even loaded.
    pub(crate) fn register_if_direct(&self, file: &FileHandle) -> Result<Registration, Absent> {
        gate::expects_direct(&self.config.proc_dir, &Given::read())?;
        let session = self.session()?;
        session.expects_direct()?;
        Registration::new(&session, file)
    }

    /// Registers an open file. Blocks.
    ///
    /// # Errors
    ///
    /// Why there is no cuFile, or why it does not take the file.
    pub(crate) fn register(&self, file: &FileHandle) -> Result<Registration, Absent> {
        Registration::new(&self.session()?, file)
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

    /// Lets every worker end after what it is doing.
    pub(crate) fn stop(&self) {
        if let State::Open(_, workers) = &mut *self.lock() {
            workers.stop();
        }
    }

    /// Lets go of the library, after a shutdown: the last engine's closes it. Blocks.
    pub(crate) fn end(&self) {
        let before = std::mem::replace(&mut *self.lock(), State::Ended);
        if let State::Open(session, workers) = before {
            // A thread that is stuck in a call has its file, and so a share of the session.
            drop(workers);
            Session::close(session);
        }
    }
}
