//! Batches of reads.
#![allow(
    unsafe_code,
    reason = "a batch has addresses of memory until its events tell that it has ended"
)]

use std::time::{Duration, Instant};

use measure::report::Sample;
use measure::usage::Window;
use nvidia_dl::cufile::{Batch, IoEvent, IoParams, Library, Opcode, decode_event};

use super::target::{Target, Way};
use crate::Result;
use crate::contest::Runner;
use crate::engines::whole;

/// How long nothing may be heard of a batch.
const QUIET_LIMIT: Duration = Duration::from_secs(20);
/// How long one call waits.
const WAIT: Duration = Duration::from_secs(1);

/// So many entries in each, and so many of them at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batches {
    pub(super) count: usize,
    pub(super) entries: usize,
}

impl Way for Batches {
    fn ready(&self, target: Target) -> Result<Box<dyn Runner>> {
        let (session, block) = (&target.session, target.job.block);
        let (entries, in_flight) = (session.entries_max()?, session.in_flight_max(block));
        if self.entries > entries {
            return Err(format!("a batch of this libcufile has at most {entries} entries").into());
        }
        if self.entries * self.count > in_flight {
            let reason = format!(
                "in its compatibility mode this libcufile stages {in_flight} blocks of that size at once"
            );
            return Err(reason.into());
        }
        let library = session.library;
        let mut field = Field {
            batches: Vec::new(),
            target,
            entries: self.entries,
        };
        for _ in 0..self.count {
            let batch = library.batch_set_up(u32::try_from(self.entries)?)?;
            field.batches.push(One {
                library,
                batch,
                in_flight: 0,
                in_doubt: false,
            });
        }
        // All of it once: what goes wrong only under load keeps the contestant out as well.
        field.move_all()?;
        Ok(Box::new(field))
    }
}

struct Field {
    /// Before the target: they are gone before the file is.
    batches: Vec<One>,
    target: Target,
    entries: usize,
}

struct One {
    library: &'static Library,
    batch: Batch,
    /// Entries of which no event has told the end.
    in_flight: usize,
    /// Nobody knows whether an event will tell the end of those.
    in_doubt: bool,
}

impl Field {
    /// Moves all blocks. After an error, too, every batch is waited for.
    fn move_all(&mut self) -> Result<()> {
        let done = self.pass();
        let target = &self.target;
        let ends = self.batches.iter_mut().map(|batch| batch.settle(target));
        let ends: Vec<Result<()>> = ends.collect();
        done.and_then(|()| ends.into_iter().collect())
    }

    /// When a batch has ended it is given the next blocks.
    fn pass(&mut self) -> Result<()> {
        let (mut next, blocks) = (0, self.target.blocks());
        for index in (0..self.batches.len()).cycle() {
            if next == blocks {
                break;
            }
            self.batches[index].settle(&self.target)?;
            let end = blocks.min(next + self.entries);
            self.batches[index].submit(&self.target, next..end)?;
            next = end;
        }
        Ok(())
    }
}

impl Drop for Field {
    fn drop(&mut self) {
        if self.batches.iter().any(|batch| batch.in_flight > 0) {
            self.target.leave();
        }
    }
}

impl One {
    fn submit(&mut self, target: &Target, blocks: std::ops::Range<usize>) -> Result<()> {
        let mut requests = Vec::with_capacity(blocks.len());
        for index in blocks {
            let what = target.transfer(index)?;
            requests.push(IoParams::new(Opcode::READ, target.handle(), &what, index)?);
        }
        self.in_flight = requests.len();
        // SAFETY: the batch is set up with room for them, and nothing of it is in flight. The target
        // keeps registration, descriptor and memory until an event has told the end of each, or
        // leaves them; the blocks are this batch's alone.
        let submitted = unsafe { self.library.batch_submit(self.batch, &mut requests) };
        // Nobody says that none of them runs then.
        self.in_doubt = submitted.is_err();
        Ok(submitted?)
    }

    /// Waits for all entries.
    fn settle(&mut self, target: &Target) -> Result<()> {
        let mut failure = Ok(());
        let mut since = Instant::now();
        let mut events = vec![IoEvent::EMPTY; self.in_flight];
        while self.in_flight > 0 && !self.in_doubt {
            let room = &mut events[..self.in_flight];
            let wanted = u32::try_from(room.len())?;
            // SAFETY: the batch is set up.
            let told = unsafe { (self.library).batch_status(self.batch, wanted, room, WAIT) };
            self.in_doubt = told.is_err();
            let ends = events[..told?].iter();
            for end in ends.filter_map(|event| decode_event(event, target.job.block)) {
                self.in_flight -= 1;
                since = Instant::now();
                let moved = end.map_err(|failure| failure.to_string().into());
                let ended = moved.and_then(|moved| whole(&target.job, moved));
                failure = failure.and(ended);
            }
            if since.elapsed() > QUIET_LIMIT {
                self.in_doubt = true;
                return Err(format!("{} entries of a batch do not end", self.in_flight).into());
            }
        }
        failure
    }
}

impl Drop for One {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            return;
        }
        // SAFETY: the batch is this value's, and an event has told the end of each entry.
        if let Err(error) = unsafe { self.library.batch_destroy(self.batch) } {
            eprintln!("benches: a batch is left: {error}");
        }
    }
}

impl Runner for Field {
    fn run(&mut self, _round: u64) -> Result<Sample> {
        let window = Window::open();
        self.move_all()?;
        Ok(self.target.sample(window.close()))
    }

    fn check(&mut self) -> Result<()> {
        self.target.check()
    }
}
