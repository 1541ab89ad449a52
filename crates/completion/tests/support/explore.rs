//! How the loom models are explored.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::assert_panics;

/// Explores every interleaving, or those with at most `LOOM_MAX_PREEMPTIONS` preemptions.
pub(crate) fn explore(model: impl Fn() + Send + Sync + 'static) {
    explore_with(None, model);
}

/// The same, with a bound of its own where none is asked for.
pub(crate) fn explore_with(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(preemptions);
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&runs);
    builder.check(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let runs = runs.load(Ordering::Relaxed);
    println!("{runs} interleavings");
    assert!(runs > 1, "the threads never met");
}

/// Asserts that exploring the model of a broken engine fails, and for the right reason.
pub(crate) fn assert_caught(reason: &str, model: impl Fn() + Send + Sync + 'static) {
    assert_panics(&[reason], || explore(model));
}
