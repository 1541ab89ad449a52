//! Whether the machine stood still.
//!
//! What nothing is heard of for the quiet limit is given up, and whoever awaited it is told so. A
//! virtual machine that its host stops for that long, or a processor that others keep, looks just like
//! hardware that has fallen silent; only a run in which that has happened may end so.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

const BETWEEN: Duration = Duration::from_millis(10);
/// A third of the shortest quiet limit that nothing reaches on purpose.
const STOOD_STILL: Duration = Duration::from_secs(1);

/// Beats as long as it lives, and knows the longest time between two beats.
#[derive(Debug)]
pub(super) struct Pulse {
    since: Instant,
    last_ms: AtomicU64,
    longest_ms: AtomicU64,
}

impl Pulse {
    /// Begins to beat.
    pub(super) fn start() -> Arc<Self> {
        let pulse = Arc::new(Self {
            since: Instant::now(),
            last_ms: AtomicU64::new(0),
            longest_ms: AtomicU64::new(0),
        });
        let beating = Arc::downgrade(&pulse);
        thread::spawn(move || beat(&beating));
        pulse
    }

    /// The longest time between two beats if it was too long, the one under way included.
    pub(super) fn stood_still(&self) -> Option<Duration> {
        let longest = self.note(Instant::now(), self.last_ms.load(Ordering::Relaxed));
        (longest >= STOOD_STILL).then_some(longest)
    }

    fn note(&self, now: Instant, last_ms: u64) -> Duration {
        let gap = self.millis(now).saturating_sub(last_ms);
        let before = self.longest_ms.fetch_max(gap, Ordering::Relaxed);
        Duration::from_millis(before.max(gap))
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
    fn short_pauses_are_none() {
        let pulse = with_beats(&[10, 500, 900, 1800]);
        assert_eq!(pulse.stood_still(), None);
    }
}
