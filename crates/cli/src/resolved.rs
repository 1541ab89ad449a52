//! What the typed options come to: settings the library takes, and the windows of one file.

use std::time::Duration;

use tokio_cufile::{CacheMode, CompatMode, Config, IoEngine, PathClass};

use crate::args::{Cache, Compat, Device, Io, TransferArgs};

/// Windows are cut at multiples of this, so that all but the first begin where direct I/O can.
const WINDOW_GRAIN: u64 = 4096;
/// Two halves of one grain each.
const WINDOW_MIN: u64 = 2 * WINDOW_GRAIN;
pub(crate) const WINDOW_DEFAULT: u64 = 1 << 30;
/// For a file that reports no length, such as those of procfs.
const WINDOW_UNSIZED: u64 = 1 << 20;
/// The largest file position there is.
const POSITION_MAX: u64 = i64::MAX as u64;

/// An option that this build cannot honour, or a value out of range: wrong usage.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) String);

/// The options of both directions, as the library takes them. `None` leaves the engine's setting.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) compat_mode: Option<CompatMode>,
    pub(crate) io: Option<IoEngine>,
    pub(crate) cache: Option<CacheMode>,
    pub(crate) task_size: Option<usize>,
    pub(crate) require: Option<PathClass>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) window: Option<u64>,
    pub(crate) device: Device,
    pub(crate) json: bool,
}

impl TryFrom<&TransferArgs> for Settings {
    type Error = Refused;

    fn try_from(args: &TransferArgs) -> Result<Self, Refused> {
        if args.window.is_some_and(|window| window < WINDOW_MIN) {
            return Err(Refused(format!("--window: at least {WINDOW_MIN} bytes")));
        }
        let task_size = args
            .task_size
            .map(usize::try_from)
            .transpose()
            .map_err(|_| Refused("--task-size: more than this machine can address".into()))?;
        Ok(Self {
            compat_mode: args.compat_mode.map(|mode| match mode {
                Compat::Auto => CompatMode::Auto,
                Compat::On => CompatMode::On,
                Compat::Off => CompatMode::Off,
            }),
            io: args.io.map(|io| match io {
                Io::Auto => IoEngine::Auto,
                Io::Uring => IoEngine::Uring,
                Io::Pool => IoEngine::Pool,
            }),
            cache: args.cache.map(|cache| match cache {
                Cache::Auto => CacheMode::Auto,
                Cache::Direct => CacheMode::Direct,
                Cache::Cached => CacheMode::Cached,
            }),
            task_size,
            require: args.require,
            deadline: args.deadline,
            window: args.window,
            device: args.device,
            json: args.json,
        })
    }
}

impl Settings {
    /// `config`, changed by what was typed.
    pub(crate) fn over(&self, mut config: Config) -> Config {
        config.compat_mode = self.compat_mode.unwrap_or(config.compat_mode);
        config.io = self.io.unwrap_or(config.io);
        config.cache = self.cache.unwrap_or(config.cache);
        if let Some(task_size) = self.task_size {
            config.task_size = task_size;
            // Whoever asks for large parts means them to fit, and to overlap.
            config.budget = config.budget.max(task_size.saturating_mul(2));
        }
        config
    }
}

/// The bytes of one file that are to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) offset: u64,
    /// How many bytes are expected. An upper bound where `sized` is false.
    pub(crate) length: u64,
    /// Whether the file reported a length at all.
    pub(crate) sized: bool,
}

impl Range {
    /// The part of `[offset, offset + asked)` that a file of `file_length` bytes has.
    ///
    /// `Err` is the reason why no file can have the range.
    pub(crate) fn of_file(
        offset: u64,
        asked: Option<u64>,
        file_length: u64,
    ) -> Result<Self, &'static str> {
        let room = POSITION_MAX
            .checked_sub(offset)
            .ok_or("the offset is beyond the largest file position, 2^63 - 1")?;
        if asked.is_some_and(|asked| asked > room) {
            return Err("offset + length is beyond the largest file position, 2^63 - 1");
        }
        // A length of 0 may mean "unknown": only reading tells.
        let sized = file_length > 0;
        let there = if sized {
            file_length.saturating_sub(offset)
        } else {
            room
        };
        Ok(Self {
            offset,
            length: asked.unwrap_or(there).min(there),
            sized,
        })
    }
}

