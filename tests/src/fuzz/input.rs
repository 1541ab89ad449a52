//! What bytes of a fuzzer mean: settings, and a list of operations.

use arbitrary::{Arbitrary, Unstructured};

/// A file is no longer.
pub(super) const LEN_MAX: usize = 40 << 10;
/// Operations of one input at most.
const STEPS_MAX: usize = 40;

/// The settings of the engine.
#[derive(Clone, Copy, Debug, Arbitrary)]
pub(super) struct Settings {
    pub(super) ring: bool,
    pub(super) cached: bool,
    pub(super) large_parts: bool,
    pub(super) many_threads: bool,
}

/// What becomes of an operation's future.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Arbitrary)]
pub(super) enum Fate {
    /// Awaited at once.
    Await,
    /// Begun, and left under way.
    Keep,
    /// Dropped before it was polled.
    DropUnpolled,
    /// Begun and dropped.
    Drop,
    /// Begun, cancelled and awaited.
    Cancel,
    /// Awaited, with a deadline so many microseconds ahead.
    Deadline(u8),
}

/// Bytes of the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) offset: usize,
    pub(super) len: usize,
}

impl<'a> Arbitrary<'a> for Span {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let number = |bytes: &mut Unstructured<'a>| -> arbitrary::Result<usize> {
            let max = LEN_MAX / 2;
            let raw = usize::from(bytes.arbitrary::<u16>()?) % max;
            // Near the edges that alignment makes, or anywhere.
            Ok(match bytes.int_in_range(0..=3)? {
                0 => raw,
                1 => raw / 4096 * 4096,
                2 => raw / 512 * 512 + 1,
                _ => (raw / 4096 * 4096).saturating_sub(1),
            })
        };
        Ok(Self {
            offset: number(bytes)?,
            len: number(bytes)?,
        })
    }
}

impl Span {
    pub(super) const fn end(self) -> usize {
        self.offset + self.len
    }

    pub(super) const fn overlaps(self, other: Self) -> bool {
        self.offset < other.end() && other.offset < self.end()
    }
}

/// One operation.
#[derive(Clone, Debug, Arbitrary)]
pub(super) enum Step {
    /// From a `Vec`, or in a buffer of pages.
    Read(bool, Span, Fate),
    /// Likewise.
    Write(bool, Span, Fate),
    Ranges([Span; 3], Fate),
    Sync,
    /// Dropped when it was begun.
    DropSync,
    SetLen(u16),
    DropCache,
    Len,
    /// One of those under way is awaited, dropped, or cancelled and awaited.
    Await(u8),
    DropKept(u8),
    CancelKept(u8),
    /// The file is closed and opened again.
    Close,
    /// The file is dropped and opened again.
    Reopen,
    /// The engine is shut down; another takes its place.
    Shutdown,
}

/// A whole input.
#[derive(Clone, Debug)]
pub(super) struct Input {
    pub(super) settings: Settings,
    pub(super) steps: Vec<Step>,
}

impl Input {
    /// Any bytes are an input; where they end, so does the list.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut bytes = Unstructured::new(bytes);
        let settings = bytes.arbitrary().unwrap_or(Settings {
            ring: false,
            cached: false,
            large_parts: false,
            many_threads: false,
        });
        let mut steps = Vec::new();
        while !bytes.is_empty() && steps.len() < STEPS_MAX {
            let Ok(step) = bytes.arbitrary() else {
                break;
            };
            steps.push(step);
        }
        Self { settings, steps }
    }
}
