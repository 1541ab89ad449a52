//! Named blobs, and reading them: bounded waits, then bounded memory, then the engine.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::time::timeout_at;
use tokio_cufile::{
    AsyncCuFile, Digest, DigestKind, Engine, Error, IoBuf, Priority, Receipt, Transfer,
};

use crate::pool::{Place, Pool, Pooled};

/// How much the service takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) memory: usize,
    pub(crate) buffer: usize,
    pub(crate) waiting_max: usize,
    pub(crate) deadline: Duration,
}

/// The service's state.
#[derive(Debug)]
pub(crate) struct Blobs {
    engine: Engine,
    folder: PathBuf,
    pool: Arc<Pool>,
    waiting: Semaphore,
    limits: Limits,
}

/// What one request asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) offset: u64,
    /// To the end of the blob, or as much as a buffer holds, where it is not said.
    pub(crate) length: Option<u64>,
    pub(crate) wishes: Wishes,
}

/// What every step of a request keeps to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes {
    pub(crate) deadline: Instant,
    pub(crate) priority: Priority,
    pub(crate) digest: Option<DigestKind>,
}

/// What a read did.
#[derive(Debug)]
pub(crate) struct Receipted {
    pub(crate) receipt: Receipt,
    pub(crate) digest: Option<Digest>,
}

/// Bytes of a blob in memory.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) offset: u64,
    pub(crate) length: usize,
    pub(crate) blob_length: u64,
    pub(crate) done: Receipted,
    /// Until a buffer was free.
    pub(crate) waited: Duration,
    /// From then on.
    pub(crate) took: Duration,
    pub(crate) buffer: Pooled,
}

/// Why a request is not served.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// No blob can be called so.
    Name,
    /// The blob is shorter.
    Range {
        blob_length: u64,
    },
    /// More than one buffer holds.
    TooLong {
        most: usize,
    },
    /// As many wait as may.
    Full,
    /// The deadline passed while the request waited for memory.
    Late,
    Library(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

impl Blobs {
    pub(crate) async fn new(
        engine: &Engine,
        folder: PathBuf,
        place: Place,
        limits: Limits,
    ) -> Result<Self, crate::Failure> {
        // What the name means at the start.
        let canonical = folder.canonicalize();
        let folder = canonical.map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Self {
            engine: engine.clone(),
            folder,
            pool: Arc::new(Pool::new(engine, place, limits.memory, limits.buffer).await?),
            waiting: Semaphore::new(limits.waiting_max),
            limits,
        })
    }

    pub(crate) const fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) const fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub(crate) const fn default_deadline(&self) -> Duration {
        self.limits.deadline
    }

    /// Requests that wait or are served.
    pub(crate) fn waiting(&self) -> usize {
        self.limits.waiting_max - self.waiting.available_permits()
    }

    /// Reads a range of a blob into a buffer of the pool's. Dropped at any instant, it leaves nothing
    /// behind but an end that nobody sees.
    pub(crate) async fn read(&self, name: &str, asked: Asked) -> Result<Loaded, Refusal> {
        if !is_name(name) {
            return Err(Refusal::Name);
        }
        let most = self.pool.buffer_size();
        if asked.length.is_some_and(|length| length > most as u64) {
            return Err(Refusal::TooLong { most });
        }
        let _waiting = self.waiting.try_acquire().map_err(|_| Refusal::Full)?;
        let wishes = asked.wishes;
        let start = Instant::now();
        // Nothing is held but the wait: neither memory, nor a file, nor a place in the engine.
        let buffer = timeout_at(wishes.deadline.into(), self.pool.take(wishes.priority));
        let mut buffer = buffer.await.map_err(|_| Refusal::Late)??;
        let taken = Instant::now();

        let file = AsyncCuFile::open(&self.engine, self.folder.join(name));
        let file = file.deadline(wishes.deadline).await?;
        let blob_length = file.len().deadline(wishes.deadline).await?;
        let length = length_within(asked, blob_length, most)?;
        let done = buffer.read(&file, asked.offset, length, wishes).await?;
        Ok(Loaded {
            offset: asked.offset,
            length,
            blob_length,
            done,
            waited: taken.duration_since(start),
            took: taken.elapsed(),
            buffer,
        })
    }
}

/// Names are single, visible and plain, so that no name leads out of the folder: no separator, no
/// `..`, nothing that is hidden. A link in the folder is followed, as whoever made it wants.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=255).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(plain)
}

/// How much is read: what was asked for if the blob has it, else its rest as far as a buffer holds it.
fn length_within(asked: Asked, blob_length: u64, most: usize) -> Result<usize, Refusal> {
    let range = Refusal::Range { blob_length };
    let Some(rest) = blob_length.checked_sub(asked.offset) else {
        return Err(range);
    };
    let length = asked.length.unwrap_or_else(|| rest.min(most as u64));
    if length > rest {
        return Err(range);
    }
    usize::try_from(length).map_err(|_| Refusal::TooLong { most })
}

impl Wishes {
    pub(crate) async fn settle<B: IoBuf>(
        self,
        transfer: Transfer<B>,
        length: usize,
    ) -> Result<Receipted, Error> {
        let mut transfer = transfer.deadline(self.deadline).priority(self.priority);
        if let Some(kind) = self.digest {
            // One chunk: one checksum of it all.
            transfer = transfer.digest(kind, length.max(1));
        }
        let done = transfer.await?;
        let first = done
            .digests()
            .and_then(|digests| digests.values.first().copied());
        Ok(Receipted {
            receipt: done.receipt,
            digest: self
                .digest
                .map(|kind| first.unwrap_or_else(|| kind.of(&[]))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_out_of_the_folder() {
        for name in ["a", "model-00001-of-00002.safetensors", "A_b.c", "a..b"] {
            assert!(is_name(name), "{name}");
        }
        let long = "a".repeat(256);
        for name in [
            "",
            ".",
            "..",
            "../a",
            "a/b",
            "/etc/passwd",
            "a\\b",
            ".hidden",
            "a\0",
            "ä",
            "a b",
            "%2e%2e",
            "a\n",
            &long,
        ] {
            assert!(!is_name(name), "{name:?}");
        }
    }

    #[test]
    fn a_range_is_what_the_blob_has() {
        let length = |offset, length| {
            let wishes = Wishes {
                deadline: Instant::now(),
                priority: Priority::Normal,
                digest: None,
            };
            let asked = Asked {
                offset,
                length,
                wishes,
            };
            length_within(asked, 10, 4).ok()
        };
        assert_eq!(length(0, None), Some(4));
        assert_eq!(length(8, None), Some(2));
        assert_eq!(length(10, None), Some(0));
        assert_eq!(length(9, Some(1)), Some(1));
        assert_eq!(length(9, Some(2)), None);
        assert_eq!(length(11, None), None);
        assert_eq!(length(u64::MAX, Some(1)), None);
    }
}
