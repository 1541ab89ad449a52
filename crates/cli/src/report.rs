//! What is printed when it worked: text for people, or one JSON object.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use indicatif::BinaryBytes;
use measure::statistics;
use serde::Serialize;
use tokio_cufile::{DataPath, Receipt, Route};

const GIB: f64 = (1_u64 << 30) as f64;
const GB: f64 = 1e9;

/// Receipts of one transfer, summed.
#[derive(Debug)]
pub(crate) struct Tally {
    paths: BTreeMap<DataPath, u64>,
    reason: String,
    notes: Vec<String>,
    windows: u64,
    parts: u64,
    retries: u64,
}

impl Tally {
    /// `route` stands until a receipt says what became of it.
    pub(crate) fn new(route: &Route) -> Self {
        Self {
            paths: BTreeMap::new(),
            reason: route.reason.to_string(),
            notes: Vec::new(),
            windows: 0,
            parts: 0,
            retries: 0,
        }
    }

    pub(crate) fn add(&mut self, receipt: &Receipt) {
        for (path, bytes) in receipt.paths.iter() {
            *self.paths.entry(path).or_default() += bytes;
        }
        self.reason = receipt.route.reason.to_string();
        self.windows += 1;
        self.parts += receipt.parts;
        self.retries += receipt.retries;
        for note in &receipt.notes {
            self.note(note);
        }
    }

    /// Every note once, in order of appearance.
    pub(crate) fn note(&mut self, note: &str) {
        if !self.notes.iter().any(|known| known == note) {
            self.notes.push(note.to_owned());
        }
    }

    /// The figures of `bytes` moved in `wall`, which cost `cpu`.
    pub(crate) fn into_figures(
        self,
        bytes: u64,
        wall: Duration,
        cpu: Duration,
        sha256: Option<String>,
    ) -> Figures {
        let (seconds, cpu_seconds) = (wall.as_secs_f64(), cpu.as_secs_f64());
        Figures {
            bytes,
            seconds,
            gb_per_s: if seconds > 0.0 {
                bytes as f64 / GB / seconds
            } else {
                0.0
            },
            cpu_seconds,
            cpu_s_per_gib: (bytes > 0).then(|| cpu_seconds / (bytes as f64 / GIB)),
            paths: self
                .paths
                .iter()
                .map(|(path, &bytes)| (path.name(), bytes))
                .collect(),
            route_reason: self.reason,
            sha256,
            windows: self.windows,
            parts: self.parts,
            retries: self.retries,
            notes: self.notes,
        }
    }
}

/// One transfer in numbers.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) bytes: u64,
    /// First submit to last settle; between the requests of several windows the clock stands.
    seconds: f64,
    gb_per_s: f64,
    /// Of the whole process, without making and hashing the bytes.
    cpu_seconds: f64,
    /// `null` where no byte was moved.
    cpu_s_per_gib: Option<f64>,
    paths: BTreeMap<&'static str, u64>,
    route_reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sha256: Option<String>,
    /// Requests, each a window or a half of one.
    windows: u64,
    parts: u64,
    retries: u64,
    notes: Vec<String>,
}

/// Medians of the numbers of at least one run; everything else is that of the run with the median time.
pub(crate) fn medians(runs: &[Figures]) -> Figures {
    let mut by_time: Vec<&Figures> = runs.iter().collect();
    by_time.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let middle = by_time[(by_time.len() - 1) / 2];
    let median = |values: &[f64]| statistics::median(values).unwrap_or_default();
    let median_of =
        |value: fn(&Figures) -> f64| median(&runs.iter().map(value).collect::<Vec<f64>>());
    Figures {
        seconds: median_of(|run| run.seconds),
        gb_per_s: median_of(|run| run.gb_per_s),
        cpu_seconds: median_of(|run| run.cpu_seconds),
        cpu_s_per_gib: runs
            .iter()
            .map(|run| run.cpu_s_per_gib)
            .collect::<Option<Vec<f64>>>()
            .map(|costs| median(&costs)),
        ..middle.clone()
    }
}

/// Everything that one command says.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) operation: &'static str,
    pub(crate) file: String,
    pub(crate) offset: u64,
    /// `host` or `cuda:N`.
    pub(crate) device: String,
    /// What the driver calls the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device_name: Option<String>,
    /// Bytes of memory that the range went through.
    pub(crate) window: u64,
    #[serde(flatten)]
    pub(crate) figures: Figures,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<Source>,
    /// Whether the bytes survive a loss of power, for a write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) durable: Option<bool>,
    /// Wall clock and CPU of the whole process: starting, allocating and hashing included.
    pub(crate) process_seconds: f64,
    pub(crate) process_cpu_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) runs: Option<Vec<Figures>>,
}

