//! `cuf write`: a file from another file or from random bytes, durable on return.
//!
//! While one buffer is written, the next is made (read or generated) and hashed; with a device one after
//! the other, since its bytes come and go by the way that the writes take.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use measure::usage::{self, IoClock};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use tokio_cufile::{AsyncCuFile, Engine, Error};

use crate::args::WriteArgs;
use crate::failure::Failure;
use crate::hash::{self, Hasher};
use crate::interrupt::Interrupts;
use crate::place::Buffer;
use crate::progress::Progress;
use crate::report::{Report, Source, Tally};
use crate::resolved::{Range, Settings, Windows, end_note};
use crate::room;
use crate::transfer::{self, Limits};

pub(crate) async fn run(args: &WriteArgs, settings: &Settings) -> Result<Report, Failure> {
    if let Some(size) = args.size.filter(|&size| i64::try_from(size).is_ok()) {
        room::check(&args.file, size)?;
    }
    let (engine, place) = transfer::build_engine(settings, &args.file, 0).await?;
    let limits = Limits::from_now(settings);
    let (origin, range, seed) = origin_of(args, &engine, limits).await?;
    let overlap = place.is_worked_on_beside();
    let windows = Windows::new(range, settings.window, place.available(), overlap);
    let buffers = place.allocate(&engine, &windows).await;
    let mut buffers = buffers.map_err(|error| Failure::of_memory(&error, &args.file, 0))?;

    let clock = IoClock::default();
    let mut producer = Producer {
        origin,
        destination: &args.file,
        pieces: Box::new(windows.pieces()),
        maker: Maker {
            random: seed.map(Xoshiro256PlusPlus::seed_from_u64),
            ..Maker::default()
        },
        clock: &clock,
        limits: Limits::from_now(settings),
        ended: false,
    };
    // A copy moves every byte twice.
    let passes = if args.from.is_some() { 2 } else { 1 };
    let progress = Progress::show(&engine, range, passes, settings.json);
    let cpu = usage::process_cpu();
    // Made before the destination is touched, so that an unreadable source costs nobody a file.
    let first = producer.fill(buffers.pop()).await?;
    let interrupts = Interrupts::listen()
        .map_err(|error| Failure::new(&args.file, 0, format!("listen for signals: {error}")))?;
    let sink = Sink::open(&engine, &args.file, &clock, producer.limits).await?;
    let sink = sink
        .run(first, buffers.pop(), &mut producer, interrupts)
        .await?;
    drop(progress);
    let cpu = usage::process_cpu()
        .saturating_sub(cpu)
        .saturating_sub(producer.maker.cpu);

    let Sink {
        written, mut tally, ..
    } = sink;
    let (from, note) = producer.origin.into_source(range, written).await?;
    if let Some(note) = note {
        tally.note(&note);
    }
    let sha256 = Some(producer.maker.hasher.finish());
    Ok(Report {
        operation: "write",
        file: args.file.display().to_string(),
        offset: 0,
        device: place.name(),
        device_name: place.driver_name(),
        window: windows.window,
        figures: tally.into_figures(written, clock.total(), cpu, sha256),
        seed,
        from,
        durable: Some(true),
        process_seconds: 0.0,
        process_cpu_seconds: 0.0,
        runs: None,
    })
}

/// Where the bytes come from.
enum Origin<'a> {
    Random,
    File {
        path: &'a Path,
        file: AsyncCuFile,
        length: u64,
        tally: Tally,
    },
}

async fn origin_of<'a>(
    args: &'a WriteArgs,
    engine: &Engine,
    limits: Limits,
) -> Result<(Origin<'a>, Range, Option<u64>), Failure> {
    let Some(path) = &args.from else {
        let length = args.size.unwrap_or_default();
        if i64::try_from(length).is_err() {
            return Err(Failure::new(
                &args.file,
                0,
                "--size is beyond the largest file, 2^63 - 1",
            ));
        }
        let seed = args.seed.map_or_else(getrandom::u64, Ok).map_err(|error| {
            Failure::new(
                &args.file,
                0,
                format!("no random seed (give one by --seed): {error}"),
            )
        })?;
        return Ok((
            Origin::Random,
            Range {
                offset: 0,
                length,
                sized: true,
            },
            Some(seed),
        ));
    };
    refuse_same_file(path, &args.file)?;
    let failure = |error: Error| Failure::of_library(&error, path, 0);
    let file = transfer::open_source(engine, path, limits)
        .await
        .map_err(failure)?;
    let length = limits.bound_request(file.len()).await.map_err(failure)?;
    let range = Range::of_file(0, None, length).map_err(|reason| Failure::new(path, 0, reason))?;
    let tally = Tally::new(file.route());
    Ok((
        Origin::File {
            path,
            file,
            length,
            tally,
        },
        range,
        None,
    ))
}

