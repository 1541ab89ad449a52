//! Writes what a stream is still computing: the write waits for an event of the stream, and takes
//! neither a permit nor a staging slot before.
//!
//! `cargo run --example after_event -- FILE`
#![allow(
    unsafe_code,
    reason = "an event is recorded in a stream that CUDA knows by address only"
)]

use std::ptr;
use std::sync::Arc;

use tokio_cufile::{AsyncCuFile, CudaEvent, DeviceBuffer, Engine};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os()
        .nth(1)
        .ok_or("usage: after_event FILE")?;
    let engine = Engine::builder().build().await?;
    let buf = DeviceBuffer::new(&engine, 0, 1 << 20).await?;
    let buf = buf.copy_from_host(&engine, 0, vec![7; 1 << 20]).await?;

    // The legacy default stream; yours comes from the CUDA runtime as a `CUstream`. (For cudarc's
    // streams `CudaEvent::of_stream` needs no unsafe code.) Launch the kernels that fill
    // `buf.address()` in it, then record the event.
    let stream = ptr::null_mut();
    // SAFETY: null names the default stream of the device's primary context, which always lives.
    let event = unsafe { CudaEvent::record(&engine, 0, stream) }.await?;

    let file = AsyncCuFile::create(&engine, path).await?;
    let done = file.write_all_at(buf, 0).after(Arc::new(event)).await?;
    println!("{} bytes, {:?}", done.bytes, done.receipt.paths);
    file.sync_all().await?;
    Ok(())
}
