//! Places in CUDA streams, of all operations of the process that cuFile has there.
//!
//! libcufile keeps a list of what is in a stream. For a stream that it was not told of by
//! `cuFileStreamRegister`, the list corrupts the heap of the process when a second operation comes
//! before the first has ended; and whatever the stream, two threads that put something into it at the
//! same time end the process by an assertion (both seen with 1.15 and 1.20, in docs/performance.md).
//! So a stream that is not registered has one place, and a stream one turn at a time.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvidia_dl::cuda::Stream;

/// Streams into which something can be put at the same time.
const TURNS: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Places {
    taken: AtomicUsize,
    /// Streams that are not registered, with an operation in them.
    alone: Mutex<HashSet<Stream>>,
    /// A stream always has the same one of them.
    turns: [Mutex<()>; TURNS],
}

/// The place of one operation that is in a stream, whoever put it there. Leaked, it stays taken.
#[derive(Debug)]
pub(super) struct Queued {
    places: Arc<Places>,
    /// It is the only one there.
    alone: Option<Stream>,
}

impl Places {
    /// A place in a stream; `None` where `max` are taken in all streams, or where the stream, which is
    /// not registered, has an operation.
    pub(super) fn take(
        self: &Arc<Self>,
        stream: Stream,
        is_registered: bool,
        max: usize,
    ) -> Option<Queued> {
        let one_more = |taken: usize| (taken < max).then_some(taken + 1);
        let (on_success, on_failure) = (Ordering::Relaxed, Ordering::Relaxed);
        let counted = self.taken.fetch_update(on_success, on_failure, one_more);
        counted.ok()?;
        let mut place = Queued {
            places: Arc::clone(self),
            alone: None,
        };
        if !is_registered {
            let is_first = lock(&self.alone).insert(stream);
            place.alone = is_first.then_some(stream);
            // Dropped, it gives back what it has.
            return is_first.then_some(place);
        }
        Some(place)
    }

    /// The turn to put something into a stream. Blocks as long as somebody else's call.
    pub(super) fn turn(&self, stream: Stream) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        stream.hash(&mut hasher);
        let index = usize::try_from(hasher.finish() % TURNS as u64).unwrap_or(0);
        lock(&self.turns[index])
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        if let Some(stream) = self.alone {
            lock(&self.places.alone).remove(&stream);
        }
        self.places.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is one step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    fn stream(address: usize) -> Stream {
        Stream::from_raw(ptr::without_provenance_mut(address))
    }

    #[test]
    fn a_stream_that_is_not_registered_has_one_place() {
        let places = Arc::new(Places::default());
        let first = places.take(stream(1), false, 9);
        assert!(first.is_some());
        assert!(places.take(stream(1), false, 9).is_none());
        let other = places.take(stream(2), false, 9);
        assert!(other.is_some());
        drop(first);
        assert!(places.take(stream(1), false, 9).is_some());
    }

    #[test]
    fn there_are_so_many_places_and_no_more_and_none_is_lost() {
        let places = Arc::new(Places::default());
        let taken = [(); 3].map(|()| places.take(stream(1), true, 3));
        assert!(taken.iter().all(Option::is_some));
        assert!(places.take(stream(1), true, 3).is_none());
        assert!(places.take(stream(2), false, 3).is_none());
        drop(taken);
        let alone = places.take(stream(2), false, 3);
        assert!(alone.is_some() && places.take(stream(2), false, 3).is_none());
        drop(alone);
        assert_eq!(places.taken.load(Ordering::Relaxed), 0);
    }
}