/// What to say about a file that did not end where it was expected to; `None` when it did.
///
/// `asked` is `--length`; `moved` bytes were read; the file's length was `before` when it was
/// opened and `after` afterwards.
pub(crate) fn end_note(
    range: Range,
    asked: Option<u64>,
    moved: u64,
    before: u64,
    after: u64,
) -> Option<String> {
    let end = range.offset + moved;
    if range.sized && moved < range.length {
        let missing = range.length - moved;
        return Some(format!(
            "the file was truncated while it was read: it ended at {end}, {missing} bytes early"
        ));
    }
    if let Some(asked) = asked {
        return (moved < asked).then(|| {
            format!(
                "the file ended at {end}, {} bytes short of --length",
                asked - moved
            )
        });
    }
    if range.sized && range.offset > before {
        return Some(format!(
            "the offset is beyond the end of the file, {before}"
        ));
    }
    (range.sized && after > before).then(|| {
        format!("the file grew from {before} to {after} bytes while it was read: read to {end}")
    })
}

/// The memory that a range goes through, and how it is cut to fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    range: Range,
    /// Bytes of destination memory, all buffers together.
    pub(crate) window: u64,
    pub(crate) buffers: u64,
    /// Bytes of one buffer, and the most that one request moves.
    pub(crate) buffer_size: u64,
}

impl Windows {
    /// `overlap` asks for two half windows where one does not hold the range, so that the bytes
    /// in one can be worked on while the other is in flight.
    pub(crate) fn new(
        range: Range,
        asked: Option<u64>,
        memory_available: Option<u64>,
        overlap: bool,
    ) -> Self {
        let most = asked.unwrap_or_else(|| {
            let half_free = memory_available.map_or(WINDOW_DEFAULT, |bytes| bytes / 2);
            if range.length <= half_free {
                range.length
            } else {
                WINDOW_DEFAULT.min(half_free)
            }
        });
        let most = if range.sized {
            most
        } else {
            most.min(WINDOW_UNSIZED)
        };
        if range.length <= most {
            let window = range.length;
            return Self {
                range,
                window,
                buffers: 1,
                buffer_size: window,
            };
        }
        let buffers = if overlap { 2 } else { 1 };
        let buffer_size = (most.max(WINDOW_MIN) / buffers) / WINDOW_GRAIN * WINDOW_GRAIN;
        Self {
            range,
            window: buffer_size * buffers,
            buffers,
            buffer_size,
        }
    }

