//! Reads many small pieces of a file, wherever they lie, in one operation.
//!
//! `cargo run --example ranges -- FILE`

use tokio_cufile::{AsyncCuFile, Engine, FileRange, HostBuffer, Ranges};

const PIECE: usize = 256;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: ranges FILE")?;
    let engine = Engine::builder().build().await?;
    let file = AsyncCuFile::open(&engine, path).await?;
    let len = file.len().await?;

    // The first bytes of every 4096, one behind the other in memory: rows of a table, say.
    let starts = (0..len.saturating_sub(PIECE as u64)).step_by(4096);
    let ranges: Vec<_> = (0..)
        .step_by(PIECE)
        .zip(starts.take(10_000))
        .map(|(buf_offset, file_offset)| FileRange {
            file_offset,
            len: PIECE,
            buf_offset,
        })
        .collect();
    let count = ranges.len();
    let buf = HostBuffer::new(&engine, count * PIECE)?;
    // Pieces at most 8 KiB apart share a request; what lies between them is read and dropped.
    let ranges = Ranges::new(ranges).gap_max(8 << 10);
    let done = file.read_ranges(buf, ranges).await?;
    let (bytes, parts) = (done.bytes, done.receipt.parts);
    println!("{count} ranges, {bytes} bytes, in {parts} requests");
    println!("by path: {:?}", done.receipt.paths);
    Ok(())
}
