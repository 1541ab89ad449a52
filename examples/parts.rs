//! Reads one file into one buffer by many reads at once: exclusive parts of it, each awaited by a
//! task of its own.
//!
//! `cargo run --example parts -- FILE`

use std::sync::Arc;

use tokio_cufile::{AsyncCuFile, Engine, HostBuffer};

const PARTS: usize = 8;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: parts FILE")?;
    let engine = Engine::builder().build().await?;
    let file = Arc::new(AsyncCuFile::open(&engine, path).await?);
    let len = usize::try_from(file.len().await?)?;
    let mut buf = HostBuffer::new(&engine, len)?;

    // Whole pages, so that every part can be read in place.
    let step = len.div_ceil(PARTS).max(1).next_multiple_of(4096);
    let mut tasks = Vec::new();
    for start in (0..len).step_by(step) {
        let part = buf.part(start..len.min(start + step))?;
        let file = Arc::clone(&file);
        tasks.push(tokio::spawn(async move {
            let done = file.read_exact_at(part, start as u64).await?;
            Ok::<_, tokio_cufile::Error>(done.receipt)
        }));
    }
    for task in tasks {
        println!("{:?}", task.await??.paths);
    }
    // Every part came home with its task.
    buf.idle().await;
    println!("{} bytes, the first: {:?}", len, buf.as_slice()?.first());
    Ok(())
}