    /// Offset and length of every request, in order.
    ///
    /// An empty range is one request for no bytes, which meets every check that others meet.
    pub(crate) fn pieces(self) -> impl Iterator<Item = (u64, u64)> {
        let Range { offset, length, .. } = self.range;
        // A short first piece brings an unaligned range into line.
        let head = if length <= self.buffer_size {
            0
        } else {
            offset % WINDOW_GRAIN
        };
        let first = length.min(self.buffer_size - head);
        let (mut next, end) = (offset + first, offset + length);
        std::iter::once((offset, first)).chain(std::iter::from_fn(move || {
            let piece = (next, (end - next).min(self.buffer_size));
            next += piece.1;
            (piece.1 > 0).then_some(piece)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn range(offset: u64, length: u64) -> Range {
        Range {
            offset,
            length,
            sized: true,
        }
    }

    fn assert_pieces_tile(windows: Windows, range: Range) {
        let mut next = range.offset;
        for (offset, length) in windows.pieces() {
            assert_eq!(offset, next);
            assert!(length <= windows.buffer_size);
            assert!(length > 0 || range.length == 0);
            next += length;
        }
        assert_eq!(next, range.offset + range.length);
    }

    #[test]
    fn a_range_ends_where_the_file_does() {
        assert_eq!(Range::of_file(0, None, 10), Ok(range(0, 10)));
        assert_eq!(Range::of_file(4, None, 10), Ok(range(4, 6)));
        assert_eq!(Range::of_file(4, Some(3), 10), Ok(range(4, 3)));
        assert_eq!(Range::of_file(4, Some(100), 10), Ok(range(4, 6)));
        assert_eq!(Range::of_file(10, None, 10), Ok(range(10, 0)));
        assert_eq!(Range::of_file(11, Some(5), 10), Ok(range(11, 0)));
        assert_eq!(Range::of_file(3, Some(0), 10), Ok(range(3, 0)));
    }

    #[test]
    fn a_range_beyond_every_file_is_refused() {
        assert!(Range::of_file(u64::MAX, None, 10).is_err());
        assert!(Range::of_file(POSITION_MAX, Some(1), 10).is_err());
        assert!(Range::of_file(1, Some(u64::MAX), 10).is_err());
        assert_eq!(
            Range::of_file(POSITION_MAX, None, 10),
            Ok(range(POSITION_MAX, 0))
        );
    }

    #[test]
    fn a_file_without_a_length_is_read_to_its_end() {
        let whole = Range::of_file(0, None, 0).unwrap();
        assert_eq!(
            whole,
            Range {
                offset: 0,
                length: POSITION_MAX,
                sized: false
            }
        );
        let windows = Windows::new(whole, None, Some(64 * GIB), true);
        assert_eq!(windows.window, WINDOW_UNSIZED);
        assert_eq!(Range::of_file(0, Some(5), 0).unwrap().length, 5);
    }

    #[test]
    fn a_file_that_ends_elsewhere_is_noted() {
        let note = |range, asked, moved, before, after| {
            end_note(range, asked, moved, before, after).unwrap_or_default()
        };
        assert_eq!(note(range(0, 10), None, 10, 10, 10), "");
        assert_eq!(note(range(2, 8), Some(8), 8, 10, 10), "");
        assert!(note(range(2, 8), None, 5, 10, 7).contains("truncated"));
        assert!(note(range(2, 8), None, 8, 10, 12).contains("grew from 10 to 12"));
        assert!(note(range(2, 8), Some(20), 8, 10, 10).contains("12 bytes short"));
        assert!(note(range(11, 0), None, 0, 10, 10).contains("beyond the end"));
        let unsized_range = Range {
            offset: 0,
            length: POSITION_MAX,
            sized: false,
        };
        assert_eq!(note(unsized_range, None, 5, 0, 0), "");
    }

    #[test]
    fn the_default_window_is_the_range_or_a_gibibyte() {
        let window = |length, free| Windows::new(range(0, length), None, free, false).window;
        assert_eq!(window(5 * GIB, Some(10 * GIB)), 5 * GIB);
        assert_eq!(window(6 * GIB, Some(10 * GIB)), GIB);
        assert_eq!(
            window(6 * GIB, Some(GIB)),
            GIB / 2,
            "never above half of what is free"
        );
        assert_eq!(window(6 * GIB, None), GIB);
        assert_eq!(window(0, Some(GIB)), 0);
        assert_eq!(
            window(6 * GIB, Some(0)),
            WINDOW_MIN,
            "there is always some window"
        );
    }

    #[test]
    fn a_window_below_the_range_is_halved_only_for_overlap() {
        let over = Windows::new(range(0, 10 * MIB), Some(4 * MIB), None, true);
        assert_eq!(
            (over.buffers, over.buffer_size, over.window),
            (2, 2 * MIB, 4 * MIB)
        );
        let plain = Windows::new(range(0, 10 * MIB), Some(4 * MIB), None, false);
        assert_eq!(
            (plain.buffers, plain.buffer_size, plain.window),
            (1, 4 * MIB, 4 * MIB)
        );
        let odd = Windows::new(range(0, 10 * MIB), Some(WINDOW_MIN + 4097), None, true);
        assert_eq!((odd.buffer_size, odd.window), (4096, 8192));
    }

    #[test]
    fn pieces_tile_the_range_and_all_but_the_first_are_aligned() {
        for offset in [0, 1, 4095, 4096, 10_000] {
            for length in [0, 1, 4096, 8191, 8192, 8193, 100_000] {
                for (window, overlap) in [(8192, false), (8192, true), (MIB, true), (12_345, false)]
                {
                    let range = range(offset, length);
                    let windows = Windows::new(range, Some(window), None, overlap);
                    assert!(windows.window <= window, "{window} {windows:?}");
                    assert_pieces_tile(windows, range);
                    assert!(
                        windows
                            .pieces()
                            .skip(1)
                            .all(|(offset, _)| offset % 4096 == 0)
                    );
                }
            }
        }
    }
}
