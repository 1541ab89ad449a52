//! Memory of all kinds to read into and write from, surrounded by bytes that must not change.

use std::ops::Range;

use tokio_cufile::{AsyncCuFile, Done, Engine, Error, HostBuffer, OpError, PathBytes, Receipt};

use crate::{gpu, pattern};

/// What surrounds and fills memory before a read.
const CANARY: u8 = 0xee;
const MARGIN: usize = 8192;

/// Where the bytes of an operation lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// A whole buffer: page aligned.
    Buffer,
    /// Part of a buffer, so many bytes after a page's start.
    Part(usize),
    /// A `Vec`, aligned as it happens to be.
    Vec,
    /// A whole buffer on a device.
    Device,
    /// Part of a buffer on a device, so many bytes after its start.
    DevicePart(usize),
}

/// The device that memory is taken on.
const DEVICE: u32 = 0;

/// All kinds that this machine has: those on devices where it has one, or a simulated one.
pub fn kinds() -> impl Iterator<Item = Memory> {
    let on_device = [Memory::Device, Memory::DevicePart(1)];
    let devices: &[Memory] = if gpu::count() > 0 { &on_device } else { &[] };
    IN_HOST.into_iter().chain(devices.to_vec())
}

/// With skews that agree with no, some and every alignment of direct I/O.
const IN_HOST: [Memory; 7] = [
    Memory::Buffer,
    Memory::Part(0),
    Memory::Part(1),
    Memory::Part(511),
    Memory::Part(512),
    Memory::Part(4095),
    Memory::Vec,
];

/// What an operation did.
#[derive(Debug)]
pub struct Outcome {
    /// Bytes moved before the end or the error.
    pub bytes: usize,
    /// A read's bytes, and no more than were moved; empty for a write.
    pub content: Vec<u8>,
    /// What happened on the way.
    pub receipt: Option<Receipt>,
    /// Why it failed.
    pub error: Option<Error>,
}

impl Outcome {
    /// Bytes by path; none where nothing was submitted.
    #[must_use]
    pub fn paths(&self) -> PathBytes {
        self.receipt
            .as_ref()
            .map_or_else(PathBytes::default, |receipt| receipt.paths)
    }

    /// Fails unless it succeeded with `content`, and the receipt adds up.
    ///
    /// # Panics
    ///
    /// Where that is not so.
    #[track_caller]
    pub fn assert_read(&self, content: &[u8]) {
        assert!(self.error.is_none(), "{:?}", self.error);
        pattern::assert_same(&self.content, content);
        assert_eq!(
            self.paths().total(),
            content.len() as u64,
            "{:?}",
            self.receipt
        );
    }

    /// Fails unless it succeeded with `bytes`, and the receipt adds up.
    ///
    /// # Panics
    ///
    /// Where that is not so.
    #[track_caller]
    pub fn assert_wrote(&self, bytes: usize) {
        assert!(self.error.is_none(), "{:?}", self.error);
        assert_eq!(self.bytes, bytes);
        assert_eq!(self.paths().total(), bytes as u64, "{:?}", self.receipt);
    }
}

/// Reads `len` bytes into `memory`, and checks that nothing else changed there: not before and
/// behind it in its buffer.
///
/// # Panics
///
/// When something else changed, or the buffer did not come back.
pub async fn read(
    engine: &Engine,
    file: &AsyncCuFile,
    memory: Memory,
    len: usize,
    offset: u64,
) -> Outcome {
    match memory {
        Memory::Vec => {
            let (outcome, buf) = split(file.read_at(vec![CANARY; len], offset).await);
            keep_read(outcome, &buf)
        }
        Memory::Buffer => {
            let mut buffer = HostBuffer::new(engine, len).expect("memory");
            buffer.as_mut_slice().expect("no part is out").fill(CANARY);
            let (outcome, buffer) = split(file.read_at(buffer, offset).await);
            keep_read(outcome, buffer.as_slice().expect("no part is out"))
        }
        Memory::Part(skew) => {
            let range = MARGIN + skew..MARGIN + skew + len;
            let mut buffer = HostBuffer::new(engine, range.end + MARGIN).expect("memory");
            buffer.as_mut_slice().expect("no part is out").fill(CANARY);
            let part = buffer.part(range.clone()).expect("no part is out");
            let (outcome, part) = split(file.read_at(part, offset).await);
            assert_eq!(part.range(), range);
            drop(part);
            let all = buffer.as_slice().expect("the part is back");
            assert_untouched(all, &range);
            keep_read(outcome, &all[range])
        }
        Memory::Device => {
            let buffer = gpu::buffer(engine, DEVICE, &vec![CANARY; len]).await;
            let (outcome, buffer) = split(file.read_at(buffer, offset).await);
            keep_read(outcome, &gpu::content(engine, buffer).await)
        }
        Memory::DevicePart(skew) => {
            let range = MARGIN + skew..MARGIN + skew + len;
            let fill = vec![CANARY; range.end + MARGIN];
            let mut buffer = gpu::buffer(engine, DEVICE, &fill).await;
            let part = buffer.part(range.clone()).expect("no part is out");
            let (outcome, part) = split(file.read_at(part, offset).await);
            assert_eq!(part.range(), range);
            drop(part);
            let all = gpu::content(engine, buffer).await;
            assert_untouched(&all, &range);
            keep_read(outcome, &all[range])
        }
    }
}

