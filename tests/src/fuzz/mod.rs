//! Any list of operations, on an engine and on the simplest model of a file there is.
//!
//! [`run`] takes any bytes, so that a fuzzer can search among them. What it finds wrong is an error,
//! not a panic, so that its controls can tell.

mod input;
mod model;
mod moving;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use tempfile::TempDir;
use tokio_cufile::{
    AsyncCuFile, CacheMode, Engine, Error, ErrorKind, FileRange, HostBuffer, IoEngine, OpenOptions,
    Permits, ShutdownReport,
};

use self::input::{Fate, Input, LEN_MAX, Settings, Span, Step};
use self::model::{Byte, Model};
use self::moving::{Moved, Moving};
use crate::{life, pattern};

/// A deliberate error, for controls: a harness that does not find it finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// None.
    None,
    /// The model believes that each third write was done, and it was not.
    LosesWrites,
    /// The bytes of each third read are those of the next offset.
    ReadsBeside,
    /// A byte of the file changes after each fourth step, as by a write that came late.
    WritesLate,
}

/// Runs one input; what is wrong is said in words.
///
/// # Errors
///
/// What the engine did that the model does not allow.
///
/// # Panics
///
/// When the test's own files cannot be used.
pub fn run(bytes: &[u8], mistake: Mistake) -> Result<(), String> {
    let input = Input::of(bytes);
    let mut bed = Bed::new(input.settings, mistake)?;
    for (number, step) in input.steps.iter().enumerate() {
        bed.number = number;
        let taken = bed.take(step);
        taken.map_err(|why| format!("step {number}, {step:?}: {why}; {:?}", input.settings))?;
        if mistake == Mistake::WritesLate && number % 4 == 3 {
            bed.spoil();
        }
    }
    let ended = bed.end();
    ended.map_err(|why| format!("at the end of {input:?}: {why}"))
}

/// An operation under way.
struct Kept {
    transfer: Moving,
    span: Span,
    /// A write's name and bytes.
    write: Option<(usize, Vec<u8>)>,
    /// What a read may find: all that was and may have been there since it began.
    allowed: Vec<Byte>,
    is_beside: bool,
    /// A read of ranges: what it has done when it stops lies anywhere.
    is_scattered: bool,
}

/// What may happen to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum May {
    Succeed,
    Be(ErrorKind),
}

struct Bed {
    engine: Engine,
    file: AsyncCuFile,
    path: PathBuf,
    settings: Settings,
    model: Model,
    kept: Vec<Kept>,
    /// A write of this handle was dropped under way: losses may be told.
    may_have_lost: bool,
    /// The same of any handle of the engine: its report may tell of it.
    may_report: bool,
    mistake: Mistake,
    number: usize,
    reads: usize,
    writes: usize,
    _folder: TempDir,
}

fn engine(settings: Settings) -> Result<Engine, String> {
    let (task, threads) = (
        if settings.large_parts { 64 << 10 } else { 4096 },
        if settings.many_threads { 4 } else { 1 },
    );
    let builder = Engine::builder().num_threads(threads).task_size(task);
    let builder = builder.bounce_buffer_size(8192).budget(256 << 10);
    let builder = builder.cache(if settings.cached {
        CacheMode::Cached
    } else {
        CacheMode::Auto
    });
    // Where no ring is permitted, both are the pool.
    let builder = builder.io(if settings.ring {
        IoEngine::Auto
    } else {
        IoEngine::Pool
    });
    builder.build_blocking().map_err(|error| error.to_string())
}

fn open(engine: &Engine, path: &Path) -> Result<AsyncCuFile, String> {
    let options = OpenOptions::new().read(true).write(true).create(true);
    block_on(options.open(engine, path)).map_err(|error| error.to_string())
}

impl Bed {
    fn new(settings: Settings, mistake: Mistake) -> Result<Self, String> {
        let folder = tempfile::tempdir_in(crate::bench::disk()).expect("a folder");
        let path = folder.path().join("file");
        let engine = engine(settings)?;
        Ok(Self {
            file: open(&engine, &path)?,
            engine,
            path,
            settings,
            model: Model::default(),
            kept: Vec::new(),
            may_have_lost: false,
            may_report: false,
            mistake,
            number: 0,
            reads: 0,
            writes: 0,
            _folder: folder,
        })
    }

