//! The same futures inside another runtime: tokio-uring, on one thread, with a ring of its own.
//!
//! `cargo run --example tokio_uring -- FILE`

use tokio_cufile::{AsyncCuFile, Engine};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os()
        .nth(1)
        .ok_or("usage: tokio_uring FILE")?;
    tokio_uring::start(async {
        let engine = Engine::builder().build().await?;
        let file = AsyncCuFile::open(&engine, path).await?;
        let done = file.read_at(vec![0; 1 << 20], 0).await?;
        println!("{} bytes, {:?}", done.bytes, done.receipt.paths);
        Ok(())
    })
}
