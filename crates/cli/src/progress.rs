//! The progress bar: on a terminal, for people, on standard error.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};

use crate::resolved::Range;

/// A bar over `range`, or one that shows nothing.
pub(crate) fn bar(range: Range, json: bool) -> ProgressBar {
    if json || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = if range.sized {
        let style = ProgressStyle::with_template(
            "{bar:30} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left",
        );
        ProgressBar::new(range.length).with_style(style.expect("the template is well-formed"))
    } else {
        ProgressBar::new_spinner()
    };
    bar.tick();
    bar
}
