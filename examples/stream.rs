//! Copies a file chunk by chunk: reads run ahead, writes run behind, memory is bounded.
//!
//! `cargo run --example stream -- FROM TO`

use futures::{SinkExt, TryStreamExt};
use tokio_cufile::{AsyncCuFile, Engine, FileWriter};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut paths = std::env::args_os().skip(1);
    let (Some(from), Some(to)) = (paths.next(), paths.next()) else {
        return Err("usage: stream FROM TO".into());
    };
    let engine = Engine::builder().build().await?;
    let from = AsyncCuFile::open(&engine, from).await?;
    let to = AsyncCuFile::create(&engine, to).await?;

    let mut chunks = from.read_stream(..);
    let mut writer: FileWriter<Vec<u8>> = to.writer(0);
    while let Some(chunk) = chunks.try_next().await? {
        // The chunk's memory goes back to the stream when it is dropped; a write keeps its own.
        writer.feed(chunk.to_vec()).await?;
    }
    // Waits for every write, and makes the data durable.
    writer.close().await?;
    println!("{} bytes", writer.position());
    Ok(())
}