/// A copy onto itself would read what it has just written.
fn refuse_same_file(source: &Path, destination: &Path) -> Result<(), Failure> {
    // A path that cannot be looked at is for its open to refuse.
    if let (Ok(source), Ok(there)) = (fs::metadata(source), fs::metadata(destination))
        && (source.dev(), source.ino()) == (there.dev(), there.ino())
    {
        return Err(Failure::new(destination, 0, "--from names the same file"));
    }
    Ok(())
}

impl Origin<'_> {
    /// What the report says of the source, and what is to be noted of it.
    async fn into_source(
        self,
        range: Range,
        written: u64,
    ) -> Result<(Option<Source>, Option<String>), Failure> {
        let Self::File {
            path,
            file,
            length,
            tally,
        } = self
        else {
            return Ok((None, None));
        };
        let now = file
            .len()
            .await
            .map_err(|error| Failure::of_library(&error, path, written))?;
        let note = end_note(range, None, written, length, now);
        Ok((Some(Source::new(path.display().to_string(), tally)), note))
    }
}

/// A buffer with bytes to write at its front.
struct Filled {
    buffer: Buffer,
    offset: u64,
    length: usize,
}

/// Fills buffers with the bytes to write, in order, and hashes them there.
struct Producer<'a> {
    origin: Origin<'a>,
    destination: &'a Path,
    pieces: Box<dyn Iterator<Item = (u64, u64)>>,
    maker: Maker,
    clock: &'a IoClock,
    limits: Limits,
    /// The source ended before its pieces did.
    ended: bool,
}

impl Producer<'_> {
    /// The next piece; `None` without a buffer to make it in, and after the last one.
    async fn fill(&mut self, buffer: Option<Buffer>) -> Result<Option<Filled>, Failure> {
        let Some(mut buffer) = buffer else {
            return Ok(None);
        };
        if self.ended {
            return Ok(None);
        }
        let Some((offset, length)) = self.pieces.next() else {
            return Ok(None);
        };
        let mut length = transfer::length_in_memory(length);
        if let Origin::File {
            path, file, tally, ..
        } = &mut self.origin
        {
            let in_flight = self.clock.enter();
            let settled = buffer.read(file, length, offset, self.limits).await;
            drop(in_flight);
            let settled = settled.map_err(|error| Failure::of_library(&error, path, offset))?;
            tally.add(&settled.receipt);
            self.ended = settled.bytes < length;
            length = settled.bytes;
        }
        let mut maker = std::mem::take(&mut self.maker);
        let (maker, buffer) = hash::offload(move || {
            let buffer = maker.make(buffer, length);
            (maker, buffer)
        })
        .join()
        .await;
        self.maker = maker;
        let buffer =
            buffer.map_err(|error| Failure::of_memory(&error, self.destination, offset))?;
        Ok(Some(Filled {
            buffer,
            offset,
            length,
        }))
    }
}

/// The work on bytes that is not I/O, and its cost.
#[derive(Default)]
struct Maker {
    random: Option<Xoshiro256PlusPlus>,
    hasher: Hasher,
    cpu: Duration,
}

impl Maker {
    /// Random bytes are hashed where they are made, so that the hash stands for what the file should
    /// hold also where they are copied to a device; others as they lie in the buffer.
    fn make(&mut self, buffer: Buffer, length: usize) -> Result<Buffer, Error> {
        let clock = buffer.cpu_clock();
        let before = clock();
        let hasher = &mut self.hasher;
        let buffer = match &mut self.random {
            Some(random) => buffer.fill(length, |bytes| {
                random.fill_bytes(bytes);
                hasher.update(bytes);
            }),
            None => buffer.show(length, |bytes| hasher.update(bytes)),
        };
        self.cpu += clock().saturating_sub(before);
        buffer
    }
}

