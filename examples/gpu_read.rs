//! Reads a file into the memory of a GPU, and says which way its bytes went.
//!
//! `cargo run --example gpu_read -- FILE [ORDINAL]`

use tokio_cufile::{AsyncCuFile, DeviceBuffer, Engine};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1);
    let path = args.next().ok_or("usage: gpu_read FILE [ORDINAL]")?;
    let ordinal = match args.next() {
        Some(text) => text.to_str().ok_or("no ordinal")?.parse()?,
        None => 0,
    };
    let engine = Engine::builder().build().await?;
    // Without CUDA this is an error that says what was looked for; nothing panics.
    let devices = engine.devices().await?;
    let device = devices.iter().find(|device| device.ordinal == ordinal);
    println!("into {}", device.ok_or("no such device")?.name);

    let file = AsyncCuFile::open(&engine, path).await?;
    let len = usize::try_from(file.len().await?)?;
    let buf = DeviceBuffer::new(&engine, ordinal, len).await?;
    let done = file.read_at(buf, 0).await?;
    // From here on a kernel of any stream finds the bytes there.
    println!("{} bytes at {:#x}", done.bytes, done.buf.address());
    println!("{:?}", done.receipt);
    Ok(())
}