/// Writes `content` from `memory`, and checks that the memory did not change.
///
/// # Panics
///
/// When it changed, or the buffer did not come back.
pub async fn write(
    engine: &Engine,
    file: &AsyncCuFile,
    memory: Memory,
    content: &[u8],
    offset: u64,
) -> Outcome {
    match memory {
        Memory::Vec => {
            let (outcome, buf) = split(file.write_at(content.to_vec(), offset).await);
            pattern::assert_same(&buf, content);
            outcome
        }
        Memory::Buffer => {
            let mut buffer = HostBuffer::new(engine, content.len()).expect("memory");
            let bytes = buffer.as_mut_slice().expect("no part is out");
            bytes.copy_from_slice(content);
            let (outcome, buffer) = split(file.write_at(buffer, offset).await);
            pattern::assert_same(buffer.as_slice().expect("no part is out"), content);
            outcome
        }
        Memory::Part(skew) => {
            let range = MARGIN + skew..MARGIN + skew + content.len();
            let mut buffer = HostBuffer::new(engine, range.end + MARGIN).expect("memory");
            let bytes = buffer.as_mut_slice().expect("no part is out");
            bytes.fill(CANARY);
            bytes[range.clone()].copy_from_slice(content);
            let part = buffer.part(range.clone()).expect("no part is out");
            let (outcome, part) = split(file.write_at(part, offset).await);
            pattern::assert_same(part.as_slice(), content);
            drop(part);
            assert_untouched(buffer.as_slice().expect("the part is back"), &range);
            outcome
        }
        Memory::Device => {
            let buffer = gpu::buffer(engine, DEVICE, content).await;
            let (outcome, buffer) = split(file.write_at(buffer, offset).await);
            pattern::assert_same(&gpu::content(engine, buffer).await, content);
            outcome
        }
        Memory::DevicePart(skew) => {
            let range = MARGIN + skew..MARGIN + skew + content.len();
            let mut fill = vec![CANARY; range.end + MARGIN];
            fill[range.clone()].copy_from_slice(content);
            let mut buffer = gpu::buffer(engine, DEVICE, &fill).await;
            let part = buffer.part(range).expect("no part is out");
            let (outcome, part) = split(file.write_at(part, offset).await);
            drop(part);
            pattern::assert_same(&gpu::content(engine, buffer).await, &fill);
            outcome
        }
    }
}

/// Takes a result apart: whatever the outcome, the buffer is there.
///
/// # Panics
///
/// When it is not.
pub fn split<B>(result: Result<Done<B>, OpError<B>>) -> (Outcome, B) {
    match result {
        Ok(done) => {
            let outcome = Outcome {
                bytes: done.bytes,
                content: Vec::new(),
                receipt: Some(done.receipt),
                error: None,
            };
            (outcome, done.buf)
        }
        Err(failed) => {
            let (bytes, receipt) = (failed.bytes_done(), failed.receipt().cloned());
            let (error, buf) = failed.into_parts();
            let outcome = Outcome {
                bytes,
                content: Vec::new(),
                receipt,
                error: Some(error),
            };
            (outcome, buf.expect("the buffer comes back"))
        }
    }
}

fn keep_read(outcome: Outcome, memory: &[u8]) -> Outcome {
    let (content, rest) = memory.split_at(outcome.bytes);
    // Direct I/O moves whole blocks, and fills with zeros behind the end of the file. The page
    // cache gives no more than there is; but after an error, what was read behind a gap.
    let route = outcome
        .receipt
        .as_ref()
        .map(|receipt| &receipt.route.resolved);
    let cached = route.is_some_and(|route| route.ends_with("cached"));
    if outcome.error.is_none() && cached {
        assert!(
            rest.iter().all(|&byte| byte == CANARY),
            "memory behind the end of the file has changed: {outcome:?}"
        );
    }
    Outcome {
        content: content.to_vec(),
        ..outcome
    }
}

fn assert_untouched(all: &[u8], except: &Range<usize>) {
    let around = all[..except.start].iter().chain(&all[except.end..]);
    assert!(
        around.copied().all(|byte| byte == CANARY),
        "memory outside the part has changed"
    );
}
