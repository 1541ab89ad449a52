//! Three ways to stop waiting: a cancel handle and a deadline give the buffer back, a drop does not.
//!
//! `cargo run --example cancel -- FILE`

use std::time::{Duration, Instant};

use tokio_cufile::{AsyncCuFile, Engine, ErrorKind, HostBuffer, Priority};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: cancel FILE")?;
    let engine = Engine::builder().build().await?;
    let file = AsyncCuFile::open(&engine, path).await?;
    let buf = HostBuffer::new(&engine, 64 << 20)?;

    let read = file.read_at(buf, 0).priority(Priority::Bulk).start();
    read.cancel_handle().cancel();
    let buf = match read.await {
        Ok(done) => {
            println!("the cancel came too late: {} bytes", done.bytes);
            done.buf
        }
        Err(error) => {
            println!("{error}; {} bytes had arrived", error.bytes_done());
            let (error, buf) = error.into_parts();
            assert_eq!(error.kind(), ErrorKind::Cancelled);
            buf.ok_or("only a quarantined operation keeps its buffer")?
        }
    };

    let deadline = Instant::now() + Duration::from_secs(5);
    let done = file.read_at(buf, 0).deadline(deadline).await?;
    println!("{} bytes before the deadline", done.bytes);

    // Whoever cannot wait drops the future: the buffer is released when the disk is done with it.
    drop(file.read_at(done.buf, 0).start());
    println!("{:?}", engine.shutdown().await);
    Ok(())
}