/// The destination.
struct Sink<'a> {
    path: &'a Path,
    file: AsyncCuFile,
    created: bool,
    clock: &'a IoClock,
    limits: Limits,
    written: u64,
    tally: Tally,
}

impl<'a> Sink<'a> {
    async fn open(
        engine: &Engine,
        path: &'a Path,
        clock: &'a IoClock,
        limits: Limits,
    ) -> Result<Self, Failure> {
        let (file, created) = transfer::open_destination(engine, path, limits)
            .await
            .map_err(|error| Failure::of_library(&error, path, 0))?;
        let tally = Tally::new(file.route());
        Ok(Self {
            path,
            file,
            created,
            clock,
            limits,
            written: 0,
            tally,
        })
    }

    fn failure(&self, error: &Error) -> Failure {
        Failure::of_library(error, self.path, self.written)
    }

    /// Writes everything durably, or puts right what can be: after an interrupt too.
    async fn run(
        mut self,
        first: Option<Filled>,
        spare: Option<Buffer>,
        producer: &mut Producer<'_>,
        mut interrupts: Interrupts,
    ) -> Result<Self, Failure> {
        let written = tokio::select! {
            written = self.write_all(first, spare, producer) => Some(written),
            () = interrupts.next() => None,
        };
        match written {
            Some(Ok(())) => Ok(self),
            Some(Err(failure)) => Err(self.abandon(failure)),
            // What the dropped futures had issued ends in a file without a name.
            None => {
                let failure = Failure::interrupted(self.path, self.written);
                Err(self.abandon(failure))
            }
        }
    }

    /// Writes `next` and everything the producer makes after it, and returns when it is durable.
    async fn write_all(
        &mut self,
        mut next: Option<Filled>,
        mut spare: Option<Buffer>,
        producer: &mut Producer<'_>,
    ) -> Result<(), Failure> {
        while let Some(mut filled) = next {
            // Both end before either failure is looked at: nothing is in flight after a failure.
            let (written, made) =
                tokio::join!(self.write(&mut filled), producer.fill(spare.take()));
            written.map_err(|error| self.failure(&error))?;
            next = made?;
            spare = Some(filled.buffer);
            // Of one buffer alone, the next piece is made when it is back.
            if next.is_none() {
                next = producer.fill(spare.take()).await?;
            }
        }
        self.persist().await
    }

    async fn write(&mut self, filled: &mut Filled) -> Result<(), Error> {
        let Filled {
            buffer,
            offset,
            length,
        } = filled;
        let _in_flight = self.clock.enter();
        let settled = buffer
            .write(&self.file, *length, *offset, self.limits)
            .await?;
        self.tally.add(&settled.receipt);
        self.written = *offset + u64::try_from(settled.bytes).expect("a usize has at most 64 bits");
        Ok(())
    }

    /// Cuts off what a longer former content left, and syncs the bytes and, for a new file, its
    /// name.
    async fn persist(&self) -> Result<(), Failure> {
        let _in_flight = self.clock.enter();
        let (file, limits) = (&self.file, self.limits);
        let failure = |error: Error| self.failure(&error);
        if limits.bound_request(file.len()).await.map_err(failure)? > self.written {
            limits
                .bound_request(file.set_len(self.written))
                .await
                .map_err(failure)?;
        }
        limits
            .bound_request(file.sync_all())
            .await
            .map_err(failure)?;
        if self.created {
            sync_directory_of(self.path).map_err(|error| {
                Failure::new(
                    self.path,
                    self.written,
                    format!("sync the directory: {error}"),
                )
            })?;
        }
        Ok(())
    }

    /// Leaves no half-written new file behind, and says what it leaves.
    fn abandon(self, failure: Failure) -> Failure {
        let path = self.path.display();
        if !self.created {
            return failure.with_aftermath(&format!("{path} may be partly overwritten"));
        }
        match fs::remove_file(self.path) {
            Ok(()) => failure.with_aftermath(&format!("the incomplete {path} was removed")),
            Err(error) => failure.with_aftermath(&format!(
                "the incomplete {path} could not be removed: {error}"
            )),
        }
    }
}

fn sync_directory_of(path: &Path) -> std::io::Result<()> {
    File::open(room::folder_of(path))?.sync_all()
}