    fn take(&mut self, step: &Step) -> Result<(), String> {
        match *step {
            Step::Read(in_pages, span, fate) => self.read(in_pages, span, fate),
            Step::Write(in_pages, span, fate) => self.write(in_pages, span, fate),
            Step::Ranges(spans, fate) => self.ranges(&spans, fate),
            Step::Sync => self.sync(),
            Step::DropSync => {
                drop(self.file.sync_data().start());
                Ok(())
            }
            Step::SetLen(len) => self.set_len(usize::from(len) % LEN_MAX),
            Step::DropCache => block_on(self.file.drop_cache()).map_err(|error| error.to_string()),
            Step::Len => self.check_len(),
            Step::Await(which) => self.settle(which, May::Succeed),
            Step::CancelKept(which) => {
                if let Some(kept) = self.pick(which) {
                    kept.transfer.cancel();
                    return self.finish(kept, May::Be(ErrorKind::Cancelled));
                }
                Ok(())
            }
            Step::DropKept(which) => {
                if let Some(kept) = self.pick(which) {
                    self.dropped(&kept);
                }
                Ok(())
            }
            Step::Close => self.close(),
            Step::Reopen => {
                self.drain()?;
                self.file = open(&self.engine, &self.path)?;
                self.may_have_lost = false;
                Ok(())
            }
            Step::Shutdown => self.shutdown(),
        }
    }

    fn pick(&mut self, which: u8) -> Option<Kept> {
        let count = self.kept.len();
        (count > 0).then(|| self.kept.remove(usize::from(which) % count))
    }

    fn settle(&mut self, which: u8, may: May) -> Result<(), String> {
        match self.pick(which) {
            Some(kept) => self.finish(kept, may),
            None => Ok(()),
        }
    }

    fn read(&mut self, in_pages: bool, span: Span, fate: Fate) -> Result<(), String> {
        self.reads += 1;
        let beside = self.mistake == Mistake::ReadsBeside && self.reads.is_multiple_of(3);
        let offset = (span.offset + usize::from(beside)) as u64;
        let transfer = if in_pages {
            let buffer = HostBuffer::new(&self.engine, span.len).expect("memory");
            Moving::Buffer(self.file.read_at(buffer, offset))
        } else {
            Moving::Vec(self.file.read_at(vec![0; span.len], offset))
        };
        let kept = Kept {
            transfer,
            span,
            write: None,
            allowed: self.model.slice(span),
            is_beside: beside,
            is_scattered: false,
        };
        self.go_on(kept, fate)
    }

    fn ranges(&mut self, spans: &[Span; 3], fate: Fate) -> Result<(), String> {
        let (mut ranges, mut allowed, mut at) = (Vec::new(), Vec::new(), 0);
        for &span in spans {
            // Exact, so they end where the file does.
            let end = span.end().min(self.model.len());
            let len = end.saturating_sub(span.offset).min(8000);
            let span = Span { len, ..span };
            if len > 0 {
                ranges.push(FileRange {
                    file_offset: span.offset as u64,
                    len,
                    buf_offset: at,
                });
                allowed.extend(self.model.slice(span));
                at += len;
            }
        }
        // Its bytes lie in several places: what changes while it is under way is not followed.
        let fate = if fate == Fate::Keep {
            Fate::Await
        } else {
            fate
        };
        let kept = Kept {
            transfer: Moving::Vec(self.file.read_ranges(vec![0; at], ranges)),
            span: Span { offset: 0, len: at },
            write: None,
            allowed,
            is_beside: false,
            is_scattered: true,
        };
        self.go_on(kept, fate)
    }

