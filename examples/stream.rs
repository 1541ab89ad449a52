//! Copies a file chunk by chunk: reads run ahead, writes run behind, memory is bounded.
//!
//! `cargo run --example stream -- FROM TO`

use futures::{SinkExt, TryStreamExt};
use tokio_cufile::{AsyncCuFile, Engine};

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
    let mut writer = to.writer(0);
    while let Some(chunk) = chunks.try_next().await? {
        // Written from where it was read to; when that is done, the stream reads on into it.
        writer.feed(chunk).await?;
    }
    // Waits for every write, and makes the data durable.
    writer.close().await?;
    println!("{} bytes", writer.position());
    Ok(())
}