/// Where a copy's bytes came from.
#[derive(Debug, Serialize)]
pub(crate) struct Source {
    pub(crate) file: String,
    pub(crate) paths: BTreeMap<&'static str, u64>,
    pub(crate) route_reason: String,
}

impl Source {
    pub(crate) fn new(file: String, tally: Tally) -> Self {
        let figures = tally.into_figures(0, Duration::ZERO, Duration::ZERO, None);
        Self {
            file,
            paths: figures.paths,
            route_reason: figures.route_reason,
        }
    }
}

impl Report {
    pub(crate) fn print(&self, json: bool) -> io::Result<()> {
        let mut text = if json {
            serde_json::to_string(self)?
        } else {
            self.to_text()
        };
        if json {
            text.push('\n');
        }
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            // Whoever read the output has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            result => result,
        }
    }

    fn to_text(&self) -> String {
        let figures = &self.figures;
        let mut lines = vec![
            ("file", self.file.escape_debug().to_string()),
            (
                "bytes",
                format!(
                    "{} ({}) at offset {}",
                    figures.bytes,
                    BinaryBytes(figures.bytes),
                    self.offset
                ),
            ),
            ("time", figures.time_text()),
        ];
        if let Some(name) = &self.device_name {
            let device = format!("{}: {}", self.device, name.escape_debug());
            lines.insert(1, ("device", device));
        }
        if figures.windows > 1 {
            let (windows, window) = (figures.windows, BinaryBytes(self.window));
            lines.push((
                "window",
                format!("{windows} requests through {window}; the time is with one in flight"),
            ));
        }
        if let Some(runs) = &self.runs {
            lines.push(("runs", format!("{}, medians shown", runs.len())));
        }
        for (path, bytes) in &figures.paths {
            lines.push(("path", format!("{path}: {bytes} bytes")));
        }
        lines.push(("why", figures.route_reason.clone()));
        if let Some(source) = &self.from {
            lines.push(("from", source.file.escape_debug().to_string()));
            for (path, bytes) in &source.paths {
                lines.push(("from path", format!("{path}: {bytes} bytes")));
            }
        }
        lines.extend(self.seed.map(|seed| ("seed", seed.to_string())));
        lines.extend(figures.sha256.clone().map(|hash| ("sha256", hash)));
        lines.extend(figures.notes.iter().map(|note| ("note", note.clone())));
        lines.push((
            "process",
            format!(
                "{:.3} s, {:.3} CPU s in all",
                self.process_seconds, self.process_cpu_seconds
            ),
        ));
        lines
            .into_iter()
            .fold(String::new(), |text, (name, value)| {
                text + &format!("{name:<10}{value}\n")
            })
    }
}

impl Figures {
    fn time_text(&self) -> String {
        let cost = self
            .cpu_s_per_gib
            .map_or_else(|| "no bytes".into(), |cost| format!("{cost:.4} CPU s/GiB"));
        format!("{:.6} s, {:.3} GB/s, {cost}", self.seconds, self.gb_per_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seconds: f64, path: &'static str) -> Figures {
        Figures {
            bytes: 1 << 30,
            seconds,
            gb_per_s: 1.0 / seconds,
            cpu_seconds: 0.5,
            cpu_s_per_gib: Some(seconds / 10.0),
            paths: BTreeMap::from([(path, 1 << 30)]),
            route_reason: path.into(),
            sha256: None,
            windows: 1,
            parts: 1,
            retries: 0,
            notes: Vec::new(),
        }
    }

    #[test]
    fn medians_are_per_number_and_the_path_is_that_of_the_median_run() {
        let medians = medians(&[run(4.0, "slow"), run(1.0, "fast"), run(2.0, "middle")]);
        assert_eq!(medians.seconds, 2.0);
        assert_eq!(medians.gb_per_s, 0.5);
        assert_eq!(medians.cpu_s_per_gib, Some(0.2));
        assert_eq!(medians.route_reason, "middle");
    }

    #[test]
    fn no_bytes_have_no_cost_per_gibibyte_and_no_division_by_zero() {
        let tally = Tally {
            paths: BTreeMap::new(),
            reason: String::new(),
            notes: Vec::new(),
            windows: 0,
            parts: 0,
            retries: 0,
        };
        let figures = tally.into_figures(0, Duration::ZERO, Duration::ZERO, None);
        assert_eq!(figures.gb_per_s, 0.0);
        assert_eq!(
            serde_json::to_value(&figures).unwrap()["cpu_s_per_gib"],
            serde_json::Value::Null
        );
        assert_eq!(medians(&[figures.clone(), figures]).cpu_s_per_gib, None);
    }
}
