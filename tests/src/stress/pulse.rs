//! Whether the machine stood still.
//!
//! What nothing is heard of for the quiet limit is given up, and whoever awaited it is told so. A
//! virtual machine that its host stops for that long, or a processor that others keep, looks just like
//! hardware that has fallen silent; only an engine in whose life that has happened may end so.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

const BETWEEN: Duration = Duration::from_millis(10);
/// A third of the quiet limit of runs with silent devices (`run.rs`).
const STOOD_STILL: Duration = Duration::from_secs(1);

/// Beats as long as it lives, and knows the longest time between two beats.
#[derive(Debug)]
pub(super) struct Pulse {
    since: Instant,
    last_ms: AtomicU64,
    longest_ms: AtomicU64,
    /// When the last time between two beats that was too long had passed. 0: there was none.
    still_until_ms: AtomicU64,
}

impl Pulse {
    /// Begins to beat.
    pub(super) fn start() -> Arc<Self> {
        let pulse = Arc::new(Self {
            since: Instant::now(),
            last_ms: AtomicU64::new(0),
            longest_ms: AtomicU64::new(0),
            still_until_ms: AtomicU64::new(0),
        });
        let beating = Arc::downgrade(&pulse);
        thread::spawn(move || beat(&beating));
        pulse
    }

    /// The longest time between two beats if it was too long, the one under way included.
    pub(super) fn stood_still(&self) -> Option<Duration> {
        self.look(Instant::now());
        let longest = Duration::from_millis(self.longest_ms.load(Ordering::Relaxed));
        (longest >= STOOD_STILL).then_some(longest)
    }

    /// Whether any of the time after `since` was of one that was too long.
    pub(super) fn stood_still_since(&self, since: Instant) -> bool {
        self.look(Instant::now());
        self.still_until_ms.load(Ordering::Relaxed) > self.millis(since)
    }

    /// Notes the time since the last beat.
    fn look(&self, now: Instant) {
        self.note(now, self.last_ms.load(Ordering::Relaxed));
    }

    fn note(&self, now: Instant, last_ms: u64) {
        let now_ms = self.millis(now);
        let gap = now_ms.saturating_sub(last_ms);
        self.longest_ms.fetch_max(gap, Ordering::Relaxed);
        if Duration::from_millis(gap) >= STOOD_STILL {
            self.still_until_ms.fetch_max(now_ms, Ordering::Relaxed);
        }
    }

    fn beat(&self, now: Instant) {
        let last_ms = self.last_ms.swap(self.millis(now), Ordering::Relaxed);
        self.note(now, last_ms);
    }

    fn millis(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.since);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long a sleep takes is the question"
)]
fn beat(pulse: &Weak<Pulse>) {
    while let Some(pulse) = pulse.upgrade() {
        pulse.beat(Instant::now());
        drop(pulse);
        thread::sleep(BETWEEN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With beats at these times after its start, in milliseconds.
    fn with_beats(beats: &[u64]) -> Pulse {
        let since = Instant::now();
        let pulse = Pulse {
            since,
            last_ms: AtomicU64::new(0),
            longest_ms: AtomicU64::new(0),
            still_until_ms: AtomicU64::new(0),
        };
        for &at in beats {
            pulse.beat(since + Duration::from_millis(at));
        }
        pulse
    }

    #[test]
    fn a_pause_between_two_beats_is_remembered() {
        let pulse = with_beats(&[10, 20, 1500, 1510]);
        assert_eq!(pulse.stood_still(), Some(Duration::from_millis(1480)));
    }

    #[test]
    fn a_pause_excuses_nothing_that_began_after_it() {
        let pulse = with_beats(&[10, 20, 1500, 1510]);
        let after = |millis| pulse.since + Duration::from_millis(millis);
        assert!(pulse.stood_still_since(after(5)));
        assert!(pulse.stood_still_since(after(1000)));
        assert!(!pulse.stood_still_since(after(1505)));
    }

    #[test]
    fn short_pauses_are_none() {
        let pulse = with_beats(&[10, 500, 900, 1800]);
        assert_eq!(pulse.stood_still(), None);
    }
}
