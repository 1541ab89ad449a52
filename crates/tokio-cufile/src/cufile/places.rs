//! Places in CUDA streams, of all operations of the process that cuFile has there.
//!
//! libcufile keeps a list of what is in a stream. For a stream that it was not told of by
//! `cuFileStreamRegister`, the list corrupts the heap of the process when a second operation comes
//! before the first has ended; and whatever the stream, two threads that put something into it at the
//! same time end the process by an assertion (both seen with 1.15 and 1.20, in docs/cufile.md).
//! So a stream that is not registered has one place, and a stream one turn at a time.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nvidia_dl::cuda::Stream;

use super::registered_stream::{Known, Share};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::EngineId;

#[derive(Debug, Default)]
pub(super) struct Places {
    taken: AtomicUsize,
    /// Those of users that are registered or have an operation, and those of engines that could not be
    /// registered.
    streams: Mutex<HashMap<Stream, Use>>,
}

/// What is known of a stream.
#[derive(Debug)]
enum Use {
    /// It is not registered, and has an operation.
    Alone,
    /// From before it is registered until it is deregistered. Open as long as there is something to
    /// have a share of.
    Registered {
        by: EngineId,
        /// Null is the name of one on every device.
        device: u32,
        known: Weak<Known>,
    },
}

/// The place of one operation that is in a stream, whoever put it there. Leaked, it stays taken.
#[derive(Debug)]
pub(super) struct Queued {
    places: Arc<Places>,
    kept: Kept,
}

#[derive(Debug)]
enum Kept {
    Nothing,
    /// The stream, in which it is the only one.
    Alone(Stream),
    /// The stream stays registered.
    Share(Share),
}

impl Places {
    /// A place in an engine's own stream; `None` where `max` are taken in all streams, or where the
    /// stream, which is not registered, has an operation.
    pub(super) fn take(
        self: &Arc<Self>,
        stream: Stream,
        is_registered: bool,
        max: usize,
    ) -> Option<Queued> {
        // Dropped, it gives back what it has.
        let mut place = self.count(max)?;
        if !is_registered {
            place.kept = self.take_alone(stream)?;
        }
        Some(place)
    }

    /// A place in a user's stream, for an operation of that engine.
    ///
    /// # Errors
    ///
    /// `Busy` where the stream takes none now, or another device's of that name is registered;
    /// `WrongEngine` where another engine has registered it.
    pub(super) fn take_in(
        self: &Arc<Self>,
        (stream, device): (Stream, u32),
        engine: EngineId,
    ) -> Result<Queued> {
        let mut place =
            (self.count(usize::MAX)).ok_or_else(|| busy("there is no end of operations"))?;
        let registered = match lock(&self.streams).get(&stream) {
            Some(Use::Registered {
                by,
                device: of,
                known,
            }) => {
                if *of != device {
                    let reason = "another device's default stream is registered, and cuFile may take one \
                                  for the other";
                    return Err(busy(reason));
                }
                Some((*by, known.upgrade()))
            }
            Some(Use::Alone) | None => None,
        };
        place.kept = match registered {
            None => self.take_alone(stream).ok_or_else(|| {
                busy(
                    "cuFile has an operation in the stream, which is not registered, and corrupts \
                     memory with a second one: register it (`RegisteredStream`), or await the end of \
                     the first",
                )
            })?,
            Some((by, _)) if by != engine => {
                let reason = "another engine has registered the stream with cuFile";
                return Err(Error::new(ErrorKind::WrongEngine, reason));
            }
            Some((_, known)) => Kept::Share(
                known
                    .and_then(Share::new)
                    .ok_or_else(|| busy("the stream is being registered or deregistered"))?,
            ),
        };
        Ok(place)
    }

    fn count(self: &Arc<Self>, max: usize) -> Option<Queued> {
        let one_more = |taken: usize| (taken < max).then_some(taken + 1);
        let (on_success, on_failure) = (Ordering::Relaxed, Ordering::Relaxed);
        let counted = self.taken.fetch_update(on_success, on_failure, one_more);
        counted.ok()?;
        Some(Queued {
            places: Arc::clone(self),
            kept: Kept::Nothing,
        })
    }

