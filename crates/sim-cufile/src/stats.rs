//! What the library counts and tells by `cuFileGetStats`, in the layout of its version.

use std::collections::BTreeMap;

use crate::settings::Route;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counter {
    ok: u64,
    err: u64,
}

impl Counter {
    pub(crate) fn count(&mut self, is_ok: bool) {
        if is_ok {
            self.ok += 1;
        } else {
            self.err += 1;
        }
    }

    fn words(self) -> [u64; 2] {
        [self.ok, self.err]
    }
}

/// One direction of one GPU.
#[derive(Clone, Copy, Debug, Default)]
struct Pieces {
    bytes: u64,
    p2pdma: u64,
    nvidia_fs: u64,
    posix: u64,
    unaligned: u64,
    errors: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Gpu {
    read: Pieces,
    write: Pieces,
    registered: Counter,
    deregistered: u64,
    registered_bytes: u64,
}

/// One direction of the calls of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    ops: Counter,
    bytes: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Stats {
    calls: [Calls; 2],
    vectored: [Calls; 2],
    batched: [u64; 2],
    pub(crate) handle_registers: Counter,
    pub(crate) handle_deregisters: Counter,
    buf_registers: Counter,
    buf_deregisters: Counter,
    pub(crate) batch_submits: Counter,
    gpus: BTreeMap<i32, Gpu>,
}

/// What one piece of a request was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) device: Option<i32>,
    pub(crate) write: bool,
    pub(crate) route: Route,
    pub(crate) aligned: bool,
    /// Bytes, or that it failed.
    pub(crate) bytes: Option<usize>,
}

/// The kind of call that a request came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Call,
    Vector,
    Stream,
    Batch,
}

impl Stats {
    pub(crate) fn count_call(&mut self, by: By, write: bool, bytes: Option<usize>) {
        let calls = match by {
            By::Call | By::Stream => &mut self.calls,
            By::Vector => &mut self.vectored,
            By::Batch => {
                self.batched[usize::from(write)] += bytes.unwrap_or(0) as u64;
                return;
            }
        };
        let calls = &mut calls[usize::from(write)];
        calls.ops.count(bytes.is_some());
        calls.bytes += bytes.unwrap_or(0) as u64;
    }

    pub(crate) fn count_piece(&mut self, piece: &Piece) {
        // Requests on host memory have no GPU to be counted at.
        let Some(device) = piece.device else { return };
        let gpu = self.gpus.entry(device).or_default();
        let pieces = if piece.write {
            &mut gpu.write
        } else {
            &mut gpu.read
        };
        let Some(bytes) = piece.bytes else {
            pieces.errors += 1;
            return;
        };
        pieces.bytes += bytes as u64;
        pieces.unaligned += u64::from(!piece.aligned);
        match piece.route {
            Route::Posix => pieces.posix += 1,
            Route::NvidiaFs => pieces.nvidia_fs += 1,
            Route::P2pdma => pieces.p2pdma += 1,
        }
    }

    /// A buffer that was to be registered.
    pub(crate) fn count_buffer(&mut self, device: Option<i32>, is_ok: bool, len: usize) {
        self.buf_registers.count(is_ok);
        if let Some(device) = device {
            let gpu = self.gpus.entry(device).or_default();
            gpu.registered.count(is_ok);
            gpu.registered_bytes += if is_ok { len as u64 } else { 0 };
        }
    }

    pub(crate) fn count_buffer_end(&mut self, device: Option<i32>, is_ok: bool) {
        self.buf_deregisters.count(is_ok);
        if let (Some(device), true) = (device, is_ok) {
            self.gpus.entry(device).or_default().deregistered += 1;
        }
    }

    /// Pieces by path, over all GPUs: nvidia-fs, P2PDMA, POSIX.
    pub(crate) fn by_path(&self) -> [u64; 3] {
        let all = self.gpus.values().flat_map(|gpu| [gpu.read, gpu.write]);
        all.fold([0; 3], |[a, b, c], one| {
            [a + one.nvidia_fs, b + one.p2pdma, c + one.posix]
        })
    }

