//! `cuf read`: a range of a file into memory, once or several times.

use std::path::Path;
use std::time::Duration;

use measure::usage::{self, IoClock};
use tokio_cufile::{AsyncCuFile, Engine, Error};

use crate::args::ReadArgs;
use crate::failure::Failure;
use crate::hash::{HashLane, Hasher};
use crate::place::{Buffer, Place};
use crate::progress::Progress;
use crate::report::{self, Figures, Report, Tally};
use crate::resolved::{Range, Settings, Windows, end_note};
use crate::transfer::{self, Limits};

pub(crate) async fn run(args: &ReadArgs, settings: &Settings) -> Result<Report, Failure> {
    let (engine, place) = transfer::build_engine(settings, &args.file, args.offset).await?;
    let mut reader = Reader {
        engine,
        args,
        settings,
        // Asked once: the reader's own buffers must not shrink the windows of the next run.
        memory_available: place.available(),
        place,
        windows: None,
        buffers: Vec::new(),
    };
    let mut runs: Vec<Figures> = Vec::new();
    for _ in 0..args.repeat.unwrap_or(1) {
        let figures = reader.read_once().await?;
        if let Some(first) = runs.first()
            && first.sha256 != figures.sha256
        {
            return Err(Failure::new(
                &args.file,
                args.offset,
                format!("the bytes changed between run 1 and run {}", runs.len() + 1),
            ));
        }
        runs.push(figures);
    }
    Ok(Report {
        operation: "read",
        file: args.file.display().to_string(),
        offset: args.offset,
        device: reader.place.name(),
        device_name: reader.place.driver_name(),
        window: reader.windows.map_or(0, |windows| windows.window),
        figures: report::medians(&runs),
        seed: None,
        from: None,
        durable: None,
        process_seconds: 0.0,
        process_cpu_seconds: 0.0,
        runs: args.repeat.map(|_| runs),
    })
}

struct Reader<'a> {
    engine: Engine,
    args: &'a ReadArgs,
    settings: &'a Settings,
    place: Place,
    memory_available: Option<u64>,
    /// Those of the run before, and their buffers: kept while the file keeps its length.
    windows: Option<Windows>,
    buffers: Vec<Buffer>,
}

impl Reader<'_> {
    fn path(&self) -> &Path {
        &self.args.file
    }

    fn failure(&self, offset: u64, error: &Error) -> Failure {
        Failure::of_library(error, self.path(), offset)
    }

    async fn read_once(&mut self) -> Result<Figures, Failure> {
        let offset = self.args.offset;
        let opening = Limits::from_now(self.settings);
        let file = transfer::open_source(&self.engine, self.path(), opening)
            .await
            .map_err(|error| self.failure(offset, &error))?;
        let length = opening
            .bound_request(file.len())
            .await
            .map_err(|error| self.failure(offset, &error))?;
        let range = Range::of_file(offset, self.args.length, length)
            .map_err(|reason| Failure::new(self.path(), offset, reason))?;
        let windows = self.fit_buffers(range).await?;
        if self.args.drop_cache {
            transfer::drop_cache(&file)
                .await
                .map_err(|error| self.failure(offset, &error))?;
        }
        self.read_range(&file, range, windows, length).await
    }

    async fn fit_buffers(&mut self, range: Range) -> Result<Windows, Failure> {
        let windows = Windows::new(
            range,
            self.settings.window,
            self.memory_available,
            self.args.hash && self.place.is_worked_on_beside(),
        );
        if self.windows != Some(windows) {
            self.buffers.clear();
            let buffers = self.place.allocate(&self.engine, &windows).await;
            self.buffers =
                buffers.map_err(|error| Failure::of_memory(&error, self.path(), range.offset))?;
            self.windows = Some(windows);
        }
        Ok(windows)
    }

    async fn read_range(
        &mut self,
        file: &AsyncCuFile,
        range: Range,
        windows: Windows,
        length: u64,
    ) -> Result<Figures, Failure> {
        let buffers = std::mem::take(&mut self.buffers);
        let mut pass = Pass {
            path: &self.args.file,
            file,
            limits: Limits::from_now(self.settings),
            clock: IoClock::default(),
            lane: HashLane::new(buffers, self.args.hash),
            tally: Tally::new(file.route()),
        };
        let cpu = usage::process_cpu();
        let progress = Progress::show(&self.engine, range, 1, self.settings.json);
        let moved = pass.read_pieces(windows).await?;
        drop(progress);
        let Pass {
            clock,
            lane,
            mut tally,
            ..
        } = pass;
        let (buffers, hasher) = lane
            .finish()
            .await
            .map_err(|error| self.failure(range.offset, &error))?;
        let cpu = usage::process_cpu().saturating_sub(cpu);
        self.buffers = buffers;

        let length_now = file
            .len()
            .await
            .map_err(|error| self.failure(range.offset, &error))?;
        if let Some(note) = end_note(range, self.args.length, moved, length, length_now) {
            tally.note(&note);
        }
        let hash_cpu = hasher.as_ref().map_or(Duration::ZERO, Hasher::cpu);
        let sha256 = hasher.map(Hasher::finish);
        Ok(tally.into_figures(moved, clock.total(), cpu.saturating_sub(hash_cpu), sha256))
    }
}

/// One way through a range.
struct Pass<'a> {
    path: &'a Path,
    file: &'a AsyncCuFile,
    limits: Limits,
    clock: IoClock,
    lane: HashLane,
    tally: Tally,
}

impl Pass<'_> {
    /// Reads until the range or the file ends; returns the bytes read.
    async fn read_pieces(&mut self, windows: Windows) -> Result<u64, Failure> {
        let mut moved = 0;
        for (offset, length) in windows.pieces() {
            let bytes = self
                .read_piece(offset, transfer::length_in_memory(length))
                .await
                .map_err(|error| Failure::of_library(&error, self.path, offset))?;
            moved += bytes;
            if bytes < length {
                break;
            }
        }
        Ok(moved)
    }

    async fn read_piece(&mut self, offset: u64, length: usize) -> Result<u64, Error> {
        let mut buffer = self.lane.take().await?;
        let in_flight = self.clock.enter();
        let settled = buffer.read(self.file, length, offset, self.limits).await;
        drop(in_flight);
        let settled = settled?;
        self.tally.add(&settled.receipt);
        self.lane.give(buffer, settled.bytes).await?;
        Ok(u64::try_from(settled.bytes).expect("a usize has at most 64 bits"))
    }
}
