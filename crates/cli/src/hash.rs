//! SHA-256 of the bytes as they lie in the engine's memory, beside the I/O.

use std::fmt::Write as _;
use std::time::Duration;

use measure::usage;
use sha2::{Digest, Sha256};
use tokio::task::JoinHandle;
use tokio_cufile::Error;

use crate::place::Buffer;

/// A running SHA-256 that knows what it cost, so that the cost of I/O can be told apart.
#[derive(Debug, Default)]
pub(crate) struct Hasher {
    state: Sha256,
    cpu: Duration,
}

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        let before = usage::thread_cpu();
        self.state.update(bytes);
        self.cpu += usage::thread_cpu().saturating_sub(before);
    }

    /// Adds the first `length` bytes of a buffer. Blocks, on a thread that may.
    ///
    /// # Errors
    ///
    /// What the device says where they are copied from one. The buffer is gone then.
    fn update_with(&mut self, buffer: Buffer, length: usize) -> Result<Buffer, Error> {
        let (cpu, clock) = (self.cpu, buffer.cpu_clock());
        let before = clock();
        let buffer = buffer.show(length, |bytes| self.update(bytes));
        self.cpu = cpu + clock().saturating_sub(before);
        buffer
    }

    /// CPU time spent so far.
    pub(crate) fn cpu(&self) -> Duration {
        self.cpu
    }

    /// The digest in lower-case hex, as `sha256sum` prints it.
    pub(crate) fn finish(self) -> String {
        self.state
            .finalize()
            .iter()
            .fold(String::with_capacity(64), |mut hex, byte| {
                write!(hex, "{byte:02x}").expect("writing to a String cannot fail");
                hex
            })
    }
}

/// Runs `work` on a thread that may block.
pub(crate) fn offload<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Offloaded<T> {
    Offloaded(tokio::task::spawn_blocking(work))
}

/// Work on another thread, running since it was made.
#[derive(Debug)]
pub(crate) struct Offloaded<T>(JoinHandle<T>);

impl<T> Offloaded<T> {
    /// Its result; its panic is the caller's.
    pub(crate) async fn join(self) -> T {
        match self.0.await {
            Ok(result) => result,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

/// Hands out buffers to read into, and hashes filled ones in the order they are given back, one
/// at a time, while the next is in flight.
#[derive(Debug)]
pub(crate) struct HashLane {
    idle: Vec<Buffer>,
    /// Absent without `--hash`, and while a job has it.
    hasher: Option<Hasher>,
    running: Option<Offloaded<HashJob>>,
}

type HashJob = (Hasher, Result<Buffer, Error>);

impl HashLane {
    pub(crate) fn new(buffers: Vec<Buffer>, hash: bool) -> Self {
        Self {
            idle: buffers,
            hasher: hash.then(Hasher::default),
            running: None,
        }
    }

    /// A buffer that nothing uses; waits for the hash where all are taken.
    pub(crate) async fn take(&mut self) -> Result<Buffer, Error> {
        if self.idle.is_empty() {
            self.settle().await?;
        }
        Ok(self
            .idle
            .pop()
            .expect("of one buffer or more, all but the one being hashed are idle"))
    }

    /// Takes back a buffer with `length` bytes to hash at its front.
    pub(crate) async fn give(&mut self, buffer: Buffer, length: usize) -> Result<(), Error> {
        self.settle().await?;
        match self.hasher.take() {
            None => self.idle.push(buffer),
            Some(mut hasher) => {
                self.running = Some(offload(move || {
                    let result = hasher.update_with(buffer, length);
                    (hasher, result)
                }));
            }
        }
        Ok(())
    }

    async fn settle(&mut self) -> Result<(), Error> {
        if let Some(job) = self.running.take() {
            let (hasher, buffer) = job.join().await;
            self.hasher = Some(hasher);
            self.idle.push(buffer?);
        }
        Ok(())
    }

    /// The buffers, and the hasher if there is one, when everything given back is hashed.
    pub(crate) async fn finish(mut self) -> Result<(Vec<Buffer>, Option<Hasher>), Error> {
        self.settle().await?;
        Ok((self.idle, self.hasher))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_digest_of_the_concatenation() {
        let mut hasher = Hasher::default();
        hasher.update(b"a");
        hasher.update(b"bc");
        assert_eq!(
            hasher.finish(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
