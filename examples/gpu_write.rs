//! Writes the memory of a GPU to a file, durably.
//!
//! `cargo run --example gpu_write -- FILE`

use tokio_cufile::{AsyncCuFile, DeviceBuffer, Engine};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: gpu_write FILE")?;
    let engine = Engine::builder().build().await?;
    // Stands for what a kernel would have left there.
    let buf = DeviceBuffer::new(&engine, 0, 3 << 20).await?;
    let buf = buf.copy_from_host(&engine, 0, vec![7; 3 << 20]).await?;

    let file = AsyncCuFile::create(&engine, path).await?;
    let done = file.write_all_at(buf, 0).await?;
    println!("{} bytes, {:?}", done.bytes, done.receipt.paths);
    file.sync_all().await?;
    file.close().await?;
    Ok(())
}
