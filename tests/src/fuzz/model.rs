//! What a file may hold, byte by byte, while writes are under way, stopped and dropped.

use super::input::Span;

/// What one byte may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Byte {
    Is(u8),
    Either(u8, u8),
    Any,
}

impl Byte {
    pub(super) fn may_be(self, found: u8) -> bool {
        match self {
            Self::Is(byte) => byte == found,
            Self::Either(one, two) => [one, two].contains(&found),
            Self::Any => true,
        }
    }

    pub(super) fn or(self, other: u8) -> Self {
        match self {
            Self::Is(byte) if byte != other => Self::Either(byte, other),
            Self::Either(one, two) if ![one, two].contains(&other) => Self::Any,
            same => same,
        }
    }
}

/// A write under way, or dropped and perhaps still so.
#[derive(Debug)]
struct Live {
    id: usize,
    span: Span,
    /// Bytes that another one wrote meanwhile: which was last is not known.
    contested: Vec<bool>,
}

/// The file.
#[derive(Debug, Default)]
pub(super) struct Model {
    bytes: Vec<Byte>,
    live: Vec<Live>,
    writes: usize,
}

impl Model {
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// What a read may find.
    pub(super) fn slice(&self, span: Span) -> Vec<Byte> {
        let end = span.end().min(self.bytes.len());
        self.bytes[span.offset.min(end)..end].to_vec()
    }

    /// A write begins, inside the file. Its name.
    pub(super) fn begin(&mut self, span: Span, content: &[u8]) -> usize {
        let mut contested = vec![false; span.len];
        for other in &mut self.live {
            let both = span.offset.max(other.span.offset)..span.end().min(other.span.end());
            for at in both {
                contested[at - span.offset] = true;
                other.contested[at - other.span.offset] = true;
            }
        }
        let written = &mut self.bytes[span.offset..span.end()];
        for (byte, &new) in written.iter_mut().zip(content) {
            *byte = byte.or(new);
        }
        self.writes += 1;
        self.live.push(Live {
            id: self.writes,
            span,
            contested,
        });
        self.writes
    }

    /// It has ended, with its first `done` bytes written for sure.
    pub(super) fn end(&mut self, id: usize, done: usize, content: &[u8]) {
        let place = self.live.iter().position(|live| live.id == id);
        let live = self.live.swap_remove(place.expect("it was begun"));
        for (index, &new) in content.iter().enumerate().take(done) {
            if !live.contested[index] {
                self.bytes[live.span.offset + index] = Byte::Is(new);
            }
        }
    }

    /// Whether none is under way that anybody knows of.
    pub(super) fn is_quiet(&self) -> bool {
        self.live.is_empty()
    }

    /// All that were dropped have ended, except those.
    pub(super) fn quiet_but(&mut self, kept: &[usize]) {
        self.live.retain(|live| kept.contains(&live.id));
    }

    /// The file was cut or extended with zeros. Nothing is under way.
    pub(super) fn set_len(&mut self, len: usize) {
        debug_assert!(self.is_quiet());
        self.bytes.resize(len, Byte::Is(0));
    }

    /// The first byte of `found` that cannot be, when they are the file's.
    pub(super) fn check(allowed: &[Byte], found: &[u8]) -> Result<(), String> {
        if allowed.len() != found.len() {
            let (found, wanted) = (found.len(), allowed.len());
            return Err(format!("{found} bytes instead of {wanted}"));
        }
        let wrong = allowed.iter().zip(found);
        let wrong = wrong
            .enumerate()
            .find(|(_, (byte, found))| !byte.may_be(**found));
        match wrong {
            None => Ok(()),
            Some((at, (byte, found))) => Err(format!("byte {at} is {found:#04x}, not {byte:x?}")),
        }
    }
}
