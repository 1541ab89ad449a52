//! The threads that engines leave: none, but for libcufile's own.
//!
//! libcufile has threads of its own from its first call for a stream on. They stay, and have the name
//! of the engine's thread that made that call; nothing tells them from it but that they do not become
//! more. So those that the first engine in streams leaves are taken for libcufile's, if it leaves any,
//! and no engine after it may leave more. What leaks once only, with that first engine, is not seen.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::Backend;
use crate::life;

/// How long the threads of an engine may take to end.
const ENDED_WITHIN: Duration = Duration::from_secs(10);
/// How long none may have ended for the rest to be libcufile's.
const STILL_FOR: Duration = Duration::from_secs(2);

/// What is known of libcufile's threads, in a whole run.
#[derive(Debug, Default)]
pub(super) struct Threads {
    /// How many it has; not known before the first engine that leaves any.
    of_library: OnceLock<usize>,
}

/// The end of an engine, as far as it was looked at.
struct Ending {
    backend: Backend,
    /// The fewest threads that there were, and since when.
    fewest: (usize, Duration),
}

impl Threads {
    /// Waits for the threads of an engine that has ended, and gives how many do not end.
    pub(super) async fn left_by(&self, backend: Backend) -> u64 {
        let (mut ending, since) = (Ending::of(backend), Instant::now());
        loop {
            if let Some(left) = self.look(&mut ending, life::engine_threads(), since.elapsed()) {
                return left as u64;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// There are so many threads by now: how many are left too many, once that is certain.
    fn look(&self, ending: &mut Ending, count: usize, now: Duration) -> Option<usize> {
        if count < ending.fewest.0 {
            ending.fewest = (count, now);
        }
        let known = self.of_library.get().copied();
        let left = count.saturating_sub(known.unwrap_or(0));
        let is_first = ending.backend == Backend::CufileStreams && known.is_none();
        if left > 0 && is_first && now - ending.fewest.1 >= STILL_FOR {
            println!("threads of libcufile: {count}");
            self.of_library.get_or_init(|| count);
            return Some(0);
        }
        (left == 0 || now >= ENDED_WITHIN).then_some(left)
    }
}

impl Ending {
    const fn of(backend: Backend) -> Self {
        Self {
            backend,
            fewest: (usize::MAX, Duration::ZERO),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Backend::{CufileStreams, Pool};

    /// What an engine leaves after which there are so many threads, one look a second.
    fn left(threads: &Threads, backend: Backend, counts: impl Iterator<Item = usize>) -> usize {
        let mut ending = Ending::of(backend);
        let mut looks = (0..).map(Duration::from_secs).zip(counts);
        let told = looks.find_map(|(now, count)| threads.look(&mut ending, count, now));
        told.expect("it is certain at some time")
    }

    fn always(count: usize) -> impl Iterator<Item = usize> {
        std::iter::repeat(count)
    }

    #[test]
    fn what_the_first_engine_in_streams_leaves_is_the_librarys_and_more_is_not() {
        let threads = Threads::default();
        assert_eq!(left(&threads, CufileStreams, always(0)), 0);
        assert_eq!(left(&threads, Pool, always(3)), 3, "there are no streams");
        assert_eq!(left(&threads, CufileStreams, always(3)), 0);
        assert_eq!(left(&threads, Pool, always(3)), 0);
        assert_eq!(left(&threads, CufileStreams, always(4)), 1);
    }

    #[test]
    fn threads_that_end_late_are_waited_for() {
        let threads = Threads::default();
        let fewer = [5, 5, 4, 4, 3, 2, 1, 1].into_iter();
        let first = left(&threads, CufileStreams, fewer.chain(always(1)));
        assert_eq!((first, threads.of_library.get()), (0, Some(&1)));
        let fewer = [3, 3, 3, 3, 2].into_iter();
        assert_eq!(left(&threads, CufileStreams, fewer.chain(always(1))), 0);
    }
}
