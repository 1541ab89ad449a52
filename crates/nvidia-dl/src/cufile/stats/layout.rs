//! Where each count lies in what the library writes. Pure.

use super::super::version::Version;
use super::{
    BatchStats, Counter, GpuStats, PathCounts, StatsL1, StatsL2, StatsL3, Traffic, VectorStats,
};

/// 8 KiB; the largest structure known has 5112 bytes.
pub(super) const WORDS: usize = 1024;
pub(super) const HISTOGRAM: usize = 32;
const GPUS_MAX: usize = 16;
const GPU_WORDS: usize = 31;

/// Where things lie, in words of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    /// Level 1's own length.
    basic: usize,
    has_vectored: bool,
}

impl Layout {
    fn of(version: Version) -> Self {
        let has_vectored = version >= Version(1190);
        let basic = if has_vectored { 78 } else { 64 };
        Self {
            basic,
            has_vectored,
        }
    }
}

/// What the library wrote.
pub(super) struct Raw {
    words: Box<[u64; WORDS]>,
    layout: Layout,
}

impl Raw {
    pub(super) fn new(words: Box<[u64; WORDS]>, version: Version) -> Self {
        Self {
            words,
            layout: Layout::of(version),
        }
    }

    fn word(&self, at: usize) -> u64 {
        self.words.get(at).copied().unwrap_or(0)
    }

    fn counter(&self, at: usize) -> Counter {
        Counter {
            ok: self.word(at),
            err: self.word(at + 1),
        }
    }

    /// Reads, or writes one word further on: of a counter, and of five pairs of words.
    fn traffic(&self, ops: usize, pairs: usize) -> Traffic {
        Traffic {
            ops: self.counter(ops),
            bytes: self.word(pairs),
            bandwidth: self.word(pairs + 2),
            latency_us: self.word(pairs + 4),
            ops_per_second: self.word(pairs + 6),
            latency_sum_us: self.word(pairs + 8),
        }
    }

    pub(super) fn level1(&self) -> StatsL1 {
        StatsL1 {
            reads: self.traffic(0, 12),
            writes: self.traffic(2, 13),
            handle_registers: self.counter(4),
            handle_deregisters: self.counter(6),
            buf_registers: self.counter(8),
            buf_deregisters: self.counter(10),
            batch: self.batch(22),
            vectored: self.layout.has_vectored.then(|| VectorStats {
                reads: self.traffic(64, 68),
                writes: self.traffic(66, 69),
            }),
        }
    }

    /// 15 counters, and 12 totals.
    fn batch(&self, at: usize) -> BatchStats {
        let counter = |place: usize| self.counter(at + 2 * place);
        BatchStats {
            submits: counter(0),
            completes: counter(1),
            nvidia_fs_submits: counter(9),
            p2pdma_submits: counter(10),
            aio_submits: counter(11),
            io_uring_submits: counter(12),
            mixed_submits: counter(13),
            read_bytes: self.word(at + 30),
            write_bytes: self.word(at + 31),
        }
    }

    pub(super) fn level2(&self) -> StatsL2 {
        let histogram =
            |at: usize| std::array::from_fn(|bar| self.word(self.layout.basic + at + bar));
        StatsL2 {
            basic: self.level1(),
            read_sizes: histogram(0),
            write_sizes: histogram(HISTOGRAM),
        }
    }

    pub(super) fn level3(&self) -> StatsL3 {
        let at = self.layout.basic + 2 * HISTOGRAM;
        // The first half of the word.
        let [a, b, c, d, ..] = self.word(at).to_ne_bytes();
        let count = usize::try_from(u32::from_ne_bytes([a, b, c, d])).unwrap_or(0);
        let gpu = |place: usize| self.gpu(at + 1 + place * GPU_WORDS);
        StatsL3 {
            detailed: self.level2(),
            gpus: (0..count.min(GPUS_MAX)).map(gpu).collect(),
        }
    }