    fn write(&mut self, in_pages: bool, span: Span, fate: Fate) -> Result<(), String> {
        let mut fate = fate;
        if span.end() > self.model.len() {
            // How long the file is must be known.
            self.drain()?;
            self.model.set_len(self.model.len().max(span.end()));
            block_on(self.file.set_len(self.model.len() as u64)).map_err(|e| e.to_string())?;
            fate = Fate::Await;
        }
        self.writes += 1;
        let content = pattern::bytes(self.writes as u64, span.len);
        let is_lost = self.mistake == Mistake::LosesWrites && self.writes.is_multiple_of(3);
        let offset = span.offset as u64;
        let source = if is_lost { Vec::new() } else { content.clone() };
        let transfer = if in_pages {
            let mut buffer = HostBuffer::new(&self.engine, source.len()).expect("memory");
            let bytes = buffer.as_mut_slice().expect("no part is out");
            bytes.copy_from_slice(&source);
            Moving::Buffer(self.file.write_at(buffer, offset))
        } else {
            Moving::Vec(self.file.write_at(source, offset))
        };
        if fate == Fate::DropUnpolled {
            return Ok(());
        }
        for kept in &mut self.kept {
            if kept.write.is_none() && kept.span.overlaps(span) {
                merge(kept, span, &content);
            }
        }
        let id = self.model.begin(span, &content);
        let kept = Kept {
            transfer,
            span,
            write: Some((id, content)),
            allowed: Vec::new(),
            is_beside: is_lost,
            is_scattered: false,
        };
        self.go_on(kept, fate)
    }

    fn go_on(&mut self, kept: Kept, fate: Fate) -> Result<(), String> {
        let started = |kept: Kept| Kept {
            transfer: kept.transfer.start(),
            ..kept
        };
        match fate {
            Fate::Await => self.finish(kept, May::Succeed),
            Fate::Keep => {
                self.kept.push(started(kept));
                Ok(())
            }
            Fate::DropUnpolled => Ok(()),
            Fate::Drop => {
                self.dropped(&kept);
                drop(started(kept));
                Ok(())
            }
            Fate::Cancel => {
                let kept = started(kept);
                kept.transfer.cancel();
                self.finish(kept, May::Be(ErrorKind::Cancelled))
            }
            Fate::Deadline(micros) => {
                let at = Instant::now() + Duration::from_micros(micros.into());
                let transfer = kept.transfer.deadline(at);
                self.finish(
                    Kept { transfer, ..kept },
                    May::Be(ErrorKind::DeadlineExceeded),
                )
            }
        }
    }

    /// Awaits it, and compares.
    fn finish(&mut self, kept: Kept, may: May) -> Result<(), String> {
        let Moved {
            bytes,
            memory,
            error,
        } = kept.transfer.wait();
        let failed = match &error {
            None => false,
            Some(error) if May::Be(error.kind()) == may => true,
            Some(error) => return Err(format!("{error}")),
        };
        let memory = memory.ok_or("the memory did not come back")?;
        match kept.write {
            Some((id, content)) => {
                let done = if kept.is_beside { content.len() } else { bytes };
                if !failed && done != content.len() {
                    return Err(format!("{done} bytes were written of {}", content.len()));
                }
                self.model.end(id, done, &content);
                if !kept.is_beside && memory != content {
                    return Err("the source has changed".to_owned());
                }
            }
            None if failed && kept.is_scattered => {}
            None => {
                let allowed = match failed {
                    // As many as it says.
                    true => kept
                        .allowed
                        .get(..bytes)
                        .ok_or("more bytes than there are")?,
                    false => &kept.allowed,
                };
                // The control reads elsewhere, where the file may end a byte earlier.
                let len = if kept.is_beside {
                    bytes.min(allowed.len())
                } else {
                    bytes
                };
                let allowed = if kept.is_beside {
                    &allowed[..len]
                } else {
                    allowed
                };
                Model::check(allowed, &memory[..len])?;
            }
        }
        Ok(())
    }

    /// Awaits all that is under way; what was dropped has ended too.
    fn drain(&mut self) -> Result<(), String> {
        while !self.kept.is_empty() {
            self.settle(0, May::Succeed)?;
        }
        life::until(|| self.engine.stats().operations_live == 0);
        self.model.quiet_but(&[]);
        Ok(())
    }

    /// A write that nobody awaits may be lost, and that may be told.
    fn dropped(&mut self, kept: &Kept) {
        let is_write = kept.write.is_some();
        self.may_have_lost |= is_write;
        self.may_report |= is_write;
    }

    fn judge_report(&self, report: &ShutdownReport) -> Result<(), String> {
        let may = self.may_report || report.lost_writes.is_empty();
        match may && report.quarantined == 0 {
            true => Ok(()),
            false => Err(format!("{report:?}")),
        }
    }

