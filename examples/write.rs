//! Writes a file durably: data, then its metadata, then the name.
//!
//! `cargo run --example write -- FILE`

use std::path::PathBuf;

use tokio_cufile::{AsyncCuFile, Engine};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = PathBuf::from(std::env::args_os().nth(1).ok_or("usage: write FILE")?);
    let engine = Engine::builder().build().await?;
    let file = AsyncCuFile::create(&engine, &path).await?;

    // Any number of writes may be in flight; the buffer comes back with each.
    let first = file.write_all_at(vec![1; 1 << 20], 0).start();
    let second = file.write_all_at(vec![2; 1 << 20], 1 << 20);
    let done = (first.await?, second.await?);
    println!("{:?}\n{:?}", done.0.receipt.paths, done.1.receipt.paths);

    // Waits for all of them, and says so if a dropped one was lost.
    file.sync_all().await?;
    file.close().await?;
    // A new name is durable when its directory is.
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    std::fs::File::open(directory.unwrap_or_else(|| ".".as_ref()))?.sync_all()?;
    Ok(())
}