    fn take_alone(&self, stream: Stream) -> Option<Kept> {
        match lock(&self.streams).entry(stream) {
            Entry::Occupied(_) => None,
            Entry::Vacant(entry) => {
                entry.insert(Use::Alone);
                Some(Kept::Alone(stream))
            }
        }
    }

    /// Somebody registers the stream: nothing is put there until that is known of.
    ///
    /// # Errors
    ///
    /// `Busy` where it is registered, or has an operation.
    pub(super) fn begin(&self, (stream, device): (Stream, u32), by: EngineId) -> Result<()> {
        match lock(&self.streams).entry(stream) {
            Entry::Vacant(entry) => {
                let known = Weak::new();
                entry.insert(Use::Registered { by, device, known });
                Ok(())
            }
            Entry::Occupied(entry) => Err(busy(match entry.get() {
                Use::Alone => "an operation is in the stream: register it when that has ended",
                Use::Registered { .. } => "the stream is registered, or not deregistered yet",
            })),
        }
    }

    /// It is registered, and open.
    pub(super) fn open(&self, stream: Stream, now: &Arc<Known>) {
        if let Some(Use::Registered { known, .. }) = lock(&self.streams).get_mut(&stream) {
            *known = Arc::downgrade(now);
        }
    }

    /// It is not registered any more.
    pub(super) fn end(&self, stream: Stream) {
        // Dropped without the lock.
        let _ended = lock(&self.streams).remove(&stream);
    }
}

/// The turn to put something into one stream.
#[derive(Clone, Debug, Default)]
pub(super) struct Turn(Arc<Mutex<()>>);

impl Turn {
    /// Blocks as long as somebody else's call.
    pub(super) fn take(&self) -> MutexGuard<'_, ()> {
        lock(&self.0)
    }
}

impl Queued {
    /// The turn of a user's stream; `None` where that is the operation's alone. An engine's own has its
    /// turn beside it.
    pub(super) fn turn(&self) -> Option<Turn> {
        match &self.kept {
            Kept::Share(share) => Some(share.turn().clone()),
            Kept::Nothing | Kept::Alone(_) => None,
        }
    }

    /// The operation was given up: who waits for the end of the stream is not to wait for this.
    pub(super) fn give_up(&mut self) {
        if let Kept::Share(share) = &mut self.kept {
            share.give_up();
        }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        if let Kept::Alone(stream) = self.kept {
            self.places.end(stream);
        }
        self.places.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

fn busy(reason: &'static str) -> Error {
    Error::new(ErrorKind::Busy, reason)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is one step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
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
    fn nothing_is_put_into_a_stream_while_it_is_registered_and_nothing_registered_in_use() {
        let places = Arc::new(Places::default());
        let (ours, other) = (EngineId::unique(), EngineId::unique());
        let kind = |error: Error| error.kind();
        places.begin((stream(1), 0), ours).unwrap();
        assert_eq!(
            kind(places.begin((stream(1), 0), other).unwrap_err()),
            ErrorKind::Busy
        );
        let (from_us, from_others) = (
            places.take_in((stream(1), 0), ours),
            places.take_in((stream(1), 0), other),
        );
        assert_eq!(kind(from_us.unwrap_err()), ErrorKind::Busy);
        assert_eq!(kind(from_others.unwrap_err()), ErrorKind::WrongEngine);
        places.end(stream(1));
        let alone = places.take_in((stream(1), 0), other).unwrap();
        assert_eq!(
            kind(places.take_in((stream(1), 0), ours).unwrap_err()),
            ErrorKind::Busy
        );
        assert_eq!(
            kind(places.begin((stream(1), 0), ours).unwrap_err()),
            ErrorKind::Busy
        );
        drop(alone);
        places.begin((stream(1), 0), ours).unwrap();
        let elsewhere = places.take_in((stream(1), 1), ours);
        assert_eq!(kind(elsewhere.unwrap_err()), ErrorKind::Busy);
        assert_eq!(places.taken.load(Ordering::Relaxed), 0);
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