    fn judge_loss(&self, result: Result<(), Error>) -> Result<(), String> {
        let may = self.may_have_lost;
        match result {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::OrphanedWrite && may => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn sync(&mut self) -> Result<(), String> {
        let synced = block_on(self.file.sync_data());
        // It waits for all writes before it, whatever became of them.
        let kept = self.kept.iter().filter_map(|kept| kept.write.as_ref());
        let kept: Vec<usize> = kept.map(|&(id, _)| id).collect();
        self.model.quiet_but(&kept);
        self.judge_loss(synced)
    }

    fn set_len(&mut self, len: usize) -> Result<(), String> {
        self.drain()?;
        self.model.set_len(len);
        block_on(self.file.set_len(len as u64)).map_err(|error| error.to_string())
    }

    fn check_len(&self) -> Result<(), String> {
        match block_on(self.file.len()) {
            Ok(len) if len == self.model.len() as u64 => Ok(()),
            Ok(len) => Err(format!("{len} bytes instead of {}", self.model.len())),
            Err(error) => Err(error.to_string()),
        }
    }

    fn close(&mut self) -> Result<(), String> {
        let next = open(&self.engine, &self.path)?;
        let file = std::mem::replace(&mut self.file, next);
        let closed = self.judge_loss(block_on(file.close()));
        // Of the old handle, some may still be under way; reads and writes of it are awaited.
        self.drain()?;
        self.may_have_lost = false;
        closed
    }

    fn shutdown(&mut self) -> Result<(), String> {
        let engine = engine(self.settings)?;
        let mut ending = Box::pin(self.engine.shutdown());
        let ended = life::poll_once(&mut ending);
        while let Some(kept) = self.pick(0) {
            self.finish(kept, May::Be(ErrorKind::ShuttingDown))?;
        }
        let report = match ended {
            std::task::Poll::Ready(report) => report,
            std::task::Poll::Pending => block_on(ending),
        };
        self.judge_report(&report)?;
        self.model.quiet_but(&[]);
        self.assert_all_home()?;
        let late = block_on(self.file.len()).map(drop);
        if late.as_ref().map_err(Error::kind) != Err(ErrorKind::ShuttingDown) {
            return Err(format!("after its end: {late:?}"));
        }
        self.file = open(&engine, &self.path)?;
        self.engine = engine;
        self.may_have_lost = false;
        self.may_report = false;
        Ok(())
    }

    fn assert_all_home(&self) -> Result<(), String> {
        let permits = || {
            let stats = self.engine.stats();
            [stats.bytes, stats.parts, stats.workers, stats.slots]
        };
        // Parts that were let go before a thread came to them are given back when one does.
        life::until(|| permits().iter().all(|each| each.in_flight == 0));
        let is_home = |&Permits { free, capacity, .. }: &Permits| free == capacity;
        match permits().iter().all(is_home) {
            true => Ok(()),
            false => Err(format!("{:?}", self.engine.stats())),
        }
    }

    /// A byte of the file changes: what the control `WritesLate` does.
    fn spoil(&self) {
        let file = fs::File::options().write(true).read(true).open(&self.path);
        let file = file.expect("the file is there");
        let at = (self.number as u64 * 7919) % (self.model.len() as u64).max(1);
        let mut byte = [0];
        if file.read_at(&mut byte, at).expect("it can be read") == 1 {
            let written = file.write_at(&[!byte[0]], at);
            written.expect("it can be written");
        }
    }

    fn end(mut self) -> Result<(), String> {
        self.drain()?;
        let found = fs::read(&self.path).expect("the file is there");
        let all = Span {
            offset: 0,
            len: self.model.len(),
        };
        Model::check(&self.model.slice(all), &found)?;
        let report = block_on(self.engine.shutdown());
        self.judge_report(&report)?;
        self.assert_all_home()
    }
}

/// A write began while a read was under way, which may find its bytes.
fn merge(read: &mut Kept, span: Span, content: &[u8]) {
    for (index, byte) in read.allowed.iter_mut().enumerate() {
        let at = read.span.offset + index;
        if let Some(&new) = at.checked_sub(span.offset).and_then(|at| content.get(at)) {
            *byte = byte.or(new);
        }
    }
}