    fn gpu(&self, at: usize) -> GpuStats {
        let word = |place: usize| self.word(at + place);
        let paths = |first: usize| PathCounts {
            p2pdma: word(first),
            nvidia_fs: word(first + 1),
            posix: word(first + 2),
        };
        let mut uuid = [0; 16];
        let (first, second) = uuid.split_at_mut(8);
        first.copy_from_slice(&word(0).to_ne_bytes());
        second.copy_from_slice(&word(1).to_ne_bytes());
        GpuStats {
            uuid,
            read_bytes: word(2),
            reads: word(6),
            reads_by_path: paths(7),
            reads_unaligned: word(10),
            reads_routed: word(11),
            read_errors: word(14),
            write_bytes: word(15),
            writes: word(19),
            writes_by_path: paths(20),
            writes_unaligned: word(23),
            writes_routed: word(24),
            write_errors: word(25),
            buf_registers: Counter {
                ok: word(27),
                err: word(28),
            },
            buf_deregisters: word(29),
            buf_registered_bytes: word(30),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every word has its own byte offset as value, but for the count of GPUs.
    fn numbered(version: i32, gpus: u64) -> Raw {
        let layout = Layout::of(Version(version));
        let mut words = Box::new([0; WORDS]);
        for (place, word) in words.iter_mut().enumerate() {
            *word = 8 * place as u64;
        }
        words[layout.basic + 2 * HISTOGRAM] = gpus;
        Raw { words, layout }
    }

    const BOTH: [(i32, u64); 4] = [(1150, 512), (1180, 512), (1190, 624), (1200, 624)];

    #[test]
    fn level_1_lies_where_the_headers_have_it() {
        for (version, _) in BOTH {
            let stats = numbered(version, 0).level1();
            let ok = |counter: Counter| {
                assert_eq!(counter.err, counter.ok + 8);
                counter.ok
            };
            let (reads, writes) = (stats.reads, stats.writes);
            assert_eq!((ok(reads.ops), ok(writes.ops)), (0, 16));
            assert_eq!(ok(stats.handle_registers), 32);
            assert_eq!(ok(stats.handle_deregisters), 48);
            assert_eq!(ok(stats.buf_registers), 64);
            assert_eq!(ok(stats.buf_deregisters), 80);
            assert_eq!((reads.bytes, writes.bytes), (96, 104));
            assert_eq!((reads.bandwidth, writes.bandwidth), (112, 120));
            assert_eq!((reads.latency_us, writes.latency_us), (128, 136));
            assert_eq!((reads.ops_per_second, writes.ops_per_second), (144, 152));
            assert_eq!((reads.latency_sum_us, writes.latency_sum_us), (160, 168));
            assert_eq!(
                (ok(stats.batch.submits), ok(stats.batch.completes)),
                (176, 192)
            );
            assert_eq!(ok(stats.batch.nvidia_fs_submits), 176 + 9 * 16);
            assert_eq!(ok(stats.batch.mixed_submits), 176 + 13 * 16);
            assert_eq!(
                (stats.batch.read_bytes, stats.batch.write_bytes),
                (416, 424)
            );
        }
    }

    #[test]
    fn vectored_calls_are_counted_from_1_19_on() {
        assert_eq!(numbered(1180, 0).level1().vectored, None);
        let vectored = numbered(1190, 0).level1().vectored.unwrap();
        let (reads, writes) = (vectored.reads, vectored.writes);
        assert_eq!((reads.ops.ok, writes.ops.ok), (512, 528));
        assert_eq!((reads.bytes, writes.bytes), (544, 552));
        assert_eq!((reads.latency_sum_us, writes.latency_sum_us), (608, 616));
    }

    #[test]
    fn histograms_lie_behind_level_1() {
        for (version, basic) in BOTH {
            let stats = numbered(version, 0).level2();
            assert_eq!(stats.read_sizes[0], basic);
            assert_eq!(stats.read_sizes[31], basic + 31 * 8);
            assert_eq!(stats.write_sizes[0], basic + 256);
            assert_eq!(stats.write_sizes[31], basic + 256 + 31 * 8);
        }
    }

    #[test]
    fn each_gpu_has_248_bytes_behind_the_count() {
        for (version, basic) in BOTH {
            let stats = numbered(version, 2).level3();
            assert_eq!(stats.gpus.len(), 2);
            for (place, gpu) in (0..).zip(&stats.gpus) {
                let start = basic + 520 + place * 248;
                assert_eq!(gpu.uuid[..8], start.to_ne_bytes());
                assert_eq!(gpu.read_bytes, start + 16);
                assert_eq!(gpu.reads, start + 48);
                let reads = PathCounts {
                    p2pdma: start + 56,
                    nvidia_fs: start + 64,
                    posix: start + 72,
                };
                assert_eq!(gpu.reads_by_path, reads);
                assert_eq!(
                    (gpu.reads_unaligned, gpu.reads_routed),
                    (start + 80, start + 88)
                );
                assert_eq!(gpu.read_errors, start + 112);
                assert_eq!((gpu.write_bytes, gpu.writes), (start + 120, start + 152));
                let writes = PathCounts {
                    p2pdma: start + 160,
                    nvidia_fs: start + 168,
                    posix: start + 176,
                };
                assert_eq!(gpu.writes_by_path, writes);
                assert_eq!(
                    (gpu.writes_unaligned, gpu.writes_routed),
                    (start + 184, start + 192)
                );
                assert_eq!(gpu.write_errors, start + 200);
                assert_eq!(gpu.buf_registers.ok, start + 216);
                assert_eq!(gpu.buf_deregisters, start + 232);
                assert_eq!(gpu.buf_registered_bytes, start + 240);
            }
        }
    }

    /// A library of another layout than its version says must not make us read far beyond.
    #[test]
    fn a_count_of_gpus_that_cannot_be_is_cut() {
        assert_eq!(
            numbered(1200, u64::from(u32::MAX)).level3().gpus.len(),
            GPUS_MAX
        );
        let last = WORDS - 1;
        assert!(78 + 64 + 1 + GPUS_MAX * GPU_WORDS < last);
    }

    #[test]
    fn paths_are_added_up_over_gpus_and_told_as_differences() {
        let paths = |p2pdma, nvidia_fs, posix| PathCounts {
            p2pdma,
            nvidia_fs,
            posix,
        };
        let gpu = |reads_by_path| GpuStats {
            reads_by_path,
            ..GpuStats::default()
        };
        let stats = StatsL3 {
            gpus: vec![gpu(paths(1, 2, 3)), gpu(paths(10, 20, 30))],
            ..StatsL3::default()
        };
        assert_eq!(stats.reads_by_path(), paths(11, 22, 33));
        assert_eq!(stats.reads_by_path().total(), 66);
        assert_eq!(stats.writes_by_path(), paths(0, 0, 0));
        let more = paths(11, 25, 33).since(stats.reads_by_path());
        assert_eq!(more, paths(0, 3, 0));
        // Somebody has reset them.
        assert_eq!(paths(0, 4, 0).since(more), paths(0, 1, 0));
        assert_eq!(paths(0, 2, 0).since(more), paths(0, 2, 0));
    }
}
