//! Reads a file into a slice of cudarc's, has cudarc copy it on the device, and writes the copy.
//!
//! `cargo run --example cudarc --features cudarc -- FROM TO`

use cudarc::driver::CudaContext;
use tokio_cufile::{AsyncCuFile, Engine, LentSlice};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut paths = std::env::args_os().skip(1);
    let (Some(from), Some(to)) = (paths.next(), paths.next()) else {
        return Err("usage: cudarc FROM TO".into());
    };
    let engine = Engine::builder().build().await?;
    // Without CUDA this is an error, where cudarc would panic.
    let devices = engine.devices().await?;
    println!("on {}", devices.first().ok_or("no device")?.name);
    let stream = CudaContext::new(0)?.new_stream()?;

    let from = AsyncCuFile::open(&engine, from).await?;
    let len = usize::try_from(from.len().await?)?;
    // Its memset is only queued here. Operations on a lent slice wait for what is.
    let lent = LentSlice::new(&engine, stream.alloc_zeros::<u8>(len)?).await?;
    let done = from.read_exact_at(lent, 0).await?;
    println!("read {} bytes, {:?}", done.bytes, done.receipt.paths);

    let slice = done.buf.into_slice();
    let lent = LentSlice::new(&engine, stream.clone_dtod(&slice)?).await?;
    let to = AsyncCuFile::create(&engine, to).await?;
    let done = to.write_all_at(lent, 0).await?;
    println!("wrote {} bytes, {:?}", done.bytes, done.receipt.paths);
    to.sync_all().await?;
    Ok(())
}