    pub(crate) fn level1(&self, version: i32) -> Vec<u64> {
        let mut words = Vec::with_capacity(78);
        let [read, write] = self.calls;
        for counter in [
            read.ops,
            write.ops,
            self.handle_registers,
            self.handle_deregisters,
            self.buf_registers,
            self.buf_deregisters,
        ] {
            words.extend(counter.words());
        }
        words.extend([read.bytes, write.bytes]);
        // Bandwidths, latencies and rates, which nothing is simulated of.
        words.resize(22, 0);
        // Of batches, only that and the bytes.
        words.extend(self.batch_submits.words());
        words.resize(22 + 30, 0);
        words.extend(self.batched);
        words.resize(64, 0);
        if version >= 1190 {
            let [read, write] = self.vectored;
            words.extend(read.ops.words());
            words.extend(write.ops.words());
            words.extend([read.bytes, write.bytes]);
            words.resize(78, 0);
        }
        words
    }

    /// Level 1, and two histograms of sizes, which stay empty.
    pub(crate) fn level2(&self, version: i32) -> Vec<u64> {
        let mut words = self.level1(version);
        words.resize(words.len() + 64, 0);
        words
    }

    pub(crate) fn level3(&self, version: i32) -> Vec<u64> {
        const GPUS_MAX: usize = 16;
        const GPU_WORDS: usize = 31;
        let mut words = self.level2(version);
        let count = self.gpus.len().min(GPUS_MAX);
        // A number of 32 bits in the first half of the word, in either byte order.
        let count = u32::try_from(count).unwrap_or(0).to_ne_bytes();
        words.push(u64::from_ne_bytes([
            count[0], count[1], count[2], count[3], 0, 0, 0, 0,
        ]));
        let end = words.len() + GPUS_MAX * GPU_WORDS;
        for (ordinal, gpu) in self.gpus.iter().take(GPUS_MAX) {
            words.extend(gpu.words(*ordinal));
        }
        words.resize(end, 0);
        words
    }
}

impl Gpu {
    fn words(&self, ordinal: i32) -> Vec<u64> {
        let uuid = format!("SIMULATED GPU {ordinal:02}");
        let mut words: Vec<u64> = uuid
            .as_bytes()
            .chunks_exact(8)
            .map(|half| {
                half.iter()
                    .rev()
                    .fold(0, |word, byte| word << 8 | u64::from(*byte))
            })
            .map(|word: u64| u64::from_ne_bytes(word.to_le_bytes()))
            .collect();
        let total = |pieces: &Pieces| pieces.p2pdma + pieces.nvidia_fs + pieces.posix;
        let of = |pieces: &Pieces| {
            let by_path = [pieces.p2pdma, pieces.nvidia_fs, pieces.posix];
            let mut words = vec![pieces.bytes, 0, 0, 0, total(pieces)];
            words.extend(by_path);
            words.push(pieces.unaligned);
            words
        };
        words.extend(of(&self.read));
        // Routed over another GPU, sparse, inline.
        words.extend([0, 0, 0, self.read.errors]);
        words.extend(of(&self.write));
        words.extend([0, self.write.errors]);
        let [ok, err] = self.registered.words();
        words.extend([ok + err, ok, err, self.deregistered, self.registered_bytes]);
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_size_of_the_version() {
        let mut stats = Stats::default();
        stats.gpus.insert(0, Gpu::default());
        let bytes = |words: Vec<u64>| 8 * words.len();
        for (version, sizes) in [(1150, [512, 1024, 5000]), (1190, [624, 1136, 5112])] {
            assert_eq!(bytes(stats.level1(version)), sizes[0]);
            assert_eq!(bytes(stats.level2(version)), sizes[1]);
            assert_eq!(bytes(stats.level3(version)), sizes[2]);
        }
        assert_eq!(bytes(Gpu::default().words(3)), 248);
    }
}
