//! The progress bar: on a terminal, for people, on standard error.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio_cufile::Engine;

use crate::resolved::Range;

const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

/// A bar on the terminal until it is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    /// The thread ends when this is dropped.
    running: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Shows how much of `range` has moved; `passes` is how often the engine moves each byte.
    ///
    /// It asks the engine, which counts parts: one request may well be the whole file. `None`
    /// where nobody looks, or no thread can be had for it.
    pub(crate) fn show(engine: &Engine, range: Range, passes: u64, json: bool) -> Option<Self> {
        if json || !io::stderr().is_terminal() {
            return None;
        }
        let engine = engine.clone();
        let before = engine.stats().paths.total();
        let moved = move || (engine.stats().paths.total() - before) / passes;
        let (stop, stopped) = mpsc::channel();
        let bar = new_bar(range);
        let draw = move || {
            while stopped.recv_timeout(REDRAW_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                bar.set_position(moved());
            }
            bar.finish_and_clear();
        };
        let thread = thread::Builder::new()
            .name("cuf-progress".into())
            .spawn(draw)
            .ok()?;
        Some(Self {
            running: Some((stop, thread)),
        })
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            drop(stop);
            // Waited for, lest the next thing printed share a line with the bar. A bar that
            // panicked is no reason for the transfer to fail.
            let _ = thread.join();
        }
    }
}

fn new_bar(range: Range) -> ProgressBar {
    if !range.sized {
        return ProgressBar::new_spinner();
    }
    let style = ProgressStyle::with_template(
        "{bar:30} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left",
    );
    ProgressBar::new(range.length).with_style(style.expect("the template is well-formed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_well_formed() {
        let range = Range {
            offset: 0,
            length: 10,
            sized: true,
        };
        assert_eq!(new_bar(range).length(), Some(10));
        assert_eq!(
            new_bar(Range {
                sized: false,
                ..range
            })
            .length(),
            None
        );
    }
}
