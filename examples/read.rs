//! Reads a whole file into memory and says which way its bytes went.
//!
//! `cargo run --example read -- FILE`

use tokio_cufile::{AsyncCuFile, Engine, HostBuffer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: read FILE")?;
    let engine = Engine::builder().build().await?;
    let file = AsyncCuFile::open(&engine, path).await?;
    println!("route: {}", file.route());

    let len = usize::try_from(file.len().await?)?;
    let done = file.read_at(HostBuffer::new(&engine, len)?, 0).await?;
    println!("{} bytes, {:?}", done.bytes, done.receipt);
    file.close().await?;
    Ok(())
}
