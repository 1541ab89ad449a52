//! Files as streams: chunks in order, and the traits of tokio and futures.
//!
//! All of it is made of reads and writes that own their memory, so that dropping any of it at any
//! instant is as safe as dropping one of those.
//!
//! | module | concept |
//! |---|---|
//! | `chunks` | a bounded set of buffers, and one of them in the user's hands |
//! | `read_stream` | reads ahead, chunks in order |
//! | `reader` | `AsyncRead` over the chunks |
//! | `writes` | writes in flight, in order, with the first error kept |
//! | `writer` | `Sink` over them |
//! | `async_writer` | `AsyncWrite` over them |

mod async_writer;
mod chunks;
mod read_stream;
mod reader;
mod writer;
mod writes;

use std::ops::{Bound, RangeBounds};

pub use self::async_writer::AsyncFileWriter;
pub use self::chunks::Chunk;
pub use self::read_stream::ReadStream;
pub use self::reader::FileReader;
pub use self::writer::FileWriter;

use crate::file::AsyncCuFile;
use crate::memory::IoBuf;

/// What the page cache and direct I/O count in.
const PAGE_SIZE: usize = 4096;

/// Reads or writes in flight by default: enough to keep a disk busy while the user works on one
/// chunk, and of chunks of the default size a quarter of the default budget.
const IN_FLIGHT_DEFAULT: usize = 4;

/// Bytes that one call copies between the user's slice and a buffer at most: about 30 microseconds
/// of a runtime's thread (an estimate).
const COPY_MAX: usize = 256 << 10;

impl AsyncCuFile {
    /// The bytes of `range` (file offsets) as a stream of chunks in order, read ahead.
    ///
    /// Ends where the range or the file does. Chunks are [`task_size`](crate::Config::task_size)
    /// long and begin at multiples of it, but for the first and the last.
    pub fn read_stream(&self, range: impl RangeBounds<u64>) -> ReadStream {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => i64::MAX.cast_unsigned(),
        };
        ReadStream::new(self.face(), start, end)
    }

    /// The file from `offset` on for code that reads through [`tokio::io::AsyncRead`].
    pub fn reader(&self, offset: u64) -> FileReader {
        FileReader::new(self.read_stream(offset..))
    }

    /// A sink that writes buffers one behind the other, from `offset` on.
    pub fn writer<B: IoBuf>(&self, offset: u64) -> FileWriter<B> {
        FileWriter::new(self.face(), offset)
    }

    /// The file from `offset` on for code that writes through [`tokio::io::AsyncWrite`].
    pub fn async_writer(&self, offset: u64) -> AsyncFileWriter {
        AsyncFileWriter::new(self.face(), offset)
    }
}
